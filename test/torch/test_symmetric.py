# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that all ranks address: eager and compiled, their lives, what is refused."""

import gc

import pytest
import torch
from reference import same_bits, values
from torch._inductor.utils import run_and_get_code

LARGE = (512, 1024)  # 1 MiB of bfloat16: also read where it lies when the result takes its place
SMALL = (3, 5)


def layer(out, x, w, ops, order):
    """Every form of all_reduce on what a matmul has written into `out`, and on parts of that."""
    torch.mm(x, w, out=out)
    first = ops.all_reduce(out, order)
    part = ops.all_reduce(out[1:], order, op="max")
    ops.all_reduce_(out, order)
    return first, part, out * 2


def matmuls(here, compiled):
    """Compares results on symmetric memory, bit for bit, with those on ordinary memory."""
    wrong = []
    for dtype, shape in ((torch.float32, SMALL), (torch.bfloat16, LARGE)):
        function = torch.compile(layer, fullgraph=True) if compiled else layer
        x, w = values(dtype, (shape[0], 8), here.rank), values(dtype, (8, shape[1]), 9)
        wanted = layer(torch.empty(shape, dtype=dtype), x, w, here.ops, here.order)
        out = here.ops.empty_symmetric(shape, dtype)
        for _ in range(2):  # the second writes over what peers have read
            found = function(out, x, w, here.ops, here.order)
            same = [*map(same_bits, found, wanted), same_bits(out, wanted[0])]
            if not all(same):
                wrong.append((dtype, shape, same))
    return wrong


@pytest.mark.parametrize("compiled", [False, True])
def test_a_matmul_writes_into_it_and_the_sum_has_the_same_bits(pair, compiled):
    assert pair(matmuls, compiled) == [[], []]


def test_a_compiled_graph_takes_it_from_outside_and_writes_it_in_place(ops, order):
    out = ops.empty_symmetric(SMALL).fill_(1)
    data = out.data_ptr()
    found, code = run_and_get_code(torch.compile(lambda x: ops.all_reduce_(x, order), fullgraph=True), out)
    assert found.data_ptr() == data == out.data_ptr() and "copy_" not in code[0] and out.sum() == 15


def lives(here):
    """Freed while the group lives, on one rank first; kept when the group has gone, and used after that."""
    ops, order = here.ops, here.order
    kept, other = ops.empty_symmetric(LARGE), ops.empty_symmetric([1000, 1000])
    if here.rank == 0:
        del other
        gc.collect()
    x = torch.ones(1000, 1000) if here.rank == 0 else other.fill_(2)
    sums = [ops.all_reduce(x, order).sum().item()]
    view = kept.view(-1)[3:7]
    kept.fill_(here.rank + 1)
    ops.finalize()
    kept += 1
    ops.init()
    ops.all_reduce_(kept, order)  # ordinary memory for the new group
    sums.append(view.sum().item())
    del kept
    sums.append((view + 1).sum().item())
    return sums


def test_it_is_freed_before_the_group_and_after_it(pair):
    assert pair(lives) == [[3e6, 20, 24]] * 2


def test_it_is_a_tensor_like_any_other(ops, order):
    x = ops.empty_symmetric([2, 3, 4], torch.int16)
    assert x.shape == (2, 3, 4) and x.dtype == torch.int16 and x.is_contiguous() and not x.is_inference()
    assert torch.equal(x, torch.zeros_like(x))
    assert ops.empty_symmetric([]).shape == () and ops.empty_symmetric([0, 3]).numel() == 0
    assert ops.empty_symmetric([1]).dtype == torch.get_default_dtype()
    weight = ops.empty_symmetric([4]).requires_grad_()
    ops.all_reduce(weight * 2, order).sum().backward()
    assert torch.equal(weight.grad, torch.full((4,), 2.0))
    with torch.inference_mode():
        assert ops.empty_symmetric([4]).is_inference()


@pytest.mark.parametrize("arguments, message", [
    (([2], torch.complex64), r"empty_symmetric \(default group, rank 0 of 1\): the tensor has dtype ComplexFloat"),
    (([-1],), "negative dimension"),
    (([1 << 62, 1 << 62],), "overflow"),
    (([1 << 60],), "expected at most 70368744177664 bytes"),
    (([2], None, "nowhere"), 'empty_symmetric: there is no group "nowhere"'),
])
def test_what_is_refused(ops, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        ops.empty_symmetric(*arguments)
    assert ops.empty_symmetric([2]).numel() == 2  # the group is as it was


def test_its_storage_is_not_resized(ops):
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.mm(torch.ones(4, 4), torch.ones(4, 4), out=ops.empty_symmetric([2, 2]))


def test_it_is_made_outside_of_graphs(ops):
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: x + ops.empty_symmetric([2]), fullgraph=True)(torch.ones(2))
