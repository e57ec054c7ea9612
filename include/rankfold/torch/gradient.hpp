// SPDX-License-Identifier: Apache-2.0
// Autograd for all collectives. Its kernels take boxed arguments, as Python's calls bring them: so
// one serves every overload, and nothing is unpacked on the way to the kernel that needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/overload.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

inline bool needs_gradient(const at::Tensor& x) {
  return (x.requires_grad() && at::GradMode::is_enabled()) || x._fw_grad(/*level=*/0).defined();
}

/// Where the collective's own arguments begin, behind x and the order token.
inline std::size_t first_argument(const c10::OperatorHandle& op) {
  return op.schema().overload_name() == ordered::name ? 2 : 1;
}

/// What a gradient is made of: the arguments of the call, and the collectives.
template <class Library>
class backward_call {
 public:
  /// Of a call of `op`.
  backward_call(const char* op, ::torch::autograd::AutogradContext& context)
      : op_(op),
        overload_(context.saved_data["overload"].toStringRef()),
        order_(context.saved_data["order"]),
        arguments_(context.saved_data["arguments"].toListRef().vec()) {}

  /// The i-th of the collective's own.
  const c10::IValue& argument(std::size_t i) const { return arguments_[i]; }

  /// The collective `op`, of the overload, order, group and tag of the call.
  template <class... Arguments>
  at::Tensor call(const char* op, const at::Tensor& x, Arguments&&... arguments) const {
    torch::jit::Stack stack{x};
    if (!order_.isNone()) stack.push_back(order_);
    (stack.emplace_back(std::forward<Arguments>(arguments)), ...);
    stack.insert(stack.end(), arguments_.end() - 2, arguments_.end());
    find_op(Library::name, op, overload_.c_str()).callBoxed(stack);
    return std::move(stack.front()).toTensor();
  }

  place here() const {
    return groups<Library>::get(op_, (arguments_.end() - 2)->toStringRef()).here(op_);
  }

  /// Zeros that depend on `g`, so that second derivatives call the same collectives on every rank.
  at::Tensor none_of(const at::Tensor& g) const {
    return g.masked_fill(at::scalar_tensor(true, g.options().dtype(at::kBool)), 0);
  }

 private:
  const char* op_;
  std::string overload_;
  c10::IValue order_;  // or none
  std::vector<c10::IValue> arguments_;
};

/// Keeps what backward_call needs of a call of `op`: the order token, or none, and the arguments
/// from the one at `first` on.
inline void save_call(::torch::autograd::AutogradContext& context, const c10::OperatorHandle& op,
                      c10::IValue order, const torch::jit::Stack& arguments, std::size_t first) {
  auto& saved = context.saved_data;
  saved["overload"] = op.schema().overload_name();
  saved["order"] = std::move(order);
  c10::List<c10::IValue> own(c10::AnyType::get());
  for (std::size_t i = first; i < arguments.size(); ++i) own.push_back(arguments[i]);
  saved["arguments"] = std::move(own);
}

template <class Library, class Op>
struct differentiable : ::torch::autograd::Function<differentiable<Library, Op>> {
  static constexpr bool is_traceable = true;  // by compiled autograd: it consists of ops

  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor&,
                            const c10::OperatorHandle& op, torch::jit::Stack& arguments) {
    const std::size_t first = first_argument(op);
    save_call(*context, op, first == 2 ? arguments[1] : c10::IValue(), arguments, first);
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(arguments);
    return std::move(arguments.front()).toTensor();
  }

  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    return {Op::gradient(backward_call<Library>(Op::name, *context), gradients[0]), at::Tensor(),
            at::Tensor()};
  }
};

/// For messages, from the arguments of a call: all end in group and tag.
template <class Library>
std::string where_of(const char* op, const torch::jit::Stack& stack) {
  return groups<Library>::where(op, stack[stack.size() - 2].toStringRef());
}

/// Checks that the operator `op` has a gradient; `name` is the tensor that asks for it.
template <class Where>
void check_gradient_operator(const c10::IValue& op, const char* name, Where&& where) {
  const reduction r = parse_reduction(op.toStringRef(), where);
  TORCH_CHECK(r == reduction::sum || r == reduction::avg, where(), ": ", name,
              " requires grad, which op ", name_of(r),
              " does not support, expected sum or avg; call it on ", name,
              ".detach(), or under torch.no_grad()");
}

/// The Autograd kernel of what returns a new tensor.
template <class Library, class Op>
void call_with_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  if (!needs_gradient(begin->toTensor())) {
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    return;
  }
  torch::jit::Stack arguments(begin, stack->end());
  stack->erase(begin, stack->end());
  if constexpr (Op::reduces) {
    check_gradient_operator(arguments[first_argument(op)], "x",
                            [&] { return where_of<Library>(Op::name, arguments); });
  }
  const at::Tensor x = arguments.front().toTensor();
  stack->emplace_back(differentiable<Library, Op>::apply(x, op, arguments));
}

/// The ADInplaceOrView kernel of what writes: autograd notices when it has saved that. It runs in
/// inference mode, too, where there is no autograd.
inline void write_and_tell(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  auto value = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  for (const c10::Argument& argument : arguments) {
    // First, since it refuses what must not be written here: a tensor of inference mode.
    if (is_written(argument)) value->toTensor().unsafeGetTensorImpl()->bump_version();
    ++value;
  }
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

/// The Autograd kernel of the same.
template <class Library, class Op>
void write_without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  for (std::size_t i = 0; i < (Op::keeps_shape ? 1 : 2); ++i) {
    TORCH_CHECK(!needs_gradient(begin[static_cast<std::ptrdiff_t>(i)].toTensor()),
                where_of<Library>(Op::writing_name, *stack), ": ", arguments[i].name(),
                " requires grad, which is not supported in place, expected ", Op::name, "(x, …), ",
                arguments[i].name(), ".detach() or torch.no_grad()");
  }
  write_and_tell(op, keys, stack);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
