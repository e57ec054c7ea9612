#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with DistributedDataParallel over rankfold.

usage: torchrun --nproc-per-node 2 examples/ddp_digits.py [MODULE]

MODULE is a built torch_backend.cpp; without it, it is built here. At the end it says how long a step
takes over rankfold, and over gloo.
"""

import sys

import digits
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(module=None):
    digits.register_backend(module)
    dist.init_process_group("rankfold")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)

    model = DistributedDataParallel(digits.Network(inner=256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(model, images, targets):
        # Each rank has a part of the batch; DDP averages the gradients.
        loss = torch.nn.functional.cross_entropy(model(images.chunk(size)[rank]), targets.chunk(size)[rank])
        loss.backward()
        return loss.detach()

    for epoch in range(digits.EPOCHS):
        losses = []
        for images, targets in digits.batches(epoch):
            losses.append(step(model, images, targets))
            optimizer.step()
            optimizer.zero_grad()
        loss = torch.stack(losses).mean()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        digits.say(f"epoch {epoch}: loss {loss.item():.6f}")

    with torch.no_grad():
        right = [model.module(images).argmax(1) == targets for images, targets in digits.batches(0)]
    digits.say(f"right: {torch.cat(right).float().mean().item():.1%}")

    images, targets = digits.batches(0)[0]
    for backend in ("rankfold", "gloo"):
        measured = DistributedDataParallel(digits.Network(inner=256), process_group=dist.new_group(backend=backend))
        digits.measure("DDP", backend, lambda: step(measured, images, targets))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
