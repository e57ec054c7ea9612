#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rankfold against gloo through torch.distributed, on ranks of this host.

usage: build/venv/bin/python bench/backend.py    after the tests or meson have built examples/torch_backend.so

Both groups are in the same processes; rounds are interleaved, and the ratio is the median of those within rounds.
"""

import argparse
import datetime
import importlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

SIZES = [64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]  # bytes


def measure(rank, options, file):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(options.module).parent))
    importlib.import_module(Path(options.module).name.split(".")[0])
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=options.ranks,
                            timeout=datetime.timedelta(seconds=60))
    groups = {"gloo": dist.group.WORLD, "rankfold": dist.new_group(backend="rankfold")}
    if rank == 0:
        print(f"{options.ranks} ranks, float32, us a call: median of {options.rounds} rounds; times faster: "
              "median of the ratios within rounds")
        print(f"{'':12}{'bytes':>10}{'gloo':>12}{'rankfold':>12}{'faster':>9}")
    for name in options.only or ("all_reduce", "broadcast", "all_gather"):
        for size in SIZES:
            x = torch.ones(size // 4)
            out = [torch.empty_like(x) for _ in range(options.ranks)]
            calls = {"all_reduce": lambda g: dist.all_reduce(x, group=g, op=dist.ReduceOp.MAX),
                     "broadcast": lambda g: dist.broadcast(x, 0, group=g),
                     "all_gather": lambda g: dist.all_gather(out, x, group=g)}
            times = {which: [] for which in groups}
            for round_ in range(options.rounds + 1):
                for which, group in groups.items():
                    count = max(1, int(min(options.most, (60 if which == "gloo" else 600) * (4096 / size + 0.1))))
                    dist.barrier(groups["rankfold"])
                    begin = time.perf_counter()
                    for _ in range(count):
                        calls[name](group)
                    if round_:  # the first one warms up
                        times[which].append((time.perf_counter() - begin) / count * 1e6)
            if rank == 0:
                faster = statistics.median(a / b for a, b in zip(times["gloo"], times["rankfold"]))
                middle = {which: statistics.median(t) for which, t in times.items()}
                print(f"{name:12}{size:10}{middle['gloo']:12.1f}{middle['rankfold']:12.1f}{faster:9.1f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", default=Path(__file__).parent.parent / "build/test/examples/torch_backend.so")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=300, help="calls a round")
    parser.add_argument("--only", nargs="*")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (chosen, f"{folder}/store"), nprocs=chosen.ranks)
