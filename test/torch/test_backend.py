# SPDX-License-Identifier: Apache-2.0
"""torch/backend.hpp through torch.distributed: every collective against what plain torch says, asynchronous calls,
messages, groups, and what happens when something goes wrong. (DDP, FSDP and the like: test_training.py; torch's own
tests: test_upstream.py.)"""

import datetime
import itertools
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import ProcessGroup

SOON = 15  # seconds; the machine that runs the tests may be busy
Op = dist.ReduceOp


@pytest.fixture(scope="module", params=[2, 3, 4])
def group(request, backend_module):
    with ProcessGroup(request.param, "rankfold", backend_module) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two(backend_module):
    with ProcessGroup(2, "rankfold", backend_module) as ranks:
        yield ranks


@pytest.fixture
def fresh(backend_module):
    """Makes ranks that a test may ruin."""
    made = []

    def make(size, **environment):
        made.append(ProcessGroup(size, "rankfold", backend_module, **environment))
        return made[-1]

    yield make
    for ranks in made:
        ranks.__exit__()


def check_all(answers):
    """What functions on ranks return that collect their problems."""
    assert answers == [[]] * len(answers)


class Problems(list):
    def same(self, found, wanted, *what):
        if isinstance(found, torch.Tensor):
            good = found.dtype == wanted.dtype and torch.equal(found, wanted)
        else:
            good = found == wanted
        if not good:
            self.append(f"{what}: {found} instead of {wanted}")

    def raises(self, part, f, *what, kind=RuntimeError):
        try:
            f()
        except kind as error:
            if part not in str(error):
                self.append(f"{what}: {error}")
        else:
            self.append(f"{what}: no error")


SECONDS = 100  # for most calls of all ranks


def store():
    return dist.distributed_c10d._get_default_store()


# --- every collective: values are small multiples of 12, so that all types hold all results exactly ---

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
MOVED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (0, 3), (5,), (3, 4), (70_001,)]


def values(rank, shape, dtype):
    count = torch.Size(shape).numel()
    x = (torch.arange(count) * 7 + rank * 5) % 11
    x = (x % 2 == 0) if dtype == torch.bool else x % 4 * 12 if dtype in FLOATS else x
    return x.to(dtype).reshape(shape)


def strided(x):
    """The same values, not contiguous."""
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


def folded(op, inputs):
    if op in (Op.SUM, Op.AVG):
        total = sum(x.double() if x.dtype in FLOATS else x for x in inputs)
        return (total / len(inputs) if op == Op.AVG else total).to(inputs[0].dtype)
    function = {Op.PRODUCT: torch.mul, Op.MIN: torch.minimum, Op.MAX: torch.maximum, Op.BAND: torch.bitwise_and,
                Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
    result = inputs[0]
    for x in inputs[1:]:
        result = function(result, x)
    return result


def reductions(here):
    problems = Problems()
    operators = [(d, op) for d in FLOATS for op in (Op.SUM, Op.AVG, Op.MIN, Op.MAX)]
    operators += [(d, op) for d in INTEGERS for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR)]
    operators += [(torch.float64, Op.PRODUCT)]
    for (dtype, op), shape in itertools.product(operators, SHAPES):
        inputs = [values(r, shape, dtype) for r in range(here.size)]
        wanted, own = folded(op, inputs), inputs[here.rank]
        for x in (own.clone(), strided(own)):
            dist.all_reduce(x, op)
            problems.same(x, wanted, "all_reduce", dtype, op, shape)
        root = here.size - 1
        x = own.clone()
        dist.reduce(x, root, op)
        if here.rank == root:
            problems.same(x, wanted, "reduce", dtype, op, shape)
        blocks = [[values(r + 3 * b, shape, dtype) for b in range(here.size)] for r in range(here.size)]
        wanted = folded(op, [theirs[here.rank] for theirs in blocks])
        mine = blocks[here.rank]
        for out, given in ((torch.empty_like(own), mine), (strided(own), [strided(x) for x in mine])):
            dist.reduce_scatter(out, given, op)
            problems.same(out, wanted, "reduce_scatter", dtype, op, shape)
        if shape:
            out = torch.empty_like(own)
            dist.reduce_scatter_single(out, torch.cat(mine), op)
            problems.same(out, wanted, "reduce_scatter_single", dtype, op, shape)
    return problems


