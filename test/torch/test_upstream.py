# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed pass on the c10d backend as they pass on gloo; docs/torch.md has
the table, which upstream_table.py writes."""

import json
import pathlib
import subprocess
import sys

import pytest
from upstream import EXPLAINED

HERE = pathlib.Path(__file__).parent


# In whose name, on how many ranks, and how many tests must pass: as many as gloo passes, but for those explained.
@pytest.mark.parametrize("like,ranks,least", [("gloo", 2, 90), ("gloo", 4, 93), ("mpi", 4, 90)])
def test_upstreams_tests(like, ranks, least, backend_module, tmp_path):
    results = tmp_path / "results.json"
    run = subprocess.run(
        [sys.executable, HERE / "upstream.py", "rankfold", "--module", backend_module, "--like", like,
         "--ranks", str(ranks), "--json", results],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert results.exists(), run.stdout
    found = json.loads(results.read_text())
    failed = {name: why for name, (outcome, why, _) in found.items() if outcome == "failed"}
    unexplained = {name: why for name, why in failed.items() if name not in EXPLAINED}
    assert not unexplained, "\n".join(f"{name}: {why}" for name, why in unexplained.items())
    assert sum(outcome == "passed" for outcome, _, _ in found.values()) >= least
