# SPDX-License-Identifier: Apache-2.0
"""Programs over several hosts, which are network namespaces: hosts.py."""

import time

import hosts
import launcher
import pytest


def several(number):
    try:
        with hosts.Hosts(number) as made:
            yield made
    except hosts.NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")


@pytest.fixture
def two():
    yield from several(2)


@pytest.fixture
def four():
    yield from several(4)


def test_hosts_are_apart(two):
    """Each with its name and its /dev/shm; ranks are where they were asked for."""
    look = "echo $(hostname) $(ls /dev/shm | grep -c of-a-rank); touch /dev/shm/of-a-rank; sleep 1; " \
           "echo $(hostname) has $(ls /dev/shm | grep -c of-a-rank)"
    found = two.run([3, 1], ["sh", "-c", look.replace("'", "")], timeout=30)
    assert found.code == 0
    first, second = two.name(0), two.name(1)
    assert len(launcher.lines(found, f"{first} has 1")) == 3
    assert len(launcher.lines(found, f"{second} has 1")) == 1
    assert found.left == []


@pytest.mark.parametrize("ranks, marks", [([3, 1], "0 0 0 3"), ([2, 2], "0 0 2 2")], ids=str)
def test_mpi_tells_who_is_on_one_host(two, ranks, marks):
    found = two.run(ranks, [launcher.program("life"), "marks"], finished=lambda text: text.count("marks") == 4)
    assert found.code == 0
    assert sorted(launcher.lines(found, "rank ")) == [f"rank {rank}: marks {marks}" for rank in range(4)]
    assert found.left == []


def conformance(made, program, ranks, *of):
    total = sum(ranks)
    found = made.run(ranks, [launcher.program(program), *map(str, of or [total])], timeout=300,
                     finished=lambda text: text.count("checks hold") == total)
    assert launcher.lines(found, "FAIL") == []
    assert found.code == 0
    assert found.output.count("checks hold, 0 fail") == total
    assert found.left == []


@pytest.mark.parametrize("program, ranks", [
    ("conformance", [2, 2]),
    ("hierarchical", [2, 2]),
    ("hierarchical", [1, 1]),
    ("hierarchical", [3, 1]),
    ("hierarchical", [3, 2]),
], ids=str)
def test_conformance_on_two_hosts(two, program, ranks):
    conformance(two, program, ranks)


@pytest.mark.parametrize("program, ranks", [
    ("conformance", [1, 1, 1, 1]),
    ("hierarchical", [1, 1, 1, 1]),
], ids=str)
def test_conformance_on_four_hosts(four, program, ranks):
    conformance(four, program, ranks)


def test_a_host_that_is_cut_off_ends_every_rank_within_the_deadline(two, tmp_path):
    """Of 2 s. With its ranks, but not with the launcher: that waits for the host that it cannot reach, and
    is ended here."""
    files = [tmp_path / f"rank{rank}" for rank in range(4)]
    cut_off = files[2:]
    cut_at = []

    def told(file):
        return len(file.read_text().splitlines()) == 2  # a rank may be ended while it writes

    def during():
        if not cut_at:
            if all(file.exists() for file in files):
                two.cut(1)
                cut_at.append(time.monotonic())
            return False
        # Its ranks have told, and one of the others; then the launcher has 3 s more.
        if not (all(map(told, cut_off)) and any(map(told, files[:2]))):
            cut_at[1:] = [time.monotonic()]
        return time.monotonic() > cut_at[-1] + 3

    found = two.run([2, 2], [launcher.program("life"), "cut"], timeout=40, during=during,
                    RANKFOLD_TEST_FOLDER=str(tmp_path))
    assert cut_at, "the ranks have not begun"
    for file in files:
        if file in cut_off or told(file):  # the launcher may end the others as soon as one has failed
            error, took = file.read_text().splitlines()
            assert error.startswith("timeout_error: barrier")
            assert 0 < float(took.split()[1]) < 2 + 4
    assert any(map(told, files[:2]))
    # The launcher's daemon on that host may stay, as on a real one; no rank does.
    assert [what for what in found.left if "mpi_" in what.split("orte")[0] or "not enough" in what] == []
