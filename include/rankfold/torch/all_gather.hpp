// SPDX-License-Identifier: Apache-2.0
// all_gather as an op:
//
//   all_gather(x, order, …) -> Tensor              the rows of all ranks, in rank order
//   all_gather_into_(out, x, order, …) -> out      the same into a tensor that is there
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/rows.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

struct all_gather_op {
  static constexpr const char* name = "all_gather";
  static constexpr const char* writing_name = "all_gather_into_";
  static constexpr const char* parameters = "SymInt[]? sizes=None, ";
  using arguments = types<rows_argument>;
  static constexpr bool keeps_shape = false;
  static constexpr bool reduces = false;

  /// `sizes` says how many rows each rank has; without it all have as many. What has no dimensions
  /// is one row.
  template <class Int, class Where>
  static Int rows(row_list<Int> shape, const place& here, Where&& where,
                  std::optional<row_list<Int>> sizes) {
    if (!sizes) return shape.empty() ? Int(here.size) : shape.front() * Int(here.size);
    check_rows(shape, where);
    return total_rows(*sizes, "sizes", here, where);
  }

  struct call {
    template <class Where>
    call(const input& x, const place& here, Where&& where,
         std::optional<row_list<std::int64_t>> sizes)
        : type(x.type), counts(x.count, 1) {
      if (!sizes) return;
      const std::int64_t own = (*sizes)[static_cast<std::size_t>(here.rank)];
      if (x.shape.front() != own) {
        refuse(where(), ": x has ", x.shape.front(), " rows, expected ", own, ", as sizes ",
               text_of(*sizes), " says of this rank");
      }
      counts = block_counts(*sizes, x.shape);
    }

    void operator()(communicator_type& c, const void* in, void* out,
                    const call_options& options) const {
      if (counts.even()) {
        c.all_gather(in, out, counts.each(), type, options);
      } else {
        c.all_gather(in, out, counts.list(), type, options);
      }
    }

    dtype type;
    block_counts counts;
  };

  /// The loss of every rank depends on x. (Of one row, autograd makes what has no dimensions.)
  template <class Backward, class Tensor>
  static Tensor gradient(const Backward& b, const Tensor& of_result) {
    return b.call("reduce_scatter", of_result, "sum", b.argument(0));
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
