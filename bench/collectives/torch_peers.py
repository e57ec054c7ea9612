# SPDX-License-Identifier: Apache-2.0
"""Contestants called from torch. usage: torch_peers.py PREFIX CPUS gloo|rankfold [library=… namespace=…]"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import worker  # noqa: E402


def gloo(prefix, rank, size, options):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{prefix}.rendezvous", rank=rank, world_size=size)

    def in_place(tensor):
        dist.all_reduce(tensor)
        return tensor

    def call_for(placement):
        if placement != "in_place":
            raise ValueError("torch.distributed.all_reduce works in place only")
        return in_place

    return f"torch {torch.__version__}", call_for, dist.destroy_process_group


def rankfold(prefix, rank, size, options):
    torch.ops.load_library(options["library"])
    ops = getattr(torch.ops, options["namespace"])
    order = ops.init()
    # The overload that a compiled graph calls.
    in_place = ops.all_reduce_.default
    functional = ops.all_reduce.default

    def call_for(placement):
        if placement == "in_place":
            return lambda tensor: in_place(tensor, order)
        return lambda tensor: functional(tensor, order)

    return f"torch {torch.__version__}", call_for, ops.finalize


def main():
    prefix, cpus, name, *options = sys.argv[1:]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    worker.pin(cpus, rank)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    start = {"gloo": gloo, "rankfold": rankfold}[name]
    greeting, call_for, finish = start(prefix, rank, size, dict(option.split("=", 1) for option in options))
    worker.serve(prefix, rank, size, greeting, call_for)
    finish()


if __name__ == "__main__":
    main()
