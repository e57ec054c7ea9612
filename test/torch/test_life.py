# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, leave, fork, are interrupted, come too late or fail; and what comes after."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from ranks import NAMESPACE, Ranks, RanksFailed

# What rankfold promises is a second; the machine that runs the tests may be busy.
SOON = 10


def timed(call):
    """The text of the error that a call ends with, and the time at which it came."""
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic()
    return "no error", time.monotonic()


def reduce_once(here):
    return timed(lambda: here.ops.all_reduce(torch.ones(4), here.order))


def do_nothing(here):
    return here.ops.rank()


@pytest.fixture
def ranks(extension):
    with Ranks(2, extension) as ranks:
        ranks(do_nothing)
        yield ranks


def wait_in_a_call(ranks, rank, function=reduce_once):
    """Lets one rank call, and gives it time to wait there."""
    ranks.send(function, only=[rank])
    time.sleep(0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_noticed(ranks, rank):
    wait_in_a_call(ranks, 1 - rank)
    ranks.kill(only=[rank])
    begin = time.monotonic()
    (text, end), = ranks.receive(60, only=[1 - rank])
    assert f"rankfold_example::all_reduce (default group, rank {1 - rank} of 2): peer_lost_error: " in text
    assert f"rank {rank} died" in text
    assert end - begin < SOON
    ranks.send(reduce_once, only=[1 - rank])
    (text, _), = ranks.receive(60, only=[1 - rank])
    assert "aborted_error: " in text and f"rank {rank} died" in text  # the first error


def die_within_a_graph(here):
    """One graph of three collectives, the second of which rank 1 does not live to see."""
    ops, order = here.ops, here.order

    def function(x, w):
        y = ops.all_gather(ops.all_reduce(x @ w, order), order)
        return ops.reduce_scatter(y @ w, order)

    compiled = torch.compile(function, fullgraph=True)
    arguments = torch.ones(2, 2), torch.eye(2)
    assert torch.equal(compiled(*arguments), function(*arguments))
    if here.rank == 1:
        ops.all_reduce(torch.ones(2, 2), order)
        os._exit(3)
    text, _ = timed(lambda: compiled(*arguments))
    ops.init(rank=0, size=1)  # the process goes on, and the graph after another tracing
    torch._dynamo.reset()
    return text, torch.compile(function, fullgraph=True)(*arguments).tolist()


def test_a_rank_that_dies_in_the_middle_of_a_compiled_graph(ranks):
    ranks.send(die_within_a_graph)
    (text, later), = ranks.receive(100, only=[0])
    assert "rankfold_example::all_gather (default group, rank 0 of 2): peer_lost_error: " in text
    assert "rank 1 died" in text or "rank 1 left" in text
    assert later == [[1.0, 1.0]] * 2


def test_a_program_that_ends_without_finalize(ranks):
    wait_in_a_call(ranks, 0)
    begin = time.monotonic()
    assert ranks.leave(only=[1]) == [0]
    (text, end), = ranks.receive(60, only=[0])
    assert "peer_lost_error: " in text and "rank 1 " in text
    assert end - begin < 3 * SOON  # most of it is Python's own end


def finalize(here):
    here.ops.finalize()


def test_a_rank_that_finalizes_has_left(ranks):
    wait_in_a_call(ranks, 0)
    ranks.send(finalize, only=[1])
    begin = time.monotonic()
    (text, end), = ranks.receive(60, only=[0])
    assert "peer_lost_error: " in text and "rank 1 left" in text
    assert end - begin < SOON


def abort(here):
    here.ops.abort("the model has diverged")
    return reduce_once(here)


def test_abort_ends_the_calls_of_others(ranks):
    wait_in_a_call(ranks, 0)
    ranks.send(abort, only=[1])
    for text, _ in ranks.receive(60):
        assert "aborted_error: " in text and "the model has diverged" in text


def fail_in_between(here):
    """Rank 1 fails between two collectives, for a reason of its own, and says so."""
    try:
        here.ops.all_reduce(torch.ones(4), here.order)
        if here.rank == 1:
            raise ValueError("a file is missing")
        return timed(lambda: here.ops.all_reduce(torch.ones(4), here.order))
    except ValueError as error:
        here.ops.abort(str(error))
        return str(error), time.monotonic()


def test_an_exception_on_one_rank_reaches_the_other(ranks):
    (text, _), _ = ranks(fail_in_between, seconds=60)
    assert "aborted_error: " in text and "rank 1 aborted: a file is missing" in text


def abort_from_another_thread(here):
    timer = threading.Timer(0.5, lambda: here.ops.abort("from a timer"))
    timer.start()
    return reduce_once(here)


def test_abort_from_another_thread(ranks):
    wait_in_a_call(ranks, 0, abort_from_another_thread)
    (text, _), = ranks.receive(60, only=[0])
    assert "from a timer" in text


# --- too late, and again ---


def late(here):
    here.ops.init("late", timeout=0.5)
    text = "not called"
    if here.rank == 0:
        text, _ = timed(lambda: here.ops.all_reduce(torch.ones(4), here.order, group="late"))
    here.ops.barrier()
    # After an error, with and without finalize.
    if here.rank == 1:
        here.ops.finalize("late")
    here.ops.init("late", timeout=60)
    result = here.ops.all_reduce(torch.ones(2), here.order, group="late").tolist()
    here.ops.finalize("late")
    return text, result


def test_a_rank_that_is_late_is_named_and_the_group_can_be_made_again(pair):
    (text, first), (_, second) = pair(late)
    assert '(group "late", rank 0 of 2): timeout_error: ' in text
    assert "rank 1 did not arrive within 0.5" in text
    assert first == second == [2.0, 2.0]


# --- signals ---


def interrupted(here):
    """What a Ctrl-C becomes: KeyboardInterrupt, also where RuntimeError is handled."""
    try:
        try:
            here.ops.all_reduce(torch.ones(4), here.order)
        except RuntimeError:
            for _ in range(100_000):  # goes on as if nothing was wrong
                abs(-1)
            return "swallowed", 0
    except KeyboardInterrupt as error:
        return str(error.__context__), time.monotonic()


def test_ctrl_c_ends_a_call_that_waits(ranks):
    wait_in_a_call(ranks, 0, interrupted)
    begin = time.monotonic()
    ranks.kill(signal.SIGINT, only=[0])
    (text, end), = ranks.receive(60, only=[0])
    assert "interrupted: a signal's handler raised KeyboardInterrupt" in text
    assert end - begin < SOON
    ranks.send(reduce_once, only=[1])
    (text, _), = ranks.receive(60, only=[1])  # the other rank does not wait for it in vain
    assert "aborted_error: " in text and "KeyboardInterrupt" in text


def handled(here):
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(timed(lambda: here.ops.barrier(here.order))[0]))
    result = here.ops.all_reduce(torch.ones(4), here.order).tolist()
    return result, seen


