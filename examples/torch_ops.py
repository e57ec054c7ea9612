#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rankfold's torch ops, on two ranks.

usage: python3 examples/torch_ops.py [EXTENSION]       starts two ranks by itself
       torchrun --nproc-per-node 2 examples/torch_ops.py [EXTENSION]

EXTENSION is a built torch_extension.cpp, as Meson makes it; without it, it is built here.
"""

import os
import pathlib
import socket
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent


def build():
    """The two lines of torch_extension.cpp as a library; torch keeps it, for the next time."""
    from torch.utils import cpp_extension

    return cpp_extension.load(
        "torch_extension",
        [str(HERE / "torch_extension.cpp")],
        extra_include_paths=[str(HERE.parent / "include")],
        extra_cflags=["-std=c++20", "-O3", "-march=native"],
        is_python_module=False,
    )


def main(extension):
    # Nothing of Python comes with rankfold: the library registers its ops.
    torch.ops.load_library(extension)
    ops = torch.ops.rankfold_example

    # Meets the other ranks; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who this is. What it
    # returns is the order token, a tensor: every collective writes to it, so that torch.compile cannot
    # put one before another, or leave one out, on this rank only.
    order = ops.init()
    rank, size = ops.rank(), ops.size()

    def say(*text):
        if rank == 0:
            print(*text, flush=True)

    # A new tensor; x stays as it is.
    x = torch.arange(4.0) + rank
    say("sum:        ", ops.all_reduce(x, order))
    say("largest:    ", ops.all_reduce(x, order, "max"))
    say("bfloat16:   ", ops.all_reduce(x.bfloat16(), order, "avg"))

    # In place. Any layout will do, also that of a transposed matrix.
    matrix = torch.full((2, 3), float(rank + 1))
    ops.all_reduce_(matrix.t(), order)
    say("in place:   ", matrix[0])

    # The rows of all ranks, of which each has another number; and to each rank its rows of the sum.
    sizes = [r + 1 for r in range(size)]
    rows = torch.full((sizes[rank], 2), float(rank))
    everything = ops.all_gather(rows, order, sizes)
    say("gathered:   ", everything[:, 0])
    say("scattered:  ", ops.reduce_scatter(everything, order, "sum", sizes)[:, 0])

    # Rank r sends row s to rank s; and all get what the last rank has.
    say("exchanged:  ", ops.all_to_all(torch.arange(size) + 10 * rank, order))
    say("broadcast:  ", ops.broadcast(torch.tensor(rank), order, root=size - 1))

    # All of these are differentiable: the gradient of an all-reduce is all-reduced, too.
    w = torch.ones(4, requires_grad=True)
    (ops.all_reduce(w * (rank + 1), order) ** 2).sum().backward()
    say("gradient:   ", w.grad)

    # A tensor-parallel layer: each rank has half of the inner columns, and the all-reduce adds up what
    # the halves contribute. One graph, with the collective between its matmuls. The token comes from
    # outside of the compiled function: here it is an attribute of the module.
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            up, down = torch.randn(64, 16), torch.randn(16, 64)
            self.up = torch.nn.Parameter(up.chunk(size)[rank])
            self.down = torch.nn.Parameter(down.chunk(size, dim=1)[rank])
            self.whole = up, down
            self.order = order

        def forward(self, x):
            inner = torch.relu(torch.nn.functional.linear(x, self.up))
            return ops.all_reduce_(torch.nn.functional.linear(inner, self.down), self.order)

    layer = Layer()
    x = torch.ones(8, 16)
    with torch.no_grad():
        y = torch.compile(layer, fullgraph=True)(x)
        up, down = layer.whole
        expected = torch.relu(x @ up.t()) @ down.t()
    say("compiled:    differs from one process by at most", (y - expected).abs().max().item())

    # Ranks that do not call the same get an error, and none waits for ever. It is of this group alone;
    # the group can be made anew.
    ops.init("other")
    try:
        ops.all_reduce(torch.ones(3 + rank), order, group="other")
    except RuntimeError as error:
        say("mismatch:   ", error)
    ops.finalize("other")

    ops.barrier(order)
    ops.finalize()


def start_ranks(extension, size=2):
    """What torchrun does: starts this program once a rank, and says to each who it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # only a number that no other run has
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, extension],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(size)
    ]
    return max(process.wait() for process in ranks)


if __name__ == "__main__":
    library = sys.argv[1] if len(sys.argv) > 1 else build()
    if "RANK" in os.environ:
        main(library)
    else:
        sys.exit(start_ranks(library))
