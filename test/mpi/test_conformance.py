# SPDX-License-Identifier: Apache-2.0
"""The conformance checks over MPI: conformance.cpp."""

import os

import launcher
import pytest


@pytest.mark.parametrize("ranks", [[1, 2, 3, 4, 5, 6, 7, 8], [16]], ids=["1 to 8", "16"])
def test_conformance(ranks):
    processes = max(ranks)
    every = os.environ.get("RANKFOLD_TEST_EVERY")
    if processes > 8 and launcher.name == "mpich" and every is None:
        pytest.skip("MPICH's ranks poll without giving way: 16 on two CPUs take many minutes (RANKFOLD_TEST_EVERY=5 runs "
                    "every fifth check)")
    found = launcher.run(processes, [launcher.program("conformance"), *map(str, ranks)], timeout=400,
                         RANKFOLD_TEST_EVERY=every or "1")
    assert launcher.lines(found, "FAIL") == []
    assert found.code == 0
    assert found.output.count("checks hold, 0 fail") == processes
    assert found.left == []
