#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a Promela model with spin: it must hold, and each planted fault must be found.

usage: check_model.py FILE.pml

The faults are the macros FAULT_… that the comment at the top of the model explains. Safety properties
only: assertions, deadlocks. One line per check goes to the file that RANKFOLD_TEST_REPORT names.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

COMPILE = ["cc", "-O2", "-w", "-DSAFETY", "-DMEMLIM=4000", "-o", "pan", "pan.c"]
RUN = ["./pan", "-m2000000"]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def check(model, fault):
    """What is wrong, or None. Spin says `errors: N` and whether it has looked at all states."""
    with tempfile.TemporaryDirectory() as folder:
        run(["spin", "-a", *([f"-D{fault}"] if fault else []), model], folder)
        run(COMPILE, folder)
        said = run(RUN, folder)
        errors = re.search(r"errors: (\d+)", said)
        if "Search not completed" in said and not (errors and int(errors[1])):
            return f"the search was not completed\n{said}"
        if not errors:
            return f"spin says nothing of errors\n{said}"
        if fault:
            return None if int(errors[1]) else "the fault is not found"
        return f"does not hold\n{said}" if int(errors[1]) else None


def main(model):
    text = model.read_text()
    explained = re.findall(r"^//\s+(FAULT_\w+)", text, re.MULTILINE)
    used = set(re.findall(r"\bFAULT_\w+", text))
    if used - set(explained):
        sys.exit(f"{model.name}: the comment at the top does not explain {sorted(used - set(explained))}")
    asked = [None, *explained]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = list(pool.map(lambda fault: check(model, fault), asked))
    lines = []
    for fault, wrong in zip(asked, answers):
        name = f"{model.stem}: {fault + ' is found' if fault else 'holds'}"
        print(f"{name}: {wrong or 'yes'}")
        lines.append(f"{'failed' if wrong else 'passed'} {name}\n")
    if report := os.environ.get("RANKFOLD_TEST_REPORT"):
        pathlib.Path(report).write_text("".join(lines))
    return 1 if any(answers) else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
