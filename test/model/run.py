#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the models of the protocol with spin: the right ones hold, every planted fault is found.

    python3 test/model/run.py [steps|sleep|pairs|abort ...] [--jobs N] [--trail]

Needs spin and a C compiler ($CC, else cc); without spin it ends with 77 (skipped). Each run is exact
(no bit state hashing) and complete: a search that was cut short fails. A statement that no right run of
a model reaches fails, too, so that no part of a model is there for show. --trail prints, for each
fault, the interleaving that the checker found.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent

# Model: what must hold; and how a fault is looked for, unless it is named in FAULTS.
RIGHT = {
    "steps": ["-DN=2 -DLEAD=1", "-DN=2 -DLEAD=2 -DSMALL", "-DN=3 -DLEAD=1 -DFIRST_USE=2 -DNO_PLACES",
              "-DN=3 -DLEAD=1 -DONLY_PLACES"],
    "sleep": ["-DN=2", "-DN=3 -DNO_ABORT", "-DN=3 -DCOARSE"],
    "pairs": ["-DSLOTS=1 -DNO_ABORT", "-DONE_WAY", "-DONE_WAY -DSLOTS=3 -DNO_ABORT"],
    "abort": [
        "-DN=2 -DEVENTS=0 -DK=3",
        "-DN=3 -DEVENTS=0 -DK=3",
        "-DN=2",
        "-DN=2 -DK=3",
        "-DN=3 -DCOARSE",
        "-DN=2 -DEVENTS=2 -DCOARSE",
    ],
}
FAULTY = {"steps": "-DN=2 -DLEAD=2", "sleep": "-DN=2", "pairs": "-DONE_WAY", "abort": "-DN=2"}
FAULTS = {
    ("steps", "FAULT_CATCH_UP_MISSES_ONE"): "-DN=3 -DLEAD=1",
    ("steps", "FAULT_WAIT_MISSES_ONE"): "-DN=3 -DLEAD=1",
    ("sleep", "FAULT_STORE_BUFFERED"): "-DN=2 -DNO_ABORT",
    ("sleep", "FAULT_WAKE_ONE"): "-DN=3 -DNO_ABORT",
    ("abort", "FAULT_RECORD_BY_STORE"): "-DN=3 -DCOARSE",
    ("abort", "FAULT_WAIT_FOR_EVER"): "-DN=2 -DEVENTS=2 -DCOARSE",
    ("abort", "FAULT_NO_LOOK_AGAIN"): "-DN=2 -DEVENTS=0",
    ("pairs", "FAULT_STORE_BUFFERED"): "-DONE_WAY -DNO_ABORT",
}
DEPTH = 1_000_000
CUT_SHORT = ("search depth too small", "out of memory", "reached -DMEMLIM", "hash table full",
             "not completed")


def faults_of(model):
    """The faults that a model's first comment lists."""
    return re.findall(r"^//   (FAULT_\w+)", (HERE / f"{model}.pml").read_text(), re.MULTILINE)


def check(model, defines, fault, trail):
    """Runs the checker once. Returns (what went wrong or "", what it found, statements not reached)."""
    arguments = defines.split() + ([f"-D{fault}"] if fault else [])
    compiler = os.environ.get("CC", "cc").split()
    with tempfile.TemporaryDirectory() as folder:

        def run(*command):
            return subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )

        shutil.copy(HERE / f"{model}.pml", folder)
        made = run("spin", "-a", *arguments, f"{model}.pml")
        if made.returncode != 0 or "Error" in made.stdout:
            return f"spin: {made.stdout}", "", set()
        # Optimised where the search is long.
        optimise = "-O0" if fault else "-O2"
        made = run(*compiler, optimise, "-w", "-DSAFETY", "-DMEMLIM=6000", "-o", "pan", "pan.c")
        if made.returncode != 0:
            return f"compiler: {made.stdout}", "", set()
        out = run("./pan", f"-m{DEPTH}").stdout

        errors = re.search(r"errors: (\d+)", out)
        states = re.search(r"(\d\S*) states, stored", out)
        if not errors or not states:
            return f"no verdict: {out}", "", set()
        unreached = set(re.findall(r"\.pml:(\d+), state \d+, (.+)", out))
        unreached = {u for u in unreached if u[1] != '"-end-"'}
        wrong = re.search(r"pan:1: (.*?)(?: \(at depth|$)", out, re.MULTILINE)
        wrong = wrong.group(1) if wrong else ""
        if not fault:
            if errors.group(1) != "0":
                return f"{wrong}\n{run('spin', '-t', '-p', *arguments, f'{model}.pml').stdout}", "", set()
            for text in CUT_SHORT:
                if text in out:
                    return f"search cut short: {text}", "", set()
            return "", f"{int(float(states.group(1))):,} states", unreached
        if errors.group(1) == "0":
            return "not found", "", set()
        if not wrong.startswith(("assertion violated", "invalid end state")):
            return f"unexpected verdict: {wrong}", "", set()
        found = "found: " + ("somebody waits for ever" if wrong.startswith("invalid") else wrong)
        if trail:
            found += "\n" + run("spin", "-t", "-p", *arguments, f"{model}.pml").stdout
        return "", found, set()


def main():
    parser = argparse.ArgumentParser(description="Checks the models of the protocol with spin.")
    parser.add_argument("models", nargs="*", choices=[*RIGHT, []], help="default: all")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (up to 1 GB each)")
    parser.add_argument("--trail", action="store_true", help="print the interleaving that shows a fault")
    options = parser.parse_args()
    if shutil.which("spin") is None:
        print("spin is not installed (Debian: apt-get install spin): models not checked")
        return 77

    runs = []
    for model in options.models or RIGHT:
        runs += [(model, defines, "") for defines in RIGHT[model]]
        runs += [(model, FAULTS.get((model, fault), FAULTY[model]), fault) for fault in faults_of(model)]

    def timed(run):
        begin = time.monotonic()
        return *check(*run, options.trail), time.monotonic() - begin

    passed = failed = 0
    missing = {}
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for (model, defines, fault), (wrong, found, unreached, seconds) in zip(runs, pool.map(timed, runs)):
            name = f"{model} {defines} {fault}".strip()
            if wrong:
                failed += 1
                print(f"FAIL {name} ({seconds:.1f} s): {wrong}", flush=True)
                continue
            passed += 1
            print(f"ok   {name} ({seconds:.1f} s): {found}", flush=True)
            if not fault:
                missing[model] = missing.get(model, unreached) & unreached
    for model, unreached in missing.items():
        for line, statement in sorted(unreached, key=lambda u: (int(u[0]), u[1])):
            failed += 1
            print(f"FAIL {model}.pml:{line}: no run reaches {statement}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
