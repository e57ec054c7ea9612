// SPDX-License-Identifier: Apache-2.0
// Which algorithm carries out a call: a function only of what all ranks share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Whether a context has ranks on several hosts; see hierarchical_context.hpp.
template <class Context>
concept has_hosts = requires(const Context& ctx) { ctx.layout().hosts(); };

/// Whether hosts of this context have several ranks, and a two-level algorithm for elements of this
/// size fits in the workspaces.
template <class Context>
bool has_two_levels(const Context& ctx, std::size_t element_size) {
  if constexpr (has_hosts<Context>) {
    const std::size_t hosts = ctx.layout().hosts();
    // The least that two_level.hpp cuts: whole cache lines, a share a host. Partials are elements
    // or floats.
    const std::size_t share = detail::elements_per_line(element_size) * hosts;
    const std::size_t partial = (std::max)(element_size, sizeof(float));
    return hosts < static_cast<std::size_t>(ctx.size()) &&
           (ctx.layout().rails() + 1) * share * element_size <= ctx.local_half_bytes() &&
           (ctx.most_units() + 1) * share * partial <= ctx.half_bytes();
  } else {
    return false;
  }
}

/// What `select` does for all but the shortest calls.
template <class Context>
algorithm select_in_full(const Context& ctx, collective what, algorithm asked, std::size_t bytes,
                         std::size_t element_size) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(std::string(name_of(what)) + ": algorithm " +
                                std::string(name_of(asked)) + ' ' + why);
  };
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const bool has_two_shot = what == collective::all_reduce || what == collective::reduce;
  const bool can_two_shot = has_two_shot && detail::has_room_for_two_shot(ctx, element_size);
  const bool fits_line = !is_uneven(what) && bytes <= ctx.tuning().inline_max_bytes;
  const bool has_slots =
      what == collective::reduce_scatter || what == collective::reduce_scatter_uneven;
  const std::size_t slots = has_slots ? detail::peer_slots{ranks}.number() : 1;
  if (element_size * slots > ctx.half_bytes() && !fits_line) {
    throw std::invalid_argument(std::string(name_of(what)) + ": an element of " +
                                std::to_string(element_size) +
                                " bytes does not fit in the workspace; raise workspace_bytes");
  }
  switch (asked) {
    case algorithm::automatic:
      break;
    case algorithm::inline_line:
      if (is_uneven(what)) refuse("is for blocks of one size only");
      if (!fits_line) {
        refuse("carries " + std::to_string(ctx.tuning().inline_max_bytes) + " bytes at most, not " +
               std::to_string(bytes));
      }
      return asked;
    case algorithm::one_shot:
      return asked;
    case algorithm::two_shot:
      if (!has_two_shot) refuse("is for all_reduce and reduce only");
      if (!can_two_shot) refuse("needs a larger workspace for this element and number of ranks");
      return asked;
    case algorithm::two_level:
      if (what != collective::all_reduce) refuse("is for all_reduce only");
      if (!has_two_levels(ctx, element_size)) {
        refuse(
            "is for several hosts of which one has several ranks, and needs a workspace with "
            "room for this element");
      }
      return asked;
    default:
      refuse("is unknown");
  }
  if (what == collective::all_reduce && has_two_levels(ctx, element_size)) {
    return algorithm::two_level;
  }
  if (fits_line) return algorithm::inline_line;
  // Two ranks read as much either way, and one_shot waits once less. Of a reduce, the root moves
  // (P - 1) · bytes one-shot, and 3 (P - 1) / P · bytes two-shot: more for two, as much for three.
  const std::size_t few = what == collective::reduce ? 3 : 2;
  if (can_two_shot && ranks > few && (ranks - 1) * bytes > ctx.tuning().one_shot_max_bytes) {
    return algorithm::two_shot;
  }
  return algorithm::one_shot;
}

/// The algorithm of a call in which the rank that stages most stages `bytes`, of elements of
/// `element_size` bytes. Throws std::invalid_argument where `asked` cannot do it.
template <class Context>
algorithm select(const Context& ctx, collective what, algorithm asked, std::size_t bytes,
                 std::size_t element_size) {
  if constexpr (!has_hosts<Context>) {  // what is short does not pay for the other cases
    if (asked == algorithm::automatic && !is_uneven(what) &&
        bytes <= ctx.tuning().inline_max_bytes) {
      return algorithm::inline_line;
    }
  }
  return select_in_full(ctx, what, asked, bytes, element_size);
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
