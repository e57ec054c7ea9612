# SPDX-License-Identifier: Apache-2.0
"""The transport by itself, on several numbers of ranks: transport.cpp."""

import launcher
import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_transport(ranks):
    found = launcher.run(ranks, [launcher.program("transport")])
    assert found.code == 0
    assert found.output.count("All tests passed") == ranks
    assert found.left == []


def test_a_failure_on_one_rank_fails_the_job():
    """Else nothing above would show anything."""
    found = launcher.run(2, [launcher.program("transport"), "--no-such-option"])
    assert found.code != 0
    assert found.left == []
