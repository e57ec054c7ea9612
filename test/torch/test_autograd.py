# SPDX-License-Identifier: Apache-2.0
"""Gradients: the loss is the sum of all ranks' losses, so that of y_r = Σ_s x_s is the all-reduced dy."""

import threading

import pytest
import torch
from reference import WRITING, collective, of_rank, same_bits, values

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def threads(library):
    """Runs a function of (rank, group) on two threads that are two ranks; their results."""
    library.finalize()

    def run(function, seconds=60):
        results = [None, None]

        def work(rank):
            group = f"thread {rank}"
            try:
                library.init(group, rank=rank, size=2, key=f"threads of {threading.main_thread().native_id}")
                results[rank] = function(rank, group)
            except BaseException as error:
                library.abort("the other thread failed", group)
                results[rank] = error

        workers = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in (0, 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(seconds)
        assert not any(worker.is_alive() for worker in workers), "a thread hangs: is the GIL held?"
        for rank in (0, 1):
            library.finalize(f"thread {rank}")
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    return run


@pytest.mark.parametrize("op, factor", [("sum", 1.0), ("avg", 0.5)])
@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
def test_backward_all_reduces_the_gradient(library, threads, op, factor, token):
    arguments = (library.order(),) if token else ()

    def function(rank, group):
        x = values(torch.float64, (3, 4), rank).requires_grad_()
        y = library.all_reduce(x, *arguments, op=op, group=group)
        (y * (rank + 1)).sum().backward()
        return x.grad

    for gradient in threads(function):
        assert gradient.tolist() == [[3 * factor] * 4] * 3


# Name -> op, shapes of the two ranks' x, and what the reference is told.
DIFFERENTIABLE = {
    "all_reduce": ("all_reduce", [(3, 4), (3, 4)], {"op": "avg"}),
    "all_gather": ("all_gather", [(3, 4), (3, 4)], {}),
    "all_gather of numbers": ("all_gather", [(), ()], {}),
    "all_gather uneven": ("all_gather", [(2, 4), (3, 4)], {"sizes": [2, 3]}),
    "reduce_scatter": ("reduce_scatter", [(4, 2), (4, 2)], {}),
    "reduce_scatter avg": ("reduce_scatter", [(4, 2), (4, 2)], {"op": "avg"}),
    "reduce_scatter uneven": ("reduce_scatter", [(5, 2), (5, 2)], {"op": "avg", "sizes": [4, 1]}),
    "broadcast": ("broadcast", [(3, 4), (3, 4)], {"root": 1}),
    "all_to_all": ("all_to_all", [(4, 3), (4, 3)], {}),
    "all_to_all uneven": ("all_to_all", [(5, 3), (2, 3)], {"splits": [[4, 1], [0, 2]]}),
}


def first_and_second(y, x):
    """Derivatives of a loss that is not quadratic in y, on this rank."""
    first, = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)
    second, = torch.autograd.grad((first * first).sum(), x)
    return first.detach(), second


@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_first_and_second_derivatives(library, threads, case, token):
    op, shapes, options = DIFFERENTIABLE[case]

    def function(rank, group):
        x = values(torch.float64, shapes[rank], rank).requires_grad_()
        arguments = (library.order(),) if token else ()
        y = getattr(library, op)(x * 1.0, *arguments, group=group, **of_rank(options, rank))
        assert op in y.grad_fn.name()
        return first_and_second(y, x)

    # One process that has both, and whose losses are added.
    xs = [values(torch.float64, shape, rank).requires_grad_() for rank, shape in enumerate(shapes)]
    ys = [collective(op, xs, rank, **options) for rank in (0, 1)]
    firsts = torch.autograd.grad(sum((y * y * y).sum() for y in ys), xs, create_graph=True, materialize_grads=True)
    seconds = torch.autograd.grad(sum((first * first).sum() for first in firsts), xs, materialize_grads=True)
    for rank, (first, second) in enumerate(threads(function)):
        torch.testing.assert_close(first, firsts[rank].detach())
        torch.testing.assert_close(second, seconds[rank])


