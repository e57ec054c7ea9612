#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rankfold's all_reduce_add_ and all_reduce_add_rms_norm_ against all_reduce_ and torch's own ops, two ranks, eager.

usage: build/venv/bin/python bench/epilogues.py    after the tests or meson have built examples/torch_extension.so

Rounds are interleaved; microseconds a call are medians, and so are the ratios within rounds.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.multiprocessing

EPS = 1e-5


def measure(rank, options, key):
    torch.set_num_threads(1)
    torch.ops.load_library(str(options.module))
    ops = torch.ops.rankfold_example
    order = ops.init("", rank, 2, key)
    if rank == 0:
        print("| | rows × hidden | add, after | inside | times faster | add and norm, after | inside | times faster |\n"
              "|---|---|---|---|---|---|---|---|")
    for rows in (1, 4, 16, 512, 2048):
        for width in (2048, 4096, 8192):
            for dtype in (torch.bfloat16, torch.float32):
                x, residual = torch.zeros(rows, width, dtype=dtype), torch.ones(rows, width, dtype=dtype)
                weight = torch.ones(width, dtype=dtype)

                def norm_after():
                    residual.add_(ops.all_reduce_(x, order))
                    return torch.nn.functional.rms_norm(residual, (width,), weight, EPS)

                ways = {
                    "add after": lambda: residual.add_(ops.all_reduce_(x, order)),
                    "add inside": lambda: ops.all_reduce_add_(x, residual, order),
                    "norm after": norm_after,
                    "norm inside": lambda: ops.all_reduce_add_rms_norm_(x, residual, weight, EPS, order),
                }
                times = {way: [] for way in ways}
                calls = max(1, min(300, (4 << 20) // (rows * width)))
                for round_ in range(options.rounds + 1):
                    for way, call in ways.items():
                        x.zero_()
                        ops.barrier(order)
                        begin = time.perf_counter()
                        for _ in range(calls):
                            call()
                        if round_:  # the first one warms up
                            times[way].append((time.perf_counter() - begin) / calls * 1e6)
                if rank == 0:
                    line = f"| {str(dtype).removeprefix('torch.')} | {rows} × {width} |"
                    for what in ("add", "norm"):
                        after, inside = times[what + " after"], times[what + " inside"]
                        line += (f" {statistics.median(after):.1f} | {statistics.median(inside):.1f} | "
                                 f"{statistics.median(a / b for a, b in zip(after, inside)):.2f} |")
                    print(line, flush=True)
    ops.finalize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", default=Path(__file__).parent.parent / "build/test/examples/torch_extension.so")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with torch.inference_mode():
        torch.multiprocessing.spawn(measure, (chosen, f"epilogues {time.time_ns()}"), nprocs=2)
