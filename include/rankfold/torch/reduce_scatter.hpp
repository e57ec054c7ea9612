// SPDX-License-Identifier: Apache-2.0
// reduce_scatter as an op:
//
//   reduce_scatter(x, order, …) -> Tensor              this rank's rows of the sum over all ranks
//   reduce_scatter_into_(out, x, order, …) -> out      the same into a tensor that is there
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/rows.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

struct reduce_scatter_op {
  static constexpr const char* name = "reduce_scatter";
  static constexpr const char* writing_name = "reduce_scatter_into_";
  static constexpr const char* parameters = R"(str op="sum", SymInt[]? sizes=None, )";
  using arguments = types<std::string_view, rows_argument>;
  static constexpr bool keeps_shape = false;
  static constexpr bool reduces = true;

  /// `sizes` says how many rows each rank gets; without it all get as many.
  template <class Int, class Where>
  static Int rows(row_list<Int> shape, const place& here, Where&& where, std::string_view,
                  std::optional<row_list<Int>> sizes) {
    check_rows(shape, where);
    if (!sizes) return shape.front() / Int(here.size);
    total_rows(*sizes, "sizes", here, where);
    return (*sizes)[static_cast<std::size_t>(here.rank)];
  }

  struct call {
    template <class Where>
    call(const input& x, const place& here, Where&& where, std::string_view op_name,
         std::optional<row_list<std::int64_t>> sizes)
        : op(parse_reduction(op_name, where)), type(x.type), counts(x.count, here.size) {
      check_operator(op, type, where);
      if (sizes) {
        check_total(x.shape, *sizes, "sizes", here, where);
        counts = block_counts(*sizes, x.shape);
      } else {
        check_even(x.shape, "sizes", here, where);
      }
    }

    void operator()(communicator_type& c, const void* in, void* out,
                    const call_options& options) const {
      if (counts.even()) {
        c.reduce_scatter(in, out, counts.each(), type, op, options);
      } else {
        c.reduce_scatter(in, out, counts.list(), type, op, options);
      }
    }

    reduction op;
    dtype type;
    block_counts counts;
  };

  /// The loss of rank r depends on block r of every rank's x.
  template <class Backward, class Tensor>
  static Tensor gradient(const Backward& b, const Tensor& of_result) {
    const bool average = b.argument(0).toStringRef() == name_of(reduction::avg);
    return b.call("all_gather", average ? of_result.div(b.here().size) : of_result, b.argument(1));
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
