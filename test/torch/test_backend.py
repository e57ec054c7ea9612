# SPDX-License-Identifier: Apache-2.0
"""torch/backend.hpp through torch.distributed: every collective against what plain torch says, asynchronous calls,
messages, groups, and what happens when something goes wrong. (DDP, FSDP and the like: test_training.py; torch's own
tests: test_upstream.py.)"""

import datetime
import functools
import itertools
import os
import resource
import signal
import socket
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import ProcessGroup
from reference import same_bits, tree

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
        good = same_bits(found, wanted) if isinstance(found, torch.Tensor) else found == wanted
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


# --- every collective ---

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
MOVED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (0, 3), (5,), (3, 4), (70_001,)]


@functools.lru_cache(maxsize=None)
def values(rank, shape, dtype):
    """The same in every process; floats are of sizes at which the order of additions matters. Not to be changed."""
    generator = torch.Generator().manual_seed(rank)
    if dtype in FLOATS:
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * 8
    else:
        x = torch.randint(0, 2 if dtype == torch.bool else 11, shape, generator=generator)
    return x.to(dtype)


def strided(x):
    """The same values, not contiguous."""
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


def folded(op, inputs):
    if inputs[0].dtype in FLOATS:
        names = {Op.SUM: "sum", Op.AVG: "avg", Op.PRODUCT: "prod", Op.MIN: "min", Op.MAX: "max"}
        return tree(inputs, names[op])
    function = {Op.SUM: torch.add, Op.PRODUCT: torch.mul, Op.MIN: torch.minimum, Op.MAX: torch.maximum,
                Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
    return functools.reduce(function, inputs)


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
        for x in (own.clone(), strided(own)):
            dist.reduce(x, root, op)
            problems.same(x, wanted if here.rank == root else own, "reduce", dtype, op, shape)
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
    blocks = [[values(10 * r + b, (sizes[b], 2), torch.float32) for b in range(here.size)] for r in range(here.size)]
    out = torch.empty_like(everything[here.rank])
    dist.reduce_scatter(out, blocks[here.rank])
    problems.same(out, folded(Op.SUM, [theirs[here.rank] for theirs in blocks]), "reduce_scatter")
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


def coalescing(here):
    """What another thread does meanwhile, and what comes after an exception, is not a part of it."""
    problems = Problems()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    inputs = [values(r, (1000,), torch.float32) for r in range(here.size)]
    pending = []
    backend._start_coalescing()
    other = threading.Thread(target=lambda: pending.append(dist.irecv(torch.empty(3), (here.rank + 1) % here.size)))
    other.start()
    other.join()
    x = inputs[here.rank].clone()
    dist.all_reduce(x, async_op=True)
    backend._end_coalescing().wait(datetime.timedelta(seconds=20))
    problems.same(x, folded(Op.SUM, inputs), "the sum")
    dist.send(torch.ones(3), (here.rank - 1) % here.size)
    pending[0].wait()
    try:
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
            raise KeyError
    except KeyError:
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # of torch, which would take all_reduce to be in it
    x = inputs[here.rank].clone()
    dist.broadcast(x, 0)
    problems.same(x, inputs[0], "broadcast")
    held = weakref.ref(x)
    del x
    until = time.monotonic() + SOON
    while held() is not None and time.monotonic() < until:
        time.sleep(0.001)
    problems.same(held(), None, "the tensor")
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as together:
        x = inputs[here.rank].clone()
        dist.all_reduce(x)
    together.wait()
    problems.same(x, folded(Op.SUM, inputs), "anew")
    return problems


def test_coalescing_is_of_one_thread(group):
    check_all(group(coalescing, seconds=SECONDS))


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
        inputs = [values(r, (count,), torch.float32) for r in range(here.size)]
        x = inputs[here.rank].clone()
        if here.rank != 0:
            store().wait([f"gone on {i}"], datetime.timedelta(seconds=60))
        work = dist.all_reduce(x, async_op=True)
        if here.rank == 0:
            problems.same(work.is_completed(), False, "complete without the others")
            store().set(f"gone on {i}", "")
            while not work.is_completed():  # nobody waits for it
                time.sleep(0.001)
        work.wait()
        problems.same(x, folded(Op.SUM, inputs), "the sum")
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
    for i in range(200):  # who has waited, or asked, finds the future done
        work = dist.all_reduce(torch.ones(5), async_op=True)
        future = work.get_future()
        if i % 2:
            work.wait()
        else:
            while not work.is_completed():
                pass
        problems.same(future.done(), True, "future of a complete call", i)
    return problems


def test_futures(group):
    check_all(group(futures, seconds=SECONDS))


def dropped(here):
    """Neither the handles nor the tensors are kept."""
    right, left = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    for i in range(50):
        dist.all_reduce(torch.ones(50_000), async_op=True)
        dist.isend(values(i, (50_000,), torch.float32) + here.rank, right)
    got = torch.empty(50_000)
    problems = Problems()
    for i in range(50):
        dist.recv(got, left)
        problems.same(got, values(i, (50_000,), torch.float32) + left, "message", i)
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
    sent = [values(here.rank + 10 * i, (count,), torch.float32) for i in range(3)]
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
        problems.same(x, values(left + 10 * i, (count,), torch.float32), i)
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

    def whole(rank, *shape):  # so that every product and sum is exact
        return values(rank, shape, torch.int64).float() - 5

    for rows in (4, 6):
        xs = [(whole(r, rows, 8), whole(10 + r, 8, 8)) for r in range(here.size)]
        y = sum(x.double() @ w.double() for x, w in xs).float()
        scattered = torch.cat([y.relu() * here.size] * here.size).chunk(here.size)[here.rank] * 3
        for f, wanted in ((functional, scattered), (in_place, y.relu() + 1)):
            problems.same(f(*xs[here.rank]), wanted, f.__name__, rows)
            problems.same(torch.compile(f, fullgraph=True)(*xs[here.rank]), wanted, "compiled", f.__name__, rows)
    return problems


def test_compiled_and_eager(two):
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
        "input has 2 elements for this rank itself": lambda: dist.all_to_all_single(
            torch.empty(4), x, [1, 3] if here.rank == 0 else [3, 1], [2, 2], async_op=True),
        "elements for this rank itself, and": lambda: dist.all_to_all([x, x], [x[:2], x[:3]], async_op=True),
        "expected more than 0": lambda: world._get_backend(x.device).set_timeout(datetime.timedelta(0)),
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


def error_of(call, kind=dist.DistBackendError):
    begin = time.monotonic()
    try:
        call()
    except kind as error:
        return str(error), time.monotonic() - begin
    return "no error", time.monotonic() - begin


def mismatch(here):
    return error_of(lambda: dist.all_reduce(torch.ones(3 + here.rank)))[0], error_of(dist.barrier)[0]


def test_ranks_that_differ_are_told_and_later_calls_say_why(fresh):
    for first, second in fresh(2)(mismatch):
        assert first.startswith('rankfold::all_reduce (group "0", rank ') and "mismatch_error: " in first
        assert "3 × float32" in first and "4 × float32" in first
        assert "aborted_error: " in second and "4 × float32" in second


def foreign_types(here):
    """Types that rankfold does not know, of the same bytes. (dist.broadcast would make float32 of complex64.)"""
    problems = Problems()
    other = 1 - here.rank
    float8 = torch.zeros(64).to([torch.float8_e4m3fnuz, torch.float8_e5m2fnuz][here.rank])
    number = [torch.zeros(8, dtype=torch.complex64), torch.zeros(4, dtype=torch.complex128)][here.rank]

    def exchange(x, g):
        (g.send([x], other, 0) if here.rank == 0 else g.recv([x], other, 0)).wait()

    root = here.rank == 0
    calls = {
        "all_gather": lambda x, g: dist.all_gather([torch.empty_like(x)] * 2, x, g),
        "all_gather (uneven)": lambda x, g: dist.all_gather(
            [torch.empty_like(y) for y in (x, x[1:])], x[here.rank:], g),
        "broadcast": lambda x, g: g.broadcast(x, 0).wait(),
        "gather": lambda x, g: dist.gather(x, [torch.empty_like(x) for _ in range(2)] if root else None, 0, g),
        "scatter": lambda x, g: dist.scatter(x, [x.clone(), x.clone()] if root else None, 0, g),
        "all_to_all (uneven)": lambda x, g: dist.all_to_all_single(torch.empty_like(x), x, group=g),
        "send/recv": exchange,
    }
    for name, call in calls.items():
        for x in (float8, number) if name in ("broadcast", "send/recv") else (float8,):
            g = dist.new_group(timeout=datetime.timedelta(seconds=10))
            text, _ = error_of(lambda: (call(x, g), dist.barrier(g)))  # who waits for nobody hears of it later
            how = " of uint8 (type " if "uneven" in name else " of 64 × uint8 (type "
            if not ("mismatch_error: " in text and name + how in text):
                problems.append(f"{name}: {text}")
            dist.destroy_process_group(g)
    return problems


def test_types_that_the_library_does_not_know_are_told_apart(two):
    check_all(two(foreign_types, seconds=SECONDS))


def long_times(here, file):
    """As good as none, though a clock's nanoseconds cannot hold them."""
    problems = Problems()
    for longest in (datetime.timedelta.max, datetime.timedelta(days=365_000)):
        g = dist.new_group(timeout=longest)
        work = dist.all_reduce(torch.ones(3), group=g, async_op=True)
        time.sleep(0.1 * here.rank)
        problems.same(work.wait(longest), True, "wait")
        if here.rank == 1:
            time.sleep(0.3)  # the other one sleeps by then
        dist.barrier(g)
        g.monitored_barrier(longest)
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).set_timeout(longest)
        dist.barrier()
    problems.raises("the timeout is 0 ms", lambda: dist.new_group(timeout=datetime.timedelta(0)), "no time")
    return problems