def test_a_gradient_that_is_not_contiguous(library, threads):
    def function(rank, group):
        x = values(torch.float32, (3, 4), rank).requires_grad_()
        y = library.all_reduce(x, library.order(), group=group)
        y.t().reshape(12).backward(values(torch.float32, (12,), rank))
        z = values(torch.float32, (3, 4), rank).requires_grad_()
        library.all_reduce(z, library.order(), group=group).sum().backward()  # an expanded gradient
        return x.grad, z.grad

    expected = (values(torch.float32, (12,), 0) + values(torch.float32, (12,), 1)).view(4, 3).t()
    for x, z in threads(function):
        assert same_bits(x, expected.contiguous()) and z.tolist() == [[2.0] * 4] * 3


def test_compiled_in_two_threads(library, threads):
    compiling = threading.Lock()

    def function(rank, group):
        order = library.order()
        x = values(torch.float32, (3, 4), rank).requires_grad_()
        compiled = torch.compile(lambda x: library.all_reduce(x * 2, order, group=group).sum() * (rank + 1),
                                 fullgraph=True, backend="aot_eager")
        with compiling:  # the compiler, unlike the ops, takes one thread at a time
            library.init(f"alone {rank}", rank=0, size=1)
            torch.compile(lambda x: library.all_reduce(x * 2, order, group=f"alone {rank}"), backend="aot_eager")(x)
            library.finalize(f"alone {rank}")
        loss = compiled(x)
        loss.backward()
        return x.grad

    assert [gradient[0, 0].item() for gradient in threads(function)] == [6.0, 6.0]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_backward_of_several_compiled_graphs(ops, order, backend):
    """Each graph keeps the token for its backward half, while others write to it."""
    def block(x):
        return ops.all_reduce(x * x, order).sin()

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    x = torch.linspace(0, 1, 5, requires_grad=True)
    expected, = torch.autograd.grad(block(block(block(x))).sum(), x)
    first, second = (torch.compile(f, fullgraph=True, backend=backend) for f in (block, checkpointed))
    y = first(second(first(x)))
    ops.all_reduce_(torch.ones(2), order)
    ops.barrier(order)
    for retain in (True, False):
        gradient, = torch.autograd.grad(y.sum(), x, retain_graph=retain)
        torch.testing.assert_close(gradient, expected)
        ops.all_reduce(torch.ones(2), order)


def test_a_new_tensor_is_returned_also_by_one_rank(ops, order):
    x = torch.ones(3)
    y = ops.all_reduce(x, order)
    assert y is not x and y.data_ptr() != x.data_ptr()
    y = ops.all_reduce(x.expand(2, 3).t(), order)
    assert y.is_contiguous()


WRITE = {
    "all_reduce_": lambda ops, x, *token: ops.all_reduce_(x, *token),
    "broadcast_": lambda ops, x, *token: ops.broadcast_(x, *token),
    "all_gather_into_": lambda ops, x, *token: ops.all_gather_into_(x, torch.ones(x.shape), *token),
    "reduce_scatter_into_": lambda ops, x, *token: ops.reduce_scatter_into_(x, torch.ones(x.shape), *token),
    "all_to_all_into_": lambda ops, x, *token: ops.all_to_all_into_(x, torch.ones(x.shape), *token),
}


@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
@pytest.mark.parametrize("op", WRITE)
def test_autograd_sees_what_is_written_in_place(ops, order, op, token):
    arguments = (order,) if token else ()
    x = torch.ones(3)
    version = x._version
    assert WRITE[op](ops, x, *arguments) is x
    assert x._version == version + 1
    w = torch.ones(3, requires_grad=True)
    product = w * x  # needs x for the gradient of w
    WRITE[op](ops, x[:2], *arguments)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("name", WRITING)
def test_nothing_of_the_kernel_is_differentiated(ops, order, name):
    op, x = getattr(ops, name), torch.ones(3, 2).requires_grad_()
    assert name in op(x.t(), order).grad_fn.name()
    with torch.no_grad():
        assert op(x, order).grad_fn is None
    assert op(x.detach(), order).grad_fn is None