def test_a_handler_that_raises_nothing_does_not_end_the_call(ranks):
    wait_in_a_call(ranks, 0, handled)
    ranks.kill(signal.SIGUSR1, only=[0])
    time.sleep(0.5)
    ranks.send(do_nothing, only=[1])
    ranks.receive(60, only=[1])
    ranks.send(reduce_once, only=[1])
    (result, seen), (text, _) = ranks.receive(60)
    assert result == [2.0] * 4 and text == "no error"
    assert len(seen) == 1 and "was called by a signal handler, within a call of the same group" in seen[0]


def meet_nobody(here):
    if here.rank == 1:
        return None
    try:
        here.ops.init("nobody", rank=0, size=2, key="test_life: nobody comes", timeout=60)
    except RuntimeError as error:
        return str(error), time.monotonic()
    except KeyboardInterrupt:
        return "KeyboardInterrupt", time.monotonic()


def test_ctrl_c_ends_init(ranks):
    wait_in_a_call(ranks, 0, meet_nobody)
    begin = time.monotonic()
    ranks.kill(signal.SIGINT, only=[0])
    try:
        (text, end), = ranks.receive(60, only=[0])
        assert "KeyboardInterrupt" in text and end - begin < SOON
    except RanksFailed as error:  # it came a moment later, in the loop of the rank
        assert "KeyboardInterrupt" in str(error)


# --- fork ---


def fork(here):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        lines = []
        for call in (lambda: here.ops.all_reduce(torch.ones(2), here.order), lambda: here.ops.rank(),
                     lambda: here.ops.barrier()):
            lines.append(timed(call)[0])
        here.ops.finalize()
        here.ops.init(rank=0, size=1)
        lines.append(str(here.ops.all_reduce(torch.ones(2), here.order).tolist()))
        here.ops.finalize()
        os.write(writer, "\n".join(lines).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    return lines, here.ops.all_reduce(torch.ones(2), here.order).tolist()


def test_a_forked_child_is_no_rank(ranks):
    for lines, result in ranks(fork, seconds=60):
        assert result == [2.0, 2.0]
        assert len(lines) == 4 and lines[3] == "[1.0, 1.0]"
        for line in lines[:3]:
            assert "was initialised in the parent of this process; a forked child is no rank" in line


# --- the end of the program ---

ENDS = {
    "without finalize": "pass",
    "in a call of another thread": """
threading.Thread(target=lambda: ops.all_reduce(torch.ones(3), order, group="two"), daemon=True).start()
time.sleep(0.5)
""",
    "with a group kept": "keep = [ops.all_reduce(torch.ones(3, requires_grad=True), order), order]",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_as_it_should(extension, how):
    program = f"""
import threading, time, torch, uuid
torch.ops.load_library({extension!r})
ops = torch.ops.{NAMESPACE}
order = ops.init(rank=0, size=1)
key = uuid.uuid4().hex
other = threading.Thread(target=lambda: ops.init("other", rank=1, size=2, key=key))
other.start()
ops.init("two", rank=0, size=2, key=key)
other.join()
{ENDS[how]}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
