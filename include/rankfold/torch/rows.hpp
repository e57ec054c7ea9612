// SPDX-License-Identifier: Apache-2.0
// Blocks of rows: what ops gather, scatter and exchange are parts of dimension 0, one a rank, one
// behind the other. How many rows a result has is found by the same code for numbers and for the
// symbols of a tracer, whose values it does not look at: that would compile each shape anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// Numbers of rows, one for each rank. `Int` is std::int64_t or a tracer's symbol.
template <class Int>
using row_list = std::span<const Int>;

/// Checks that x, whose sizes are `shape`, has rows.
template <class Int, class Where>
void check_rows(row_list<Int> shape, Where&& where) {
  if (shape.empty())
    refuse(where(), ": x has no dimensions, expected one or more, the first of rows");
}

/// The sum of `sizes`; `what` names them in messages.
template <class Int, class Where>
Int total_rows(row_list<Int> sizes, const char* what, const place& here, Where&& where) {
  if (sizes.size() != static_cast<std::size_t>(here.size)) {
    refuse(where(), ": ", what, " has ", sizes.size(), " numbers, expected one for each of the ",
           here.size, " ranks");
  }
  Int total(0);
  for (const Int& rows : sizes) {
    if constexpr (std::is_same_v<Int, std::int64_t>) {
      if (rows < 0 || __builtin_add_overflow(total, rows, &total)) {
        refuse(where(), ": ", what, " is ", text_of(sizes), ", expected numbers of rows");
      }
    } else {
      total = total + rows;
    }
  }
  return total;
}

/// Checks that x, whose sizes are `shape`, has as many rows as `sizes` together.
template <class Where>
void check_total(row_list<std::int64_t> shape, row_list<std::int64_t> sizes, const char* what,
                 const place& here, Where&& where) {
  const std::int64_t total = total_rows(sizes, what, here, where);
  if (shape.front() == total) return;
  refuse(where(), ": x has ", shape.front(), " rows, expected ", total, ", the sum of ", what, " ",
         text_of(sizes));
}

/// Checks that the rows of x can be split evenly; `instead` is what to pass if not.
template <class Where>
void check_even(row_list<std::int64_t> shape, const char* instead, const place& here,
                Where&& where) {
  if (shape.front() % here.size == 0) return;
  refuse(where(), ": x has ", shape.front(), " rows, expected a multiple of the ", here.size,
         " ranks, or ", instead);
}

/// How many elements the blocks of a call have: all as many, or each its own number.
class block_counts {
 public:
  /// Even: of `elements` in `blocks` blocks.
  block_counts(std::size_t elements, int blocks)
      : count_(elements / static_cast<std::size_t>(blocks)) {}

  /// Uneven: `sizes` rows of a tensor of that shape.
  block_counts(row_list<std::int64_t> sizes, row_list<std::int64_t> shape) {
    std::size_t row = 1;
    for (const std::int64_t size : shape.subspan(1)) row *= static_cast<std::size_t>(size);
    counts_.reserve(sizes.size());
    for (const std::int64_t rows : sizes) counts_.push_back(static_cast<std::size_t>(rows) * row);
  }

  bool even() const noexcept { return counts_.empty(); }
  std::size_t each() const noexcept { return count_; }
  std::span<const std::size_t> list() const noexcept { return counts_; }

 private:
  std::size_t count_ = 0;
  std::vector<std::size_t> counts_;
};

/// Throws if the group is no longer the one that a call was checked for: buffers would not fit.
inline void check_place(const communicator_type& c, const place& expected) {
  if (c.size() != expected.size || c.rank() != expected.rank) [[unlikely]] {
    throw std::invalid_argument("another thread has made the group anew in the meantime");
  }
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
