// SPDX-License-Identifier: Apache-2.0
// all_reduce as an op:
//
//   all_reduce(x, order, …) -> Tensor      a new tensor, the sum over all ranks
//   all_reduce_(x, order, …) -> x          in place
#pragma once

#include <cstddef>
#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

struct all_reduce_op {
  static constexpr const char* name = "all_reduce";
  static constexpr const char* writing_name = "all_reduce_";
  static constexpr const char* parameters = R"(str op="sum", )";
  using arguments = types<std::string_view>;
  static constexpr bool keeps_shape = true;
  static constexpr bool reduces = true;

  struct call {
    template <class Where>
    call(const input& x, const place&, Where&& where, std::string_view op_name)
        : op(parse_reduction(op_name, where)), type(x.type), count(x.count) {
      check_operator(op, type, where);
    }

    void operator()(communicator_type& c, const void* in, void* out,
                    const call_options& options) const {
      c.all_reduce(in, out, count, type, op, options);
    }

    reduction op;
    dtype type;
    std::size_t count;
  };

  /// y_r = Σ_s x_s on every rank r, and the loss is Σ_r L_r, so dx = Σ_r dy_r: the same collective.
  /// The same holds for avg.
  template <class Backward, class Tensor>
  static Tensor gradient(const Backward& b, const Tensor& of_result) {
    return b.call(name, of_result, b.argument(0));
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
