// SPDX-License-Identifier: Apache-2.0
// Every rank stages its data, every rank reads what it needs: one wait a chunk, no closing barrier.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// How many bytes a rank may stage in a step.
template <class Context>
std::size_t staging_bytes(const Context& ctx) {
  return (std::max)(detail::cache_line, (std::min)(ctx.tuning().chunk_bytes, ctx.half_bytes()));
}

/// How many elements of `element_size` bytes fit in `bytes`, in whole cache lines where they can; 0
/// if not one fits.
constexpr std::size_t elements_in(std::size_t bytes, std::size_t element_size) {
  const std::size_t count = bytes / element_size;
  const std::size_t line = detail::elements_per_line(element_size);
  return count >= line ? detail::round_down(count, line) : count;
}

/// Calls `step(begin, count)` for chunks of at most `limit` of `count` elements; once with 0 for
/// none, since every call is at least one step.
template <class Step>
void for_chunks(std::size_t count, std::size_t limit, Step&& step) {
  std::size_t begin = 0;
  do {
    const std::size_t now = (std::min)(limit, count - begin);
    step(begin, now);
    begin += now;
  } while (begin < count);
}

/// Cost: ⌈bytes / chunk⌉ steps; a rank writes `bytes` to its segment and reads (P - 1) · `bytes`
/// from its peers'.
template <class Context>
void one_shot_all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                         std::size_t count) {
  const std::size_t size = reducer.element_size;
  // One element at least: select has checked that it fits.
  const std::size_t limit = (std::max)(std::size_t{1}, elements_in(staging_bytes(ctx), size));
  for_chunks(count, limit, [&](std::size_t begin, std::size_t now) {
    const std::byte* const own = static_cast<const std::byte*>(in) + begin * size;
    ctx.next_step();
    kernel::copy(ctx.half(ctx.rank()), own, now * size);
    ctx.give_all(0, now * size);
    ctx.publish();
    ctx.wait_all();
    const void** const inputs = ctx.inputs();
    for (int r = 0; r < ctx.size(); ++r) inputs[r] = ctx.half(r);
    inputs[ctx.rank()] = own;
    reducer.fold(reducer.op, inputs, ctx.size(), static_cast<std::byte*>(out) + begin * size, now);
  });
}

/// `count` elements a rank; `in` holds P blocks of them. Cost: ⌈P · bytes / chunk⌉ steps for blocks
/// of `bytes`; a rank writes and reads (P - 1) · `bytes`.
template <class Context>
void one_shot_reduce_scatter(Context& ctx, const kernel::reducer& reducer, const void* in,
                             void* out, std::size_t count) {
  const std::size_t size = reducer.element_size;
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const std::size_t limit =
      (std::max)(std::size_t{1}, elements_in(staging_bytes(ctx) / ranks, size));
  for_chunks(count, limit, [&](std::size_t begin, std::size_t now) {
    const auto block = [&](std::size_t r) {
      return static_cast<const std::byte*>(in) + (r * count + begin) * size;
    };
    ctx.next_step();
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r == rank) continue;
      kernel::copy(ctx.half(ctx.rank()) + r * limit * size, block(r), now * size);
      ctx.give(static_cast<int>(r), r * limit * size, now * size);
    }
    ctx.publish();
    ctx.wait_all();
    const void** const inputs = ctx.inputs();
    for (int r = 0; r < ctx.size(); ++r) inputs[r] = ctx.half(r) + rank * limit * size;
    inputs[rank] = block(rank);
    reducer.fold(reducer.op, inputs, ctx.size(), static_cast<std::byte*>(out) + begin * size, now);
  });
}

/// `bytes` from every rank, to `out` in rank order. Cost: ⌈bytes / chunk⌉ steps; a rank writes
/// `bytes` and reads (P - 1) · `bytes`.
template <class Context>
void one_shot_all_gather(Context& ctx, const void* in, void* out, std::size_t bytes) {
  for_chunks(bytes, staging_bytes(ctx), [&](std::size_t begin, std::size_t now) {
    const std::byte* const own = static_cast<const std::byte*>(in) + begin;
    ctx.next_step();
    kernel::copy(ctx.half(ctx.rank()), own, now);
    ctx.give_all(0, now);
    ctx.publish();
    ctx.wait_all();
    for (int r = 0; r < ctx.size(); ++r) {
      std::byte* const to =
          static_cast<std::byte*>(out) + static_cast<std::size_t>(r) * bytes + begin;
      if (r != ctx.rank()) {
        kernel::copy(to, ctx.half(r), now);
      } else if (to != own) {
        kernel::copy(to, own, now);
      }
    }
  });
}

/// Cost: ⌈bytes / chunk⌉ steps; the root writes `bytes`, every other rank reads them; the root runs
/// at most one step ahead.
template <class Context>
void one_shot_broadcast(Context& ctx, void* data, std::size_t bytes, int root) {
  for_chunks(bytes, staging_bytes(ctx), [&](std::size_t begin, std::size_t now) {
    std::byte* const own = static_cast<std::byte*>(data) + begin;
    ctx.next_step();
    if (ctx.rank() == root) {
      kernel::copy(ctx.half(root), own, now);
      ctx.give_all(0, now);
      ctx.publish();
    } else {
      ctx.publish();
      ctx.wait(root);
      kernel::copy(own, ctx.half(root), now);
    }
  });
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
