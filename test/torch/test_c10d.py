# SPDX-License-Identifier: Apache-2.0
"""torch/c10d.hpp: the transport over a gloo process group, plain and as the upper level of a hierarchical
one. One machine acts as several hosts by names that the test gives them; with network namespaces, where
they are permitted, they are hosts for good."""

import datetime
import os
import pathlib
import signal
import socket
import sys
import time
import uuid

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

# What gloo shows at once; the machine that runs the tests may be busy.
SOON = 10
TIMEOUT = 3.0  # of the calls that are to end by it

LAYOUTS = {  # a letter a rank: its host
    "1x3": "aaa", "2x2": "aabb", "2x2 in turn": "abab", "3+1": "aaab", "1+2": "abb", "3x1": "abc"}


@pytest.fixture(scope="session")
def c10d_extension():
    path = os.environ.get("RANKFOLD_C10D_EXTENSION")
    if not path:
        pytest.skip("RANKFOLD_C10D_EXTENSION names no extension; test/meson.build sets it")
    return path


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def join(here, port, address="127.0.0.1"):
    """What a program that torchrun has started does."""
    dist.init_process_group(
        "gloo", store=dist.TCPStore(address, port, here.size, here.rank == 0, datetime.timedelta(seconds=60)),
        rank=here.rank, world_size=here.size, timeout=datetime.timedelta(seconds=60))


def ops():
    return torch.ops.rankfold_c10d_test


def world():
    return dist.group.WORLD.group_name


class Group(Ranks):
    """Processes that have a default process group."""

    def __init__(self, size, extension, **environment):
        # torch's store asks for the name of each new client, even of this host; a name server that is
        # slow would make the ranks wait for it.
        super().__init__(size, extension, init=False, RANKFOLD_TIMEOUT="60", GLOO_SOCKET_IFNAME="lo",
                         RES_OPTIONS="timeout:1 attempts:1", **environment)

    def __enter__(self):
        self(join, free_port(), seconds=120)
        return self


@pytest.fixture(scope="module", params=[2, 3, 4])
def group(request, c10d_extension):
    with Group(request.param, c10d_extension) as group:
        yield group


@pytest.fixture(scope="module")
def four(c10d_extension):
    with Group(4, c10d_extension) as group:
        yield group


@pytest.fixture
def two(c10d_extension):
    with Group(2, c10d_extension) as group:
        yield group


# --- what all transports must pass ---


def conformance(here, kind, hosts, sizes, seed, part=""):
    return ops().conformance(kind, world(), hosts and hosts[here.rank], sizes, seed, part)


def check_conformance(group, kind, hosts, sizes, seed, least):
    for held, *failures in group(conformance, kind, hosts, sizes, seed, seconds=600):
        assert failures == []
        assert int(held.removesuffix(" checks held")) >= least


def test_conformance(group):
    check_conformance(group, "c10d", "", [group.size], 10 + group.size, 29)


def test_conformance_of_a_group_of_some(four):
    check_conformance(four, "c10d", "", [1, 3], 5, 38)


@pytest.mark.parametrize("layout", ["2x2", "3+1"])
def test_conformance_of_two_levels(four, layout):
    check_conformance(four, "hierarchical", LAYOUTS[layout], [4], 20, 29)


def test_conformance_of_two_levels_of_a_group_of_some(four):
    check_conformance(four, "hierarchical", LAYOUTS["2x2 in turn"], [3], 21, 29)


def same_as_shm(here, kind, hosts, key):
    return ops().same_as_shm(kind, world(), hosts and hosts[here.rank], key)


@pytest.mark.parametrize("kind,layout", [("c10d", ""), *(("hierarchical", name) for name in LAYOUTS)])
def test_the_bits_are_those_of_shm(kind, layout, four, c10d_extension):
    hosts = LAYOUTS.get(layout, "")
    if len(hosts) in (0, 4):
        found = four(same_as_shm, kind, hosts, uuid.uuid4().hex)
    else:
        with Group(len(hosts), c10d_extension) as group:
            found = group(same_as_shm, kind, hosts, uuid.uuid4().hex)
    assert all(differences == [] for differences in found)


# --- messages ---


def messages(here):
    return ops().messages(world())


def test_messages_of_all_sizes_on_channels_that_nobody_waits_for_yet(two):
    assert two(messages, seconds=100) == [[], []]


def abandoned_messages(here):
    return ops().abandoned_messages(world())


def test_messages_that_are_given_up(two):
    assert two(abandoned_messages, seconds=60) == [[], []]


def message_of_another_size(here):
    return ops().message_of_another_size(world())


