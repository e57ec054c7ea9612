# SPDX-License-Identifier: Apache-2.0
"""torch.compile: one graph, right values, no copies, nothing reordered and nothing dropped."""

import re
import traceback

import pytest
import torch
from reference import WRITING, fold, same_bits, values
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

pytestmark = pytest.mark.filterwarnings("ignore")
BEFORE_2_6 = torch.__version__ < (2, 6)


def test_caches_are_off():
    # Else a graph that an older build left would be tested.
    import torch._inductor.config

    assert torch._inductor.config.force_disable_caches


# --- values, through Inductor, on two ranks ---


def two_layers(here, form, dynamic):
    """Row-parallel layers; the batch grows from call to call."""
    ops, order = here.ops, here.order
    all_reduce = {
        "functional": lambda x: ops.all_reduce(x, order),
        "in place": lambda x: ops.all_reduce_(x, order),
        "unordered": lambda x: ops.all_reduce.unordered(x),
        "unordered in place": lambda x: ops.all_reduce_.unordered(x),
    }[form]

    def model(x, w, v):
        return all_reduce(torch.relu(all_reduce(x @ w)) @ v) + 1

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    w, v = values(torch.float32, (8, 12), here.rank), values(torch.float32, (12, 8), 5 + here.rank)
    results = []
    for batch in (3, 3, 6, 11) if dynamic else (3, 3):
        x = values(torch.float32, (batch, 8), batch)
        results.append((compiled(x, w, v), model(x, w, v)))
    return results, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", ["functional", "in place", "unordered", "unordered in place"])
def test_compiled_layers_have_the_right_values(pair, form, dynamic):
    (first, graphs), (second, _) = pair(two_layers, form, dynamic)
    assert graphs == 1  # the shapes of the second and third batch made no other
    for (compiled, eager), (other, _) in zip(first, second):
        torch.testing.assert_close(compiled, eager)
        assert same_bits(compiled, other)


def many_inputs(here):
    """All layouts and some dtypes in one graph; results, the inputs afterwards, values used later."""
    ops, order = here.ops, here.order

    def function(xs):
        results = []
        for x in xs:
            y = x + x
            results.append(ops.all_reduce(y, order) * 1)
            results.append(ops.all_reduce_(y, order) * 1)  # y is read later: needs a copy
            results.append(y)
            results.append(ops.all_reduce_(x, order))
            results.append(x * 1)
        return results

    def inputs():
        base = values(torch.float32, (6, 8), here.rank)
        return [base, base.clone().t(), base.clone()[:, 2:5], base.clone()[0, 0], base[:, 4:4].clone(),
                values(torch.bfloat16, (6, 8), here.rank), values(torch.int64, (6, 8), here.rank)]

    compiled = torch.compile(function, fullgraph=True)
    xs, ys = inputs(), inputs()
    return compiled(xs), function(ys), xs, ys


def test_compiled_layouts_and_dtypes(pair):
    answers = pair(many_inputs)
    for compiled, eager, xs, ys in answers:
        assert all(same_bits(a, b) for a, b in zip(compiled, eager))
        assert all(same_bits(x, y) for x, y in zip(xs, ys))
    base = [values(torch.float32, (6, 8), rank) for rank in (0, 1)]
    doubled = fold(base[0] + base[0], base[1] + base[1], "sum")
    for result in answers[0][0][:3]:
        assert same_bits(result, doubled)
    assert same_bits(answers[1][2][0], fold(*base, "sum"))


WRITES = {  # what each op writes to first
    "all_reduce_": lambda ops, out, x, order: ops.all_reduce_(out, order),
    "all_gather_into_": lambda ops, out, x, order: ops.all_gather_into_(out, x[:3], order),
    "reduce_scatter_into_": lambda ops, out, x, order: ops.reduce_scatter_into_(out, torch.cat([x, x]), order),
    "broadcast_": lambda ops, out, x, order: ops.broadcast_(out, order, root=1),
    "all_to_all_into_": lambda ops, out, x, order: ops.all_to_all_into_(out, x, order),
    "all_reduce_add_": lambda ops, out, x, order: ops.all_reduce_add_(x, out, order),
    "all_reduce_add_rms_norm_": lambda ops, out, x, order: ops.all_reduce_add_rms_norm_(out, x, x[0] + 1, 1e-5, order)[0],
}
LAYOUTS = {  # of 6 rows of 4
    "contiguous": lambda x: x[:6, :4].clone(),
    "transposed": lambda x: x[:4, :6].clone().t(),
    "columns": lambda x: x.clone()[:6, 2:6],
    "rows": lambda x: x[:, :4].clone()[::2],
    "every second": lambda x: x.clone()[1:7, 1::2],
}