def test_long_times(fresh, tmp_path):
    check_all(fresh(2)(long_times, str(tmp_path / "long"), seconds=60))


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
        return error_of(call, RuntimeError if how == "of an asynchronous call" else dist.DistBackendError)
    finally:
        store().set("over", "")


@pytest.mark.parametrize("how", ["of the group", "of the call", "of an asynchronous call", "of a receive", "of wait"])
def test_timeouts(fresh, how):
    text, took = fresh(2)(late, how, seconds=60)[0]
    assert "timeout_error: " in text and "1 s" in text and "Timed out" in text
    assert ("rank 1" in text or how == "of wait") and 0.99 <= took < 1 + SOON


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
    error = pending.exception()
    problems.same((type(error), "abort() was called" in str(error)), (dist.DistBackendError, True), "exception")
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


def beside_the_store(here, port):
    """A monitored barrier of a program that waits for the store in another thread; and what it leaves there."""
    problems = Problems()
    dist.destroy_process_group()
    dist.init_process_group("rankfold", init_method=f"tcp://127.0.0.1:{port}", rank=here.rank, world_size=here.size)
    world, most = dist.group.WORLD, datetime.timedelta(seconds=30)
    dist.barrier()
    before = store().num_keys()
    dist.barrier()
    for _ in range(3):
        world.monitored_barrier(most)
    dist.barrier()
    problems.same(store().num_keys(), before, "keys")
    dist.barrier()

    def wait():
        try:
            store().wait(["never"], datetime.timedelta(seconds=4))
        except dist.DistStoreError:
            pass

    waits = threading.Thread(target=wait)
    waits.start()
    time.sleep(0.2)
    begin = time.monotonic()
    world.monitored_barrier(most)
    problems.same(time.monotonic() - begin < 3, True, "in time")
    waits.join()
    return problems