def test_reductions(group):
    check_all(group(reductions, seconds=SECONDS))


def moves(here):
    problems = Problems()
    for dtype, shape in itertools.product(MOVED, SHAPES):
        all_of = [values(r, shape, dtype) for r in range(here.size)]
        own, root = all_of[here.rank], here.size - 1
        for layout in (torch.clone, strided):
            x = layout(own)
            dist.broadcast(x, root)
            problems.same(x, all_of[root], "broadcast", dtype, shape)
            lists = [layout(torch.zeros_like(own)) for _ in range(here.size)]
            dist.all_gather(lists, layout(own))
            for r in range(here.size):
                problems.same(lists[r], all_of[r], "all_gather", r, dtype, shape)
            lists = [layout(torch.zeros_like(own)) for _ in range(here.size)] if here.rank == root else None
            dist.gather(layout(own), lists, root)
            for r in range(here.size if lists else 0):
                problems.same(lists[r], all_of[r], "gather", r, dtype, shape)
            x = layout(torch.zeros_like(own))
            dist.scatter(x, [layout(y) for y in all_of] if here.rank == root else None, root)
            problems.same(x, own, "scatter", dtype, shape)
            blocks = [[values(r + 3 * b, shape, dtype) for b in range(here.size)] for r in range(here.size)]
            lists = [layout(torch.zeros_like(own)) for _ in range(here.size)]
            dist.all_to_all(lists, [layout(x) for x in blocks[here.rank]])
            for r in range(here.size):
                problems.same(lists[r], blocks[r][here.rank], "all_to_all", r, dtype, shape)
        if shape:
            out = torch.empty((here.size * shape[0], *shape[1:]), dtype=dtype)
            dist.all_gather_single(out, own)
            problems.same(out, torch.cat(all_of), "all_gather_single", dtype, shape)
            dist.all_to_all_single(out, torch.cat(blocks[here.rank]))
            problems.same(out, torch.cat([theirs[here.rank] for theirs in blocks]), "all_to_all_single", dtype, shape)
    return problems


def test_moves(group):
    check_all(group(moves, seconds=SECONDS))


def uneven(here):
    problems = Problems()
    sizes = [3 * r + 1 for r in range(here.size)]
    everything = [values(r, (sizes[r], 2), torch.float32) for r in range(here.size)]
    lists = [torch.empty_like(x) for x in everything]
    dist.all_gather(lists, everything[here.rank])
    for found, wanted in zip(lists, everything):
        problems.same(found, wanted, "all_gather")
    out = torch.empty_like(everything[here.rank])
    dist.reduce_scatter(out, everything)
    problems.same(out, everything[here.rank] * here.size, "reduce_scatter")
    # Rank i sends i + j rows to rank j.
    sent = [[values(10 * i + j, (i + j, 2), torch.int64) for j in range(here.size)] for i in range(here.size)]
    mine, wanted = sent[here.rank], [theirs[here.rank] for theirs in sent]
    out = torch.empty_like(torch.cat(wanted))
    dist.all_to_all_single(out, torch.cat(mine), [len(x) for x in wanted], [len(x) for x in mine])
    problems.same(out, torch.cat(wanted), "all_to_all_single")
    lists = [torch.empty_like(x) for x in wanted]
    dist.all_to_all(lists, mine)
    problems.same(torch.cat(lists), torch.cat(wanted), "all_to_all")
    return problems


def test_blocks_of_different_sizes(group):
    check_all(group(uneven, seconds=SECONDS))


def other_operators(here):
    problems = Problems()
    x = torch.tensor([True, False, here.rank == 0])
    dist.all_reduce(x)
    problems.same(x, torch.tensor([True, False, True]), "a sum of bool")
    x = torch.tensor([1 + 2j, here.rank * 1j])
    dist.all_reduce(x)
    problems.same(x, torch.tensor([here.size * (1 + 2j), sum(range(here.size)) * 1j]), "complex")
    x = torch.full((3,), float(here.rank + 1))
    wanted = torch.full((3,), sum((r + 1.0) * (r + 2) for r in range(here.size)))
    out = torch.empty(3)
    factor = here.rank + 2.0
    dist.reduce_scatter(out, [x] * here.size, op=dist._make_nccl_premul_sum(factor))
    problems.same(out, wanted, "reduce_scatter, premultiplied")
    problems.same(x, torch.full((3,), float(here.rank + 1)), "the input")
    dist.all_reduce(x, dist._make_nccl_premul_sum(torch.tensor([factor])))
    problems.same(x, wanted, "all_reduce, premultiplied")
    x = torch.sparse_coo_tensor([[here.rank]], [2.0], (here.size,))
    dist.all_reduce(x)
    problems.same(x.to_dense(), torch.full((here.size,), 2.0), "sparse")
    return problems


