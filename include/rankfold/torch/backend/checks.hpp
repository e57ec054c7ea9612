// SPDX-License-Identifier: Apache-2.0
// What is asked of the arguments of c10d's calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/backend/buffer.hpp"
#include "rankfold/torch/backend/work.hpp"
#include "rankfold/torch/tensor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

using tensors = std::vector<at::Tensor>;

/// What a call is, and what all options have in common.
struct call_info {
  /// `title` is the name for the profiler: "rankfold:" and gloo's.
  template <class Options>
  call_info(const char* op, const char* title_of_it, c10d::OpType what, const Options& options)
      : name(op), title(title_of_it), type(what) {
    if constexpr (requires { options.timeout; }) timeout = options.timeout;
    if constexpr (requires { options.asyncOp; }) is_async = options.asyncOp;
  }
  const char* name;
  const char* title;
  c10d::OpType type;
  std::chrono::milliseconds timeout{0};  // the group's, if not positive
  bool is_async = true;
};

/// Options of what has none.
struct no_options {};

/// How elements are folded.
struct folding {
  reduction op;
  dtype type;
  std::optional<double> factor;  // each rank's own, for PREMUL_SUM

  /// The values to fold.
  at::Tensor operator()(const at::Tensor& x) const {
    if (!factor) return x;
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::mul(x, *factor).contiguous();
  }
};

inline std::size_t count_of(const at::Tensor& x) { return static_cast<std::size_t>(x.numel()); }

inline std::vector<std::size_t> counts_of(const tensors& list, std::size_t per_element) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& x : list) counts.push_back(count_of(x) * per_element);
  return counts;
}

/// The counts, if they differ.
inline std::optional<std::vector<std::size_t>> uneven_counts(const tensors& list,
                                                             std::size_t per_element) {
  std::vector<std::size_t> counts = counts_of(list, per_element);
  if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
    return std::nullopt;
  }
  return counts;
}

/// The checks of one call; a failure is a RuntimeError that names op, group and rank.
class checks {
 public:
  checks(const work_context& context, const call_info& info) : context_(context), info_(info) {}

  template <class... Text>
  void that(bool good, const Text&... text) const {
    TORCH_CHECK(good, where(), ": ", text...);
  }

  std::string where() const { return context_.where(info_.name); }

  void tensor(const at::Tensor& x) const {
    that(x.layout() == c10::kStrided && x.device().is_cpu(), "a tensor has layout ", x.layout(),
         " on device ", x.device(), ", expected a dense (strided) tensor on cpu");
  }

  void writable(const at::Tensor& x) const {
    tensor(x);
    torch_ops::check_writable(x, "a tensor", [this] { return where(); });
  }

  /// The only tensor of a list.
  const at::Tensor& only(const tensors& list, const char* what) const {
    that(list.size() == 1, what, " has ", list.size(), " tensors, expected one");
    tensor(list[0]);
    return list[0];
  }

  int root(std::int64_t root) const {
    that(root >= 0 && root < context_.size, "the root is rank ", root, ", expected 0 to ",
         context_.size - 1);
    return static_cast<int>(root);
  }

  void same_type(const at::Tensor& a, const at::Tensor& b) const {
    that(a.scalar_type() == b.scalar_type(), "one tensor has dtype ", a.scalar_type(),
         " and another ", b.scalar_type(), ", expected the same");
  }

  void pairs(const tensors& outputs, const tensors& inputs) const {
    that(outputs.size() == inputs.size(), "there are ", outputs.size(), " outputs and ",
         inputs.size(), " inputs, expected as many");
  }

  /// That `all` holds a block like `block` for each rank.
  void blocks(const at::Tensor& block, const at::Tensor& all, const char* block_name,
              const char* all_name) const {
    tensor(block);
    tensor(all);
    same_type(block, all);
    that(all.numel() == block.numel() * context_.size, all_name, " has ", all.numel(),
         " elements and ", block_name, " ", block.numel(), ", expected ", context_.size,
         " times as many, one block a rank");
  }

  /// A list of one tensor a rank, the own one being of the size of `own`.
  void one_a_rank(const tensors& list, const char* what, const at::Tensor& own) const {
    that(list.size() == ranks(), what, " has ", list.size(),
         " tensors, expected one for each of the ", context_.size, " ranks");
    for (const at::Tensor& x : list) {
      tensor(x);
      same_type(own, x);
    }
    const at::Tensor& mine = list[static_cast<std::size_t>(context_.rank)];
    that(mine.numel() == own.numel(), what, "[", context_.rank, "] has ", mine.numel(),
         " elements, expected ", own.numel(), ", as this rank's own tensor");
  }

  /// The only list of lists, with one tensor a rank.
  const tensors& only_list(const std::vector<tensors>& lists, const char* what,
                           const at::Tensor& own) const {
    that(lists.size() == 1, what, " has ", lists.size(), " lists, expected one");
    one_a_rank(lists[0], what, own);
    return lists[0];
  }

