// SPDX-License-Identifier: Apache-2.0
// How algorithms cut what they move into chunks that fit in a half of the workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/segment_layout.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// How many bytes a rank may stage in a step, `most` at most.
template <class Context>
std::size_t staging_bytes(const Context& ctx,
                          std::size_t most = (std::numeric_limits<std::size_t>::max)()) {
  const std::size_t chunk = (std::min)(most, ctx.tuning().chunk_bytes);
  return (std::max)(cache_line, (std::min)(chunk, ctx.half_bytes()));
}

/// The same where all stage and all read.
template <class Context>
std::size_t exchange_bytes(const Context& ctx) {
  return staging_bytes(ctx, ctx.tuning().exchange_chunk_bytes);
}

/// The same where one stages what another reads at the same time, of `bytes` in all.
template <class Context>
std::size_t rooted_bytes(const Context& ctx, std::size_t bytes) {
  const std::size_t most = ctx.tuning().rooted_chunk_bytes;
  const std::size_t quarter = round_up((std::max)(most, bytes) / 4, cache_line);
  return staging_bytes(ctx, (std::min)(most, quarter));
}

/// Whether the least that two_shot.hpp cuts fits in a half: P + 1 slices of whole cache lines.
template <class Context>
bool has_room_for_two_shot(const Context& ctx, std::size_t element_size) {
  const auto slices = static_cast<std::size_t>(ctx.size()) + 1;
  return slices * elements_per_line(element_size) * element_size <= ctx.half_bytes();
}

/// How many elements of `element_size` bytes fit in `bytes`, in whole cache lines where they can; 0
/// if not one fits.
constexpr std::size_t elements_in(std::size_t bytes, std::size_t element_size) {
  const std::size_t count = bytes / element_size;
  const std::size_t line = elements_per_line(element_size);
  return count >= line ? round_down(count, line) : count;
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

/// What a block of `count` has in the chunk of `limit` that begins at `begin`; 0 behind its end.
constexpr std::size_t part_of(std::size_t count, std::size_t begin, std::size_t limit) {
  return count > begin ? (std::min)(limit, count - begin) : 0;
}

/// A half cut into one slot for each rank but its owner, all of a size.
struct peer_slots {
  std::size_t ranks;

  /// How many there are; 1 for a rank that is alone, so that one can divide by it.
  constexpr std::size_t number() const { return ranks > 1 ? ranks - 1 : 1; }
  /// How many bytes of a block of `bytes` go into a slot, of `staging` for all: whole cache lines
  /// where they can, and no more than the block has, so that small ones lie side by side. At least
  /// one: a half has more of them than there can be ranks.
  constexpr std::size_t bytes_for(std::size_t bytes, std::size_t staging) const {
    const std::size_t most = (std::max)(std::size_t{1}, elements_in(staging / number(), 1));
    return (std::min)(most, (std::max)(cache_line, round_up(bytes, cache_line)));
  }
  /// Which one of `owner` is for `reader`.
  static constexpr std::size_t index(std::size_t owner, std::size_t reader) {
    return reader < owner ? reader : reader - 1;
  }
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
