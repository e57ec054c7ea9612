# SPDX-License-Identifier: Apache-2.0
"""What ddp_digits.py and tp_digits.py share: the data, the network, the backend, and the measuring."""

import importlib
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes lines of its own otherwise

import sklearn.datasets
import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).resolve().parent
EPOCHS, BATCH = 8, 64


def register_backend(path=None):
    """Makes "rankfold" a backend of torch.distributed: importing the built torch_backend.cpp does.

    Without a path it is built here; torch keeps it, for the next time."""
    if path:
        sys.path.insert(0, str(pathlib.Path(path).parent))
        return importlib.import_module(pathlib.Path(path).name.split(".")[0])
    from torch.utils import cpp_extension

    return cpp_extension.load(
        "torch_backend", [str(HERE / "torch_backend.cpp")], extra_include_paths=[str(HERE.parent / "include")],
        extra_cflags=["-std=c++20", "-O3", "-march=native"])


def batches(epoch):
    """1797 images of 64 pixels, and which digit each is; in an order that is the same on all ranks."""
    data = sklearn.datasets.load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    targets = torch.tensor(data.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(epoch))
    # The last batch is not full, and left out.
    return [(images[some], targets[some]) for some in order.split(BATCH)[:-1]]


class Network(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(0)  # the same weights on all ranks
        self.up = torch.nn.Linear(64, inner)
        self.down = torch.nn.Linear(inner, 10)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def say(*text):
    if dist.get_rank() == 0:
        print(*text, flush=True)


def measure(name, backend, step):
    """Prints how long a step takes, and how long of it, or beside it, collectives were under way."""
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(20):
            step()
    # torch's name for a collective begins with that of its backend; the time includes the wait for other ranks.
    collectives = [event.cpu_time_total for event in profile.events() if event.name.startswith(f"{backend}:")]
    say(f"{name} over {backend:8}: {statistics.median(times) * 1e3:6.2f} ms a step, "
        f"{sum(collectives) / 20e3:6.3f} ms in {len(collectives) / 20:.0f} collectives")
