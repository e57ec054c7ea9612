# SPDX-License-Identifier: Apache-2.0
"""Values, on two processes: every dtype, operator and layout; calls that differ between the ranks."""

import pytest
import torch
from reference import FLOATS, SIGNED, UNSIGNED, fold, operators, same_bits, values

SHAPES = [(), (0, 3), (1,), (7,), (3, 65), (4099,)]


def reduce_all(here, dtype, shapes):
    results = []
    for op in operators(dtype):
        for seed, shape in enumerate(shapes):
            x = values(dtype, shape, 10 * seed + here.rank)
            y = here.ops.all_reduce(x, here.order, op)
            z = x.clone()
            assert here.ops.all_reduce_(z, here.order, op) is z
            assert same_bits(x, values(dtype, shape, 10 * seed + here.rank))  # the input is as it was
            results.append((y, z))
    return results


@pytest.mark.parametrize("dtype", [*FLOATS, *SIGNED, *UNSIGNED, torch.bool], ids=str)
def test_every_operator_has_the_right_bits_on_both_ranks(pair, dtype):
    answers = pair(reduce_all, dtype, SHAPES)
    place = 0
    for op in operators(dtype):
        for seed, shape in enumerate(SHAPES):
            expected = fold(values(dtype, shape, 10 * seed), values(dtype, shape, 10 * seed + 1), op)
            for y, z in (answer[place] for answer in answers):
                assert same_bits(y, expected), (op, shape)
                assert same_bits(z, expected), (op, shape)
            place += 1


def layouts(seed):
    """Tensors of the same shapes on every rank, with all sorts of strides and offsets."""
    base = values(torch.float32, (24, 25), seed)
    return {
        "contiguous": base.clone(),
        "transposed": base.clone().t(),
        "slice": base.clone()[:, 3:20],
        "step": base.clone()[::2, ::3],
        "offset": base.clone()[5:],
        "one column": base.clone()[:, 1],
        "permuted": base.clone().view(2, 12, 25).permute(2, 0, 1),
        "channels last": base.clone().view(1, 24, 5, 5).to(memory_format=torch.channels_last),
        "interleaved": base.clone().view(-1)[:8].as_strided((2, 3), (3, 2)),
        "strided scalar": base.clone()[3, 4],
        "empty": base.clone()[:, 5:5].t(),
        "negative": (base.clone() * 1j).conj().imag,
    }


def reduce_layouts(here, mixed):
    results = {}
    theirs = layouts(10 + here.rank)
    for name, x in theirs.items():
        if mixed and here.rank == 1:
            x = x.contiguous().clone()  # another layout than the other rank's
        before = x.clone()
        y = here.ops.all_reduce(x, here.order)
        assert y.is_contiguous() and same_bits(x, before)
        storage = x.untyped_storage()
        strides = x.stride()
        here.ops.all_reduce_(x, here.order)
        assert x.stride() == strides and x.untyped_storage().data_ptr() == storage.data_ptr()
        results[name] = (y, x.contiguous())
    return results


@pytest.mark.parametrize("mixed", [False, True], ids=["same on both", "different"])
def test_layouts(pair, mixed):
    answers = pair(reduce_layouts, mixed)
    for name, x in layouts(10).items():
        expected = fold(x.contiguous(), layouts(11)[name].contiguous(), "sum")
        for answer in answers:
            for result in answer[name]:
                assert same_bits(result.contiguous(), expected), name


def write_to_a_slice(here):
    x = values(torch.float32, (6, 8), here.rank)
    here.ops.all_reduce_(x[1:5, 2:7], here.order)
    return x


def test_in_place_on_a_view_leaves_the_rest_alone(pair):
    a, b = (values(torch.float32, (6, 8), rank) for rank in (0, 1))
    for rank, result in enumerate(pair(write_to_a_slice)):
        expected = (a, b)[rank].clone()
        expected[1:5, 2:7] = a[1:5, 2:7] + b[1:5, 2:7]
        assert same_bits(result, expected)


def special_values(here):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1.0, -0.0, inf, 0.0], [1.0, -nan, 0.0, -inf, -0.0]])[here.rank]
    return {op: here.ops.all_reduce(x, here.order, op) for op in ("sum", "min", "max", "prod", "avg")}


def test_special_values_have_the_same_bits(pair):
    first, second = pair(special_values)
    for op in first:
        assert same_bits(first[op], second[op]), op
        assert first[op][:2].isnan().all() and not first[op][:2].signbit().any(), op
    assert first["min"][2:].tolist() == [0, -float("inf"), 0] and first["min"][2].signbit()
    assert first["min"][4].signbit() and not first["max"][4].signbit() and not first["max"][2].signbit()


