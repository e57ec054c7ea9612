// SPDX-License-Identifier: Apache-2.0
// How ranks notice, in the first step of a call, that they do not mean the same blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// One number that a rank published with this step.
template <class Context>
std::uint64_t payload_number(const Context& ctx, int rank, std::size_t index = 0) {
  std::uint64_t number = 0;
  std::memcpy(&number, ctx.payload(rank) + index * sizeof number, sizeof number);
  return number;
}

/// Publishes a step of blocks. Even blocks: the fingerprint has said it all.
template <class Context>
void publish_blocks(Context& ctx, const even_blocks&, bool /*first*/) {
  ctx.publish();
}

/// Waits for all ranks' step of blocks.
template <class Context>
void await_blocks(Context& ctx, const even_blocks&, bool /*first*/) {
  ctx.wait_all();
}

/// Uneven blocks of which every rank has passed all counts: the first step says which.
template <class Context>
void publish_blocks(Context& ctx, const uneven_blocks& blocks, bool first) {
  const std::uint64_t payload[] = {blocks.count(static_cast<std::size_t>(ctx.rank())),
                                   blocks.hash()};
  ctx.publish(payload, first ? sizeof payload : 0);
}

/// In the first step, throws mismatch_error unless all ranks have passed the same counts.
///
/// Where two ranks have passed different ones for rank r, one of them disagrees with r itself: that
/// rank finds it here, and tells all. The others see that somebody's counts are not theirs, and
/// wait for it.
template <class Context>
void await_blocks(Context& ctx, const uneven_blocks& blocks, bool first) {
  ctx.wait_all();
  if (!first) return;
  bool all_equal = true;
  for (int r = 0; r < ctx.size(); ++r) {
    if (r == ctx.rank()) continue;
    const std::uint64_t theirs = payload_number(ctx, r, 0);
    const std::size_t own = blocks.count(static_cast<std::size_t>(r));
    if (theirs != own) {
      ctx.mismatch("ranks pass different counts: for the block of rank " + std::to_string(r) +
                   ", rank " + std::to_string(ctx.rank()) + " passed " + std::to_string(own) +
                   " elements, rank " + std::to_string(r) + ' ' + std::to_string(theirs));
    }
    all_equal &= payload_number(ctx, r, 1) == blocks.hash();
  }
  if (!all_equal) [[unlikely]] {
    ctx.next_step();
    ctx.publish();
    ctx.wait_all();
    ctx.mismatch("ranks pass different counts");
  }
}

/// Throws mismatch_error unless rank `from` sends rank `to` as many elements as that expects.
template <class Context>
void check_pair(Context& ctx, int from, std::uint64_t sent, int to, std::uint64_t expected) {
  if (sent != expected) {
    ctx.mismatch("rank " + std::to_string(from) + " sends rank " + std::to_string(to) + ' ' +
                 std::to_string(sent) + " elements, rank " + std::to_string(to) + " expects " +
                 std::to_string(expected));
  }
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
