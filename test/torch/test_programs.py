# SPDX-License-Identifier: Apache-2.0
"""Random programs of all collectives on two ranks of uneven sizes: compiled as in eager code, none reordered or dropped.

RANKFOLD_TORCH_PROGRAMS is how many: 20 if it is not set, 200 in the suite torch_programs. RANKFOLD_TEST_SEED is the first.
"""

import os
import random

import pytest
import torch
from reference import values
from torch._dynamo.utils import counters

pytestmark = pytest.mark.filterwarnings("ignore")

FIRST = int(os.environ.get("RANKFOLD_TEST_SEED", 0))
COUNT = int(os.environ.get("RANKFOLD_TORCH_PROGRAMS", 20))
WIDTH = 8


class Rows:
    """A number of rows, a * m + b * n + c, where x has m rows on rank 0 and n on rank 1."""

    def __init__(self, a, b, c):
        self.a, self.b, self.c = a, b, c

    def __add__(self, other):
        return Rows(self.a + other.a, self.b + other.b, self.c + other.c)

    def __sub__(self, other):
        return Rows(self.a - other.a, self.b - other.b, self.c - other.c)

    def of(self, sizes):
        return self.a * sizes[0] + self.b * sizes[1] + self.c

    def __str__(self):
        terms = [f"{factor} * {name}" for factor, name in ((self.a, "m"), (self.b, "n")) if factor]
        return " + ".join([*terms, str(self.c)])


class Program:
    """Source of a random function f(x, w, ops, order, m, n) for one rank; the same on both but for rows.

    Tensors are "local", whose rows differ between the ranks, or "same", of one shape on both. Some
    results are not used. So what Inductor takes for a good order differs between the ranks. A third of
    the programs is compiled for all sizes, and called with several.
    """

    def __init__(self, seed, rank):
        self.random, self.rank = random.Random(seed), rank
        self.training, self.dynamic = seed % 4 == 3, seed % 3 == 1
        self.collectives = 0
        self.lines = ["a0 = x @ w", "b0 = w * 2"]
        # The sizes (m, n) that it is called with.
        self.calls = [(40, 300), (300, 41)] if self.dynamic else [self.random.choice([(3, 400), (300, 4), (5, 6), (64, 64)])]
        self.local, self.same = {"a0": (Rows(1, 0, 0), Rows(0, 1, 0))}, {"b0": Rows(0, 0, WIDTH)}
        steps = [self.all_reduce, self.all_gather, self.reduce_scatter, self.broadcast, self.all_to_all,
                 self.layer, self.layer, self.mix, self.join]
        for i in range(1, 12):
            self.random.choice(steps)(i)
        used = [*self.random.sample(sorted(self.local), min(2, len(self.local))),
                *self.random.sample(sorted(self.same), min(2, len(self.same)))]
        self.source = "\n    ".join(["def f(x, w, ops, order, m, n):", *self.lines, f"return [{', '.join(used)}]"])

    def pick(self, tensors):
        return self.random.choice(sorted(tensors))

    def split(self, rows):
        """Two parts, one of which is the same for all sizes."""
        least = min(map(rows.of, self.calls))
        # Where sizes are symbols, 0 and 1 are not: what they stand for is compiled by itself.
        symbolic = self.dynamic and (rows.a, rows.b) != (0, 0)
        first = Rows(0, 0, self.random.randint(0, least - 2 if symbolic else least))
        parts = (first, rows - first)
        return parts if self.random.random() < 0.5 else parts[::-1]

    def writing(self):
        """Whether a step takes the form that writes to a tensor, which has no gradient."""
        return self.random.random() < 0.5 and not self.training

    def collective(self, result, call, into=None):
        """`into` is the number of rows of a new tensor that the op writes to."""
        self.collectives += 1
        if into:
            name, arguments = call.split("(", 1)
            call = f"{name}_into_(torch.empty({into}, {WIDTH}, dtype=x.dtype), {arguments}"
        self.lines.append(f"{result} = ops.{call}")

    def all_reduce(self, i):
        a, rows = self.pick(self.local), self.random.choice([1, 2, 4, 8])
        name = "all_reduce_" if self.writing() else "all_reduce"
        self.collective(f"b{i}", f"{name}(({a}.t() @ {a})[:{rows}] * 0.01, order, '{self.random.choice(['sum', 'avg'])}')")
        self.same[f"b{i}"] = Rows(0, 0, rows)

    def all_gather(self, i):
        a = self.pick(self.local)
        first, second = self.local[a]
        self.same[f"b{i}"] = first + second
        self.collective(f"b{i}", f"all_gather({a}, order, sizes=[{first}, {second}])",
                        self.same[f"b{i}"] if self.writing() else None)

    def reduce_scatter(self, i):
        b = self.pick(self.same)
        self.local[f"a{i}"] = rows = self.split(self.same[b])
        self.collective(f"a{i}", f"reduce_scatter({b}, order, sizes=[{rows[0]}, {rows[1]}])",
                        rows[self.rank] if self.writing() else None)

    def broadcast(self, i):
        b, root = self.pick(self.same), self.random.randint(0, 1)
        call = f"broadcast_({b} + 1, order, {root})" if self.writing() else f"broadcast({b}, order, {root})"
        self.collective(f"b{i}", call)
        self.same[f"b{i}"] = self.same[b]

    def all_to_all(self, i):
        a = self.pick(self.local)
        splits = [self.split(rows) for rows in self.local[a]]
        self.local[f"a{i}"] = rows = tuple(splits[0][rank] + splits[1][rank] for rank in (0, 1))
        received, sent = ", ".join(str(split[self.rank]) for split in splits), ", ".join(map(str, splits[self.rank]))
        self.collective(f"a{i}", f"all_to_all({a}, order, [{received}], [{sent}])",
                        rows[self.rank] if self.writing() else None)

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

    def run(function, sizes):
        x = values(torch.float32, (sizes[here.rank], WIDTH), seed + here.rank) * 0.1
        w = values(torch.float32, (WIDTH, WIDTH), seed) * 0.05
        tensors = [x.requires_grad_(program.training), w.requires_grad_(program.training)]
        before = order.item()
        results = function(*tensors, here.ops, order, *sizes)
        forward = order.item() - before
        if program.training:
            loss = sum(result.square().sum() for result in results)
            results = [loss, *torch.autograd.grad(loss, tensors, allow_unused=True)]
        return results, forward, order.item() - before

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(scope["f"], fullgraph=True, dynamic=program.dynamic)
    counts = []
    for sizes in program.calls:
        expected, *calls = run(scope["f"], sizes)
        assert calls[0] == program.collectives
        found, *compiled_calls = run(compiled, sizes)
        assert calls == compiled_calls
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        counts.append(calls)
    return counts, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs_keep_their_order_on_ranks_of_uneven_sizes(pair, seed):
    # A collective out of order meets another one's, which is an error; a dropped one is counted.
    (first, graphs), (second, others) = pair(run_program, seed, seconds=200)
    assert first == second
    assert graphs == others == 1  # whatever the sizes
