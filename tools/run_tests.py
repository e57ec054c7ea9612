#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests, suite after suite, and ends with the line `N passed, N failed`.

usage: sh test/run.sh [SUITE…]        all suites unless some are named; --list shows them, and CONTRIBUTING.md
                                      those that run only when they are named

Each suite's output is in build/test-logs/SUITE.log. What is built stays, so that a second run builds
only what has changed. A suite that leaves a process or a file in /dev/shm behind has failed.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import ci_summary
from ci_summary import Result
from project import files, root

build = root / "build"
logs = build / "test-logs"
venv = build / "venv"
cpus = len(os.sched_getaffinity(0))

# Build folder -> how it is set up. The tests keep rankfold's own checks on (no NDEBUG) and have no
# debug information, which would double the time to compile.
plain = ["-Dbuildtype=custom", "-Doptimization=2", "-Ddebug=false", "-Dwerror=true"]
cpp_only = ["-Dtorch=disabled", "-Dmpi=disabled", "-Dexamples=disabled"]
sanitized = [*cpp_only, "-Ddispatch=false", "-Dbuildtype=custom", "-Ddebug=false", "-Db_lundef=false"]
FOLDERS = {
    "test": [*plain, "-Dexamples=enabled", "-Dbenchmarks=enabled",
             f"-Dtorch_python={venv / 'bin' / 'python'}"],
    "test-native": [*plain, *cpp_only, "-Ddispatch=false", "-Dcpp_args=-march=native"],
    "test-asan": [*sanitized, "-Doptimization=1", "-Db_sanitize=address,undefined",
                  "-Dcpp_args=-g1 -march=native"],
    "test-tsan": [*sanitized, "-Doptimization=1", "-Db_sanitize=thread", "-Dcpp_args=-g1"],
}
# Suite of this script -> build folder, suites or tests of Meson, seconds that it may take.
SUITES = {
    "checks": ("test", ["--suite", "checks"], 120),
    "headers": ("test", ["--suite", "headers"], 600),
    "compile_fail": ("test", ["--suite", "compile_fail"], 300),
    "odr": ("test", ["--suite", "odr"], 120),
    "unit": ("test", ["--suite", "unit"], 900),
    "conformance": ("test", ["--suite", "conformance"], 600),
    "stress": ("test", ["--suite", "stress"], 600),
    "model": ("test", ["--suite", "model"], 1800),
    "package": ("test", ["--suite", "package"], 300),
    "examples": ("test", ["--suite", "examples"], 600),
    "mpi": ("test", ["--suite", "mpi"], 1800),
    "torch": ("test", ["--suite", "torch"], 3600),
    "torch_programs": ("test", ["programs"], 3600),
    "native": ("test-native", ["unit kernel"], 300),
    "asan": ("test-asan", ["--suite", "unit", "--suite", "conformance"], 1200),
    # Where there are threads; the kernels know of none.
    "tsan": ("test-tsan", ["unit detail", "unit transport", "unit algorithm", "unit collective",
                           "conformance", "stress"], 1200),
}
# Suites that run only when they are named, and variables of theirs.
ON_REQUEST = {"torch_programs": {"RANKFOLD_TORCH_PROGRAMS": "200"}}
# What of a suite is left out where torch cannot be installed.
NEED_TORCH = {"torch": "all of it", "torch_programs": "all of it", "examples": "minilm",
              "headers": "torch.hpp and torch/"}


def say(text):
    print(text, flush=True)


