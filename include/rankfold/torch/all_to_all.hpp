// SPDX-License-Identifier: Apache-2.0
// all_to_all as an op:
//
//   all_to_all(x, order, …) -> Tensor              the rows that each rank has for this one
//   all_to_all_into_(out, x, order, …) -> out      the same into a tensor that is there
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/rows.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

struct all_to_all_op {
  static constexpr const char* name = "all_to_all";
  static constexpr const char* writing_name = "all_to_all_into_";
  static constexpr const char* parameters =
      "SymInt[]? output_split_sizes=None, SymInt[]? input_split_sizes=None, ";
  using arguments = types<rows_argument, rows_argument>;
  static constexpr bool keeps_shape = false;
  static constexpr bool reduces = false;

  /// `from` and `to` say how many rows come from and go to each rank; without them all as many.
  template <class Int, class Where>
  static Int rows(row_list<Int> shape, const place& here, Where&& where,
                  std::optional<row_list<Int>> from, std::optional<row_list<Int>> to) {
    check_rows(shape, where);
    if (from.has_value() != to.has_value()) {
      refuse(where(), ": of output_split_sizes and input_split_sizes only ",
             from ? "the first" : "the second", " is given, expected both or none");
    }
    if (!from) return shape.front();
    total_rows(*to, "input_split_sizes", here, where);
    return total_rows(*from, "output_split_sizes", here, where);
  }

  struct call {
    template <class Where>
    call(const input& x, const place& here, Where&& where,
         std::optional<row_list<std::int64_t>> from, std::optional<row_list<std::int64_t>> to)
        : type(x.type), send(x.count, here.size), receive(send) {
      if (from) {
        check_total(x.shape, *to, "input_split_sizes", here, where);
        const auto own = static_cast<std::size_t>(here.rank);
        if ((*from)[own] != (*to)[own]) {
          refuse(where(), ": input_split_sizes ", text_of(*to), " sends ", (*to)[own],
                 " rows from this rank to itself, output_split_sizes ", text_of(*from), " expects ",
                 (*from)[own], "; expected the same number");
        }
        send = block_counts(*to, x.shape);
        receive = block_counts(*from, x.shape);
      } else {
        check_even(x.shape, "split sizes", here, where);
      }
    }

    void operator()(communicator_type& c, const void* in, void* out,
                    const call_options& options) const {
      if (send.even()) {
        c.all_to_all(in, out, send.each(), type, options);
      } else {
        c.all_to_all(in, send.list(), out, receive.list(), type, options);
      }
    }

    dtype type;
    block_counts send, receive;
  };

  /// What came from a rank goes back to it.
  template <class Backward, class Tensor>
  static Tensor gradient(const Backward& b, const Tensor& of_result) {
    return b.call(name, of_result, b.argument(1), b.argument(0));
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
