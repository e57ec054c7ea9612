#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one call of a torch op takes: rankfold's, against ops of the same schema that do nothing.

usage: build/venv/bin/python bench/torch_call.py    after sh bench/run.sh has built the extension

One rank, 64 floats, so that nothing is waited for; rounds are interleaved, the median is printed.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--module", default=Path(__file__).parent.parent / "build/bench/bench/bench_torch.so")
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--calls", type=int, default=5000)
options = parser.parse_args()

torch.ops.load_library(str(options.module))
torch.set_num_threads(1)
ops, nothing = torch.ops.rankfold_bench, torch.ops.rankfold_bench_nothing
order = ops.init("", 0, 1, "torch_call")
x, out = torch.ones(64), torch.empty(64)
calls = {
    "an op that does nothing, in place": lambda: nothing.nothing_(x, order),
    "_all_reduce_": lambda: ops._all_reduce_(x, order),
    "all_reduce_": lambda: ops.all_reduce_(x, order),
    "an op that only allocates its result": lambda: nothing.nothing(x, order),
    "all_reduce": lambda: ops.all_reduce(x, order),
    "all_reduce without the token": lambda: ops.all_reduce(x),
    "broadcast_": lambda: ops.broadcast_(x, order),
    "all_gather_into_": lambda: ops.all_gather_into_(out, x, order),
    "all_gather": lambda: ops.all_gather(x, order),
    "all_gather with sizes": lambda: ops.all_gather(x, order, [64]),
    "reduce_scatter": lambda: ops.reduce_scatter(x, order),
    "all_to_all": lambda: ops.all_to_all(x, order),
}
assert torch.equal(ops.all_reduce(x, order), x)
samples = {name: [] for name in calls}
with torch.inference_mode():
    for _ in range(options.rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(options.calls):
                call()
            samples[name].append((time.perf_counter() - begin) / options.calls * 1e6)
print("| | µs a call, eager |\n|---|---|")
for name, found in samples.items():
    print(f"| {name} | {statistics.median(found):.2f} |")
ops.finalize()
