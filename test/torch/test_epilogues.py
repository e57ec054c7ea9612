# SPDX-License-Identifier: Apache-2.0
"""all_reduce with a residual, and RMSNorm behind it: the bits of the ops one after the other."""

import itertools
import math
import traceback

import pytest
import torch
from reference import fold, same_bits, values
from torch._dynamo.utils import counters

pytestmark = pytest.mark.filterwarnings("ignore")

ADD = ("all_reduce_add", "_all_reduce_add_", "all_reduce_add_")
NORM = ("all_reduce_add_rms_norm", "_all_reduce_add_rms_norm_", "all_reduce_add_rms_norm_")
EPS = 1e-5


def rms_norm(x, weight):
    """docs/numerics.md, by torch's element-wise ops, each of which rounds once."""
    width = x.shape[-1]
    rows = x.float().reshape(x.numel() // width, width)
    sums = torch.zeros(len(rows), 32)
    for begin in range(0, width, 32):
        some = rows[:, begin:begin + 32]
        sums[:, :some.shape[1]] += some * some
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    mean = sums / torch.full_like(sums, width) + torch.tensor(EPS)
    root = torch.tensor([math.sqrt(value) for value in mean.flatten().tolist()])[:, None]  # torch.sqrt is not exact
    scale = torch.ones_like(root) / root
    return (rows * scale * weight.float()).to(x.dtype).reshape(x.shape)


# --- what is registered ---


def test_every_op_has_the_documented_schema(library):
    for overload, a, b in (("default", "Tensor(b!) order, ", "Tensor(c!) order, "), ("unordered", "", "")):
        rest = 'str op="sum", str group="", int tag=0) -> '
        for name, schema in {
            ADD[0]: f"(Tensor x, Tensor residual, {a}{rest}Tensor",
            ADD[1]: f"(Tensor x, Tensor(a!) residual, {a}{rest}()",
            ADD[2]: f"(Tensor x, Tensor(a!) residual, {a}{rest}Tensor(a!)",
            NORM[0]: f"(Tensor x, Tensor residual, Tensor weight, float eps, {b}{rest}(Tensor, Tensor)",
            NORM[1]: f"(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, {b}{rest}()",
            NORM[2]: f"(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, {b}{rest}(Tensor(a!), Tensor(b!))",
        }.items():
            op = getattr(getattr(library, name), overload)
            full = op._schema.name + ("." + op._schema.overload_name if op._schema.overload_name else "")
            assert op._schema == torch._C.parse_schema(full + schema)
            assert torch.Tag.pt2_compliant_tag in op.tags
            assert getattr(library, name).overloads() == ["default", "eager", "unordered"]


@pytest.mark.parametrize("overload", ["default", "unordered"])
def test_opcheck(ops, order, overload):
    token = (order,) if overload == "default" else ()
    for dtype, shape, requires_grad in itertools.product((torch.float32, torch.bfloat16), ((3, 4), (0, 4), (4,)),
                                                         (False, True)):
        x, residual = (values(dtype, shape, seed) for seed in (1, 2))
        for name in ADD[:1] if requires_grad else ADD:
            inputs = [t.clone().requires_grad_(requires_grad) for t in (x, residual)]
            torch.library.opcheck(getattr(getattr(ops, name), overload), (*inputs, *token), {"op": "avg"})
        for name in () if requires_grad else NORM:
            torch.library.opcheck(getattr(getattr(ops, name), overload),
                                  (x.clone(), residual.clone(), values(dtype, (4,), 3), EPS, *token))


# --- values, on two ranks ---

SHAPES = [(5, 7), (3, 4096), (), (0, 8), (300, 300)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8]


def tensors(rank, dtype, shape, seed, strides="contiguous"):
    """x and a residual, of this rank alone; if strided, with holes between the elements."""
    both = [values(dtype, shape, seed + 2 * i + rank) for i in (0, 1)]
    if strides == "strided" and len(shape) == 2:
        both = [torch.zeros(shape[0], 2 * shape[1], dtype=dtype)[:, ::2].copy_(x) for x in both]
    return both


def added(here, dtype, shape, op, strides):
    x, residual = tensors(here.rank, dtype, shape, 10, strides)
    kept = residual.clone()
    found = [here.ops.all_reduce_add(x, residual, here.order, op), here.ops.all_reduce_add(x, residual, op=op)]
    assert same_bits(residual, kept)
    before = residual._version
    result = here.ops.all_reduce_add_(x, residual, here.order, op)
    assert result is residual and residual._version == before + 1
    return [*found, residual.contiguous(), here.ops.all_reduce(x, here.order, op) + kept]


@pytest.mark.parametrize("strides", ["contiguous", "strided"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_gives_the_bits_of_all_reduce_and_add(pair, dtype, strides):
    for shape, op in itertools.product(SHAPES, ("sum", "max")):
        xs, residuals = zip(*(tensors(rank, dtype, shape, 10) for rank in (0, 1)))
        reduced = fold(*xs, op)
        for rank, found in enumerate(pair(added, dtype, shape, op, strides)):
            for result in found:
                assert same_bits(result, reduced + residuals[rank])


def normed(here, dtype, shape, strides):
    ops, order = here.ops, here.order
    x, residual = tensors(here.rank, dtype, shape, 20, strides)
    weight = values(dtype, shape[-1:], 7)
    kept = x.clone(), residual.clone()
    found = [*ops.all_reduce_add_rms_norm(x, residual, weight, EPS, order)]
    assert same_bits(x, kept[0]) and same_bits(residual, kept[1])
    out, total = ops.all_reduce_add_rms_norm_(x, residual, weight, EPS, order)
    assert out is x and total is residual
    return [*found, out.contiguous(), total.contiguous()]


@pytest.mark.parametrize("strides", ["contiguous", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_gives_the_documented_bits(pair, dtype, strides):
    for shape in [(5, 7), (3, 4096), (33,), (0, 8), (2, 3, 96), (300, 300)]:
        xs, residuals = zip(*(tensors(rank, dtype, shape, 20) for rank in (0, 1)))
        weight = values(dtype, shape[-1:], 7)
        for rank, found in enumerate(pair(normed, dtype, shape, strides)):
            total = fold(*xs, "sum") + residuals[rank]
            for out, residual in (found[:2], found[2:]):
                assert same_bits(residual, total)
                assert same_bits(out, rms_norm(total, weight))
                exact = torch.nn.functional.rms_norm(total.double(), total.shape[-1:], weight.double(), EPS)
                torch.testing.assert_close(out, exact.to(dtype))


# --- graphs ---


def decoder(here):
    """Two halves of a layer with residuals, in place, as inference engines have them; the batch grows."""
    ops, order = here.ops, here.order

    def model(x, residual, w, v, weight):
        x, residual = ops.all_reduce_add_rms_norm_(x @ w, residual, weight, EPS, order)
        x, residual = ops.all_reduce_add_rms_norm(torch.relu(x @ v), residual, weight, EPS, order)
        residual = ops.all_reduce_add_(x @ w, residual, order)
        return x, ops.all_reduce_add(x @ v, residual, order)

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    w, v = (values(torch.float32, (8, 8), seed + here.rank) / 8 for seed in (1, 3))
    results = []
    for batch in (3, 6, 11):
        x, residual = values(torch.float32, (batch, 8), batch), values(torch.float32, (batch, 8), 5)
        written = residual.clone()
        results.append((compiled(x, residual, w, v, torch.ones(8)), model(x, written, w, v, torch.ones(8)),
                        residual, written))
    return results, counters["stats"]["unique_graphs"]


def test_compiled_layers_have_the_right_values(pair):
    for results, graphs in pair(decoder):
        assert graphs == 1
        for compiled, eager, *residuals in results:
            for found, expected in zip(compiled, eager):
                torch.testing.assert_close(found, expected)
            torch.testing.assert_close(*residuals)  # that of the caller, which is written


# --- gradients ---


def gradients(here, op, token):
    x, residual = (t.requires_grad_() for t in tensors(here.rank, torch.float64, (3, 4), 30))
    y = here.ops.all_reduce_add(x, residual, *((here.order,) if token else ()), op=op)
    (y * (here.rank + 1)).sum().backward()
    return x.grad, residual.grad


@pytest.mark.parametrize("op, factor", [("sum", 1.0), ("avg", 0.5)])
@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
def test_the_gradient_of_x_is_all_reduced_that_of_the_residual_is_not(pair, op, factor, token):
    for rank, (of_x, of_residual) in enumerate(pair(gradients, op, token)):
        assert of_x.tolist() == [[3 * factor] * 4] * 3
        assert of_residual.tolist() == [[rank + 1.0] * 4] * 3


@pytest.mark.parametrize("which", ["x", "residual", "weight"])
def test_what_has_no_gradient_says_so(ops, order, which):
    inputs = {"x": torch.ones(2, 4), "residual": torch.ones(2, 4), "weight": torch.ones(4)}
    inputs[which].requires_grad_()
    x, residual, weight = inputs.values()
    for name in (NORM[0], NORM[2]):
        with pytest.raises(RuntimeError, match=f"{name}.*: {which} requires grad.*all_reduce_add and a norm"):
            getattr(ops, name)(x, residual, weight, EPS, order)
        with torch.no_grad():
            getattr(ops, name)(x.detach(), residual.detach(), weight, EPS, order)
    if which != "weight":
        with pytest.raises(RuntimeError, match=rf"all_reduce_add_.*: {which} requires grad.*all_reduce_add\(x, residual"):
            ops.all_reduce_add_(x, residual, order)
        with pytest.raises(RuntimeError, match=f"all_reduce_add.*: {which} requires grad, which op max"):
            ops.all_reduce_add(x, residual, order, "max")


# --- errors ---


def test_arguments_that_do_not_fit(ops, order):
    x, weight = torch.ones(2, 4), torch.ones(4)
    shared = torch.ones(3, 4)
    for call, text in {
        (lambda: ops.all_reduce_add(x, x[:1], order)): r"residual has sizes \[1, 4\], expected \[2, 4\]",
        (lambda: ops.all_reduce_add(x, x.double(), order)): "residual has dtype Double, expected Float, that of x",
        (lambda: ops.all_reduce_add(x.bool(), x.bool(), order, "max")): "op sum is not defined for dtype bool",
        (lambda: ops.all_reduce_add(x, x, order, "median")): 'op is "median"',
        (lambda: ops.all_reduce_add(x, x, order, tag=-1)): "tag is -1",
        (lambda: ops.all_reduce_add(x, order, x)): r"residual has .*expected|order is a tensor",
        (lambda: ops.all_reduce_add_(x, x[:1].expand(2, 4), order)): r"residual has sizes.*overlap itself",
        (lambda: ops.all_reduce_add_(shared[:2], shared[1:], order)): "overlap in part",
        (lambda: ops.all_reduce_add(x, x.to_sparse(), order)): "sparse|layout",
        (lambda: ops.all_reduce_add_rms_norm(x.double(), x.double(), weight.double(), EPS, order)):
            "x has dtype Double, expected float32, bfloat16 or float16",
        (lambda: ops.all_reduce_add_rms_norm(x, x, weight.half(), EPS, order)): "weight has dtype Half, expected Float",
        (lambda: ops.all_reduce_add_rms_norm(x, x, weight[:3], EPS, order)): r"weight has sizes \[3\], expected \[4\]",
        (lambda: ops.all_reduce_add_rms_norm(x, x, x, EPS, order)): r"weight has sizes \[2, 4\], expected \[4\]",
        (lambda: ops.all_reduce_add_rms_norm(x[0, 0], x[0, 0], weight, EPS, order)): "x has no dimensions",
        (lambda: ops.all_reduce_add_rms_norm(x[:, :0], x[:, :0], weight, EPS, order)): "rows of one element or more",
        (lambda: ops.all_reduce_add_rms_norm_(x, x, weight, EPS, order)): "residual and .* overlap; expected them apart",
    }.items():
        with pytest.raises(RuntimeError, match=text):
            call()
    # Nobody was lost over it; and where a tensor is its own residual, it counts twice.
    assert torch.equal(ops.all_reduce_add_(x, x, order), torch.full((2, 4), 2.0))


def without_token(here):
    def function(x, residual):
        return here.ops.all_reduce_add(x, residual)

    with pytest.raises(Exception) as caught:
        torch.compile(function, fullgraph=True)(torch.ones(2), torch.ones(2))
    text = "".join(traceback.format_exception(caught.value))
    assert "rankfold_example::all_reduce_add: cannot be traced without the order token" in text
    return here.ops.all_reduce_add(torch.ones(2), torch.ones(2)).tolist()


def test_a_graph_wants_the_token(pair):
    assert pair(without_token) == [[3.0, 3.0]] * 2


def in_inference_mode(here):
    with torch.inference_mode():
        x, residual = torch.ones(2, 4), torch.ones(2, 4)
        out, total = here.ops.all_reduce_add_rms_norm_(x, residual, torch.ones(4), 0.0, here.order)
        return out.clone().tolist(), total.clone().tolist()


def test_inference_mode(pair):
    assert pair(in_inference_mode) == [([[1.0] * 4] * 2, [[3.0] * 4] * 2)] * 2
