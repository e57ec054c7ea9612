# SPDX-License-Identifier: Apache-2.0
"""What sums a tensor over the ranks: rankfold, or gloo for comparison."""

from datetime import timedelta

import torch
from torch import distributed


class Rankfold:
    def __init__(self, module, namespace, timeout):
        torch.ops.load_library(module)
        self.ops = getattr(torch.ops, namespace)
        self.order = self.ops.init(timeout=timeout)  # keeps the collectives in order when compiled

    def __call__(self, x):
        return self.ops.all_reduce_(x, self.order)


class Gloo:
    def __init__(self, timeout):
        distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))

    def __call__(self, x):
        distributed.all_reduce(x)
        return x


def all_reduce_over(kind, module=None, namespace=None, timeout=600.0):
    """What sums a tensor over the ranks for the model, in place, traceable by torch.compile.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment say who this process is.
    """
    if kind == "rankfold":
        return Rankfold(module, namespace, timeout)
    if kind == "gloo":
        return Gloo(timeout)
    raise ValueError(f"unknown kind of communication: {kind}")
