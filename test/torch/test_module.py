# SPDX-License-Identifier: Apache-2.0
"""The module for Python people (examples/rankfold_torch.py): built at its import, used on two ranks.

RANKFOLD_TORCH_CACHE keeps the built extension from run to run.
"""

import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from ranks import Ranks
from reference import collective, same_bits, values

EXAMPLES = ROOT / "examples"
os.environ.setdefault("RANKFOLD_TORCH_CFLAGS", "-O1")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The folder of what is built, for this process and those it starts."""
    os.environ.setdefault("RANKFOLD_TORCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    return pathlib.Path(os.environ["RANKFOLD_TORCH_CACHE"])


def module():
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import rankfold_torch

    return rankfold_torch


def start(here):
    """Both ranks import at the same time: one builds, and the other waits."""
    rf = module()
    rf.init()
    return rf.rank(), rf.size()


@pytest.fixture(scope="module")
def pair(cache):
    with Ranks(2, "", init=False) as ranks:
        assert ranks(start, seconds=300) == [(0, 2), (1, 2)]
        yield ranks


def every_function(here):
    rf, x = module(), values(torch.float32, (4, 3), here.rank)
    results = {}
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
        results[name] = getattr(rf, name)(x)
        written = x.clone() if hasattr(rf, name + "_") else torch.empty_like(results[name])
        into = (written,) if hasattr(rf, name + "_") else (written, x)
        returned = getattr(rf, name + "_", None) or getattr(rf, name + "_into_")
        assert returned(*into) is written and same_bits(written, results[name])
    results["max"] = rf.all_reduce(x, "max")
    lies = rf.empty_symmetric(x.shape, x.dtype)
    results["symmetric"] = rf.all_reduce(lies.copy_(x))
    results["uneven"] = rf.all_gather(x[:1 + here.rank], [1, 2])
    rf.barrier(tag=3)
    return results


def test_every_function(pair):
    xs = [values(torch.float32, (4, 3), rank) for rank in (0, 1)]
    for rank, results in enumerate(pair(every_function)):
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            assert same_bits(results[name], collective(name, xs, rank)), name
        assert same_bits(results["symmetric"], results["all_reduce"])
        assert same_bits(results["max"], torch.maximum(*xs))
        assert same_bits(results["uneven"], torch.cat([xs[0][:1], xs[1][:2]]))


def in_one_graph(here):
    """Independent collectives of uneven sizes, one of which nobody uses: the module's token keeps them."""
    rf = module()

    def model(x, w):
        rf.all_reduce(w)
        rf.barrier()
        return rf.all_reduce_(x[:2] @ w), rf.all_gather(x, [2, 5])

    before = rf._order.item()
    with torch.no_grad():
        x, w = values(torch.float32, (2 + 3 * here.rank, 4), here.rank), values(torch.float32, (4, 4), 2)
        result = torch.compile(model, fullgraph=True)(x, w)[0], model(x, w)[0]
    return result, rf._order.item() - before


def test_the_token_is_passed_inside_of_one_graph(pair):
    for (compiled, eager), calls in pair(in_one_graph):
        torch.testing.assert_close(compiled, eager)
        assert calls == 8


def groups_and_errors(here):
    rf = module()
    rf.init("mirror", 1 - here.rank, 2, "test_module", timeout=60)
    place, texts = rf.rank("mirror"), []
    for call in (lambda: rf.init("half", rank=0), lambda: rf.all_reduce(torch.ones(2), "mean"),
                 lambda: rf.all_reduce(torch.ones(2), group="nobody")):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        texts.append(str(caught.value))
    rf.finalize("mirror")
    return place, texts


def test_groups_and_errors(pair):
    for rank, (place, texts) in enumerate(pair(groups_and_errors)):
        assert place == 1 - rank
        for text, expected in zip(texts, ("of rank and size one is given", 'op is "mean"', 'no group "nobody"')):
            assert expected in text


def test_a_lock_that_a_killed_process_left_is_no_obstacle(pair, cache):
    for folder in cache.iterdir():
        (folder / "lock").touch()
    done = subprocess.run([sys.executable, "-c", "import rankfold_torch"], cwd=EXAMPLES, capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_wrong_folder_of_headers_is_named(tmp_path):
    done = subprocess.run([sys.executable, "-c", "import rankfold_torch"], cwd=EXAMPLES, capture_output=True, text=True,
                          env={**os.environ, "RANKFOLD_INCLUDE": str(tmp_path)}, timeout=100)
    assert done.returncode != 0 and f"ImportError: rankfold_torch: {tmp_path} has no rankfold/torch.hpp" in done.stderr


def documented(here):
    rf = module()
    public = {name: getattr(rf, name) for name in rf.__all__ if inspect.isfunction(getattr(rf, name))}
    return [name for name, function in public.items()
            if not function.__doc__ or "return" not in function.__annotations__
            or set(inspect.signature(function).parameters) - set(function.__annotations__)]


def test_every_function_has_a_docstring_and_type_hints(pair):
    assert pair(documented) == [[], []]


def test_with_torchrun(pair):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                           EXAMPLES / "torch_module.py"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, one graph: differs from one process by at most" in done.stdout