def test_operators_that_are_not_the_librarys(group):
    check_all(group(other_operators, seconds=SECONDS))


def coalesced(here):
    problems = Problems()
    xs = [values(here.rank, (n,), torch.float32) for n in (3, 0, 70_000)]
    wanted = [folded(Op.SUM, [values(r, x.shape, x.dtype) for r in range(here.size)]) for x in xs]
    parts = [values(here.rank, (n * here.size,), torch.float32) for n in (3, 70_000)]
    for device in (None, torch.device("cpu")):
        ys = [x.clone() for x in xs]
        with dist.distributed_c10d._coalescing_manager(device=device, async_ops=True) as together:
            for y in ys:
                dist.all_reduce(y)
        together.wait()
        for found, right in zip(ys, wanted):
            problems.same(found, right, "all_reduce", device)
    outs = [torch.empty(len(x) * here.size) for x in xs]
    with dist.distributed_c10d._coalescing_manager():
        for out, x in zip(outs, xs):
            dist.all_gather_single(out, x)
    for out, x in zip(outs, xs):
        problems.same(out, torch.cat([values(r, x.shape, x.dtype) for r in range(here.size)]), "all_gather_single")
    outs = [torch.empty(len(x) // here.size) for x in parts]
    with dist.distributed_c10d._coalescing_manager():
        for out, x in zip(outs, parts):
            dist.reduce_scatter_single(out, x)
    for out, x in zip(outs, parts):
        total = folded(Op.SUM, [values(r, x.shape, x.dtype) for r in range(here.size)])
        problems.same(out, total.chunk(here.size)[here.rank], "reduce_scatter_single")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    y = xs[0].clone()
    dist.all_reduce(y)
    backend._end_coalescing().wait()
    problems.same(y, wanted[0], "startCoalescing")
    return problems


def test_coalesced(group):
    check_all(group(coalesced, seconds=SECONDS))


def objects(here):
    problems = Problems()
    mine = {"rank": here.rank, "text": "x" * 1000 * here.rank, "tensor": torch.full((3,), here.rank).tolist()}
    found = [None] * here.size
    dist.all_gather_object(found, mine)
    problems.same([x["rank"] for x in found], list(range(here.size)), "all_gather_object")
    found = [None] * here.size if here.rank == 1 else None
    dist.gather_object(mine, found, 1)
    if here.rank == 1:
        problems.same([len(x["text"]) for x in found], [1000 * r for r in range(here.size)], "gather_object")
    found = [mine, 7] if here.rank == 0 else [None, None]
    dist.broadcast_object_list(found)
    problems.same((found[0]["rank"], found[1]), (0, 7), "broadcast_object_list")
    found = [None]
    dist.scatter_object_list(found, [10 * r for r in range(here.size)] if here.rank == 0 else None)
    problems.same(found, [10 * here.rank], "scatter_object_list")
    return problems


def test_objects(group):
    check_all(group(objects, seconds=SECONDS))


# --- asynchronous calls ---


def overlap(here):
    """Rank 1 calls only when rank 0 has gone on after its call."""
    problems = Problems()
    for i, count in enumerate((4, 300_000)):
        x = torch.full((count,), here.rank + 1.0)
        if here.rank != 0:
            store().wait([f"gone on {i}"], datetime.timedelta(seconds=60))
        work = dist.all_reduce(x, async_op=True)
        if here.rank == 0:
            problems.same(work.is_completed(), False, "complete without the others")
            store().set(f"gone on {i}", "")
            while not work.is_completed():  # nobody waits for it
                time.sleep(0.001)
        work.wait()
        problems.same(x[-1].item(), sum(range(1, here.size + 1)), "the sum")
        problems.same([t.data_ptr() for t in work.result()], [x.data_ptr()], "result")
    return problems


def test_a_call_goes_on_while_the_program_does(group):
    check_all(group(overlap, seconds=SECONDS))


def futures(here):
    problems = Problems()
    xs = [torch.full((n,), 1.0) for n in (4, 100_000)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    found = [w.get_future().then(lambda f: f.value()[0] * 2) for w in works]
    for f, x in zip(found, xs):
        problems.same(f.wait(), torch.full_like(x, 2 * here.size), "future")
    lists = [torch.empty(2) for _ in range(here.size)]
    value = dist.all_gather(lists, torch.ones(2), async_op=True).get_future().wait()
    problems.same([t.data_ptr() for t in value], [t.data_ptr() for t in lists], "all_gather's future")
    problems.same(dist.barrier(async_op=True).get_future().wait(), [], "barrier's future")

    def again(f):  # as in the hooks of DDP: a callback that waits for the next call, and its future
        return dist.all_reduce(f.value()[0], async_op=True).get_future().wait()[0]

    for _ in range(4):  # one after the other: else the ranks' calls come in different orders
        f = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(again)
        problems.same(f.wait(), torch.full((5,), float(here.size ** 2)), "a call within a callback")
    return problems


def test_futures(group):
    check_all(group(futures, seconds=SECONDS))


def dropped(here):
    """Neither the handles nor the tensors are kept."""
    right = (here.rank + 1) % here.size
    for i in range(50):
        dist.all_reduce(torch.ones(50_000), async_op=True)
        dist.isend(torch.full((50_000,), float(i)), right)
    got = torch.empty(50_000)
    problems = Problems()
    for i in range(50):
        dist.recv(got, (here.rank - 1) % here.size)
        problems.same(got[7].item(), float(i), "message", i)
    dist.barrier()
    return problems


def test_what_nobody_holds_is_carried_out(group):
    check_all(group(dropped, seconds=SECONDS))


def futures_beside_dropped_calls(here):
    """A call that nobody holds ends with its last tensor, which takes the GIL, as does who asks for a future."""
    y = torch.ones(4)
    for _ in range(3000):
        dist.all_reduce(torch.ones(300), async_op=True)
        future = dist.all_reduce(y, async_op=True).get_future()
    future.wait()
    dist.barrier()
    return []


def test_futures_do_not_wait_for_what_is_dropped(two):
    check_all(two(futures_beside_dropped_calls, seconds=SECONDS))


def threads(here):
    problems = Problems()
    groups = [dist.new_group() for _ in range(3)]

    def use(group, count):
        for i in range(100):
            x = torch.full((count,), float(i))
            dist.all_reduce(x, group=group)
            problems.same(x[-1].item(), float(i * here.size), count)

    started = [threading.Thread(target=use, args=(g, n)) for g, n in zip(groups, (1, 100, 20_000))]
    for t in started:
        t.start()
    for t in started:
        t.join()
    for g in groups:
        dist.destroy_process_group(g)
    return problems


def test_a_group_a_thread(group):
    check_all(group(threads, seconds=SECONDS))


# --- messages ---


def ring(here, count, receive_first):
    problems = Problems()
    sent = [values(here.rank + i, (count,), torch.float32) for i in range(3)]
    got = [torch.empty(count) for _ in range(3)]
    right, left = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    ops = [dist.P2POp(dist.isend, x, right) for x in sent]
    receives = [dist.P2POp(dist.irecv, x, left) for x in got]
    first = dist.all_reduce(torch.ones(1000), async_op=True)
    works = dist.batch_isend_irecv(receives + ops if receive_first else ops + receives)
    last = dist.all_reduce(torch.ones(1000), async_op=True)
    for work in (*reversed(works), first, last):
        work.wait()
    for i, x in enumerate(got):
        problems.same(x, values(left + i, (count,), torch.float32), i)
    return problems


@pytest.mark.parametrize("receive_first", [True, False])
@pytest.mark.parametrize("count", [0, 5, 1_000_000])
def test_batches_in_any_order(group, count, receive_first):
    check_all(group(ring, count, receive_first, seconds=SECONDS))


def tags(here):
    problems = Problems()
    if here.rank == 0:
        works = [dist.isend(torch.full((20_000,), float(tag)), 1, tag=tag) for tag in (7, 3, 5, 3)]
        for work in works:
            work.wait()
    elif here.rank == 1:
        x = torch.empty(20_000)
        for tag in (3, 5, 7, 3):
            problems.same(dist.recv(x, 0, tag=tag), 0, "source")
            problems.same(x[9].item(), float(tag), "tag", tag)
    dist.barrier()
    if here.rank != 0:
        dist.send(torch.tensor([here.rank, 10]), 0, tag=4)
    else:
        sources = []
        for _ in range(1, here.size):
            x = torch.zeros(2, dtype=torch.int64)
            sources.append(dist.recv(x, tag=4))
            problems.same(x.tolist(), [sources[-1], 10], "from any rank")
        problems.same(sorted(sources), list(range(1, here.size)), "sources")
    return problems


def test_tags_and_any_source(group):
    check_all(group(tags, seconds=SECONDS))


# --- groups ---


def groups_side_by_side(here):
    problems = Problems()
    rest = list(range(1, here.size))
    pairs = [dist.new_group([i, (i + 1) % here.size]) for i in range(here.size)]
    others = dist.new_group(rest)
    own = [here.rank, (here.rank - 1) % here.size]
    if here.rank % 2:
        own.reverse()
    xs = [torch.full((30_000,), float(here.rank + 1)) for _ in own]
    works = [dist.all_reduce(x, group=pairs[i], async_op=True) for i, x in zip(own, xs)]
    world = torch.ones(3)
    dist.all_reduce(world)
    for work, i, x in zip(works, own, xs):
        work.wait()
        problems.same(x[5].item(), float(i + 1 + (i + 1) % here.size + 1), "pair", i)
    problems.same(world[0].item(), float(here.size), "world")
    if here.rank in rest:
        x = torch.tensor([here.rank])
        dist.broadcast(x, rest[-1], group=others)
        problems.same(x.item(), rest[-1], "broadcast from the last rank of the others")
        dist.destroy_process_group(others)
    x = torch.ones(1)
    for i in sorted(own):
        dist.all_reduce(x, group=pairs[i])
    wanted = [1.0] * here.size
    for i in range(here.size):
        j = (i + 1) % here.size
        wanted[i] = wanted[j] = wanted[i] + wanted[j]
    problems.same(x.item(), wanted[here.rank], "groups beside one that is gone")
    part = dist.group.WORLD.split_group([0, 1], timeout=datetime.timedelta(seconds=30), group_name="part")
    if here.rank < 2:
        x = torch.tensor([here.rank])
        part.allreduce([x]).wait()
        problems.same(x.item(), 1, "split")
    return problems


def test_groups_side_by_side(group):
    check_all(group(groups_side_by_side, seconds=SECONDS))


# --- compiled ---


def compiled(here):
    problems = Problems()
    world = dist.group.WORLD.group_name

    def functional(x, w):
        y = funcol.all_reduce(x @ w, "sum", world)
        z = funcol.all_gather_single(y.relu(), 0, world) if hasattr(funcol, "all_gather_single") else \
            funcol.all_gather_tensor(y.relu(), 0, world)
        return funcol.reduce_scatter_tensor(z, "sum", 0, world) * 3

    def in_place(x, w):
        y = x @ w
        dist.all_reduce(y)
        return y.relu() + 1

    for f in (functional, in_place):
        for rows in (4, 6):
            x, w = values(here.rank, (rows, 8), torch.float32), values(3, (8, 8), torch.float32)
            eager = f(x, w)
            problems.same(torch.compile(f, fullgraph=True)(x, w), eager, f.__name__, rows)
    return problems


def test_compiled_is_as_eager(two):
    check_all(two(compiled, seconds=300))


# --- wrong arguments: errors before anything is sent ---


def wrong_arguments(here):
    problems = Problems()
    x, world = torch.ones(4), dist.group.WORLD
    cases = {
        "is not defined for dtype": lambda: dist.all_reduce(x, Op.BAND),
        "AVG is not defined": lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), Op.AVG),
        "share memory": lambda: dist.all_reduce(torch.ones(1).expand(4)),
        "has 1 tensors": lambda: dist.all_gather([x], x),
        "as many, one block": lambda: dist.all_gather_single(torch.empty(3), x),
        "and another": lambda: world.allgather([[x.double()] * here.size], [x]),
        "splits of 3 rows": lambda: dist.all_to_all_single(torch.empty(4), x, None, [3] + [0] * (here.size - 1)),
        "expected 0 to 1048575": lambda: dist.send(x, 1 - here.rank, tag=1 << 20),
        "expected one that is": lambda: dist.send(torch.ones(4, 4).t(), 1 - here.rank),
        "the root is rank 9": lambda: world.broadcast(x, 9),
        "inputs has 0 tensors": lambda: world.alltoall([x] * here.size, []),
    }
    for part, call in cases.items():
        problems.raises(part, call, part, kind=(RuntimeError, ValueError))
        problems.raises("rankfold::", call, part, kind=(RuntimeError, ValueError))
    dist.all_reduce(x)
    problems.same(x[0].item(), float(here.size), "the group afterwards")
    return problems


def test_wrong_arguments_are_refused(two):
    check_all(two(wrong_arguments, seconds=SECONDS))


# --- what goes wrong later ---


def error_of(call):
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - begin
    return "no error", time.monotonic() - begin


def mismatch(here):
    return error_of(lambda: dist.all_reduce(torch.ones(3 + here.rank)))[0], error_of(dist.barrier)[0]


def test_ranks_that_differ_are_told_and_later_calls_say_why(fresh):
    for first, second in fresh(2)(mismatch):
        assert first.startswith('rankfold::all_reduce (group "0", rank ') and "mismatch_error: " in first
        assert "3 × float32" in first and "4 × float32" in first
        assert "aborted_error: " in second and "4 × float32" in second


def late(here, how):
    slow = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if here.rank == 1:
        store().wait(["over"], datetime.timedelta(seconds=60))
        return None
    x = torch.ones(4)
    short = datetime.timedelta(seconds=1)
    call = {"of the group": lambda: dist.all_reduce(x, group=slow),
            "of the call": lambda: dist.barrier(timeout=short),
            "of an asynchronous call": lambda: dist.all_reduce(x, group=slow, async_op=True).get_future().wait(),
            "of a receive": lambda: dist.recv(x, 1, group=slow),
            "of wait": lambda: dist.all_reduce(x, async_op=True).wait(short)}[how]
    try:
        return error_of(call)
    except RuntimeError as error:  # what a future raises
        return str(error), 0
    finally:
        store().set("over", "")


@pytest.mark.parametrize("how", ["of the group", "of the call", "of an asynchronous call", "of a receive", "of wait"])
def test_timeouts(fresh, how):
    text, took = fresh(2)(late, how, seconds=60)[0]
    assert "timeout_error: " in text and "1 s" in text and "Timed out" in text
    assert ("rank 1" in text or how == "of wait") and took < 1 + SOON


def calls_until_error(here):
    x, other = torch.ones(100_000), dist.new_group()
    text, _ = error_of(lambda: [(dist.all_reduce(x), dist.all_reduce(x, async_op=True).wait(),
                                 dist.all_reduce(x, group=other)) for _ in itertools.count()])
    return text


def test_a_rank_that_dies_ends_the_others_calls(fresh):
    ranks = fresh(3)
    ranks.send(calls_until_error)
    time.sleep(1.5)
    ranks.kill(only=[1])
    begin = time.monotonic()
    for text in ranks.receive(60, only=[0, 2]):
        assert ("peer_lost_error: " in text or "aborted_error: " in text) and "rank 1 died" in text
    assert time.monotonic() - begin < SOON


def init(here, file):
    dist.init_process_group("rankfold", init_method=f"file://{file}", rank=here.rank, world_size=here.size,
                            timeout=datetime.timedelta(seconds=30))


def abort_and_begin_anew(here, file):
    problems = Problems()
    pending = dist.irecv(torch.empty(3), 1 - here.rank)
    if here.rank == 0:
        threading.Timer(0.3, dist.group.WORLD.abort).start()
        problems.raises("abort() was called", lambda: dist.all_reduce(torch.ones(3)), "rank 0")
    problems.raises("abort() was called", pending.wait, "what was under way")
    problems.same(pending.is_success(), False, "success")
    problems.raises("aborted_error: ", dist.barrier, "later")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    problems.raises("destroyed", lambda: backend.barrier(), "the old group")
    for _ in range(3):  # the same store file, the same names
        init(here, file)
        x = torch.ones(3)
        dist.all_reduce(x)
        problems.same(x[0].item(), 2.0, "anew")
        dist.destroy_process_group()
    return problems


def test_after_an_abort_a_new_group_can_be_made(fresh, tmp_path):
    check_all(fresh(2)(abort_and_begin_anew, str(tmp_path / "anew"), seconds=90))


def rank_1_does_not_come(here, file):
    dist.destroy_process_group()
    if here.rank == 1:
        return None
    try:
        dist.init_process_group("rankfold", init_method=f"file://{file}", rank=0, world_size=2,
                                timeout=datetime.timedelta(seconds=2))
    except RuntimeError as error:
        return str(error)


def test_a_rank_that_does_not_come_is_named(fresh, tmp_path):
    text = fresh(2)(rank_1_does_not_come, str(tmp_path / "late"), seconds=60)[0]
    assert "rendezvous_error: " in text and "rank 1 did not come within 2 s" in text


def monitored(here, missing, all_ranks):
    world, text = dist.group.WORLD, None
    world.monitored_barrier(datetime.timedelta(seconds=30))
    if here.rank not in missing:
        text, _ = error_of(lambda: world.monitored_barrier(datetime.timedelta(seconds=1), wait_all_ranks=all_ranks))
    dist.barrier()  # the group is as it was
    return text


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_monitored_barrier_says_who_is_missing(fresh, all_ranks):
    found = fresh(4)(monitored, [1, 3], all_ranks, seconds=60)
    words = "Ranks 1, 3 failed to pass" if all_ranks else "Rank 1 failed to pass"
    assert found[1] is None and found[3] is None
    assert "timeout_error: " in found[0] and words in found[0]
    assert "Rank 2 successfully reached monitoredBarrier" in found[2] and words in found[2]


# --- the end of the program ---


def leave_things_open(here):
    right, left = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    dist.irecv(torch.empty(3), left, tag=5)  # nobody sends that
    dist.isend(torch.ones(1_000_000), right)
    dist.all_reduce(torch.ones(1_000_000), async_op=True).get_future().then(lambda f: f.value()[0].sum())
    if here.rank == 0:
        dist.recv(torch.empty(1_000_000), left)  # rank 0's own message is never taken


def test_a_program_ends_with_things_open(fresh):
    ranks = fresh(2)
    ranks(leave_things_open)
    begin = time.monotonic()
    assert ranks.leave() == [0, 0]
    assert time.monotonic() - begin < 10 + SOON


def interrupted(here, asynchronous):
    if here.rank == 1:
        store().wait(["over"], datetime.timedelta(seconds=60))
        return None
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        x = torch.ones(100_000)
        try:
            if asynchronous:
                work = dist.all_reduce(x, async_op=True)
                time.sleep(0.2)  # the queue's thread has it now
                work.wait()
            else:
                dist.all_reduce(x)
        except RuntimeError:
            time.sleep(0.1)
        return "no interrupt", 0
    except KeyboardInterrupt:
        return "interrupted", time.monotonic() - begin
    finally:
        store().set("over", "")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ctrl_c(fresh, asynchronous):
    text, took = fresh(2)(interrupted, asynchronous, seconds=60)[0]
    assert text == "interrupted" and took < SOON


# --- several hosts ---


def with_hosts(here, hosts, file):
    dist.destroy_process_group()
    os.environ["RANKFOLD_HOST"] = hosts[here.rank]
    init(here, file)


def part_of_everything(here):
    problems = Problems()
    for part in (uneven, coalesced, objects, futures, tags):
        problems += part(here)
    problems += ring(here, 100_000, True)
    for shape, dtype in itertools.product(SHAPES, (torch.float32, torch.bfloat16, torch.int64)):
        inputs = [values(r, shape, dtype) for r in range(here.size)]
        x = inputs[here.rank].clone()
        dist.all_reduce(x)
        problems.same(x, folded(Op.SUM, inputs), "all_reduce", shape, dtype)
    return problems


@pytest.mark.parametrize("hosts", ["ab", "aabb", "aba"])
def test_hosts(fresh, hosts, tmp_path):
    ranks = fresh(len(hosts), RANKFOLD_TIMEOUT="60", RES_OPTIONS="timeout:1 attempts:1")
    ranks(with_hosts, hosts, str(tmp_path / "hosts"), seconds=60)
    check_all(ranks(part_of_everything, seconds=120))
