# SPDX-License-Identifier: Apache-2.0
"""Puts a run into docs/performance.md: its pictures, drawn from its CSV, and below them the tables of its Markdown.

usage: sh bench/run.sh --publish CSV…     (bench/run.sh --update-docs does it after measuring)

A run has the section of its name, between two lines such as <!-- bench all_reduce.2.hot: begin --> and
<!-- bench all_reduce.2.hot: end -->, and its pictures in docs/performance/<name>.
"""

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench/support"))
import plots  # noqa: E402
import report  # noqa: E402

PAGE = ROOT / "docs/performance.md"


def section_of(text, name, page):
    """Where the section is in the text of the page: a match whose group is what stands between the marks."""
    marks = [f"<!-- bench {name}: {end} -->" for end in ("begin", "end")]
    found = list(re.finditer(f"{marks[0]}\n(.*?){marks[1]}", text, re.DOTALL))
    if len(found) != 1:
        raise LookupError(f"{os.path.relpath(page)} needs one section between the lines {marks[0]} and {marks[1]}")
    return found[0]


def check(name, page=PAGE):
    """Fails, with what to do, if `publish` would: better before a run than after it."""
    section_of(page.read_text(), name, page)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LookupError(
            "pictures need matplotlib, which could not be installed (build/setup.log says why); measure without"
            " --update-docs, and publish the CSV later: sh bench/run.sh --publish CSV"
        ) from None


def replace_section(name, new, page=PAGE):
    text = page.read_text()
    section = section_of(text, name, page)
    page.write_text(text[: section.start(1)] + new + text[section.end(1) :])


def publish(path, page=PAGE):
    """Draws the pictures of a run, drops those that it no longer has, and rewrites its section; the paths written."""
    results = report.read(path)
    name = report.name_of(results.description)
    folder = page.with_suffix("") / name
    drawn = plots.draw(results, folder)
    for old in set(folder.glob("*.svg")) - {picture for picture, _ in drawn}:
        old.unlink()
    pictures = "".join(
        f"![{title}: latency and bandwidth against size]({picture.relative_to(page.parent)})\n\n"
        for picture, title in drawn
    )
    replace_section(name, pictures + path.with_suffix(".md").read_text(), page)
    return [*(picture for picture, _ in drawn), page]


def main():
    parser = argparse.ArgumentParser(prog="bench/run.sh --publish", description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, nargs="+", help="with its .json and .md beside it")
    for path in parser.parse_args().csv:
        try:
            check(report.name_of(report.read(path).description))
            for written in publish(path):
                print(f"written: {os.path.relpath(written)}")
        except (LookupError, OSError, ValueError) as problem:
            sys.exit(f"bench: {problem}")


if __name__ == "__main__":
    main()