def test_a_message_that_does_not_fit_is_an_error_and_not_the_end(two):
    for rank, text in enumerate(two(message_of_another_size, seconds=60)):
        assert text == (f"transport_error: rankfold: a message of 5000 bytes came from rank {1 - rank} "
                        "where one of at most 4000 was expected")


def round_trips(here, sizes):
    return ops().round_trips(world(), sizes)


def test_a_message_does_not_wait_for_gloo(two):
    sizes = [64, 4096, 16384, 262144, 4 << 20]
    found = two(round_trips, sizes, seconds=100)[0]
    for size, (fastest, median) in zip(sizes, found):
        print(f"{size} bytes and back: {fastest:.0f} us, median {median:.0f} us")
    # gloo takes some ms for most messages whose receive it gets to know too late.
    assert all(median < 3000 for _, median in found[:3])


# --- where the ranks are ---


def layout(here, hosts):
    return ops().layout(world(), hosts and hosts[here.rank])


def test_hosts_are_found_out(four):
    assert four(layout, "") == [[0, 0, 0, 0]] * 4


def test_hosts_that_are_named(four):
    assert four(layout, "baab") == [[0, 1, 1, 0]] * 4


# --- beside torch's own use of the group ---


def both_at_once(here):
    """Collectives of torch and of rankfold, in no order among each other."""
    ops().keep(world())
    results = []
    for i in range(50):
        x = torch.full((1000,), float(here.rank + i))
        work = dist.all_reduce(x, async_op=True)
        if here.rank == 0:
            time.sleep(0.001)
        results.append(ops().sum_over_kept(i + here.rank))
        work.wait()
        results.append(int(x[0]))
        if i % 7 == here.rank:
            dist.send(torch.tensor([i]), (here.rank + 1) % here.size, tag=here.rank)
        elif i % 7 == (here.rank - 1) % here.size:
            dist.recv(torch.empty(1, dtype=torch.int64), (here.rank - 1) % here.size,
                      tag=(here.rank - 1) % here.size)
    ops().drop_kept()
    return results


def test_collectives_of_torch_go_on_beside_it(four):
    wanted = [4 * i + 6 for i in range(50) for _ in range(2)]
    assert four(both_at_once) == [wanted] * 4


def outlive(here):
    ops().keep(world())
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1 * here.rank)
    result = ops().sum_over_kept(here.rank)
    ops().drop_kept()
    return result


def test_the_transport_outlives_the_process_group(two):
    assert two(outlive) == [1, 1]


def twice(here, first, second):
    join(here, first)
    ops().keep(world())
    results = [ops().sum_over_kept(1)]
    ops().drop_kept()
    dist.barrier()
    dist.destroy_process_group()
    join(here, second)
    ops().keep(world())
    return [*results, ops().sum_over_kept(2)]


def test_a_process_group_may_be_made_anew(c10d_extension):
    with Ranks(2, c10d_extension, init=False, GLOO_SOCKET_IFNAME="lo") as ranks:
        assert ranks(twice, free_port(), free_port()) == [[2, 4], [2, 4]]


# --- what goes wrong at the start ---


def error_of_start(here, kind, name, hosts, seconds):
    begin = time.monotonic()
    text = ops().error_of_start(kind, name or world(), hosts and hosts[here.rank], seconds)
    return text, time.monotonic() - begin


def test_a_group_that_does_not_exist(four):
    for text, _ in four(error_of_start, "c10d", "no such group", "", 5):
        assert text.startswith("invalid_argument: ") and 'no process group "no such group"' in text
        assert "init_process_group" in text


def test_a_rank_that_does_not_come_is_named_and_another_try_works(four):
    there = [0, 1, 3]
    four.send(error_of_start, "c10d", "", "", 4, only=there)
    for text, took in four.receive(60, only=there):
        assert text.startswith("rendezvous_error: ") and "rank 2 did not come within 4 s" in text
        assert took < 4 + SOON
    assert four(layout, "abab") == [[0, 1, 0, 1]] * 4


# --- what goes wrong later ---


def call_until_error(here, kind, hosts, count, seconds=TIMEOUT):
    text, (calls, took) = ops().call_until_error(kind, world(), hosts and hosts[here.rank], count, seconds)
    return text, calls, took / 1000, time.monotonic()


def running(ranks, *arguments):
    ranks.send(call_until_error, *arguments)
    time.sleep(2)


# Kind, hosts, who, of how many elements. Rank 0 has the store.
VICTIMS = pytest.mark.parametrize("kind,hosts,victim,count", [
    ("c10d", "", 0, 4), ("c10d", "", 2, 300_000), ("hierarchical", "aabb", 0, 300_000),
    ("hierarchical", "aabb", 2, 4)])


