#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases: `N passed, N failed`, and `, N skipped` if there are any.

usage: ci_summary.py BUILD_FOLDER        after `meson test` there

A Meson test counts as one, unless it left a report with a line or an element for each of its cases: a
file of lines `passed NAME`, `failed NAME`, `skipped NAME`, or JUnit XML, at RANKFOLD_TEST_REPORT. If
that is `output`, the lines are in what it printed, as `ok NAME` and `FAIL NAME`.
"""

import collections
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

Result = collections.namedtuple("Result", "state name detail", defaults=[""])


def from_lines(path):
    """The results in a file of lines."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(*line.split(" ", 1)) for line in lines]


def from_output(text):
    """The results in what a test printed."""
    states = {"ok": "passed", "FAIL": "failed"}
    return [Result(states[word], name) for word, name in re.findall(r"^(ok|FAIL) +(.*)", text, re.MULTILINE)]


def from_junit(path):
    """The results in a JUnit file, as pytest writes it."""
    results = []
    try:
        cases = list(xml.etree.ElementTree.parse(path).iter("testcase")) if path.exists() else []
    except xml.etree.ElementTree.ParseError:
        cases = []  # it was ended while it wrote: the exit code tells
    for case in cases:
        kinds = {child.tag: child for child in case}
        wrong = kinds.get("failure", kinds.get("error"))
        state = "failed" if wrong is not None else "skipped" if "skipped" in kinds else "passed"
        detail = "" if wrong is None else wrong.text or wrong.get("message", "")
        results.append(Result(state, f"{case.get('classname')}: {case.get('name')}", detail))
    return results


def from_meson(build):
    """The results of the last `meson test` in a build folder."""
    results = []
    log = build / "meson-logs" / "testlog.json"
    for line in log.read_text().splitlines() if log.exists() else []:
        test = json.loads(line)
        name = test["name"].replace(" - rankfold:", ": ")
        report = pathlib.Path(test["env"].get("RANKFOLD_TEST_REPORT", "/none"))
        if str(report) == "output":
            cases = from_output(test.get("stdout", ""))
        else:
            cases = (from_junit if report.suffix == ".xml" else from_lines)(report)
        bad = test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
        output = "\n".join(filter(None, [test.get("stdout", ""), test.get("stderr", "")]))
        if bad and not any(case.state == "failed" for case in cases):
            last = f", last passed: {cases[-1].name}" if cases else ""
            what = f"{name} ({test['result'].lower()}, exit code {test['returncode']}{last})"
            cases = [*cases, Result("failed", what, output)]
        elif bad:
            cases = [case._replace(detail=case.detail or output) if case.state == "failed" else case
                     for case in cases]
        elif not cases:
            cases = [Result("skipped" if test["result"] == "SKIP" else "passed", name)]
        results += cases
    return results


def line(results):
    """`N passed, N failed`, which is what CI reads."""
    count = collections.Counter(result.state for result in results)
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    return f"{count['passed']} passed, {count['failed']} failed{skipped}"


if __name__ == "__main__":
    found = from_meson(pathlib.Path(sys.argv[1]))
    for result in found:
        if result.state == "failed":
            print(f"failed: {result.name}")
    print(line(found))
    sys.exit(1 if not found or any(result.state == "failed" for result in found) else 0)
