// SPDX-License-Identifier: Apache-2.0
// broadcast as an op:
//
//   broadcast(x, order, …) -> Tensor      a new tensor, with what the root's x holds
//   broadcast_(x, order, …) -> x          in place
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

struct broadcast_op {
  static constexpr const char* name = "broadcast";
  static constexpr const char* writing_name = "broadcast_";
  static constexpr const char* parameters = "int root=0, ";
  using arguments = types<std::int64_t>;
  static constexpr bool keeps_shape = true;
  static constexpr bool reduces = false;

  struct call {
    template <class Where>
    call(const input& x, const place& here, Where&& where, std::int64_t from)
        : root(static_cast<int>(from)), type(x.type), count(x.count) {
      if (from < 0 || from >= here.size) {
        refuse(where(), ": root is ", from, ", expected 0 to ", here.size - 1);
      }
    }

    void operator()(communicator_type& c, const void* in, void* out,
                    const call_options& options) const {
      if (c.rank() == root && in != out && count != 0) std::memcpy(out, in, count * size_of(type));
      c.broadcast(out, count, type, root, options);
    }

    int root;
    dtype type;
    std::size_t count;
  };

  /// The loss of every rank depends on the root's x, and none on another rank's.
  template <class Backward, class Tensor>
  static Tensor gradient(const Backward& b, const Tensor& of_result) {
    const Tensor sum = b.call("all_reduce", of_result, "sum");
    return b.here().rank == b.argument(0).toInt() ? sum : b.none_of(sum);
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
