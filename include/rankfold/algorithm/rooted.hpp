// SPDX-License-Identifier: Apache-2.0
// One-shot with a root: broadcast, gather and reduce. Who needs nothing of the others does not
// wait.
//
// The rule of context.hpp holds all the same. A rank publishes a step when it has read what it
// needs of the one before: a reader has just copied or folded it, and whoever reads nothing has
// nothing to read. And next_step waits for all whom the last step has not waited for, before the
// line and the half of the step before that are written over. So who does not wait runs ahead
// only as far as next_step lets it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rankfold/detail/block_agreement.hpp"
#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Cost: ⌈bytes / chunk⌉ steps; the root writes `bytes`, every other rank reads them; the root runs
/// ahead as far as next_step lets it.
template <class Context>
void rooted_broadcast(Context& ctx, void* data, std::size_t bytes, int root) {
  detail::for_chunks(bytes, detail::rooted_bytes(ctx, bytes),
                     [&](std::size_t begin, std::size_t now) {
                       std::byte* const own = static_cast<std::byte*>(data) + begin;
                       ctx.next_step(now);
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

/// The root alone folds. Cost: ⌈bytes / chunk⌉ steps; every other rank writes `bytes`, the root
/// reads (P - 1) · `bytes`; the others run ahead.
template <class Context>
void rooted_reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                   std::size_t count, int root) {
  const std::size_t size = reducer.element_size;
  const std::size_t limit =
      (std::max)(std::size_t{1},
                 detail::elements_in(detail::rooted_bytes(ctx, count * size), size));
  detail::for_chunks(count, limit, [&](std::size_t begin, std::size_t now) {
    const std::byte* const own = static_cast<const std::byte*>(in) + begin * size;
    ctx.next_step(now * size);
    if (ctx.rank() != root) {
      kernel::copy(ctx.half(ctx.rank()), own, now * size);
      ctx.give(root, 0, now * size);
      ctx.publish();
      return;
    }
    ctx.publish();
    ctx.wait_all();
    const void** const inputs = ctx.inputs();
    for (int r = 0; r < ctx.size(); ++r) inputs[r] = ctx.half(r);
    inputs[root] = own;
    reducer.fold(reducer.op, inputs, ctx.size(), static_cast<std::byte*>(out) + begin * size, now);
  });
}

/// `bytes` at `in` of every rank go to the root's `out`, in rank order. Cost: ⌈bytes / chunk⌉
/// steps; every other rank writes `bytes`, the root reads (P - 1) · `bytes`; the others run ahead.
template <class Context>
void rooted_gather(Context& ctx, const void* in, void* out, std::size_t bytes, int root) {
  detail::for_chunks(
      bytes, detail::rooted_bytes(ctx, bytes), [&](std::size_t begin, std::size_t now) {
        const std::byte* const own = static_cast<const std::byte*>(in) + begin;
        ctx.next_step(now);
        if (ctx.rank() != root) {
          kernel::copy(ctx.half(ctx.rank()), own, now);
          ctx.give(root, 0, now);
          ctx.publish();
          return;
        }
        ctx.publish();
        const auto block = [&](int r) {
          return static_cast<std::byte*>(out) + static_cast<std::size_t>(r) * bytes + begin;
        };
        if (block(root) != own) kernel::copy(block(root), own, now);
        ctx.wait_all();
        for (int r = 0; r < ctx.size(); ++r) {
          if (r != root) kernel::copy(block(r), ctx.half(r), now);
        }
      });
}

/// Only the root knows `blocks`, all others what they send: `count` elements of `element_size`
/// bytes. As rooted_gather else, but that all wait for the root once: it publishes the largest
/// block with the first step, and all count their steps by it.
///
/// Throws: mismatch_error on the root unless each rank sends what it expects, and then on all.
template <class Context>
void rooted_gather_uneven(Context& ctx, const void* in, std::size_t count, std::size_t element_size,
                          void* out, const detail::uneven_blocks* blocks, int root) {
  const std::size_t limit = detail::staging_bytes(ctx, ctx.tuning().rooted_chunk_bytes);
  const std::byte* const source = static_cast<const std::byte*>(in);
  if (ctx.rank() != root) {
    const std::uint64_t payload = count;
    std::uint64_t largest = 0;
    for (std::size_t begin = 0; begin == 0 || begin < largest; begin += limit) {
      const std::size_t now = detail::part_of(count * element_size, begin, limit);
      ctx.next_step();
      if (now != 0) kernel::copy(ctx.half(ctx.rank()), source + begin, now);
      ctx.give(root, 0, now);
      ctx.publish(&payload, begin == 0 ? sizeof payload : 0);
      if (begin == 0) {
        ctx.wait(root);
        largest = detail::payload_number(ctx, root);
      }
    }
    return;
  }
  std::byte* const target = static_cast<std::byte*>(out);
  const std::uint64_t largest = blocks->largest_but(static_cast<std::size_t>(root));
  for (std::size_t begin = 0; begin == 0 || begin < largest; begin += limit) {
    ctx.next_step();
    ctx.publish(&largest, begin == 0 ? sizeof largest : 0);
    ctx.wait_all();
    for (int r = 0; begin == 0 && r < ctx.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r != root) {
        detail::check_pair(ctx, r, detail::payload_number(ctx, r), root, blocks->count(i));
      } else if (target + blocks->begin(i) != source) {
        kernel::copy(target + blocks->begin(i), source, blocks->size(i));
      }
    }
    for (int r = 0; r < ctx.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::size_t now = detail::part_of(blocks->size(i), begin, limit);
      if (r != root && now != 0) kernel::copy(target + blocks->begin(i) + begin, ctx.half(r), now);
    }
  }
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
