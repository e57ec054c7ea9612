#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits, its weights divided over the ranks by torch's
tensor-parallel plans, over rankfold.

usage: torchrun --nproc-per-node 2 examples/tp_digits.py [MODULE]

MODULE is a built torch_backend.cpp; without it, it is built here. At the end it says how long a forward
pass takes over rankfold, and over gloo.
"""

import sys

import digits
import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def divided(mesh):
    """Each rank has a part of the inner columns; the parts' results are added up by an all-reduce."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(digits.Network(inner=1024), mesh, plan)


def main(module=None):
    digits.register_backend(module)
    dist.init_process_group("rankfold")
    torch.set_num_threads(1)

    model = divided(dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(digits.EPOCHS):
        losses = []
        for images, targets in digits.batches(epoch):  # the whole batch on each rank
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        digits.say(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.6f}")

    with torch.no_grad():
        right = [model(images).argmax(1) == targets for images, targets in digits.batches(0)]
    digits.say(f"right: {torch.cat(right).float().mean().item():.1%}")

    images, _ = digits.batches(0)[0]
    for backend in ("rankfold", "gloo"):
        # The name tells the meshes apart: DTensor takes meshes of the same ranks for one.
        mesh = dist.DeviceMesh.from_group(dist.new_group(backend=backend), "cpu", mesh_dim_names=(backend,))
        measured = divided(mesh)
        with torch.no_grad():
            digits.measure("TP", backend, lambda: torch.relu(measured(images)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
