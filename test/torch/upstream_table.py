#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed on rankfold and on gloo, at 2 and at 4 ranks, and writes the
table of docs/torch.md.

usage: upstream_table.py MODULE       MODULE: a built examples/torch_backend.cpp
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from upstream import EXPLAINED

HERE = pathlib.Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "torch.md"
BEGIN, END = "<!-- upstream_table.py writes from here -->\n", "<!-- to here -->\n"
RUNS = {"asked of gloo, 2 ranks": ("gloo", 2), "asked of gloo, 4 ranks": ("gloo", 4),
        "asked of MPI, 4 ranks": ("mpi", 4)}
# Why a test skips itself -> what the table says.
REASONS = {
    r"CUDA|GPU|gpu": "needs CUDA",
    r"(?i)nccl": "is for NCCL",
    r"world.?size": "needs other numbers of ranks",
    r"torchvision": "needs torchvision",
    r"Only MPI": "is for MPI",
    r"(?i)gloo|mpi (backend )?does not support": "is not asked of MPI",
    r"/issues/|/pull/|flak": "is switched off by its authors",
}


def run(backend, like, ranks, module):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, HERE / "upstream.py", backend, "--like", like, "--ranks", str(ranks),
                   "--json", file.name, *(["--module", module] if backend == "rankfold" else [])]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        return json.load(file)


def count(results, outcome):
    return sum(each[0] == outcome for each in results.values())


def reason(text):
    return next((said for pattern, said in REASONS.items() if re.search(pattern, text)), text.strip())


def table(module):
    import torch

    lines = [f"torch {torch.__version__.split('+')[0]}; passed, failed, not applicable:\n", "\n",
             "| | rankfold | gloo | not applicable since it |\n", "|---|---|---|---|\n"]
    failures = {}  # of rankfold, of gloo alone: why -> names
    for title, (like, ranks) in RUNS.items():
        ours, theirs = (run(backend, like, ranks, module) for backend in ("rankfold", "gloo"))
        cells = [", ".join(str(count(results, outcome)) for outcome in ("passed", "failed", "skipped"))
                 for results in (ours, theirs)]
        reasons = collections.Counter(reason(why) for outcome, why, _ in ours.values() if outcome == "skipped")
        lines.append(f"| {title} | {' | '.join(cells)} | "
                     f"{', '.join(f'{said} ({n})' for said, n in reasons.most_common())} |\n")
        for name in ours:
            if ours[name][0] == "failed":
                why = f"rankfold fails {{}}: {EXPLAINED.get(name, 'not explained')}"
            elif theirs[name][0] == "failed":
                why = "gloo fails {}, rankfold passes"
            else:
                continue
            failures.setdefault(why, set()).add(f"`{name}`")
    return "".join([*lines, "\n", *(f"- {why.format(', '.join(sorted(names)))}.\n" for why, names in failures.items())])


def main():
    before, rest = DOC.read_text().split(BEGIN)
    DOC.write_text(before + BEGIN + table(sys.argv[1]) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
