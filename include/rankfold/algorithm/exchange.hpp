// SPDX-License-Identifier: Apache-2.0
// One-shot where every peer gets something else: each rank stages a block for each peer, side by
// side in slots of one size, and reads its own from every peer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "rankfold/detail/block_agreement.hpp"
#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/copy.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// `in` holds a block of `bytes` for every rank, `out` gets one of every rank; both in rank order,
/// and both may be the same.
///
/// In place is safe, since a chunk of a block is staged before the same chunk comes in.
///
/// Cost: ⌈(P - 1) · bytes / chunk⌉ steps; a rank writes and reads (P - 1) · `bytes`, and copies its
/// own block directly.
template <class Context>
void exchange_all_to_all(Context& ctx, const void* in, void* out, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const detail::peer_slots slots{ranks};
  const std::size_t limit = slots.bytes_for(bytes, detail::exchange_bytes(ctx));
  const std::byte* const source = static_cast<const std::byte*>(in);
  std::byte* const target = static_cast<std::byte*>(out);
  detail::for_chunks(bytes, limit, [&](std::size_t begin, std::size_t now) {
    ctx.next_step(slots.number() * limit);
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      const std::size_t offset = slots.index(rank, r) * limit;
      kernel::copy(ctx.half(ctx.rank()) + offset, source + r * bytes + begin, now);
      ctx.give(static_cast<int>(r), offset, now);
    }
    ctx.publish();
    const std::size_t own = rank * bytes + begin;
    // Depends on nobody: while the others' flags are under way.
    if (target != source) kernel::copy(target + own, source + own, now);
    ctx.wait_all();
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      kernel::copy(target + r * bytes + begin,
                   ctx.half(static_cast<int>(r)) + slots.index(r, rank) * limit, now);
    }
  });
}

/// The slots of an exchange in which a rank does not know what it will be sent: in the first step
/// each begins with a number, how many elements its reader gets.
class numbered_slots {
 public:
  /// What a half must hold.
  static constexpr std::size_t least_bytes(std::size_t ranks) {
    return least_slot * detail::peer_slots{ranks}.number();
  }

  template <class Context>
  numbered_slots(const Context& ctx, std::size_t staging)
      : slots_{static_cast<std::size_t>(ctx.size())},
        slot_((std::max)(least_slot, detail::round_down(staging / slots_.number(), 8))),
        head_(slot_ >= 4 * detail::cache_line ? detail::cache_line : sizeof(std::uint64_t)) {
    if (slot_ >= 4 * detail::cache_line) slot_ = detail::round_down(slot_, detail::cache_line);
  }

  /// How many bytes a slot takes in a step.
  std::size_t limit() const { return slot_ - head_; }

  /// Stages `now` bytes at `from` for rank `r`; in the first step, with the number.
  template <class Context>
  void stage(Context& ctx, std::size_t r, bool first, std::uint64_t number, const std::byte* from,
             std::size_t now) const {
    const std::size_t offset = slots_.index(static_cast<std::size_t>(ctx.rank()), r) * slot_;
    std::byte* const slot = ctx.half(ctx.rank()) + offset;
    if (first) std::memcpy(slot, &number, sizeof number);
    kernel::copy(slot + head_, from, now);
    if (first) {
      ctx.give(static_cast<int>(r), offset, head_ + now);
    } else if (now != 0) {
      ctx.give(static_cast<int>(r), offset + head_, now);
    }
  }

  /// In the first step: the number that rank `r` staged for this one.
  template <class Context>
  std::uint64_t number(const Context& ctx, std::size_t r) const {
    std::uint64_t number = 0;
    std::memcpy(&number, slot(ctx, r), sizeof number);
    return number;
  }

  /// What rank `r` staged for this one.
  template <class Context>
  const std::byte* data(const Context& ctx, std::size_t r) const {
    return slot(ctx, r) + head_;
  }

 private:
  static constexpr std::size_t least_slot = 16;

  template <class Context>
  const std::byte* slot(const Context& ctx, std::size_t r) const {
    return ctx.half(static_cast<int>(r)) +
           slots_.index(r, static_cast<std::size_t>(ctx.rank())) * slot_;
  }

  detail::peer_slots slots_;
  std::size_t slot_;
  std::size_t head_;
};

/// Throws std::invalid_argument where the workspace is too small for numbered slots.
template <class Context>
void check_numbered_slots(const Context& ctx, collective what) {
  const std::size_t need = numbered_slots::least_bytes(static_cast<std::size_t>(ctx.size()));
  if (need > ctx.half_bytes()) {
    throw std::invalid_argument(std::string(name_of(what)) + " among " +
                                std::to_string(ctx.size()) + " ranks needs a workspace of " +
                                std::to_string(2 * need) + " bytes; raise workspace_bytes");
  }
}