def run(command, log, show=None, **variables):
    """Runs a command, its output into the log; lines that `show` likes are printed, too."""
    shown = set()  # Meson says again at the end what has failed
    with subprocess.Popen(command, cwd=root, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          env={**os.environ, **variables},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        for line in child.stdout:
            log.write(line)
            if show and show(line) and line not in shown:
                shown.add(line)
                say(f"    {line.rstrip()}")
    log.flush()
    return child.returncode


def configure(name, log):
    """Sets a build folder up, again if its options or the set of files have changed."""
    folder = build / name
    asked = json.dumps([FOLDERS[name], sorted(str(p) for p in files()), torch_is_there()])
    stamp = folder / ".asked"
    digest = hashlib.sha256(asked.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return True
    again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
    torch = [] if torch_is_there() else ["-Dtorch=disabled"]
    code = run(["meson", "setup", str(folder), str(root), "--wrap-mode=nodownload", "-Dtests=enabled",
                *FOLDERS[name], *torch, *again], log)
    if code == 0:
        stamp.write_text(digest)
    return code == 0


def torch_is_there():
    return (venv / ".torch").exists()


def tests_of(folder, selection):
    """The Meson tests that the selection names."""
    tests = json.loads((folder / "meson-info" / "intro-tests.json").read_text())
    suites = {value for flag, value in zip(selection, selection[1:]) if flag == "--suite"}
    if suites:
        return [test for test in tests if suites & {s.rpartition(":")[2] for s in test["suite"]}]
    return [test for test in tests if test["name"] in selection]


def compile_tests(folder, tests, jobs, log):
    """Builds what the tests need, as far as it goes; those that cannot be run."""
    targets = json.loads((folder / "meson-info" / "intro-targets.json").read_text())
    files_of = {target["id"]: target["filename"] for target in targets}
    ninja = ["ninja", "-C", str(folder)]

    def needs(test):
        return {os.path.relpath(file, folder) for target in test["depends"] for file in files_of[target]}

    wanted = sorted(set().union(*map(needs, tests)))
    if not wanted or run([*ninja, "-k", "0", f"-j{jobs}", *wanted], log, re.compile(r"\[\d+/").match) == 0:
        return []

    def up_to_date(files):
        planned = subprocess.run([*ninja, "-n", *files], capture_output=True, text=True).stdout
        return "no work to do" in planned

    return [test for test in tests if needs(test) and not up_to_date(sorted(needs(test)))]


def side_by_side(name):
    """How many sources of a suite are compiled at a time, or tests run: each of torch's takes up to 3 GB."""
    if not name.startswith("torch"):
        return cpus
    free = re.search(r"MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    return max(1, min(cpus, int(free[1]) // 3_000_000 if free else 1))


def without_address_randomisation():
    """ThreadSanitizer of GCC 12 and 13 does not start where the kernel randomises much."""
    command = ["setarch", os.uname().machine, "-R"]
    if shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
        return command
    return []


def run_suite(name):
    """Builds and runs a suite; its results."""
    folder_name, selection, seconds = SUITES[name]
    folder = build / folder_name
    with (logs / f"{name}.log").open("w") as log:
        if not configure(folder_name, log):
            return [Result("failed", f"{name}: cannot be configured", tail(log.name))]
        tests = tests_of(folder, selection)
        skipped = []
        if name in NEED_TORCH and not torch_is_there():
            skipped = [Result("skipped", f"{name}: {NEED_TORCH[name]}, since torch is not installed")]
        if not tests:
            return skipped
        broken = compile_tests(folder, tests, side_by_side(name), log)
        not_built = [Result("failed", f"{name}: {test['name']} does not compile") for test in broken]
        not_built[:1] = [result._replace(detail=errors_in(log.name)) for result in not_built[:1]]
        tests = [test for test in tests if test not in broken]
        if not tests:
            return skipped + not_built
        for test in tests:  # an old report must not stand for a test that did not start
            report = test["env"].get("RANKFOLD_TEST_REPORT")
            if report and report != "output":
                pathlib.Path(report).unlink(missing_ok=True)
        leftovers = logs / f"{name}.leftovers"
        for old in (leftovers, folder / "meson-logs" / "testlog.json"):
            old.unlink(missing_ok=True)
        prefix = without_address_randomisation() if name == "tsan" else []
        slow = "3" if name in ("asan", "tsan") else "1"
        code = run([*prefix, sys.executable, str(root / "tools" / "check_leftovers.py"),
                    "--timeout", str(seconds), "--report", str(leftovers),
                    "--name", f"{name}: nothing is left behind", "--",
                    "meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs",
                    "--num-processes", str(side_by_side(name)), "--timeout-multiplier", slow,
                    *selection, *([test["name"] for test in tests] if broken else [])],
                   log, re.compile(r"\s*\d+/\d+ ").match, **ON_REQUEST.get(name, {}))
        results = skipped + not_built + ci_summary.from_meson(folder) + ci_summary.from_lines(leftovers)
        if code != 0 and not any(result.state == "failed" for result in results):
            results.append(Result("failed", f"{name}: ended with exit code {code}", tail(log.name)))
        return results


def errors_in(path):
    lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if re.search(r"\b(error|undefined reference)\b", line)][:20])


def tail(path, lines=40):
    return "\n".join(pathlib.Path(path).read_text(errors="replace").splitlines()[-lines:])


def shortened(text, head=20, end=20):
    lines = [line[:300] for line in text.rstrip().splitlines()]
    if len(lines) > head + end:
        lines[head:-end] = [f"… {len(lines) - head - end} more lines …"]
    return "\n".join(lines)


def main(asked):
    if "--list" in asked:
        say("\n".join(SUITES))
        return 0
    if unknown := [name for name in asked if name not in SUITES]:
        sys.exit(f"no suite {', '.join(unknown)}; there are: {', '.join(SUITES)}")
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{venv / 'bin'}:{os.environ['PATH']}"

    results = []
    for name in asked or [name for name in SUITES if name not in ON_REQUEST]:
        say(f"{name} …")
        start = time.monotonic()
        found = run_suite(name)
        results += found
        say(f"{name}: {ci_summary.line(found).replace('passed', 'pass').replace('failed', 'fail')} "
            f"({time.monotonic() - start:.0f} s)")
    failed = [result for result in results if result.state == "failed"]
    for result in failed:
        say(f"\nfailed: {result.name}\n{shortened(result.detail)}")
    for result in results:
        if result.state == "skipped":
            say(f"skipped: {result.name}")
    if not results:
        say("no test was run")
    say(ci_summary.line(results))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