  /// The same at the root, with tensors of one size; nothing elsewhere.
  tensors at_root(const std::vector<tensors>& lists, const char* what, const at::Tensor& own,
                  int root) const {
    if (context_.rank != root) {
      that(lists.empty() || (lists.size() == 1 && lists[0].empty()), what,
           " is given, expected it on the root alone, which is rank ", root);
      return {};
    }
    const tensors& list = only_list(lists, what, own);
    for (std::size_t r = 0; r < list.size(); ++r) {
      that(list[r].numel() == own.numel(), what, "[", r, "] has ", list[r].numel(),
           " elements, expected ", own.numel(), ", as all others");
    }
    return list;
  }

  /// That this rank sends itself as many elements as it expects of itself.
  void own_block(std::size_t sent, std::size_t expected, const moved_type& type) const {
    that(sent == expected, "input has ", sent / type.per_element,
         " elements for this rank itself, and output ", expected / type.per_element,
         " from it, expected as many");
  }

  /// How many elements go to or come from each rank; `splits` are rows, none: as many for each.
  std::vector<std::size_t> counts(const at::Tensor& x, const std::vector<std::int64_t>& splits,
                                  const char* what) const {
    const moved_type type(x);
    const std::int64_t rows = x.dim() == 0 ? x.numel() : x.size(0);
    if (splits.empty()) {
      that(rows % context_.size == 0, what, " has ", rows, " rows, expected a multiple of the ",
           context_.size, " ranks, or splits");
      return std::vector<std::size_t>(ranks(), type.count(x) / ranks());
    }
    that(splits.size() == ranks(), what, " has ", splits.size(),
         " splits, expected one for each of the ", context_.size, " ranks");
    std::int64_t sum = 0;
    std::vector<std::size_t> counts;
    const std::size_t row = rows == 0 ? 0 : type.count(x) / static_cast<std::size_t>(rows);
    for (const std::int64_t split : splits) {
      that(split >= 0, what, " has a split of ", split, " rows, expected 0 or more");
      sum += split;
      counts.push_back(static_cast<std::size_t>(split) * row);
    }
    that(sum == rows, what, " has splits of ", sum, " rows together, expected its ", rows);
    return counts;
  }

  /// How elements of `x` are folded.
  folding fold(const at::Tensor& x, const c10d::ReduceOp& op) const {
    tensor(x);
    const auto type = torch_ops::dtype_of(x.scalar_type());
    that(type.has_value(), "a tensor has dtype ", x.scalar_type(), ", which cannot be reduced",
         x.is_complex() ? ", but by SUM and AVG" : "");
    folding how{reduction_of(op, *type), *type, factor_of(op)};
    that(supports(how.op, how.type), name_of_op(op), " is not defined for dtype ", x.scalar_type(),
         ", expected ", torch_ops::types_of(how.op));
    that(!how.factor || supports(reduction::avg, how.type), name_of_op(op),
         " is not defined for dtype ", x.scalar_type(), ", expected a floating type");
    return how;
  }

  /// `x`, or its real and imaginary parts where adding these is what `op` does.
  at::Tensor parts(const at::Tensor& x, const c10d::ReduceOp& op) const {
    if (!x.is_complex() || x.layout() != c10::kStrided) return x;
    that(op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG, name_of_op(op),
         " is not defined for dtype ", x.scalar_type(), ", expected SUM or AVG");
    that(!x.is_conj(), "a tensor is a lazy conjugate view, expected plain values; call ",
         "x.resolve_conj() first");
    return at::view_as_real(x);
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(context_.size); }

  /// A sum of bool is whether any is true, as NCCL has it.
  reduction reduction_of(const c10d::ReduceOp& op, dtype type) const {
    const bool is_bool = type == dtype::boolean;
    switch (op.op_) {
      case c10d::ReduceOp::PREMUL_SUM:
        return reduction::sum;
      case c10d::ReduceOp::SUM:
        return is_bool ? reduction::logical_or : reduction::sum;
      case c10d::ReduceOp::PRODUCT:
        return is_bool ? reduction::logical_and : reduction::prod;
      case c10d::ReduceOp::AVG:
        return reduction::avg;
      case c10d::ReduceOp::MIN:
        return reduction::min;
      case c10d::ReduceOp::MAX:
        return reduction::max;
      case c10d::ReduceOp::BAND:
        return reduction::bit_and;
      case c10d::ReduceOp::BOR:
        return reduction::bit_or;
      case c10d::ReduceOp::BXOR:
        return reduction::bit_xor;
      default:
        break;
    }
    TORCH_CHECK(false, where(), ": ", name_of_op(op), " is no operator, expected SUM, AVG, ",
                "PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM");
  }

  std::optional<double> factor_of(const c10d::ReduceOp& op) const {
    if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return std::nullopt;
    const auto* given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    that(given != nullptr, "PREMUL_SUM has no factor, expected one");
    if (!given->tensor_factor.defined()) return given->double_factor;
    return given->tensor_factor.item<double>();
  }

  static const char* name_of_op(const c10d::ReduceOp& op) {
    static constexpr const char* names[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                            "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
    return names[(std::min)(static_cast<std::size_t>(op.op_), std::size_t{9})];
  }

  const work_context& context_;
  const call_info& info_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