def inputs_that_are_written(here):
    """What each op makes of an input of each layout, where the graph returns what equals the input, but is contiguous."""
    ops, order = here.ops, here.order

    def function(inputs):
        results = {}
        for (name, layout), (out, x) in inputs.items():
            results[name, layout] = WRITES[name](ops, out, x, order), out * 1, out.clone(memory_format=torch.contiguous_format)
        return results

    def inputs():
        return {(name, layout): (LAYOUTS[layout](values(torch.float32, (12, 9), 2 * n + here.rank)),
                                 values(torch.float32, (6, 4), 40 + here.rank))
                for n, name in enumerate(WRITES) for layout in LAYOUTS}

    compiled, eager = inputs(), inputs()
    found, expected = torch.compile(function, fullgraph=True)(compiled), function(eager)
    return [key for key in expected
            if not all(map(same_bits, (*found[key], *compiled[key]), (*expected[key], *eager[key])))]


def test_inputs_of_every_layout_are_written(pair):
    assert pair(inputs_that_are_written) == [[], []]


# --- order; test_programs.py has random programs ---


def two_independent(here):
    """The case that ranks reorder without a token: which of the two goes first depends on rows."""
    ops, order = here.ops, here.order

    def function(x, w):
        big = x @ w
        first = ops.all_reduce((big.t() @ big)[:3], order)
        second = ops.all_reduce((torch.relu(x).t() @ x), order)
        ops.all_reduce(x.sum(0), order)  # nobody uses it, yet the other rank waits for it
        return second.sum() + first.sum(), big.sum()

    x = values(torch.float32, (2, 16) if here.rank == 0 else (700, 16), here.rank)
    w = values(torch.float32, (16, 16), 9)
    before = order.item()
    found, code = run_and_get_code(torch.compile(function, fullgraph=True), x, w)
    calls = order.item() - before
    torch.testing.assert_close(found, function(x, w), rtol=1e-3, atol=1e-3)
    return calls, code[0].count("rankfold_example.all_reduce.default(")


def test_independent_and_unused_collectives_keep_their_place(pair):
    assert pair(two_independent) == [(3, 3), (3, 3)]


def only_one_rank_uses_the_result(here):
    ops, order = here.ops, here.order

    def function(x):
        y = ops.all_reduce(x.sum(0), order)
        z = ops.all_reduce(x.sum(1)[:2], order)
        return (y, z) if here.rank == 0 else (z,)

    return torch.compile(function, fullgraph=True)(values(torch.float32, (4, 4), here.rank))[-1]


def test_a_result_that_one_rank_does_not_use(pair):
    first, second = pair(only_one_rank_uses_the_result)
    assert same_bits(first, second)


def across_groups(here):
    ops, order = here.ops, here.order
    ops.init("second")

    def function(x):
        a = ops.all_reduce(x.t() @ x, order)
        b = ops.all_reduce((x.t() @ x)[:2] * 2, order, group="second")
        c = ops.all_reduce_(x.sum(0), order)
        ops.barrier(order, "second")
        return a.sum() + b.sum() + c.sum()

    x = values(torch.float32, (2, 8) if here.rank == 0 else (500, 8), here.rank)
    result = torch.compile(function, fullgraph=True)(x), function(x)
    ops.finalize("second")
    return result


def test_one_token_orders_all_groups(pair):
    for compiled, eager in pair(across_groups):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)


# --- the graph and the code (one rank will do) ---


def body_of(code):
    """The function that calls the kernels and the ops, of what Inductor has written."""
    return re.search(r"^( *)def call\(.*?^(?=\1\S)", code[0], re.DOTALL | re.MULTILINE)[0]


def calls_of(order, function, *arguments, **options):
    """How many collectives with the token a compiled call makes."""
    before = order.item()
    counters.clear()
    torch.compile(function, **options)(*arguments)
    return order.item() - before


def test_linear_all_reduce_linear_has_no_copy_and_no_further_buffer(ops, order):
    first, second = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)

    def model(x):
        return second(ops.all_reduce_(first(x), order))

    with torch.no_grad():
        for dynamic in (False, True):
            torch._dynamo.reset()
            _, code = run_and_get_code(torch.compile(model, fullgraph=True, dynamic=dynamic), torch.ones(4, 8))
            body = body_of(code)
            assert len(re.findall(r"= empty_strided_cpu\(", body)) == 2, body  # the results of the two
            assert "clone" not in body and "copy_" not in body and "cpp_fused" not in body, body
            # It is called on the buffer that the first one wrote and the second one reads.
            buffer = re.search(r"_all_reduce_\.default\((\w+), \w+\)", body)[1]
            assert re.search(rf"extern_kernels\.\w+\(.*out={buffer}\)", body), body
            assert re.search(rf"extern_kernels\.\w+\((reinterpret_tensor\()?{buffer}\b", body), body


