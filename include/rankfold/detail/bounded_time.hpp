// SPDX-License-Identifier: Apache-2.0
// Times that can be added to a point in time.
#pragma once

#include <algorithm>
#include <chrono>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// As good as for ever, and far from overflow in nanoseconds: a decade.
inline constexpr std::chrono::hours longest_time{24 * 3650};

constexpr std::chrono::milliseconds bounded_time(std::chrono::milliseconds time) noexcept {
  return (std::min<std::chrono::milliseconds>)(time, longest_time);
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