/// `sent` are the blocks of bytes at `in`, one for every rank; `received` those at `out`, one of
/// every rank. `in` and `out` are apart, or the same and `sent` equal to `received`.
///
/// No rank knows the others' counts. Each publishes with the first step how many bytes its largest
/// block for a peer has; the largest of these is what all count their steps by.
///
/// Throws: mismatch_error unless each rank expects of each what that sends.
///
/// Cost: max(1, ⌈(P - 1) · bytes / chunk⌉) steps where the largest block between two ranks has
/// `bytes`; a rank writes and reads what is for and of its peers.
template <class Context>
void exchange_all_to_all_uneven(Context& ctx, const void* in, const detail::uneven_blocks& sent,
                                void* out, const detail::uneven_blocks& received) {
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const numbered_slots slots(ctx, detail::exchange_bytes(ctx));
  const std::size_t limit = slots.limit();
  const std::byte* const source = static_cast<const std::byte*>(in);
  std::byte* const target = static_cast<std::byte*>(out);
  std::uint64_t largest = sent.largest_but(rank);
  for (std::size_t begin = 0; begin == 0 || begin < largest; begin += limit) {
    const bool first = begin == 0;
    ctx.next_step();
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      const std::size_t now = detail::part_of(sent.size(r), begin, limit);
      slots.stage(ctx, r, first, sent.count(r), now != 0 ? source + sent.begin(r) + begin : nullptr,
                  now);
    }
    ctx.publish(&largest, first ? sizeof largest : 0);
    ctx.wait_all();
    if (first) {
      for (std::size_t r = 0; r < ranks; ++r) {
        if (r == rank) continue;
        detail::check_pair(ctx, static_cast<int>(r), slots.number(ctx, r), ctx.rank(),
                           received.count(r));
        largest = (std::max)(largest, detail::payload_number(ctx, static_cast<int>(r)));
      }
      if (target + received.begin(rank) != source + sent.begin(rank)) {
        kernel::copy(target + received.begin(rank), source + sent.begin(rank), sent.size(rank));
      }
    }
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      const std::size_t now = detail::part_of(received.size(r), begin, limit);
      if (now == 0) continue;
      kernel::copy(target + received.begin(r) + begin, slots.data(ctx, r), now);
    }
  }
}

/// The root's `blocks` of `bytes` each at `in`, one for every rank, go to their `out`, unless that
/// is where the root's own one lies. The root does not wait.
///
/// The rule of context.hpp holds: a rank publishes a step when it has read the one before, and
/// next_step waits for whom the call has not, the root for all, before it writes over what they
/// read.
///
/// Cost: ⌈(P - 1) · bytes / chunk⌉ steps; the root writes (P - 1) · `bytes`, every other rank reads
/// `bytes`; the root runs ahead as far as next_step lets it.
template <class Context>
void exchange_scatter(Context& ctx, const void* in, void* out, std::size_t bytes, int root) {
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const detail::peer_slots slots{ranks};
  const std::size_t limit =
      slots.bytes_for(bytes, detail::rooted_bytes(ctx, bytes * slots.number()));
  const std::byte* const source = static_cast<const std::byte*>(in);
  std::byte* const target = static_cast<std::byte*>(out);
  detail::for_chunks(bytes, limit, [&](std::size_t begin, std::size_t now) {
    ctx.next_step(slots.number() * limit);
    if (ctx.rank() != root) {
      ctx.publish();
      ctx.wait(root);
      kernel::copy(target + begin,
                   ctx.half(root) + slots.index(static_cast<std::size_t>(root), rank) * limit, now);
      return;
    }
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
      const std::size_t offset = slots.index(rank, r) * limit;
      kernel::copy(ctx.half(root) + offset, source + r * bytes + begin, now);
      ctx.give(static_cast<int>(r), offset, now);
    }
    ctx.publish();
    const std::byte* const own = source + rank * bytes + begin;
    if (target + begin != own) kernel::copy(target + begin, own, now);
  });
}

/// Only the root knows `blocks`, all others what they expect: `expected` elements of `element_size`
/// bytes. As exchange_scatter else.
///
/// The root publishes the largest block with the first step: what all count their steps by.
///
/// Throws: mismatch_error on the ranks that the root does not send what they expect, and then on
///         all.
template <class Context>
void exchange_scatter_uneven(Context& ctx, const void* in, const detail::uneven_blocks* blocks,
                             void* out, std::size_t expected, std::size_t element_size, int root) {
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const numbered_slots slots(ctx, detail::staging_bytes(ctx, ctx.tuning().rooted_chunk_bytes));
  const std::size_t limit = slots.limit();
  const std::byte* const source = static_cast<const std::byte*>(in);
  std::byte* const target = static_cast<std::byte*>(out);
  if (ctx.rank() == root) {
    const std::uint64_t largest = blocks->largest_but(rank);
    for (std::size_t begin = 0; begin == 0 || begin < largest; begin += limit) {
      const bool first = begin == 0;
      ctx.next_step();
      for (std::size_t i = 1; i < ranks; ++i) {
        const std::size_t r = rank + i < ranks ? rank + i : rank + i - ranks;
        const std::size_t now = detail::part_of(blocks->size(r), begin, limit);
        slots.stage(ctx, r, first, blocks->count(r),
                    now != 0 ? source + blocks->begin(r) + begin : nullptr, now);
      }
      ctx.publish(&largest, first ? sizeof largest : 0);
      if (first && target != source + blocks->begin(rank)) {
        kernel::copy(target, source + blocks->begin(rank), blocks->size(rank));
      }
    }
    return;
  }
  const auto from = static_cast<std::size_t>(root);
  std::uint64_t largest = 0;
  for (std::size_t begin = 0; begin == 0 || begin < largest; begin += limit) {
    ctx.next_step();
    ctx.publish();
    ctx.wait(root);
    if (begin == 0) {
      detail::check_pair(ctx, root, slots.number(ctx, from), ctx.rank(), expected);
      largest = detail::payload_number(ctx, root);
    }
    const std::size_t now = detail::part_of(expected * element_size, begin, limit);
    if (now != 0) kernel::copy(target + begin, slots.data(ctx, from), now);
  }
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
