# SPDX-License-Identifier: Apache-2.0
"""rankfold's collectives for PyTorch in one file, to import or to copy.

    import rankfold_torch as rf

    rf.init()                      # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them
    y = rf.all_reduce(x)           # a new tensor; with a gradient
    rf.all_reduce_(x, "max")       # in place
    rf.finalize()

The first import builds the extension (half a minute) and keeps it; ranks that import at the same time
wait for the one that builds. All functions work inside of torch.compile(fullgraph=True), in program order
on every rank: the order token of docs/torch.md is a tensor of this module.

    RANKFOLD_INCLUDE       the folder of rankfold's headers (default: include/ beside examples/)
    RANKFOLD_TORCH_CACHE   the folder of what was built (default: ~/.cache/rankfold_torch)
    RANKFOLD_TORCH_CFLAGS  how to compile (default: -O3 -march=native)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "ReduceOp", "abort", "all_gather", "all_gather_into_", "all_reduce", "all_reduce_", "all_to_all",
    "all_to_all_into_", "barrier", "broadcast", "broadcast_", "empty_symmetric", "finalize", "init", "rank",
    "reduce_scatter", "reduce_scatter_into_", "size",
]

ReduceOp = Literal["sum", "prod", "min", "max", "avg", "bit_and", "bit_or", "bit_xor", "logical_and", "logical_or"]

_SOURCE = """// Written by rankfold_torch.py.
#include <rankfold/torch.hpp>
RANKFOLD_TORCH_LIBRARY(rankfold_torch)
"""


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock of one that dies."""
    with (folder / ".rankfold_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cpu() -> str:
    """What -march=native depends on: a home folder may be shared by machines."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _load() -> None:
    """Loads the extension; builds it first if need be."""
    from torch.utils import cpp_extension

    include = os.environ.get("RANKFOLD_INCLUDE") or str(pathlib.Path(__file__).resolve().parent.parent / "include")
    if not (pathlib.Path(include) / "rankfold" / "torch.hpp").exists():
        raise ImportError(f"rankfold_torch: {include} has no rankfold/torch.hpp; name the folder of rankfold's "
                          "headers in RANKFOLD_INCLUDE")
    flags = os.environ.get("RANKFOLD_TORCH_CFLAGS", "-O3 -march=native").split()
    asked = [torch.__version__, sys.version, platform.machine(), _cpu(), include, *flags]
    root = pathlib.Path(os.environ.get("RANKFOLD_TORCH_CACHE") or pathlib.Path.home() / ".cache" / "rankfold_torch")
    folder = root / hashlib.sha256("\n".join(asked).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        # torch's own lock outlives a process that was killed, and then all wait for ever. Here it has no holder.
        (folder / "lock").unlink(missing_ok=True)
        source = folder / "rankfold_torch.cpp"
        if not source.exists() or source.read_text() != _SOURCE:
            source.write_text(_SOURCE)
        cpp_extension.load(
            "rankfold_torch", [str(source)], extra_include_paths=[include],
            extra_cflags=["-std=c++20", "-fvisibility=hidden", *flags], build_directory=str(folder),
            is_python_module=False)


_load()
_ops = torch.ops.rankfold_torch
# Outside of every graph, and written by every collective: so no compiler swaps two of them.
_order: Tensor = _ops.order()


def init(group: str = "", rank: int | None = None, size: int | None = None, key: str = "",
         timeout: float | None = None) -> None:
    """Meets the other ranks of a group, "" for the default one.

    The launcher's environment says who this is; or `rank`, `size` and `key` do, a text that all ranks of
    this group pass and nobody else. `timeout`, in seconds, is for this and every later call. After an error of
    a collective, it makes the group anew.
    """
    if (rank is None) != (size is None):
        raise ValueError("rankfold_torch.init: of rank and size one is given, expected both or neither")
    _ops.init(group, -1 if rank is None else rank, -1 if size is None else size, key, timeout or 0.0)


def finalize(group: str = "") -> None:
    """Leaves a group; `init` may make it again."""
    _ops.finalize(group)


def abort(reason: str = "abort() was called", group: str = "") -> None:
    """Ends the calls of all ranks of a group with an error, from any thread."""
    _ops.abort(reason, group)


def rank(group: str = "") -> int:
    """Which rank of the group this is. Not inside of a compiled function."""
    result: int = _ops.rank(group)
    return result


def size(group: str = "") -> int:
    """How many ranks the group has. Not inside of a compiled function."""
    result: int = _ops.size(group)
    return result


def empty_symmetric(size: Sequence[int], dtype: torch.dtype | None = None, *, group: str = "") -> Tensor:
    """A tensor that the other ranks read where it lies when all ranks reduce it; all of them call this, with
    the same arguments. Not inside of a compiled function."""
    result: Tensor = _ops.empty_symmetric(size, dtype, group)
    return result


def barrier(*, group: str = "", tag: int = 0) -> None:
    """Returns when all ranks have called it."""
    _ops.barrier(_order, group, tag)


def all_reduce(x: Tensor, op: ReduceOp = "sum", *, group: str = "", tag: int = 0) -> Tensor:
    """The elements of all ranks' `x`, folded; the same bits on every rank. Has a gradient for sum and avg."""
    result: Tensor = _ops.all_reduce(x, _order, op, group, tag)
    return result


def all_reduce_(x: Tensor, op: ReduceOp = "sum", *, group: str = "", tag: int = 0) -> Tensor:
    """`all_reduce` in place; returns `x`."""
    result: Tensor = _ops.all_reduce_(x, _order, op, group, tag)
    return result


def all_gather(x: Tensor, sizes: Sequence[int] | None = None, *, group: str = "", tag: int = 0) -> Tensor:
    """The rows of all ranks, in rank order; `sizes` says how many each has, if not all as many. Has a gradient."""
    result: Tensor = _ops.all_gather(x, _order, sizes, group, tag)
    return result


def all_gather_into_(out: Tensor, x: Tensor, sizes: Sequence[int] | None = None, *, group: str = "",
                     tag: int = 0) -> Tensor:
    """`all_gather` into a tensor that is there; returns `out`."""
    result: Tensor = _ops.all_gather_into_(out, x, _order, sizes, group, tag)
    return result


def reduce_scatter(x: Tensor, op: ReduceOp = "sum", sizes: Sequence[int] | None = None, *, group: str = "",
                   tag: int = 0) -> Tensor:
    """This rank's rows of the fold of all ranks' `x`; `sizes` says how many rows each rank gets, if not all as
    many. Has a gradient for sum and avg."""
    result: Tensor = _ops.reduce_scatter(x, _order, op, sizes, group, tag)
    return result


def reduce_scatter_into_(out: Tensor, x: Tensor, op: ReduceOp = "sum", sizes: Sequence[int] | None = None, *,
                         group: str = "", tag: int = 0) -> Tensor:
    """`reduce_scatter` into a tensor that is there; returns `out`."""
    result: Tensor = _ops.reduce_scatter_into_(out, x, _order, op, sizes, group, tag)
    return result


def broadcast(x: Tensor, root: int = 0, *, group: str = "", tag: int = 0) -> Tensor:
    """What the root's `x` holds. Has a gradient."""
    result: Tensor = _ops.broadcast(x, _order, root, group, tag)
    return result


def broadcast_(x: Tensor, root: int = 0, *, group: str = "", tag: int = 0) -> Tensor:
    """`broadcast` in place; returns `x`."""
    result: Tensor = _ops.broadcast_(x, _order, root, group, tag)
    return result


def all_to_all(x: Tensor, output_split_sizes: Sequence[int] | None = None,
               input_split_sizes: Sequence[int] | None = None, *, group: str = "", tag: int = 0) -> Tensor:
    """The rows that each rank has for this one, in rank order; the split sizes say how many rows come from and go to
    each rank, if not all as many. Has a gradient."""
    result: Tensor = _ops.all_to_all(x, _order, output_split_sizes, input_split_sizes, group, tag)
    return result


def all_to_all_into_(out: Tensor, x: Tensor, output_split_sizes: Sequence[int] | None = None,
                     input_split_sizes: Sequence[int] | None = None, *, group: str = "", tag: int = 0) -> Tensor:
    """`all_to_all` into a tensor that is there; returns `out`."""
    result: Tensor = _ops.all_to_all_into_(out, x, _order, output_split_sizes, input_split_sizes, group, tag)
    return result
