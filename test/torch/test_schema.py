# SPDX-License-Identifier: Apache-2.0
"""What is registered: schemas, tags, which overload a call takes; and that it tells the truth (opcheck)."""

import itertools
import subprocess
import threading

import pytest
import torch
from reference import WRITING

# What follows x and the order token; group and tag follow that.
PARAMETERS = {
    "all_reduce": 'str op="sum", ',
    "all_gather": "SymInt[]? sizes=None, ",
    "reduce_scatter": 'str op="sum", SymInt[]? sizes=None, ',
    "broadcast": "int root=0, ",
    "all_to_all": "SymInt[]? output_split_sizes=None, SymInt[]? input_split_sizes=None, ",
}
FORMS = [form for op, writing in WRITING.items() for form in (op, writing, "_" + writing)]
OVERLOADS = {**{form: ["default", "eager", "unordered"] for form in FORMS}, "barrier": ["default", "eager"]}


def schemas_of(op):
    """Those of a collective's three forms, in the three overloads."""
    written = "Tensor(a!) out, Tensor x, " if WRITING[op].endswith("_into_") else "Tensor(a!) x, "
    for overload, order, nothing in (("default", "Tensor(b!) order, ", "()"), ("eager", "", "int"), ("unordered", "", "()")):
        rest = order + PARAMETERS[op] + 'str group="", int tag=0)'
        yield op, overload, f"(Tensor x, {rest} -> Tensor"
        yield WRITING[op], overload, f"({written}{rest} -> Tensor(a!)"
        yield "_" + WRITING[op], overload, f"({written}{rest} -> {nothing}"


def test_every_op_has_the_documented_schema(library):
    schemas = {
        **{getattr(getattr(library, name), overload): schema for op in WRITING for name, overload, schema in schemas_of(op)},
        library.barrier.default: "(Tensor(a!) order, str group=\"\", int tag=0) -> ()",
        library.barrier.eager: "(str group=\"\", int tag=0) -> ()",
        library.init.default: "(str group=\"\", int rank=-1, int size=-1, str key=\"\", float timeout=0) -> Tensor?",
        library.order.default: "() -> Tensor?",
        library.finalize.default: "(str group=\"\") -> ()",
        library.abort.default: "(str reason=\"abort() was called\", str group=\"\") -> ()",
        library.empty_symmetric.default: "(int[] size, ScalarType? dtype=None, str group=\"\") -> Tensor?",
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
    for writing in WRITING.values():
        for overload in ("default", "unordered"):
            assert len(getattr(getattr(library, "_" + writing), overload)._schema.returns) == 0


def test_no_op_has_the_tags_that_miscompile(library):
    for name, overloads in OVERLOADS.items():
        for overload in overloads:
            op = getattr(getattr(library, name), overload)
            assert overload != "out"
            assert not {"inplace", "out"} & {tag.name for tag in op.tags}
            assert torch.Tag.pt2_compliant_tag in op.tags


def test_the_token_is_one_tensor_for_all_groups(ops):
    order = ops.order()
    assert ops.order() is order and ops.init("other", rank=0, size=1) is order
    assert order.dtype == torch.int64 and order.numel() == 1 and not order.is_inference()
    before = order.item()
    ops.all_reduce(torch.ones(2), order, group="other")
    ops.all_reduce(torch.ones(2), order)
    ops.barrier(order)
    assert order.item() == before + 3
    ops.finalize("other")


def test_each_thread_has_a_token_of_its_own(ops):
    order = ops.order()
    before, others = order.item(), [order]

    def use():
        others.append(ops.order())
        ops.all_reduce(torch.ones(2), others[-1])
        assert ops.order() is others[-1]

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert others[1] is not order and others[1:] == [others[1]] * 2, "one of a thread that has ended is used again"
    assert order.item() == before


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


def options_of(op, x):
    """What an op is checked with, in a world of one rank: also with sizes, and with every gradient."""
    rows = [len(x)] if x.dim() > 0 else None
    if op in ("all_reduce", "reduce_scatter"):
        operators = [{"op": "sum"}, {"op": "avg"}] if x.dtype.is_floating_point else [{"op": "max"}]
        return operators if op == "all_reduce" or rows is None else [*operators, {"sizes": rows}]
    if op == "broadcast":
        return [{}]
    uneven = {"sizes": rows} if op == "all_gather" else {"output_split_sizes": rows, "input_split_sizes": rows}
    return [{}, uneven] if rows else [{}]


@pytest.mark.parametrize("overload", ["default", "unordered"])
@pytest.mark.parametrize("form", FORMS)
def test_opcheck(ops, order, form, overload):
    op = next(name for name, writing in WRITING.items() if form in (name, writing, "_" + writing))
    for layout, dtype, requires_grad in itertools.product(
            LAYOUTS, (torch.float32, torch.int64, torch.bfloat16), (False, True)):
        if requires_grad and (form != op or not dtype.is_floating_point):
            continue
        if layout == "scalar" and op in ("reduce_scatter", "all_to_all"):
            continue
        x = LAYOUTS[layout](dtype).requires_grad_(requires_grad)
        out = (torch.zeros(x.shape or (1,), dtype=dtype),) if form.endswith("_into_") else ()
        token = (order,) if overload == "default" else ()
        for options in options_of(op, x):
            torch.library.opcheck(getattr(getattr(ops, form), overload), (*out, x, *token), options)


def test_opcheck_of_barrier(ops, order):
    torch.library.opcheck(ops.barrier.default, (order,))


def test_the_extension_needs_libtorch(extension):
    # Meson's CMake dependency on Torch loses it, and what is built does not load without Python.
    dynamic = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert any("libtorch_cpu.so" in line for line in needed), needed
