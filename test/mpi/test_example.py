# SPDX-License-Identifier: Apache-2.0
"""The example that the README points to: examples/mpi_all_reduce.cpp."""

import launcher


def test_mpi_all_reduce():
    found = launcher.run(4, [launcher.program("example")])
    assert found.code == 0
    assert sorted(launcher.lines(found, "rank ")) == [f"rank {rank} of 4, hosts 1: sum 5" for rank in range(4)]
    assert found.left == []
