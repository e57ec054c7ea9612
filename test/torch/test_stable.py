# SPDX-License-Identifier: Apache-2.0
"""The ops for torch's stable ABI: what the library holds, and what its ops do, by the tests of the others.

RANKFOLD_TORCH_STABLE names a built examples/torch_stable.cpp, which has the namespace of
examples/torch_extension.cpp: one process loads only one of the two.
"""

import os
import re
import subprocess
import sys
import traceback
import warnings

import pytest
import torch
from conftest import ROOT
from ranks import NAMESPACE
from reference import values

# Tests of the other flavour that hold for this one as they are, with the fixtures of this file.
from test_collectives import (test_in_place_within_one_tensor, test_values,  # noqa: F401
                              test_what_is_not_written_stays)
from test_errors import (test_lazy_views_give_the_right_values,  # noqa: F401
                         test_operators_that_a_dtype_does_not_have, test_ops_before_init_say_how_to,
                         test_tensors_that_overlap_themselves_cannot_be_written)
from test_life import test_a_rank_that_is_killed_is_noticed, ranks  # noqa: F401
from test_ranks import (test_layouts, test_every_operator_has_the_right_bits_on_both_ranks,  # noqa: F401
                        test_ranks_that_make_different_calls_get_an_error, test_threads_take_turns_in_one_group)
from test_schema import test_the_token_is_one_tensor_for_all_groups  # noqa: F401

OTHER = os.environ.get("RANKFOLD_TORCH_EXTENSION")
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


@pytest.fixture(scope="session")
def extension(tmp_path_factory):
    path = os.environ.get("RANKFOLD_TORCH_STABLE")
    if path is None:
        folder = torch.__path__[0]
        path = str(tmp_path_factory.mktemp("stable") / "torch_stable.so")
        subprocess.run(["c++", "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{ROOT}/include",
                        f"-isystem{folder}/include", ROOT / "examples" / "torch_stable.cpp", "-o", path,
                        f"-L{folder}/lib", "-ltorch_cpu"], check=True)
    if hasattr(getattr(torch.ops, NAMESPACE), "init"):
        pytest.skip("this process has loaded the other flavour; run this file by itself")
    torch.ops.load_library(path)
    return path


def run(program, *arguments):
    """A program in a process of its own; its output."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# --- the library ---


def test_the_library_needs_nothing_of_torch_but_c_functions(extension):
    symbols = subprocess.run(["nm", "-DC", "--undefined-only", extension], capture_output=True, text=True, check=True)
    names = [line.split(maxsplit=1)[1] for line in symbols.stdout.splitlines()]
    assert not [name for name in names if re.search(r"\b(at|c10|torch|caffe2)::", name)]
    of_torch = [name for name in names if "torch" in name]
    assert of_torch and all(name.startswith(("aoti_torch_", "torch_")) for name in of_torch)
    dynamic = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line and "torch" in line or "c10" in line]
    assert len(needed) == 1 and "libtorch_cpu.so" in needed[0]


SCHEMAS = """
import sys, torch
torch.ops.load_library(sys.argv[1])
print(*sorted(str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith(sys.argv[2] + "::")), sep="\\n")
ops = getattr(torch.ops, sys.argv[2])
print(*(f"{n}: {getattr(ops, n).overloads()}" for n in sys.argv[3:]), sep="\\n")
"""


@pytest.mark.skipif(OTHER is None, reason="RANKFOLD_TORCH_EXTENSION names no library")
def test_names_schemas_and_overloads_are_those_of_the_other_flavour(extension):
    ours, theirs = (run(SCHEMAS, path, NAMESPACE, *COLLECTIVES, "barrier") for path in (extension, OTHER))
    assert ours.count(NAMESPACE + "::") > 40
    alone = re.compile(rf"{NAMESPACE}::(empty_symmetric|_?all_reduce_add(_rms_norm)?_?)[.(]")
    assert len(list(filter(alone.match, theirs.splitlines()))) == 1 + 6 * 3
    assert ours == "".join(line for line in theirs.splitlines(keepends=True) if not alone.match(line))


TWICE = """
import sys, torch
for path in sys.argv[1:3]:
    torch.ops.load_library(path)
try:
    getattr(torch.ops, sys.argv[3]).init(rank=0, size=1)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(OTHER is None, reason="RANKFOLD_TORCH_EXTENSION names no library")
@pytest.mark.parametrize("stable_first", [False, True])
def test_a_second_library_of_the_namespace_is_refused_whatever_its_flavour(extension, stable_first):
    paths = (extension, OTHER) if stable_first else (OTHER, extension)
    text = run(TWICE, *paths, NAMESPACE)
    assert f"{paths[1]} registers nothing" in text
    assert f"was registered by two libraries, {paths[0]} and {paths[1]}, expected one" in text


# --- the ops, on one rank ---


