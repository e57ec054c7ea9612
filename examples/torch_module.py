#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel layer in one compiled graph, trained for a step, with examples/rankfold_torch.py.

usage: torchrun --nproc-per-node 2 examples/torch_module.py
"""

import rankfold_torch as rf
import torch


class Layer(torch.nn.Module):
    """This rank's rows of the first matrix and columns of the second."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Parameter(torch.randn(64, 16).chunk(size)[rank].clone())
        self.down = torch.nn.Parameter(torch.randn(16, 64).chunk(size, dim=1)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(torch.nn.functional.linear(x, self.up))
        return rf.all_reduce(torch.nn.functional.linear(inner, self.down))


def main() -> None:
    rf.init()
    rank, size = rf.rank(), rf.size()
    layer, whole = Layer(rank, size), Layer(0, 1)
    x = torch.ones(8, 16)
    compiled = torch.compile(layer, fullgraph=True)

    difference = (compiled(x) - (torch.relu(x @ whole.up.t()) @ whole.down.t())).abs().max().item()
    compiled(x).square().sum().backward()
    assert layer.up.grad is not None
    norm = rf.all_reduce(layer.up.grad.square().sum()).sqrt().item()
    if rank == 0:
        print(f"{size} ranks, one graph: differs from one process by at most {difference:.1e}; gradient {norm:.3f}")
    rf.finalize()


if __name__ == "__main__":
    main()
