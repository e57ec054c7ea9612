#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the packages that main.cpp runs: a tensor-parallel MLP, a `.pt2` for each of two ranks.

usage: python3 export.py EXTENSION FOLDER      EXTENSION is a built torch_extension.cpp

Writes FOLDER/rank0.pt2 and FOLDER/rank1.pt2, and prints, a line a rank and batch, what the packages give
when Python runs them. main.cpp prints the same lines, to the bit.
"""

import multiprocessing
import sys
import uuid

import torch

RANKS, HIDDEN, INNER = 2, 64, 256
BATCHES = (1, 7)


class Mlp(torch.nn.Module):
    """This rank's columns of the first layer and rows of the second."""

    def __init__(self, ops, rank, group):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        up, down = torch.randn(INNER, HIDDEN, generator=generator), torch.randn(HIDDEN, INNER, generator=generator)
        self.up = torch.nn.Parameter(up.chunk(RANKS)[rank] / 8)
        self.down = torch.nn.Parameter(down.chunk(RANKS, dim=1)[rank] / 16)
        self.ops, self.group = ops, group
        # The package brings its own token: a buffer.
        self.register_buffer("order", ops.order().clone())

    def forward(self, x):
        inner = torch.nn.functional.gelu(torch.nn.functional.linear(x, self.up))
        return self.ops.all_reduce_(torch.nn.functional.linear(inner, self.down), self.order, group=self.group)


def inputs(rows):
    """What main.cpp computes as well: small numbers that every program has exactly."""
    return ((torch.arange(rows * HIDDEN) * 37 % 101 - 50) / 64).reshape(rows, HIDDEN)



def line(rank, x):
    """The first value, to be read, and all bytes as a number (FNV-1a)."""
    number = 0xCBF29CE484222325
    for byte in x.contiguous().numpy().tobytes():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return f"rank {rank} batch {len(x)}: first {x[0, 0].item():+.6f}, digest {number:016x}"


def run(rank, extension, folder, key):
    """One rank, as main.cpp's: joins the group, then runs the package."""
    torch.ops.load_library(extension)
    torch.set_num_threads(1)
    ops, group = torch.ops.rankfold_example, f"rank{rank}"
    ops.init(group, rank, RANKS, key, 60)
    package = torch._inductor.aoti_load_package(f"{folder}/{group}.pt2")
    lines = [line(rank, package(inputs(rows))) for rows in BATCHES]
    ops.finalize(group)
    return lines


def main(extension, folder):
    torch.ops.load_library(extension)
    for rank in range(RANKS):
        # The group's name is part of the graph. Nobody need be in it yet.
        model = Mlp(torch.ops.rankfold_example, rank, f"rank{rank}").eval()
        batch = torch.export.Dim("batch", max=64)
        with torch.no_grad():
            exported = torch.export.export(model, (inputs(4),), dynamic_shapes=({0: batch},))
            torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/rank{rank}.pt2")
    with multiprocessing.get_context("spawn").Pool(RANKS) as ranks:
        key = f"export {uuid.uuid4()}"
        for lines in ranks.starmap(run, [(rank, extension, folder, key) for rank in range(RANKS)], chunksize=1):
            print(*lines, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