@pytest.mark.skipif(BEFORE_2_6, reason=f"torch {torch.__version__} lets functional ops write to a copy of the order token, "
                                       "a buffer of one number, and copies that back; nothing else is copied")
def test_sequence_parallel_layers_have_no_copy_and_no_further_buffer(ops, order):
    first, second = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)

    def model(x):
        scattered = ops.reduce_scatter(first(x), order)
        return second(ops.all_gather(scattered, order))

    def into(x, out):
        return ops.all_gather_into_(out, first(x), order)

    with torch.no_grad():
        for dynamic in (False, True):
            torch._dynamo.reset()
            _, code = run_and_get_code(torch.compile(model, fullgraph=True, dynamic=dynamic), torch.ones(4, 8))
            body = body_of(code)
            assert len(re.findall(r"= empty_strided_cpu\(", body)) == 2, body  # the results of the two matmuls
            assert "clone" not in body and "copy_" not in body and "cpp_fused" not in body, body
        out = torch.zeros(4, 16)
        result, code = run_and_get_code(torch.compile(into, fullgraph=True), torch.ones(4, 8), out)
        body = body_of(code)
        assert result.data_ptr() == out.data_ptr() and torch.equal(out, first(torch.ones(4, 8)))
        assert len(re.findall(r"= empty_strided_cpu\(", body)) == 1 and "clone" not in body and "copy_" not in body, body


def test_the_traced_graph_is_one_and_holds_the_op_between_the_matmuls(ops, order):
    graphs, lowered = [], []

    def backend(module, inputs):
        graphs.append(module)
        from torch._dynamo.backends.common import aot_autograd
        from functorch.compile import make_boxed_func

        def keep(lowered_module, _):
            lowered.append(lowered_module)
            return make_boxed_func(lowered_module.forward)

        return aot_autograd(fw_compiler=keep)(module, inputs)

    def model(x, w):
        return ops.all_reduce(x @ w, order) @ w

    torch.compile(model, fullgraph=True, backend=backend)(torch.ones(4, 4), torch.ones(4, 4))
    assert len(graphs) == 1
    names = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [name.rpartition(".")[2] for name in names] == [names[0].rpartition(".")[2], "all_reduce",
                                                           names[0].rpartition(".")[2]]
    text = lowered[0].print_readable(print_output=False)
    assert text.count("torch.ops.rankfold_example.all_reduce.default") == 1
    assert text.index("aten.mm") < text.index("rankfold_example.all_reduce.default") < text.rindex("aten.mm")


def test_inputs_that_are_written_are_written_in_place(ops, order):
    x = torch.ones(3, 3)
    data = x.data_ptr()
    result, code = run_and_get_code(torch.compile(lambda x: ops.all_reduce_(x, order), fullgraph=True), x)
    assert result.data_ptr() == data and "copy_" not in code[0] and "clone" not in code[0]


def test_views_are_written_in_place(ops, order):
    def function(out, whole, x):
        ops.all_gather_into_(out, x + 1, order)
        ops.reduce_scatter_into_(whole[1:5, 2:5], (x * 2)[:, :3], order)
        ops.all_to_all_into_(whole[5:, :4], x[:1], order)
        ops.broadcast_(whole.t()[0], order)
        ops.all_gather_into_(whole[:4], whole[:4], order)
        y = torch.empty(4, 4).t()
        ops.all_gather_into_(y, x, order)
        return out * 1, whole.sum(), y + 1

    compiled, eager = ([torch.zeros(4, 4).t(), torch.zeros(6, 8), torch.arange(16.0).view(4, 4)] for _ in range(2))
    compiled += torch.compile(function, fullgraph=True)(*compiled)
    eager += function(*eager)
    assert all(map(same_bits, compiled, eager))
    assert eager[1].count_nonzero() > 12


