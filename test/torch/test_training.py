# SPDX-License-Identifier: Apache-2.0
"""Training over the c10d backend: DDP, FSDP2, DTensor and tensor-parallel plans, eager and compiled, on
scikit-learn's digits. A sum of two has one order, so that gloo must give the same bits."""

import re

import pytest
import torch
import torch.distributed as dist
from ranks import ProcessGroup, run_example

pytest.importorskip("sklearn", reason="the packages of the group clients are not installed")
import numpy  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

STEPS, BATCH, RATE = 24, 64, 1.0
INNER = 48


@pytest.fixture(scope="module")
def rankfold(backend_module):
    with ProcessGroup(2, "rankfold", backend_module) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def gloo():
    with ProcessGroup(2, "gloo") as ranks:
        yield ranks


# --- what is trained: a network of one inner layer, by plain gradient descent ---


def digits():
    """Images of 64 pixels from 0 to 1, in batches, and which digit each is."""
    data = load_digits()
    count = STEPS * BATCH
    order = numpy.random.default_rng(7).permutation(len(data.target))[:count]
    images = (data.data[order] / 16).reshape(STEPS, BATCH, 64)
    return images.astype(numpy.float32), data.target[order].reshape(STEPS, BATCH)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.up = torch.nn.Linear(64, INNER)
        self.down = torch.nn.Linear(INNER, 10)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def weights(model):
    """Whole tensors by name, of a model that may be wrapped, compiled or sharded."""
    return {name.split("module.")[-1]: (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()
            for name, x in model.named_parameters()}


def by_ddp(here, model):
    return torch.nn.parallel.DistributedDataParallel(model)


def by_fsdp(here, model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.up, model.down, model):
        fully_shard(layer)
    return model


def by_dtensor(here, model):
    """Weights in shards, given by hand; the batch stays whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (here.size,))
    for layer, placements in ((model.up, (Shard(0), Shard(0))), (model.down, (Shard(1), Replicate()))):
        for name, placement in zip(("weight", "bias"), placements):
            whole = getattr(layer, name).detach()
            setattr(layer, name, torch.nn.Parameter(distribute_tensor(whole, mesh, [placement])))
    return OnMesh(model, mesh)


class OnMesh(torch.nn.Module):
    def __init__(self, module, mesh):
        super().__init__()
        self.module, self.mesh = module, mesh

    def forward(self, x):
        from torch.distributed.tensor import DTensor, Replicate

        return self.module(DTensor.from_local(x, self.mesh, [Replicate()])).full_tensor()


def by_plan(here, model):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (here.size,))
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


WAYS = {"DDP": by_ddp, "FSDP2": by_fsdp, "DTensor": by_dtensor, "plan": by_plan}
SHARES_BATCH = ("DDP", "FSDP2")  # each rank has a part of the batch; else all of it, and a part of the weights


def train(here, way, compiled):
    """The loss of each step, of the whole batch, and the weights at the end."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = WAYS[way](here, Network())
    # DDP and FSDP2 divide the graph by themselves, at their buckets and layers.
    step = torch.compile(model, fullgraph=way not in SHARES_BATCH) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for images, targets in zip(*map(torch.from_numpy, digits())):
        if way in SHARES_BATCH:
            images, targets = images.chunk(here.size)[here.rank], targets.chunk(here.size)[here.rank]
        loss = torch.nn.functional.cross_entropy(step(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if way in SHARES_BATCH:
            dist.all_reduce(loss)
            loss /= here.size
        losses.append(loss)
    assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0) == compiled
    return torch.stack(losses), weights(model)


def reference():
    """The same steps in one process: gradients by hand, in double precision, without torch's autograd."""
    start = {name: x.numpy().astype(numpy.float64) for name, x in weights(Network()).items()}
    w1, b1, w2, b2 = (start[name] for name in ("up.weight", "up.bias", "down.weight", "down.bias"))
    losses = []
    for x, targets in zip(*digits()):
        inner = numpy.maximum(x @ w1.T + b1, 0)
        scores = inner @ w2.T + b2
        scores -= scores.max(axis=1, keepdims=True)
        chances = numpy.exp(scores) / numpy.exp(scores).sum(axis=1, keepdims=True)
        rows = numpy.arange(len(targets))
        losses.append(-numpy.log(chances[rows, targets]).mean())
        d_scores = chances
        d_scores[rows, targets] -= 1
        d_scores /= len(targets)
        d_inner = (d_scores @ w2) * (inner > 0)
        w1, b1 = w1 - RATE * d_inner.T @ x, b1 - RATE * d_inner.sum(axis=0)
        w2, b2 = w2 - RATE * d_scores.T @ inner, b2 - RATE * d_scores.sum(axis=0)
    return losses, {"up.weight": w1, "up.bias": b1, "down.weight": w2, "down.bias": b2}


def check_same(found, wanted):
    assert torch.equal(found[0], wanted[0])
    for name, x in wanted[1].items():
        assert torch.equal(found[1][name], x), name


def check_near(found, losses, wanted):
    assert losses[-1] < 0.7 * losses[0]  # it has learnt something
    torch.testing.assert_close(found[0].double(), torch.as_tensor(numpy.array(losses)), rtol=1e-5, atol=1e-6)
    for name, x in wanted.items():
        torch.testing.assert_close(found[1][name].double(), torch.from_numpy(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("way", WAYS)
def test_training_gives_the_bits_of_gloo(way, compiled, rankfold, gloo):
    first, second = rankfold(train, way, compiled)
    check_same(first, second)
    check_same(first, gloo(train, way, compiled)[0])
    check_near(first, *reference())


def test_two_runs_give_the_same_bits(rankfold, backend_module):
    with ProcessGroup(2, "rankfold", backend_module) as others:
        check_same(rankfold(train, "DDP", False)[0], others(train, "DDP", False)[1])


@pytest.mark.parametrize("way", ["ddp", "tp"])
def test_examples_learn_and_measure_both(way, backend_module):
    lines = run_example(f"{way}_digits.py", backend_module)
    losses = [float(line.split("loss ")[1]) for line in lines if line.startswith("epoch ")]
    assert len(losses) == 8 and losses[-1] < 0.1 * losses[0]
    (right,) = (float(line[len("right: "):-1]) for line in lines if line.startswith("right: "))
    assert right > 95
    for backend in ("rankfold", "gloo"):
        (line,) = (line for line in lines if f"over {backend}" in line)
        # Of one collective a step; had the profiler not seen it, it would say 0.
        assert re.search(r": +[\d.]+ ms a step, +(?!0.000)[\d.]+ ms in 1 collectives$", line), line
