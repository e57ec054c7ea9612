// SPDX-License-Identifier: Apache-2.0
// Cutting `count` elements into slices of whole cache lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_layout.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// The fewest elements that fill whole cache lines.
constexpr std::size_t elements_per_line(std::size_t element_size) {
  return cache_line / std::gcd(cache_line, element_size);
}

constexpr std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::size_t round_down(std::size_t n, std::size_t multiple) {
  return n / multiple * multiple;
}

struct slice {
  std::size_t begin;
  std::size_t count;
};

/// Slice `index` of `parts`, none larger than the first, each a multiple of `granularity` elements
/// but for the last that is not empty.
constexpr slice slice_of(std::size_t count, std::size_t parts, std::size_t index,
                         std::size_t granularity) {
  const std::size_t lines = (count + granularity - 1) / granularity;
  const std::size_t share = lines / parts;
  const std::size_t extra = lines % parts;
  const auto begin_line = [&](std::size_t i) { return i * share + (std::min)(i, extra); };
  const std::size_t begin = (std::min)(begin_line(index) * granularity, count);
  const std::size_t end = (std::min)(begin_line(index + 1) * granularity, count);
  return {begin, end - begin};
}

/// The size of the largest slice that `slice_of` can give for any count up to `count`.
constexpr std::size_t largest_slice(std::size_t count, std::size_t parts, std::size_t granularity) {
  const std::size_t lines = (count + granularity - 1) / granularity;
  return (lines + parts - 1) / parts * granularity;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