def test_two_modules_may_hold_the_token_each(ops, order):
    class Reduce(torch.nn.Module):
        def __init__(self, buffer):
            super().__init__()
            if buffer:
                self.register_buffer("order", order, persistent=False)
            else:
                self.order = order

        def forward(self, x):
            return ops.all_reduce(x, self.order)

    model = torch.nn.Sequential(Reduce(False), torch.nn.Linear(4, 4), Reduce(True))
    before = order.item()
    torch.compile(model, fullgraph=True)(torch.ones(2, 4)).sum().backward()
    assert order.item() == before + 3  # with torch 2.4, the token counts them at the end of the backward pass
    with torch.inference_mode():
        assert calls_of(order, model, torch.ones(2, 4), fullgraph=True) == 2
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("buffer", [False, True], ids=["attribute", "buffer"])
def test_freezing_does_not_freeze_the_token(ops, order, buffer):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            if buffer:
                self.register_buffer("order", order, persistent=False)
            else:
                self.order = order

        def forward(self, x):
            ops.all_reduce(x.sum(0), self.order)
            return ops.all_reduce_(self.linear(x), self.order)

    model, before = Model().eval(), order.item()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, options={"freezing": True})
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(2, 4)), model.linear(torch.ones(2, 4)))
    assert order.item() == before + 6


@pytest.mark.parametrize("name", WRITING)
def test_fake_tensors_have_the_strides_of_real_ones(ops, order, name):
    from torch._subclasses.fake_tensor import FakeTensorMode

    base = torch.ones(4, 6, 5)
    for x in (base, base.permute(2, 0, 1), base[:, ::2], base[0, 0, 0], base[:0], base.expand(2, 4, 6, 5)):
        if x.dim() == 0 and name in ("reduce_scatter", "all_to_all"):
            continue
        real = getattr(ops, name)(x, order)
        with FakeTensorMode() as mode:
            fake = getattr(ops, name)(mode.from_tensor(x), mode.from_tensor(order))
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == \
            (real.shape, real.stride(), real.dtype, real.device)


# --- without the token ---

WITHOUT = {
    "all_reduce": lambda ops, x: ops.all_reduce(x),
    "all_reduce_": lambda ops, x: ops.all_reduce_(x),
    "all_gather": lambda ops, x: ops.all_gather(x),
    "all_gather_into_": lambda ops, x: ops.all_gather_into_(torch.empty(2, 2), x),
    "reduce_scatter": lambda ops, x: ops.reduce_scatter(x),
    "broadcast_": lambda ops, x: ops.broadcast_(x),
    "all_to_all": lambda ops, x: ops.all_to_all(x),
    "barrier": lambda ops, x: (ops.barrier(), x)[1],
}


@pytest.mark.parametrize("form", WITHOUT)
def test_without_a_token_one_graph_is_refused(ops, form):
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(lambda x: WITHOUT[form](ops, x @ x) @ x, fullgraph=True)(torch.ones(2, 2))
    text = "".join(traceback.format_exception(caught.value))
    assert f"rankfold_example::{form}: cannot be traced without the order token" in text
    assert "pass the tensor that init() returned" in text


@pytest.mark.parametrize("form", WITHOUT)
def test_without_a_token_the_graph_is_broken_and_right(ops, form):
    counters.clear()
    x = torch.full((2, 2), 0.5)
    assert torch.equal(torch.compile(lambda x: WITHOUT[form](ops, x @ x) @ x)(x), x @ x @ x)
    assert len(counters["graph_break"]) == 1


CONTROL = {
    "order": lambda ops, x: ops.all_reduce(x, ops.order()),
    "init": lambda ops, x: ops.all_reduce(x, ops.init("traced", rank=0, size=1)),
    "size": lambda ops, x: x * ops.size(),
    "rank": lambda ops, x: x + ops.rank(),
    "finalize": lambda ops, x: (ops.finalize("traced"), x)[1],
}


def test_what_is_no_collective_breaks_the_graph(ops):
    x = torch.full((2, 2), 0.5)
    for name, call in CONTROL.items():
        torch._dynamo.reset()
        counters.clear()
        assert torch.equal(torch.compile(lambda x: call(ops, x @ x) @ x)(x), x @ x @ x), name
        assert len(counters["graph_break"]) >= 1, name
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
            torch.compile(lambda x: call(ops, x @ x) @ x, fullgraph=True)(x)
        assert f"rankfold_example::{name}: cannot be traced" in "".join(traceback.format_exception(caught.value))


