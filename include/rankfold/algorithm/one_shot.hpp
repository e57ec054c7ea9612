// SPDX-License-Identifier: Apache-2.0
// Every rank stages its data, every rank reads what it needs: one wait a chunk, no closing barrier.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rankfold/detail/block_agreement.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Cost: ⌈bytes / chunk⌉ steps; a rank writes `bytes` to its segment and reads (P - 1) · `bytes`
/// from its peers'.
template <class Context, class Output>
void one_shot_all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in,
                         const Output& out, std::size_t count) {
  const std::size_t size = reducer.element_size;
  // One element at least: select has checked that it fits.
  const std::size_t limit =
      (std::max)(std::size_t{1}, detail::elements_in(detail::staging_bytes(ctx), size));
  detail::for_chunks(count, limit, [&](std::size_t begin, std::size_t now) {
    const std::byte* const own = static_cast<const std::byte*>(in) + begin * size;
    ctx.next_step(now * size);
    kernel::copy(ctx.half(ctx.rank()), own, now * size);
    ctx.give_all(0, now * size);
    ctx.publish();
    ctx.wait_all();
    out.put(begin, now, [&](std::size_t offset, std::size_t some, void* to) {
      const void** const inputs = ctx.inputs();
      for (int r = 0; r < ctx.size(); ++r) inputs[r] = ctx.half(r) + offset * size;
      inputs[ctx.rank()] = own + offset * size;
      reducer.fold(reducer.op, inputs, ctx.size(), to, some);
    });
  });
}

/// `blocks` of elements at `in`; `out` gets the own one. Cost: ⌈(P - 1) · bytes / chunk⌉ steps for
/// blocks of at most `bytes`; a rank writes the blocks of its peers and reads P - 1 times its own.
template <class Context, class Blocks>
void one_shot_reduce_scatter(Context& ctx, const kernel::reducer& reducer, const void* in,
                             void* out, const Blocks& blocks) {
  const std::size_t size = reducer.element_size;
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const detail::peer_slots slots{ranks};
  const std::size_t most = detail::elements_in(detail::exchange_bytes(ctx) / slots.number(), size);
  const std::size_t line = detail::elements_per_line(size);
  // No more than a block has, so that small ones lie side by side; one element at least.
  const std::size_t limit = (std::min)((std::max)(std::size_t{1}, most),
                                       (std::max)(line, detail::round_up(blocks.largest(), line)));
  const auto part = [&](std::size_t r, std::size_t begin) {
    return static_cast<const std::byte*>(in) + (blocks.begin(r) + begin) * size;
  };
  detail::for_chunks(blocks.largest(), limit, [&](std::size_t begin, std::size_t) {
    ctx.next_step(slots.number() * limit * size);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t now = detail::part_of(blocks.size(r), begin, limit);
      if (r == rank || now == 0) continue;
      const std::size_t offset = slots.index(rank, r) * limit * size;
      kernel::copy(ctx.half(ctx.rank()) + offset, part(r, begin), now * size);
      ctx.give(static_cast<int>(r), offset, now * size);
    }
    detail::publish_blocks(ctx, blocks, begin == 0);
    detail::await_blocks(ctx, blocks, begin == 0);
    const std::size_t now = detail::part_of(blocks.size(rank), begin, limit);
    if (now == 0) return;
    const void** const inputs = ctx.inputs();
    for (std::size_t r = 0; r < ranks; ++r) {
      inputs[r] = r == rank ? part(rank, begin)
                            : ctx.half(static_cast<int>(r)) + slots.index(r, rank) * limit * size;
    }
    reducer.fold(reducer.op, inputs, ctx.size(), static_cast<std::byte*>(out) + begin * size, now);
  });
}

/// The own block at `in`; `place(r)` gets that of rank r, `blocks` are their bytes. Cost: ⌈bytes /
/// chunk⌉ steps for blocks of at most `bytes`; a rank writes its own block and reads those of its
/// peers.
template <class Context, class Place, class Blocks>
void one_shot_all_gather(Context& ctx, const void* in, Place&& place, const Blocks& blocks) {
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const std::size_t limit = detail::exchange_bytes(ctx);
  detail::for_chunks(blocks.largest(), limit, [&](std::size_t begin, std::size_t) {
    const std::size_t mine = detail::part_of(blocks.size(rank), begin, limit);
    const std::byte* const own = static_cast<const std::byte*>(in) + (mine != 0 ? begin : 0);
    ctx.next_step((std::min)(limit, blocks.largest()));
    kernel::copy(ctx.half(ctx.rank()), own, mine);
    ctx.give_all(0, mine);
    detail::publish_blocks(ctx, blocks, begin == 0);
    // Depends on nobody: while the others' flags are under way.
    if (mine != 0) {
      std::byte* const to = place(rank) + begin;
      if (to != own) kernel::copy(to, own, mine);
    }
    detail::await_blocks(ctx, blocks, begin == 0);
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      const std::size_t now = detail::part_of(blocks.size(r), begin, limit);
      if (now == 0) continue;
      kernel::copy(place(r) + begin, ctx.half(static_cast<int>(r)), now);
    }
  });
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