@pytest.mark.parametrize("overload", ["default", "unordered"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_opcheck(ops, order, name, overload):
    token = (order,) if overload == "default" else ()
    for x in (torch.arange(12.0).view(3, 4), torch.arange(12).view(3, 4).t(), torch.zeros(0, 4, dtype=torch.bfloat16)):
        torch.library.opcheck(getattr(getattr(ops, name), overload), (x, *token))
        in_place = name in ("all_reduce", "broadcast")
        written = (x.clone(),) if in_place else (torch.empty_like(x), x)
        for form in ("", "_"):
            writing = getattr(ops, form + name + ("_" if in_place else "_into_"))
            torch.library.opcheck(getattr(writing, overload), (*written, *token))


def test_a_gradient_is_refused(ops, order):
    w = torch.ones(2, requires_grad=True)
    for x in (w, w * 2):
        for call in (ops.all_reduce, ops.all_reduce_, ops._all_reduce_, ops.all_gather,
                     lambda x, order: ops.all_gather_into_(torch.empty(2), x, order)):
            with pytest.raises(RuntimeError, match=r"x requires grad, and this library, built for torch's stable ABI"):
                call(x, order)
            with torch.no_grad():
                call(x.detach(), order)
    assert ops.all_reduce(torch.ones(2), order).tolist() == [1, 1]


def test_a_gradient_is_refused_where_a_graph_is_traced(ops, order):
    w = torch.ones(2, requires_grad=True)
    for call in (lambda x: ops.all_reduce(x * 2, order), lambda x: ops.all_reduce_(x * 2, order),
                 lambda x: ops.all_reduce_(x, order)):
        with pytest.raises(Exception) as caught:
            torch.compile(call, fullgraph=True)(w)
        assert "requires grad, and this library" in "".join(traceback.format_exception(caught.value))
    # What cannot be told: a leaf that a functional op reduces itself. torch warns in the backward pass.
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        torch.compile(lambda x: ops.all_reduce(x, order), fullgraph=True, backend="aot_eager")(w).sum().backward()
    assert w.grad is None


def test_autograd_notices_what_is_written(ops, order):
    for x in (torch.ones(2), torch.ones(2, 2).t()[:, :1], torch.tensor(1.0)):
        before = x._version
        ops.all_reduce_(x, order)
        assert x._version > before
    saved = torch.ones(2)
    y = torch.ones(2, requires_grad=True) * saved
    ops.all_reduce_(saved, order)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_other_devices_and_layouts_are_refused(ops, order):
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(NotImplementedError, match="Could not run 'rankfold_example::all_reduce' .*'SparseCPU' backend"):
        ops.all_reduce(sparse, order)
    with pytest.raises(RuntimeError, match="x is a tensor of layout Sparse .* expected a dense"):
        ops.all_reduce_(sparse, order)


def test_without_a_token_the_graph_is_broken_and_right(ops):
    x = torch.full((2, 2), 0.5)
    for call in (ops.all_reduce, ops.all_reduce_):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(lambda x: call(x @ x) @ x)(x), x @ x @ x)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="does not support running with fake tensors"):
            torch.compile(lambda x: call(x @ x) @ x, fullgraph=True)(x)


def test_what_is_no_collective_cannot_be_traced(ops):
    for call in (lambda x: x * ops.size(), lambda x: (ops.barrier(), x)[1], lambda x: ops.all_reduce(x, ops.order())):
        with pytest.raises(Exception) as caught:
            torch.compile(call)(torch.ones(2))
        assert "cannot be traced; call it outside of the compiled function" in str(caught.value)


# --- compiled, on two ranks ---


def compiled_layers(here):
    ops, order, rank = here.ops, here.order, here.rank

    def model(x, w):
        first = ops.all_reduce_(x @ w, order)
        ops.all_reduce(w, order)  # nobody uses it
        rows = ops.all_gather(ops.reduce_scatter(first, order), order)
        return ops.all_to_all(ops.broadcast(rows, order, 1), order)

    before, results = order.item(), []
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (4, 6):
            x, w = values(torch.float32, (rows, 8), rank), values(torch.float32, (8, 8), 5)
            results += [compiled(x, w), model(x, w)]
    return results, order.item() - before


def test_a_compiled_graph_does_what_eager_code_does(pair):
    answers = pair(compiled_layers)
    for results, calls in answers:
        assert calls == 4 * 6
        for compiled, eager in zip(results[::2], results[1::2]):
            torch.testing.assert_close(compiled, eager)
    xs = [values(torch.float32, (6, 8), rank) @ values(torch.float32, (8, 8), 5) for rank in (0, 1)]
    whole = (xs[0] + xs[1]) * 2
    for rank, (results, _) in enumerate(answers):
        torch.testing.assert_close(results[2], torch.cat([whole.chunk(2)[rank]] * 2))
