#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a file that must fail in each of its sections, with a message that a person can read.

usage: compile_fail.py FILE COMPILER…

A section of the file looks like this; what follows `expect:` is a regular expression:

    #if defined(CF_STRINGS)  // expect: no operator sum over
      comm.all_reduce(std::span<std::string>(names));
    #endif

Without any CF_ macro the file must compile. With one of them it must not, and what the compiler says
must match. One line per section goes to the file that RANKFOLD_TEST_REPORT names, if any.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys


def compiles(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.returncode == 0, done.stderr


def check(file, section, expected, compiler):
    """What is wrong with a section, or None."""
    good, says = compiles([*compiler, *([f"-D{section}"] if section else []), str(file)])
    if section is None:
        return None if good else f"does not compile without any section:\n{says}"
    if good:
        return "compiles, and must not"
    if not re.search(expected, says):
        return f"fails, but says nothing like `{expected}`:\n{says}"
    return None


def main(file, compiler):
    file = pathlib.Path(file)
    sections = re.findall(r"#\s*if defined\((CF_\w+)\)\s*// expect: (.*)", file.read_text())
    if len(sections) != len(re.findall(r"\bCF_\w+", file.read_text())) or not sections:
        sys.exit(f"{file}: each `#if defined(CF_…)` needs `// expect: regular expression` beside it")
    report = os.environ.get("RANKFOLD_TEST_REPORT")
    lines = []
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        asked = [(None, None), *sections]
        answers = pool.map(lambda one: check(file, *one, compiler), asked)
        for (section, _), wrong in zip(asked, answers):
            name = f"{file.stem}: {section or 'compiles'}"
            print(f"{name}: {wrong or 'as expected'}")
            lines.append(f"{'failed' if wrong else 'passed'} {name}\n")
    if report:
        pathlib.Path(report).write_text("".join(lines))
    return 1 if any(line.startswith("failed") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
