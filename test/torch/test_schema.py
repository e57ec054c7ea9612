# SPDX-License-Identifier: Apache-2.0
"""What is registered: schemas, tags, which overload a call takes; and that it tells the truth (opcheck)."""

import itertools
import subprocess

import pytest
import torch

OVERLOADS = {
    "all_reduce": ["default", "eager", "unordered"],
    "all_reduce_": ["default", "eager", "unordered"],
    "_all_reduce_": ["default", "eager", "unordered"],
    "barrier": ["default", "eager"],
}


def test_every_op_has_the_documented_schema(library):
    schemas = {
        library.all_reduce.default: "(Tensor x, Tensor(b!) order, str op=\"sum\", str group=\"\", int tag=0) -> Tensor",
        library.all_reduce.unordered: "(Tensor x, str op=\"sum\", str group=\"\", int tag=0) -> Tensor",
        library.all_reduce_.default: "(Tensor(a!) x, Tensor(b!) order, str op=\"sum\", str group=\"\", int tag=0)"
                                     " -> Tensor(a!)",
        library._all_reduce_.default: "(Tensor(a!) x, Tensor(b!) order, str op=\"sum\", str group=\"\", int tag=0)"
                                      " -> ()",
        library.barrier.default: "(Tensor(a!) order, str group=\"\", int tag=0) -> ()",
        library.init.default: "(str group=\"\", int rank=-1, int size=-1, str key=\"\", float timeout=0) -> Tensor?",
        library.order.default: "() -> Tensor?",
        library.finalize.default: "(str group=\"\") -> ()",
        library.abort.default: "(str reason=\"abort() was called\", str group=\"\") -> ()",
        library.rank.default: "(str group=\"\") -> int",
        library.size.default: "(str group=\"\") -> int",
    }
    for op, expected in schemas.items():
        name, overload = op._schema.name, op._schema.overload_name
        full = name + ("." + overload if overload else "")
        torch._C.parse_schema(full + expected)
        assert op._schema == torch._C.parse_schema(full + expected)


@pytest.mark.parametrize("name", OVERLOADS)
def test_a_call_without_a_token_takes_the_overload_for_eager_code(library, name):
    # A call takes the first overload that fits, in this order.
    assert getattr(library, name).overloads() == OVERLOADS[name]


def test_what_graphs_hold_returns_nothing_that_is_an_argument(library):
    # An op that returns its argument does not compile, or compiles to wrong results (torch 2.13).
    for overload in ("default", "unordered"):
        assert len(getattr(library._all_reduce_, overload)._schema.returns) == 0


def test_no_op_has_the_tags_that_miscompile(library):
    for name, overloads in OVERLOADS.items():
        for overload in overloads:
            op = getattr(getattr(library, name), overload)
            assert overload != "out"
            assert not {"inplace", "out"} & {tag.name for tag in op.tags}
            assert torch.Tag.pt2_compliant_tag in op.tags


def test_the_token_is_one_tensor_for_the_whole_process(ops):
    order = ops.order()
    assert ops.order() is order and ops.init("other", rank=0, size=1) is order
    assert order.dtype == torch.int64 and order.numel() == 1 and not order.is_inference()
    before = order.item()
    ops.all_reduce(torch.ones(2), order, group="other")
    ops.all_reduce(torch.ones(2), order)
    ops.barrier(order)
    assert order.item() == before + 3
    ops.finalize("other")


def test_a_token_from_inference_mode_works_outside(library):
    library.finalize()
    with torch.inference_mode():
        order = library.init(rank=0, size=1)
    assert library.all_reduce(torch.ones(1, requires_grad=True), order).requires_grad
    library.finalize()


LAYOUTS = {
    "contiguous": lambda dtype: torch.arange(12).reshape(3, 4).to(dtype),
    "transposed": lambda dtype: torch.arange(12).reshape(3, 4).to(dtype).t(),
    "empty": lambda dtype: torch.zeros(0, 4, dtype=dtype),
    "scalar": lambda dtype: torch.tensor(3).to(dtype),
}
FORMS = ["all_reduce", "all_reduce_", "_all_reduce_"]


@pytest.mark.parametrize("overload", ["default", "unordered"])
@pytest.mark.parametrize("form", FORMS)
def test_opcheck(ops, order, form, overload):
    op = getattr(getattr(ops, form), overload)
    cases = itertools.product(LAYOUTS, (torch.float32, torch.int64, torch.bfloat16), (False, True))
    for layout, dtype, requires_grad in cases:
        if requires_grad and (form != "all_reduce" or not dtype.is_floating_point):
            continue
        x = LAYOUTS[layout](dtype).requires_grad_(requires_grad)
        token = (order,) if overload == "default" else ()
        for operator in ("sum", "avg") if dtype.is_floating_point else ("max",):
            if requires_grad or operator in ("sum", "max"):
                torch.library.opcheck(op, (x, *token), {"op": operator})


def test_opcheck_of_barrier(ops, order):
    torch.library.opcheck(ops.barrier.default, (order,))


def test_the_extension_needs_libtorch(extension):
    # Meson's CMake dependency on Torch loses it, and what is built does not load without Python.
    dynamic = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert any("libtorch_cpu.so" in line for line in needed), needed
