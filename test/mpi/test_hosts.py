# SPDX-License-Identifier: Apache-2.0
"""Programs over several hosts, which are network namespaces: hosts.py."""

import re
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


def conformance(made, ranks, *of):
    total = sum(ranks)
    found = made.run(ranks, [launcher.program("conformance"), *map(str, of or [total])], timeout=300)
    assert launcher.lines(found, "FAIL") == []
    assert found.code == 0
    assert found.output.count("checks hold, 0 fail") == total
    assert found.left == []


@pytest.mark.parametrize("ranks", [[1, 1], [2, 2], [3, 1]], ids=str)
def test_conformance_on_two_hosts(two, ranks):
    conformance(two, ranks)


def test_conformance_on_four_hosts(four):
    conformance(four, [1, 1, 1, 1], 3, 4)


def test_a_host_that_is_cut_off_ends_every_rank_within_the_deadline(two, tmp_path):
    """Of 2 s. The launcher may not notice that ranks have ended on the host that it cannot reach: it is
    given time, then ended."""
    ranks = 4
    files = [tmp_path / f"rank{rank}" for rank in range(ranks)]
    cut_at = []

    def during():
        if not cut_at and all(file.exists() for file in files):
            two.cut(1)
            cut_at.append(time.monotonic())

    found = two.run([2, 2], [launcher.program("life"), "cut"], timeout=25, during=during,
                    RANKFOLD_TEST_FOLDER=str(tmp_path))
    assert cut_at, "the ranks have not begun"
    ended_by_launcher = []
    for rank, file in enumerate(files):
        text = file.read_text()
        if text == "runs":
            ended_by_launcher.append(rank)
            continue
        error, took = text.splitlines()
        assert re.match(r"(timeout|transport|peer_lost)_error: ", error), (rank, error)
        assert float(took.split()[1]) < 2 + 4
    # Those that the launcher ends as soon as one has ended with an error have no time to tell.
    assert len(ended_by_launcher) < ranks
    assert [what for what in found.left if "were not enough" not in what] == []
