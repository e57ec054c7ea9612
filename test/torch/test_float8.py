# SPDX-License-Identifier: Apache-2.0
"""The 8-bit floats on two processes: every pair of patterns, against torch's own arithmetic in float32 and its cast."""

import pytest
import torch
from reference import fold, same_bits

CASTS_SATURATE = torch.tensor(1e9).to(torch.float8_e4m3fn).float() == 448  # since torch 2.13


def patterns(dtype, rank):
    """All 256 x 256 pairs of patterns: that of a place's row on rank 0, of its column on rank 1."""
    grid = torch.arange(256, dtype=torch.uint8).expand(256, 256)
    return (grid if rank else grid.t()).contiguous().view(dtype)


def reduce_pairs(here, dtype):
    x = patterns(dtype, here.rank)
    return {op: here.ops.all_reduce(x, here.order, op) for op in ("sum", "prod", "avg", "min", "max")}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_every_pair_of_patterns(pair, dtype):
    answers = pair(reduce_pairs, dtype)
    x, y = (patterns(dtype, rank) for rank in (0, 1))
    a, b = x.float(), y.float()
    expected = {"sum": a + b, "prod": a * b, "avg": (a + b) / 2, "min": fold(x, y, "min"), "max": fold(x, y, "max")}
    for op, result in expected.items():
        # The one positive NaN; torch's cast keeps the sign of the float's.
        cast = torch.where(result.float().isnan(), 0x7F, result.to(dtype).view(torch.uint8)).view(dtype)
        if dtype == torch.float8_e4m3fn and not CASTS_SATURATE:
            cast = fold(x, y, op)
        for answer in answers:
            assert same_bits(answer[op], cast), op


def cancel(here, dtype):
    largest = 448.0 if dtype == torch.float8_e4m3fn else 57344.0
    x = torch.tensor([largest, 1.0, 2 * largest]).to(dtype)
    return here.ops.all_gather(x, here.order).float().tolist(), here.ops.reduce_scatter(x[:2], here.order).float().item()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_copies_keep_bits_and_overflow_saturates_as_casts_do(pair, dtype):
    largest, beyond = (448.0, 448.0) if dtype == torch.float8_e4m3fn else (57344.0, float("inf"))
    (gathered, first), (_, second) = pair(cancel, dtype)
    assert gathered == [largest, 1.0, beyond] * 2
    assert (first, second) == (beyond, 2.0)