@VICTIMS
def test_a_rank_that_is_killed_is_noticed_by_all(c10d_extension, kind, hosts, victim, count):
    with Group(4, c10d_extension) as ranks:
        running(ranks, kind, hosts, count, 60)
        others = [r for r in range(4) if r != victim]
        begin = time.monotonic()
        ranks.kill(only=[victim])
        for text, calls, _, end in ranks.receive(60, only=others):
            assert "peer_lost_error: " in text or "aborted_error: " in text
            assert f"rank {victim} died" in text
            assert calls > 0 and end - begin < SOON


@pytest.mark.parametrize("kind,hosts,victim,count", [("c10d", "", 0, 300_000), ("hierarchical", "aabb", 2, 4)])
def test_a_rank_that_is_stopped_ends_all_calls_at_the_deadline(c10d_extension, kind, hosts, victim, count):
    with Group(4, c10d_extension) as ranks:
        running(ranks, kind, hosts, count)
        others = [r for r in range(4) if r != victim]
        begin = time.monotonic()
        ranks.kill(signal.SIGSTOP, only=[victim])
        texts = []
        for text, calls, _, end in ranks.receive(60, only=others):
            assert "timeout_error: " in text or "aborted_error: " in text
            assert calls > 0 and end - begin < TIMEOUT + SOON
            texts.append(text)
        # One that waits for a third at the same time may name that.
        assert any(f"rank {victim} did not arrive" in text for text in texts)
        ranks.kill(signal.SIGCONT, only=[victim])
        (text, *_), = ranks.receive(60, only=[victim])
        assert "error: " in text


def meet_after_the_store_has_stopped(here):
    return error_of_start(here, "c10d", "", "", 2)


def test_a_store_that_does_not_answer_holds_nobody_up(c10d_extension):
    with Group(3, c10d_extension) as ranks:
        ranks.kill(signal.SIGSTOP, only=[0])
        ranks.send(meet_after_the_store_has_stopped, only=[1, 2])
        for text, took in ranks.receive(60, only=[1, 2]):
            assert text.startswith("rendezvous_error: ") and "did not answer within 2 s" in text
            assert took < 3 + SOON
        ranks.kill(signal.SIGCONT, only=[0])


# --- hosts for good: network namespaces, as for MPI ---


@pytest.fixture
def hosts():
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "mpi"))
    from hosts import Hosts, NotPermitted

    hosts = Hosts(2)
    try:
        hosts.__enter__()
    except NotPermitted as why:
        pytest.skip(f"no hosts here: {why}")
    yield hosts
    hosts.__exit__()


class AcrossHosts(Ranks):
    """Four processes, two a host."""

    def __init__(self, hosts, extension):
        super().__init__(4, extension, init=False, RANKFOLD_TIMEOUT="60", GLOO_SOCKET_IFNAME="e0")
        self.hosts = hosts

    def program(self, rank):
        return [str(self.hosts.agent), self.hosts.address(rank // 2), "exec", sys.executable]


def test_across_hosts(hosts, c10d_extension):
    with AcrossHosts(hosts, c10d_extension) as ranks:
        ranks(join, 29500, hosts.address(0), seconds=120)
        assert ranks(layout, "") == [[0, 0, 1, 1]] * 4
        check_conformance(ranks, "hierarchical", "", [4], 30, 29)


def test_ranks_that_only_say_that_they_are_on_one_host(hosts, c10d_extension):
    with AcrossHosts(hosts, c10d_extension) as ranks:
        ranks(join, 29500, hosts.address(0), seconds=120)
        for text, took in ranks(error_of_start, "hierarchical", "", "abab", 2):
            assert text.startswith("rendezvous_error: ")
            assert " say that they are on one host, but cannot meet there: " in text
            assert "c10d_options::host" in text
            assert took < 2 * (2 + SOON)


@pytest.mark.parametrize("count", [4, 300_000], ids=["small", "large"])
def test_a_cut_cable_ends_all_calls_at_the_deadline(hosts, c10d_extension, count):
    with AcrossHosts(hosts, c10d_extension) as ranks:
        ranks(join, 29500, hosts.address(0), seconds=120)
        running(ranks, "hierarchical", "", count)
        begin = time.monotonic()
        hosts.cut(1)
        for text, calls, _, end in ranks.receive(60):
            assert "timeout_error: " in text or "aborted_error: " in text
            assert calls > 0 and end - begin < TIMEOUT + SOON
