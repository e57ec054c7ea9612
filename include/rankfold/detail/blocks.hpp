// SPDX-License-Identifier: Apache-2.0
// Where the blocks of the ranks lie in a buffer that holds one a rank, densely, in rank order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Blocks of one size, in whatever unit.
struct even_blocks {
  std::size_t each;

  constexpr std::size_t size(std::size_t) const noexcept { return each; }
  constexpr std::size_t begin(std::size_t rank) const noexcept { return each * rank; }
  constexpr std::size_t largest() const noexcept { return each; }
};

/// Where a rank's block lies, in elements.
struct block_place {
  std::size_t begin;
  std::size_t count;
  std::size_t total;  // of all blocks
};

/// Where the block of `rank` lies among blocks of `counts` elements, one a rank.
///
/// Throws: std::invalid_argument, for the argument `what` of the operation `name`, unless there is
///         a count for each of `ranks` and their sum, in bytes, is a size.
inline block_place place_of(std::string_view name, std::string_view what,
                            std::span<const std::size_t> counts, int rank, int ranks,
                            std::size_t element_size) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    throw std::invalid_argument(std::string(name) + ": " + std::string(what) + " has " +
                                std::to_string(counts.size()) + " counts; expected one for " +
                                "each of the " + std::to_string(ranks) + " ranks");
  }
  const auto own = static_cast<std::size_t>(rank);
  const std::size_t most = (std::numeric_limits<std::size_t>::max)() / element_size;
  block_place place{0, counts[own], 0};
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (r == own) place.begin = place.total;
    if (counts[r] > most - place.total) {
      throw std::invalid_argument(std::string(name) + ": the sum of " + std::string(what) +
                                  " is more than memory can hold");
    }
    place.total += counts[r];
  }
  return place;
}

/// Blocks of `counts` elements, each of `unit`: sizes and places are in bytes where `unit` is the
/// size of an element, in elements where it is 1. Throws as place_of.
class uneven_blocks {
 public:
  uneven_blocks(std::string_view name, std::string_view what, std::span<const std::size_t> counts,
                int ranks, std::size_t element_size, std::size_t unit)
      : unit_(unit) {
    place_of(name, what, counts, 0, ranks, element_size);
    begins_.reserve(counts.size() + 1);
    begins_.push_back(0);
    for (const std::size_t count : counts) {
      largest_ = (std::max)(largest_, count * unit);
      begins_.push_back(begins_.back() + count * unit);
      hash_ = (hash_ ^ count) * 0x9e3779b97f4a7c15;
      hash_ ^= hash_ >> 29;
    }
  }

  std::size_t size(std::size_t rank) const noexcept { return begins_[rank + 1] - begins_[rank]; }
  std::size_t begin(std::size_t rank) const noexcept { return begins_[rank]; }
  std::size_t largest() const noexcept { return largest_; }
  /// The same without that of `rank`.
  std::size_t largest_but(std::size_t rank) const noexcept {
    std::size_t most = 0;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      if (r != rank) most = (std::max)(most, size(r));
    }
    return most;
  }
  std::size_t total() const noexcept { return begins_.back(); }
  /// The same in elements.
  std::size_t count(std::size_t rank) const noexcept { return size(rank) / unit_; }
  /// Of all counts, in their order.
  std::uint64_t hash() const noexcept { return hash_; }

  friend bool operator==(const uneven_blocks&, const uneven_blocks&) = default;

 private:
  std::size_t unit_;
  std::size_t largest_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::vector<std::size_t> begins_;  // one more than ranks
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
