// SPDX-License-Identifier: Apache-2.0
// Which algorithm carries out a call: a function only of what all ranks share.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// The algorithm of a call that puts `bytes` of `element_size` bytes each into one rank's hands.
/// Throws std::invalid_argument where `asked` cannot do it.
template <class Context>
algorithm select(const Context& ctx, collective what, algorithm asked, std::size_t bytes,
                 std::size_t element_size) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(std::string(name_of(what)) + ": algorithm " +
                                std::string(name_of(asked)) + ' ' + why);
  };
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const std::size_t two_shot_need =
      (ranks + 1) * detail::elements_per_line(element_size) * element_size;
  const bool can_two_shot = what == collective::all_reduce && two_shot_need <= ctx.half_bytes();
  const bool fits_line = bytes <= ctx.tuning().inline_max_bytes;
  if (element_size * (what == collective::reduce_scatter ? ranks : 1) > ctx.half_bytes() &&
      !fits_line) {
    throw std::invalid_argument(std::string(name_of(what)) + ": an element of " +
                                std::to_string(element_size) +
                                " bytes does not fit in the workspace; raise workspace_bytes");
  }
  switch (asked) {
    case algorithm::automatic:
      break;
    case algorithm::inline_line:
      if (!fits_line) {
        refuse("carries " + std::to_string(ctx.tuning().inline_max_bytes) + " bytes at most, not " +
               std::to_string(bytes));
      }
      return asked;
    case algorithm::one_shot:
      return asked;
    case algorithm::two_shot:
      if (what != collective::all_reduce) refuse("is for all_reduce only");
      if (!can_two_shot) refuse("needs a larger workspace for this element and number of ranks");
      return asked;
    default:
      refuse("is unknown");
  }
  if (fits_line) return algorithm::inline_line;
  // Two ranks read as much either way, and one_shot waits once less.
  if (can_two_shot && ranks > 2 && (ranks - 1) * bytes > ctx.tuning().one_shot_max_bytes) {
    return algorithm::two_shot;
  }
  return algorithm::one_shot;
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