def large(here, count):
    x = values(torch.bfloat16, (count,), here.rank)
    return here.ops.all_reduce(x, here.order), here.ops.all_reduce_(x, here.order)


def test_large_tensors(pair):
    count = 3_000_001
    expected = fold(values(torch.bfloat16, (count,), 0), values(torch.bfloat16, (count,), 1), "sum")
    for answer in pair(large, count):
        for result in answer:
            assert same_bits(result, expected)


def rank_and_size(here):
    here.ops.barrier(here.order)
    here.ops.barrier()
    return here.ops.rank(), here.ops.size()


def test_rank_and_size(pair):
    assert pair(rank_and_size) == [(0, 2), (1, 2)]


# --- calls that differ: found in that call, as far as they differ in a field that travels ---

DIFFERENT = {
    "count": (lambda ops, o: ops.all_reduce(torch.ones(4), o), lambda ops, o: ops.all_reduce(torch.ones(5), o)),
    "dtype": (lambda ops, o: ops.all_reduce(torch.ones(4), o),
              lambda ops, o: ops.all_reduce(torch.ones(4, dtype=torch.int32), o)),
    "operator": (lambda ops, o: ops.all_reduce(torch.ones(4), o), lambda ops, o: ops.all_reduce(torch.ones(4), o, "max")),
    "operation": (lambda ops, o: ops.all_reduce(torch.ones(0), o), lambda ops, o: ops.barrier(o)),
    "tag": (lambda ops, o: ops.all_reduce_(torch.ones(4), o, tag=1), lambda ops, o: ops.all_reduce_(torch.ones(4), o, tag=2)),
    "tag of a barrier": (lambda ops, o: ops.barrier(o, tag=1), lambda ops, o: ops.barrier(o, tag=2)),
}


def call_differently(here, field):
    here.ops.init("d" + field)
    group = "d" + field
    ops = _InGroup(here.ops, group)
    texts = []
    for call in (DIFFERENT[field][here.rank], lambda ops, o: ops.all_reduce(torch.ones(1), o)):
        try:
            call(ops, here.order)
            texts.append("no error")
        except RuntimeError as error:
            texts.append(str(error))
    here.ops.finalize(group)
    return texts


class _InGroup:
    def __init__(self, ops, group):
        self.ops, self.group = ops, group

    def __getattr__(self, name):
        return lambda *arguments, **options: getattr(self.ops, name)(*arguments, group=self.group, **options)


@pytest.mark.parametrize("field", DIFFERENT)
def test_ranks_that_make_different_calls_get_an_error(pair, field):
    for rank, (first, later) in enumerate(pair(call_differently, field)):
        assert f'(group "d{field}", rank {rank} of 2): mismatch_error: ' in first
        assert "rank 0" in first and "rank 1" in first
        # A call after an error says what the first error was.
        assert "aborted_error: communicator was given up; first error: " in later
        assert "ranks make different calls" in later


# --- groups ---


def several_groups(here):
    ops, order = here.ops, here.order
    names = ["a", "b"] if here.rank == 0 else ["b", "a"]  # in another order on each rank
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: ops.init(name), names))
    results = []
    for name in ("a", "b", ""):
        x = torch.full((3,), float(here.rank + 1 + len(name)))
        results.append(ops.all_reduce(x, order, group=name).tolist())
    assert ops.rank("a") == ops.rank("b") == here.rank
    ops.finalize("a")
    results.append(ops.all_reduce(torch.ones(2), order, group="b").tolist())
    ops.init("a")
    results.append(ops.all_reduce(torch.ones(2), order, group="a").tolist())
    ops.finalize("a")
    ops.finalize("b")
    return results


def test_groups_are_made_in_any_order_and_again(pair):
    for answer in pair(several_groups):
        assert answer == [[5.0] * 3, [5.0] * 3, [3.0] * 3, [2.0] * 2, [2.0] * 2]


def explicit_place(here):
    """The default group is of the environment; this one has its ranks the other way round."""
    ops = here.ops
    ops.init("explicit", rank=1 - here.rank, size=2, key="test_ranks explicit")
    ops.barrier(group="explicit")
    place = ops.rank("explicit"), ops.size("explicit")
    ops.finalize("explicit")
    return place


def test_rank_and_size_can_be_given(pair):
    assert pair(explicit_place) == [(1, 2), (0, 2)]


def many_threads(here):
    import threading

    failures = []

    def work():
        try:
            for _ in range(50):
                assert here.ops.all_reduce(torch.ones(3), here.order).tolist() == [2.0] * 3
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_threads_take_turns_in_one_group(pair):
    assert pair(many_threads) == [[], []]
