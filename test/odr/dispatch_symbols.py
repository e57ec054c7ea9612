#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the kernels of each instruction set that a program chooses from. Those for newer processors may define
nothing but functions whose names have their instruction set, and their table: the linker could take anything else
for a function of the same name that the rest of the program calls on any processor.

usage: dispatch_symbols.py ARCHIVE...
"""

import re
import subprocess
import sys

TABLE = re.compile(r"_ZN8rankfold\d+v\d+8dispatch\d+kernels_(base|avx2|avx512)E$")
# rankfold::simd::target<xsimd's, extensions>: a template argument of a kernel
TARGET = re.compile(r"rankfold::v\w+::simd::target<([^()]*?), (\d+)u>")
PERSONALITY = "DW.ref.__gxx_personality_v0"  # of exceptions, in every object that has any


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


problems = []
owners = {}
for path in sys.argv[1:]:
    symbols = [line.split()[-2:] for line in run("nm", "--defined-only", path).splitlines() if " " in line]
    names = [name for kind, name in symbols if kind.isupper() or kind in "uvw"]
    tables = [match[1] for name in names if (match := TABLE.match(name))]
    if len(tables) != 1:
        sys.exit(f"{path} has the tables {tables}, expected one")
    plain = run("c++filt", *names).splitlines()
    targets = {match[2] for text in plain for match in TARGET.finditer(text)}
    for target in targets:
        if owners.setdefault(target, path) != path:
            problems.append(f"{path} and {owners[target]} have kernels of the same target, {target}")
    if tables != ["base"]:
        problems += [f"{path}: {text}" for name, text in zip(names, plain)
                     if not TARGET.search(text) and not TABLE.match(name) and name != PERSONALITY]
        if len(targets) != 1:
            problems.append(f"{path} has kernels of {len(targets)} targets, expected one: {targets}")
    print(f"{path}: {tables[0]}, {len(names)} symbols, target {', '.join(targets)}")
print("\n".join(problems))
sys.exit(1 if problems else 0)
