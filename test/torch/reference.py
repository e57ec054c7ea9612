# SPDX-License-Identifier: Apache-2.0
"""What two ranks must end with, by arithmetic and slicing that share nothing with the library."""

import functools
import math

import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
if torch.__version__ < (2, 5):  # which can neither save nor convert the wider ones
    UNSIGNED = [torch.uint8]
ARITHMETIC = ["sum", "prod", "min", "max"]
BITWISE = ["bit_and", "bit_or", "bit_xor", "logical_and", "logical_or"]


def operators(dtype):
    """The operators that rankfold has for this dtype."""
    if dtype in FLOATS:
        return [*ARITHMETIC, "avg"]
    if dtype == torch.bool:
        return ["min", "max", *BITWISE]
    return [*ARITHMETIC, *BITWISE]


def values(dtype, shape, seed):
    """A tensor whose elements differ by rank and place; the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    if dtype in FLOATS:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 8).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    bits = torch.iinfo(dtype).bits
    wide = torch.randint(-(2**62), 2**62, shape, generator=generator) * 2 + 1
    low = wide >> (64 - bits)
    same_size = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    return low.to(same_size).view(dtype)


def fold(a, b, op):
    """The fold of two ranks' tensors, rank 0 first."""
    if a.dtype in FLOATS:
        return fold_floats(a, b, op)
    flat = [fold_integers(int(x), int(y), op, a.dtype) for x, y in zip(elements(a), elements(b))]
    if a.dtype == torch.bool:
        return torch.tensor(flat, dtype=torch.bool).view(a.shape)
    bits = torch.iinfo(a.dtype).bits
    half, whole = 1 << (bits - 1), 1 << bits
    signed = [(x + half) % whole - half for x in flat]
    same_size = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    return torch.tensor(signed, dtype=same_size).view(a.dtype).view(a.shape)


def elements(x):
    return x.contiguous().view(-1).tolist()


def fold_floats(a, b, op):
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    x, y = a.to(wide), b.to(wide)
    if op in ("min", "max"):
        # -0 is below +0.
        smaller = (x < y) | ((x == y) & x.signbit())
        first, second = (x, y) if op == "min" else (y, x)
        result = torch.where(smaller, first, second)
        result = torch.where(x.isnan() | y.isnan(), torch.full_like(x, math.nan), result)
    else:
        result = {"sum": x + y, "avg": (x + y) / 2, "prod": x * y}[op]
    if a.dtype == torch.float8_e4m3fn:  # as casts of torch 2.13 saturate; those of older ones give NaN
        result = result.clamp(-448, 448)
    return result.to(a.dtype)


def tree(inputs, op="sum"):
    """The fold of any number of ranks' floats in the order of docs/numerics.md: by a tree that splits them at the
    largest power of two below their number, in float32 at least, rounded once."""
    dtype = inputs[0].dtype
    function = {"sum": torch.add, "avg": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]

    def fold_of(xs):
        half = 1 << (len(xs) - 1).bit_length() >> 1
        return function(fold_of(xs[:half]), fold_of(xs[half:])) if len(xs) > 1 else xs[0]

    result = fold_of([x.to(torch.float64 if dtype == torch.float64 else torch.float32) for x in inputs])
    return (result / len(inputs) if op == "avg" else result).to(dtype)


def fold_integers(x, y, op, dtype):
    return {
        "sum": lambda: x + y,
        "prod": lambda: x * y,
        "min": lambda: min(x, y),
        "max": lambda: max(x, y),
        "bit_and": lambda: x & y,
        "bit_or": lambda: x | y,
        "bit_xor": lambda: x ^ y,
        "logical_and": lambda: int(bool(x) and bool(y)),
        "logical_or": lambda: int(bool(x) or bool(y)),
    }[op]()


def same_bits(a, b):
    """Equal shape, dtype and bits: unlike torch.equal, it tells -0 from +0 and takes NaN for itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # A copy: one element is contiguous whatever its stride, but cannot be viewed as bytes.
    a, b = (x.detach().reshape(-1).clone(memory_format=torch.contiguous_format) for x in (a, b))
    return a.numel() == 0 or bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def collective(name, xs, rank, op="sum", sizes=None, splits=None, root=0):
    """What `rank` gets of a collective of two ranks that have `xs`; splits[s][r] is how many rows s has for r."""
    if name == "all_reduce":
        return fold(*xs, op)
    if name == "broadcast":
        return xs[root]
    if name == "all_gather":
        return torch.cat([x.reshape(1) if x.dim() == 0 else x for x in xs])
    if name == "reduce_scatter":
        sizes = sizes or [len(xs[0]) // 2] * 2
        return fold(*xs, op)[sum(sizes[:rank]):][:sizes[rank]]
    splits = splits or [[len(x) // 2] * 2 for x in xs]
    return torch.cat([x[sum(split[:rank]):][:split[rank]] for x, split in zip(xs, splits)])


# The form of each collective that writes to a tensor.
WRITING = {"all_reduce": "all_reduce_", "broadcast": "broadcast_", "all_gather": "all_gather_into_",
           "reduce_scatter": "reduce_scatter_into_", "all_to_all": "all_to_all_into_"}


def of_rank(options, rank):
    """What the op is told on that rank, where `collective` is told `options`."""
    options = dict(options)
    if splits := options.pop("splits", None):
        options.update(input_split_sizes=splits[rank], output_split_sizes=[split[rank] for split in splits])
    return options


def sum_of(tensors):
    return functools.reduce(lambda a, b: fold(a, b, "sum"), tensors)