@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
@pytest.mark.parametrize("op", WRITE)
def test_autograd_sees_what_is_written_in_inference_mode(ops, order, op, token):
    arguments = (order,) if token else ()
    x = torch.ones(3)
    product = torch.ones(3, requires_grad=True) * x
    with torch.inference_mode():
        WRITE[op](ops, x, *arguments)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("token", [True, False], ids=["token", "eager"])
def test_tensors_of_inference_mode_are_not_written_outside(ops, order, token):
    arguments = (order,) if token else ()
    with torch.inference_mode():
        x = torch.ones(2)
        ops.all_reduce_(x, *arguments)
    before = order.item()
    for op in WRITE.values():
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            op(ops, x, *arguments)
    assert order.item() == before


def test_checkpoint_repeats_the_collective(ops, order):
    from torch.utils.checkpoint import checkpoint

    linear = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    before = order.item()
    checkpoint(lambda x: torch.relu(ops.all_reduce(linear(x), order)), x, use_reentrant=False).sum().backward()
    assert order.item() == before + 3  # forward, forward again, backward


@pytest.mark.parametrize("token", [True, False], ids=["token", "unordered"])
def test_compiled_autograd_has_one_graph(ops, order, token):
    def call(name, x, *arguments):
        op = getattr(ops, name)
        return op(x, order, *arguments) if token else op.unordered(x, *arguments)

    w, before = torch.ones(2, 2, requires_grad=True), order.item()
    loss = call("reduce_scatter", call("broadcast", call("all_gather", w * 3, [2])), "avg", [2])
    loss = call("all_to_all", call("all_reduce", loss)).sum()
    compiled_autograd = torch._dynamo.compiled_autograd
    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable  # the name before torch 2.6
    with enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    assert w.grad.tolist() == [[3.0, 3.0]] * 2
    assert order.item() == before + (10 if token else 0)


def test_forward_mode_and_functorch_are_refused_not_wrong(ops, order):
    import torch.autograd.forward_ad as forward_ad

    for name in WRITING:
        op = getattr(ops, name)
        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.ones(2), torch.ones(2))
            with pytest.raises(RuntimeError, match="jvp is not implemented"):
                op(x, order)
            with pytest.raises(RuntimeError, match="requires grad, which is not supported in place"):
                WRITE[WRITING[name]](ops, x, order)
        with pytest.raises(RuntimeError, match="with functorch transforms"):
            torch.func.grad(lambda x: op(x, order).sum())(torch.ones(2))


# --- two processes ---


def train(here, compiled):
    ops, order = here.ops, here.order

    def loss_of(x, w):
        y = ops.all_reduce(x @ w, order)
        side = ops.all_reduce((x.t() @ x)[:2] * 0.1, order, "avg")
        return (torch.relu(y) * (here.rank + 1)).sum() + (side * side).sum()

    torch._dynamo.reset()
    x = values(torch.float32, (2, 8), 3 + here.rank).requires_grad_()
    w = values(torch.float32, (8, 8), here.rank).requires_grad_()
    before = order.item()
    function = torch.compile(loss_of, fullgraph=True, dynamic=False) if compiled else loss_of
    loss = function(x, w)
    loss.backward()
    return loss.detach(), x.grad, w.grad, order.item() - before


def test_compiled_gradients_are_those_of_eager_code(pair):
    answers = pair(train, True)
    for eager, compiled in zip(pair(train, False), answers):
        torch.testing.assert_close(eager, compiled, rtol=1e-4, atol=1e-3)
    # And those of one process that has both.
    xs = [values(torch.float32, (2, 8), 3 + rank).requires_grad_() for rank in (0, 1)]
    ws = [values(torch.float32, (8, 8), rank).requires_grad_() for rank in (0, 1)]
    y = sum(x @ w for x, w in zip(xs, ws))
    side = sum((x.t() @ x)[:2] * 0.1 for x in xs) / 2
    (torch.relu(y).sum() * 3 + 2 * (side * side).sum()).backward()
    for rank, (_, dx, dw, _) in enumerate(answers):
        torch.testing.assert_close((dx, dw), (xs[rank].grad, ws[rank].grad), rtol=1e-4, atol=1e-3)