def test_a_wrong_operator_is_found_when_it_is_traced(ops, order):
    with pytest.raises(Exception, match='op is "mean", expected one of sum, prod'):
        torch.compile(lambda x: ops.all_reduce(x, order, "mean"), fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all"])
def test_a_group_must_be_there_when_its_size_decides_a_shape(library, name):
    library.finalize()
    order = library.order()
    with pytest.raises(Exception, match=r"is not initialised; call torch.ops.rankfold_example.init\(\) on every rank first, "
                                        r"also before it is traced: the shape of the result depends on the size of the group"):
        torch.compile(lambda x: getattr(library, name)(x, order), fullgraph=True, backend="eager")(torch.ones(2))


# --- shapes that change ---


def every_op(here, rows, sizes, function):
    """Calls a function of all ops with inputs of that many rows."""
    x = values(torch.float32, (rows, 8), rows + here.rank)
    return function(x, torch.ones(8, 8) * 0.1, sizes[here.rank], sizes[1 - here.rank])


def shapes_that_change(here):
    ops, order, rank = here.ops, here.order, here.rank

    def function(x, w, own, other):
        sizes = [own, other] if rank == 0 else [other, own]
        even = ops.reduce_scatter(ops.all_gather(x @ w, order), order)
        mine = ops.reduce_scatter(torch.cat([x @ w] * 2)[:own + other], order, "sum", sizes)
        uneven = ops.all_gather(mine * 2, order, sizes)
        exchanged = ops.all_to_all(uneven, order, [own, own], sizes)
        out = torch.empty(own + other, 8)
        ops.all_gather_into_(out, torch.relu(mine), order, sizes)
        return even + 1, exchanged, ops.broadcast_(out * 2, order, root=1)

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows, sizes in ((6, (4, 5)), (12, (7, 3)), (10, (2, 9))):  # 8 × 8 is a graph of its own with torch 2.4
        found, expected = (every_op(here, rows, sizes, f) for f in (compiled, function))
        torch.testing.assert_close(found, expected)
    return counters["stats"]["unique_graphs"]


def test_shapes_that_change_make_no_other_graph(pair):
    assert pair(shapes_that_change) == [1, 1]


def is_size(rows):
    """Tells the compiler that what comes from data is a number of rows."""
    if BEFORE_2_6:
        torch._check_is_size(rows)  # without which it does not take sums of such numbers as sizes
    else:
        torch._check(rows >= 0)


def sizes_from_data(here):
    """What a router does: how many rows go where is in a tensor, and the ranks tell each other."""
    ops, order = here.ops, here.order

    def function(x, send):
        receive, send = ops.all_to_all(send, order).tolist(), send.tolist()
        for rows in receive + send:
            is_size(rows)
        y = ops.all_to_all(x, order, receive, send)
        return ops.all_to_all(y * 2, order, send, receive)

    x = values(torch.float32, (7, 4), here.rank)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, fullgraph=True)
        return [torch.equal(compiled(x, torch.tensor([rows, 7 - rows])), x * 2) for rows in (3, 5 + here.rank)]


def test_sizes_that_are_found_in_the_graph(pair):
    assert pair(sizes_from_data) == [[True, True]] * 2


# --- export ---


@pytest.fixture
def exported(ops, order):
    """A module that holds the token, and what torch.export makes of it."""
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.register_buffer("order", order.clone())

        def forward(self, x):
            y = ops.all_reduce_(self.linear(x), self.order)
            gathered = ops.all_gather(torch.relu(y), self.order, sizes=[x.shape[0]])
            out = torch.empty_like(gathered)
            ops.all_to_all_into_(out, ops.broadcast_(gathered, self.order), self.order)
            return ops.reduce_scatter(out, self.order, "avg")

    model = Model().eval()
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=2, max=64)
        yield model, torch.export.export(model, (torch.ones(4, 8),), dynamic_shapes=({0: batch},))


def agree(model, other):
    """Whether both compute the same, for several sizes."""
    for rows in (4, 7):
        x = values(torch.float32, (rows, 8), rows)
        torch.testing.assert_close(other(x), model(x))
        # On one rank no collective changes what it is given.
        torch.testing.assert_close(other(x), torch.relu(model.linear(x)))


def test_export(exported):
    model, program = exported
    for name in ("all_reduce_", "all_gather", "all_to_all_into_", "broadcast_", "reduce_scatter"):
        core = "_" if BEFORE_2_6 and name.endswith("_") else ""  # what composites become at once there
        assert f"rankfold_example.{core}{name}.default" in str(program.graph)
    agree(model, program.module())


@pytest.mark.skipif(BEFORE_2_6, reason=f"torch {torch.__version__} makes no packages, which 2.6 brings; its aot_compile "
                                       "fails where a tensor is written that is no input")
def test_a_package(exported, tmp_path):
    model, program = exported
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    agree(model, torch._inductor.aoti_load_package(path))
