# SPDX-License-Identifier: Apache-2.0
"""The conformance checks over MPI: conformance.cpp."""

import launcher
import pytest


@pytest.mark.parametrize("ranks", [[1, 2, 3, 4, 5, 6, 7, 8], [16]], ids=["1 to 8", "16"])
def test_conformance(ranks):
    processes = max(ranks)
    found = launcher.run(processes, [launcher.program("conformance"), *map(str, ranks)], timeout=400,
                         # 16 ranks do not fit in a /dev/shm of 64 MB, as containers have it, with UCX's part.
                         **({"UCX_TLS": "tcp,self"} if processes > 8 else {}))
    assert launcher.lines(found, "FAIL") == []
    assert found.code == 0
    assert found.output.count("checks hold, 0 fail") == processes
    assert found.left == []
