#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the table of atomic accesses in docs/memory-model.md with the headers.

Each access that names its memory order must have its row: the same file, operation and order, as often
as the header has it. The reasons in the last column are for people to check.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPERATION = r"\b(load|store|exchange|compare_exchange_\w+|fetch_\w+|test_and_set|clear|wait|word_of)\s*\("


def accesses(text):
    """The (operation, orders) of each access in a header; orders as "acq_rel, acquire"."""
    text = re.sub(r"//[^\n]*", "", text)
    for statement in re.split(r"[;{}]", text):
        named = list(re.finditer(r"memory_order(?:_|::)(\w+)", statement))
        operations = list(re.finditer(OPERATION, statement))
        orders = {}
        for order in named:
            before = [o for o in operations if o.start() < order.start()]
            operation = before[-1] if before else None
            orders.setdefault(operation, []).append(order[1])
        for operation, found in orders.items():
            yield operation[1] if operation else "?", ", ".join(found)


def main():
    headers = ROOT / "include" / "rankfold"
    code = collections.Counter()
    for path in sorted(headers.rglob("*.hpp")):
        name = path.relative_to(headers).as_posix()
        if not name.startswith("testing/"):
            code.update((name, *access) for access in accesses(path.read_text()))
    table = collections.Counter()
    for line in (ROOT / "docs" / "memory-model.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].endswith(".hpp"):
            table[cells[0], cells[3], cells[4]] += 1
    problems = [f"no row for {' '.join(access)} (× {count})" for access, count in (code - table).items()]
    problems += [f"a row for {' '.join(access)} (× {count}), which is not there"
                 for access, count in (table - code).items()]
    for problem in problems:
        print("docs/memory-model.md:", problem)
    print(f"{len(problems)} problems" if problems else f"{sum(table.values())} accesses have their rows")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