def test_a_monitored_barrier_beside_others_at_the_store(fresh):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_all(fresh(2)(beside_the_store, port, seconds=60))


def abort_while_gloo_is_made(here):
    if here.rank == 1:
        store().wait(["over"], datetime.timedelta(seconds=60))
        return None
    threading.Timer(0.5, dist.group.WORLD.abort).start()
    x = torch.sparse_coo_tensor([[0]], [2.0], (2,))
    try:
        return [error_of(lambda: dist.all_reduce(x)) for _ in range(2)]
    finally:
        store().set("over", "")


def test_an_abort_ends_the_wait_for_a_gloo_group(fresh):
    for text, took in fresh(2)(abort_while_gloo_is_made, seconds=60)[0]:
        assert text.startswith("rankfold::all_reduce") and "aborted_error: " in text and "abort() was called" in text
        assert took < SOON


def no_threads_left(here):
    """The system gives no thread to complete a future in."""
    x = torch.ones(4)
    if here.rank == 1:
        store().wait(["asked"], datetime.timedelta(seconds=60))
        dist.all_reduce(x)
        return []
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    over, threads = threading.Event(), []
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))  # less than a stack
    try:
        while True:  # until the stacks of threads that have ended are in use, too
            threads.append(threading.Thread(target=over.wait))
            threads[-1].start()
    except RuntimeError:
        threads.pop()
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    store().set("asked", "")
    problems = Problems()
    problems.same(future.wait(), torch.full((4,), 4.0), "future")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    over.set()
    for thread in threads:
        thread.join()
    return problems


def test_a_future_without_a_thread(fresh):
    assert fresh(2)(no_threads_left, seconds=60)[0] == []


# --- the end of the program ---


def leave_things_open(here):
    right, left = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    for _ in range(5):  # what is not taken there does not add up
        dist.isend(torch.ones(1_000_000), right, dist.new_group())
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
    assert time.monotonic() - begin < 5 + SOON


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
