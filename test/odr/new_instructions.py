#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks into an object or archive compiled for AVX2: no kernel that the linker may merge with that
of another translation unit, and that does not carry the instruction set in its name, may contain
instructions that a plain x86-64 processor lacks. (Other code, the standard library's included, has
no such promise: compile only kernels for more than the oldest processor in use.)

Usage: new_instructions.py ARCHIVE...
"""

import re
import subprocess
import sys

NEW = re.compile(r"v[a-z]|[lt]zcnt|shlx|shrx|sarx|andn|bextr|rorx|pdep|pext|bzhi|mulx|movbe")
KERNEL = re.compile(r"_ZNK?8rankfold\d+v\d+_a\d(?:6kernel|4simd|6detail\d+"
                    r"(?:fold_|half_|\w*float8|\w*_policy|average_step|element_fold))|_ZNK?5xsimd")
ARCHITECTURE = re.compile(r"avx|6targetI")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def offenders(path):
    weak = {line.split()[-1] for line in run("nm", path).splitlines() if " W " in line}
    found = {}
    function = None
    for line in run("objdump", "-d", "--no-show-raw-insn", path).splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:", line):
            function = head[1]
        elif (op := re.match(r"\s+[0-9a-f]+:\s+(\S+)", line)) and NEW.match(op[1]):
            found.setdefault(function, op[1])
    return {name: op for name, op in found.items()
            if name in weak and KERNEL.match(name) and not ARCHITECTURE.search(name)}


bad = False
for path in sys.argv[1:]:
    for name, op in offenders(path).items():
        bad = True
        print(f"{path}: {op} in", run("c++filt", name).strip())
sys.exit(bad)
