#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's all-reduce for inference over rankfold, instead of its own shared-memory op.

usage: torchrun --nproc-per-node 2 examples/deepspeed/all_reduce.py MODULE

MODULE is a built rankfold_deepspeed.cpp.
"""

import importlib
import pathlib
import statistics
import sys
import time

import deepspeed
import torch
from deepspeed.ops.op_builder.builder import OpBuilder


def main(module):
    # This is all: DeepSpeed finds the module where it would put its own after compiling it.
    sys.path.insert(0, str(pathlib.Path(module).parent))
    OpBuilder._loaded_ops["deepspeed_shm_comm"] = importlib.import_module("rankfold_deepspeed")
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()

    def microseconds(all_reduce, x):
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            all_reduce(x)
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6

    # What deepspeed.init_inference puts behind each row of a tensor-parallel model.
    x = torch.full((4, 1024), rank + 1.0, dtype=torch.bfloat16)
    deepspeed.comm.inference_all_reduce(x)
    if rank == 0:
        print(f"sum: {x[0, 0].item()}")
    zeros = torch.zeros_like(x)
    for name, all_reduce in (("rankfold", deepspeed.comm.inference_all_reduce), ("gloo", deepspeed.comm.all_reduce)):
        took = microseconds(all_reduce, zeros)
        if rank == 0:
            print(f"{x.numel() * x.element_size()} bytes over {name}: {took:.1f} us")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
