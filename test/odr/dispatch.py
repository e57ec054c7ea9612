#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program with the kernels of all instruction sets: it takes the best that the machine has, or what
RANKFOLD_ISA says, and the bits are the same; where there is qemu, also on older processors than this one.

usage: dispatch.py PROGRAM
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

program = sys.argv[1]
wrong = False


def run(isa=None, *emulator):
    variables = {name: value for name, value in os.environ.items() if name != "RANKFOLD_ISA"}
    if isa is not None:
        variables["RANKFOLD_ISA"] = isa
    return subprocess.run([*emulator, program], env=variables, capture_output=True, text=True).stdout


def check(name, right, output=""):
    global wrong
    wrong |= not right
    print(f"{'ok' if right else 'FAIL'} dispatch: {name}")
    if not right:
        print(output)


cpu_flags = set(re.search(r"^flags\s*:(.*)$|\Z", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split())
needs = {"sse2": set(), "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"},
         "avx512": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}
here = [isa for isa, flags in needs.items() if flags <= cpu_flags]
if platform.machine() != "x86_64":
    sys.exit(77)

output = run()
bits = set(re.findall(r"bits (\w+)", output))
check(f"the best instruction set, {here[-1]}, is taken", f"isa {here[-1]}\n" in output, output)
check("all ranks have the same bits", len(bits) == 1, output)
for isa in here:
    output = run(isa)
    check(f"RANKFOLD_ISA={isa} is taken, with the same bits",
          f"isa {isa}\n" in output and set(re.findall(r"bits (\w+)", output)) == bits, output)
for isa in ["AVX2", "avx", *(needs.keys() - set(here))]:
    output = run(isa)
    check(f"RANKFOLD_ISA={isa} is an error that says what there is",
          f'RANKFOLD_ISA is "{isa}"' in output and output.endswith(f": {', '.join(here)}\n"), output)
check("RANKFOLD_ISA set to nothing counts as not set", f"isa {here[-1]}\n" in run(""))

if qemu := shutil.which("qemu-x86_64"):
    for cpu, isa in {"Nehalem": "sse2", "SandyBridge": "sse2", "Haswell": "avx2"}.items():
        output = run(None, qemu, "-cpu", cpu)
        check(f"{isa} on an emulated {cpu}, with the same bits",
              f"isa {isa}\n" in output and set(re.findall(r"bits (\w+)", output)) == bits, output)
    output = run("avx2", qemu, "-cpu", "Nehalem")
    check("an emulated Nehalem has no AVX2", output.endswith(": sse2\n"), output)
else:
    print("no qemu-x86_64: older processors are left out")
sys.exit(wrong)
