# SPDX-License-Identifier: Apache-2.0
"""Random programs of all collectives on two ranks of uneven sizes: compiled as in eager code, none reordered or dropped.

RANKFOLD_TORCH_PROGRAMS is how many: 20 if it is not set, 200 in the suite torch_programs. RANKFOLD_TEST_SEED is the first.
"""

import os
import random

import pytest
import torch
from reference import values

pytestmark = pytest.mark.filterwarnings("ignore")

FIRST = int(os.environ.get("RANKFOLD_TEST_SEED", 0))
COUNT = int(os.environ.get("RANKFOLD_TORCH_PROGRAMS", 20))
WIDTH = 8


class Program:
    """Source of a random function f(x, w, ops, order) for one rank; the same on both but for rows.

    Tensors are "local", whose rows differ between the ranks, or "same", of one shape on both. Some
    results are not used. So what Inductor takes for a good order differs between the ranks.
    """

    def __init__(self, seed, rank):
        self.random, self.rank = random.Random(seed), rank
        self.training = seed % 4 == 3
        self.collectives = 0
        self.lines = ["a0 = x @ w", "b0 = w * 2"]
        self.rows = self.random.choice([(3, 400), (300, 4), (5, 6), (64, 64)])  # of x
        self.local, self.same = {"a0": self.rows}, {"b0": WIDTH}
        steps = [self.all_reduce, self.all_gather, self.reduce_scatter, self.broadcast, self.all_to_all,
                 self.layer, self.layer, self.mix, self.join]
        for i in range(1, 12):
            self.random.choice(steps)(i)
        used = [*self.random.sample(sorted(self.local), min(2, len(self.local))),
                *self.random.sample(sorted(self.same), min(2, len(self.same)))]
        self.source = "\n    ".join(["def f(x, w, ops, order):", *self.lines, f"return [{', '.join(used)}]"])

    def pick(self, tensors):
        return self.random.choice(sorted(tensors))

    def writing(self):
        """Whether a step takes the form that writes to a tensor, which has no gradient."""
        return self.random.random() < 0.5 and not self.training

    def collective(self, result, call, into=None):
        """`into` is the shape of a new tensor that the op writes to."""
        self.collectives += 1
        if into:
            name, arguments = call.split("(", 1)
            call = f"{name}_into_(torch.empty({into}, dtype=x.dtype), {arguments}"
        self.lines.append(f"{result} = ops.{call}")

    def all_reduce(self, i):
        a, rows = self.pick(self.local), self.random.choice([1, 2, 4, 8])
        name = "all_reduce_" if self.writing() else "all_reduce"
        self.collective(f"b{i}", f"{name}(({a}.t() @ {a})[:{rows}] * 0.01, order, '{self.random.choice(['sum', 'avg'])}')")
        self.same[f"b{i}"] = rows

    def all_gather(self, i):
        a = self.pick(self.local)
        rows = self.local[a]
        into = f"{sum(rows)}, {WIDTH}" if self.writing() else None
        self.collective(f"b{i}", f"all_gather({a}, order, sizes={list(rows)})", into)
        self.same[f"b{i}"] = sum(rows)

    def reduce_scatter(self, i):
        b = self.pick(self.same)
        first = self.random.randint(0, self.same[b])
        rows = (first, self.same[b] - first)
        into = f"{rows[self.rank]}, {WIDTH}" if self.writing() else None
        self.collective(f"a{i}", f"reduce_scatter({b}, order, sizes={list(rows)})", into)
        self.local[f"a{i}"] = rows

    def broadcast(self, i):
        b, root = self.pick(self.same), self.random.randint(0, 1)
        call = f"broadcast_({b} + 1, order, {root})" if self.writing() else f"broadcast({b}, order, {root})"
        self.collective(f"b{i}", call)
        self.same[f"b{i}"] = self.same[b]

    def all_to_all(self, i):
        a = self.pick(self.local)
        splits = [(first, rows - first) for rows in self.local[a] for first in [self.random.randint(0, rows)]]
        rows = tuple(splits[0][rank] + splits[1][rank] for rank in (0, 1))
        into = f"{rows[self.rank]}, {WIDTH}" if self.writing() else None
        received = [split[self.rank] for split in splits]
        self.collective(f"a{i}", f"all_to_all({a}, order, {received}, {list(splits[self.rank])})", into)
        self.local[f"a{i}"] = rows

    def layer(self, i):
        a = self.pick(self.local)
        self.lines.append(f"a{i} = torch.{self.random.choice(['relu', 'tanh'])}({a} @ w)")
        self.local[f"a{i}"] = self.local[a]

    def mix(self, i):
        a = self.pick(self.local)
        self.lines.append(f"a{i} = {a} + {self.pick(self.same)}.sum(0) * 0.1")
        self.local[f"a{i}"] = self.local[a]

    def join(self, i):
        a, other = self.pick(self.local), self.pick(self.local)
        self.lines.append(f"a{i} = torch.cat([{a}, {other}]) * 0.5")
        self.local[f"a{i}"] = tuple(m + n for m, n in zip(self.local[a], self.local[other]))


def run_program(here, seed):
    program, order = Program(seed, here.rank), here.order
    scope = {"torch": torch}
    exec(program.source, scope)

    def run(function):
        x = values(torch.float32, (program.rows[here.rank], WIDTH), seed + here.rank) * 0.1
        w = values(torch.float32, (WIDTH, WIDTH), seed) * 0.05
        tensors = [x.requires_grad_(program.training), w.requires_grad_(program.training)]
        before = order.item()
        results = function(*tensors, here.ops, order)
        forward = order.item() - before
        if program.training:
            loss = sum(result.square().sum() for result in results)
            results = [loss, *torch.autograd.grad(loss, tensors, allow_unused=True)]
        return results, forward, order.item() - before

    torch._dynamo.reset()
    expected, forward, calls = run(scope["f"])
    assert forward == program.collectives
    found, compiled_forward, compiled_calls = run(torch.compile(scope["f"], fullgraph=True))
    assert (forward, calls) == (compiled_forward, compiled_calls)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    return calls


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs_keep_their_order_on_ranks_of_uneven_sizes(pair, seed):
    # A collective out of order meets another one's, which is an error; a dropped one is counted.
    first, second = pair(run_program, seed, seconds=200)
    assert first == second
