// SPDX-License-Identifier: Apache-2.0
// all_reduce and what follows it in a transformer, as ops:
//
//   all_reduce_add(x, residual, order, …) -> Tensor
//       residual + all_reduce(x), a new tensor
//   all_reduce_add_(x, residual, order, …) -> residual
//       residual += all_reduce(x)
//   all_reduce_add_rms_norm(x, residual, weight, eps, order, …) -> (Tensor, Tensor)
//       the sum's rows normalised, and the sum: new tensors
//   all_reduce_add_rms_norm_(x, residual, weight, eps, order, …) -> (x, residual)
//       residual += all_reduce(x), and x becomes the normalised rows
//
// As with the collectives, what graphs hold are the same names with a _ in front, which return
// nothing; see torch/collective.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/epilogues.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/composite.hpp"
#include "rankfold/torch/gradient.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/tensor.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// The name of the first tensor of a call that needs a gradient; null if there is none.
inline const char* tensor_with_gradient(const c10::OperatorHandle& op,
                                        torch::jit::Stack::const_iterator begin) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    const c10::IValue& value = *begin++;
    if (value.isTensor() && argument.name() != "order" && needs_gradient(value.toTensor())) {
      return argument.name().c_str();
    }
  }
  return nullptr;
}

/// The Autograd kernel of what has no gradient: refuses tensors that need one, and says what to do
/// instead.
template <class Library, class Op, bool Writes>
void call_without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  if (const char* const name = tensor_with_gradient(op, begin)) {
    TORCH_CHECK(false, where_of<Library>(Writes ? Op::writing_name : Op::name, *stack), ": ", name,
                " requires grad, which is not supported here, expected ", Op::instead, ", ", name,
                ".detach() or torch.no_grad()");
  }
  if constexpr (Writes) {
    write_and_tell(op, keys, stack);
  } else {
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
}

/// The parts that the calls of all forms have: group, operator, tag, and the checks.
template <class Library>
class epilogue_call {
 public:
  epilogue_call(const char* name, const at::Tensor& x, const at::Tensor& residual, text_argument op,
                text_argument group_name)
      : name_(name), self_(groups<Library>::get(name, text(group_name))), count_(x.numel()) {
    self_.here(name);
    check_dense(x, "x", where());
    check_same("residual", residual, x.sizes(), x);
    type_ = element_type(x, "x", where());
    op_ = parse_reduction(text(op), where());
    check_operator(op_, type_, where());
    check_operator(reduction::sum, type_, where());  // what adds the residual
  }

  auto where() const {
    return [this] { return self_.where(name_); };
  }

  /// Checks that a tensor is dense, of that shape and of the dtype of x.
  void check_same(const char* what, const at::Tensor& tensor, at::IntArrayRef shape,
                  const at::Tensor& x) const {
    check_dense(tensor, what, where());
    TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), where()(), ": ", what, " has dtype ",
                tensor.scalar_type(), ", expected ", x.scalar_type(), ", that of x");
    TORCH_CHECK(tensor.sizes() == shape, where()(), ": ", what, " has sizes ", tensor.sizes(),
                ", expected ", shape);
  }

  /// The last of the checks; see checked_call.
  template <class... Order>
  void begin(std::int64_t tag, Order&... order) {
    options_.tag = check_tag(tag, where());
    (step_order(order, where()), ...);
  }

  /// Through the epilogue that `make()` returns, or refuses to.
  template <class Make>
  void operator()(const void* in, Make&& make) const {
    self_.run(name_, [&](communicator_type& c) {
      c.all_reduce(in, count(), type_, op_, make(), options_);
    });
  }

  std::size_t count() const { return static_cast<std::size_t>(count_); }
  dtype type() const { return type_; }

 private:
  const char* name_;
  group& self_;
  std::int64_t count_;
  dtype type_{};
  reduction op_{};
  call_options options_;
};

/// What can be said of a call before there are values.
template <class Library, class Overload, class... Tensor>
void check_traced_epilogue(const char* name, text_argument op, text_argument group_name,
                           const at::Tensor& x, const Tensor&... others) {
  const auto where = [&] { return groups<Library>::where(name, text(group_name)); };
  Overload::check_traceable(Library::name, name);
  check_traced_tensor(x, "x", where);
  (check_traced_tensor(others, "an argument", where), ...);
  const dtype type = element_type(x, "x", where);
  check_operator(parse_reduction(text(op), where), type, where);
  check_operator(reduction::sum, type, where);
}

template <class Library, class Op>
struct differentiable_add : ::torch::autograd::Function<differentiable_add<Library, Op>> {
  static constexpr bool is_traceable = true;  // by compiled autograd: it consists of ops

  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor&,
                            const at::Tensor&, const c10::OperatorHandle& op,
                            torch::jit::Stack& arguments) {
    const std::size_t first = first_argument(op) + 1;  // behind the residual
    save_call(*context, op, first == 3 ? arguments[2] : c10::IValue(), arguments, first);
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(arguments);
    return std::move(arguments.front()).toTensor();
  }

  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    const backward_call<Library> call(Op::name, *context);
    return {call.call("all_reduce", gradients[0], call.argument(0)), gradients[0], at::Tensor(),
            at::Tensor()};
  }
};

/// The Autograd kernel of all_reduce_add: that of x is all_reduced, as with all_reduce; that of the
/// residual is the result's.
template <class Library, class Op>
void call_add_with_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const char* const name = tensor_with_gradient(op, begin);
  if (name == nullptr) {
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    return;
  }
  torch::jit::Stack arguments(begin, stack->end());
  stack->erase(begin, stack->end());
  check_gradient_operator(arguments[first_argument(op) + 1], name,
                          [&] { return where_of<Library>(Op::name, arguments); });
  const at::Tensor x = arguments[0].toTensor();
  const at::Tensor residual = arguments[1].toTensor();
  stack->emplace_back(differentiable_add<Library, Op>::apply(x, residual, op, arguments));
}

/// The kernels of the three forms of `Op`, of which the functional one has `gradient`.
template <class Library, class Overload, class Op>
void implement_epilogue(::torch::Library& m, ::torch::CppFunction&& gradient) {
  using c10::DispatchKey;
  using ::torch::CppFunction;
  const std::string name = overload_name<Overload>(Op::name);
  const std::string core = overload_name<Overload>(Op::core_name);
  m.impl(name.c_str(), ::torch::dispatch(DispatchKey::CPU, TORCH_FN(Op::cpu)));
  m.impl(name.c_str(), ::torch::dispatch(DispatchKey::Meta, TORCH_FN(Op::meta)));
  m.impl(name.c_str(), ::torch::dispatch(DispatchKey::Autograd, std::move(gradient)));
  m.impl(core.c_str(), ::torch::dispatch(DispatchKey::CPU, TORCH_FN(Op::writing_cpu)));
  m.impl(core.c_str(), ::torch::dispatch(DispatchKey::Meta, TORCH_FN(Op::writing_meta)));
  m.impl(core.c_str(),
         ::torch::dispatch(DispatchKey::Autograd,
                           CppFunction::makeFromBoxedFunction<
                               &call_without_gradient<Library, Op, /*Writes=*/true>>()));
  m.impl(core.c_str(), ::torch::dispatch(DispatchKey::ADInplaceOrView,
                                         CppFunction::makeFromBoxedFunction<&write_and_tell>()));
  m.impl(overload_name<Overload>(Op::writing_name).c_str(),
         ::torch::dispatch(DispatchKey::CompositeImplicitAutograd,
                           CppFunction::makeFromBoxedFunctor(std::make_unique<writing_composite>(
                               find_op(Library::name, Op::core_name, Overload::name)))));
  refuse_others<Library>(m, name);
  refuse_others<Library>(m, core);
}

template <class Library, class Overload, class Order = typename Overload::order>
struct all_reduce_add_ops;

template <class Library, class Overload, class... Order>
struct all_reduce_add_ops<Library, Overload, types<Order...>> {
  static constexpr const char* name = "all_reduce_add";
  static constexpr const char* writing_name = "all_reduce_add_";
  static constexpr const char* core_name = "_all_reduce_add_";
  static constexpr const char* instead = "all_reduce_add(x, residual, …)";
  using nothing = typename Overload::nothing;

  static void define(::torch::Library& m) {
    const std::string rest =
        Overload::order_argument('b') + R"(str op="sum", str group="", int tag=0) -> )";
    const std::string written = "(Tensor x, Tensor(a!) residual, " + rest;
    define_op<Overload>(m, name, "(Tensor x, Tensor residual, " + rest + "Tensor");
    define_op<Overload>(m, core_name, written + Overload::nothing_schema);
    define_op<Overload>(m, writing_name, written + "Tensor(a!)");
    implement_epilogue<Library, Overload, all_reduce_add_ops>(
        m, ::torch::CppFunction::makeFromBoxedFunction<
               &call_add_with_gradient<Library, all_reduce_add_ops>>());
  }

  static at::Tensor cpu(const at::Tensor& x, const at::Tensor& residual, Order... order,
                        text_argument op, text_argument group_name, std::int64_t tag) {
    epilogue_call<Library> call(name, x, residual, op, group_name);
    call.begin(tag, order...);
    at::Tensor out = at::detail::empty_cpu(x.sizes(), x.scalar_type());
    const contiguous_values in(x);
    const contiguous_values added(residual);
    call(in.data(), [&] {
      return epilogues::add::of(added.data(), out.mutable_data_ptr(), call.count(), call.type());
    });
    return out;
  }

  static nothing writing_cpu(const at::Tensor& x, at::Tensor& residual, Order... order,
                             text_argument op, text_argument group_name, std::int64_t tag) {
    epilogue_call<Library> call(writing_name, x, residual, op, group_name);
    check_writable(residual, "residual", call.where());
    call.begin(tag, order...);
    const contiguous_values in(x);
    const written_values sum(residual);
    call(in.data(),
         [&] { return epilogues::add::of(sum.data(), sum.data(), call.count(), call.type()); });
    sum.store();
    return nothing();
  }

  static at::Tensor meta(const at::Tensor& x, const at::Tensor& residual, Order... order,
                         text_argument op, text_argument group_name, std::int64_t) {
    check_traced_epilogue<Library, Overload>(name, op, group_name, x, residual, order...);
    return at::empty_symint(x.sym_sizes(), x.options());
  }

  static nothing writing_meta(const at::Tensor& x, at::Tensor& residual, Order... order,
                              text_argument op, text_argument group_name, std::int64_t) {
    check_traced_epilogue<Library, Overload>(writing_name, op, group_name, x, residual, order...);
    return nothing();
  }
};

template <class Library, class Overload, class Order = typename Overload::order>
struct all_reduce_add_rms_norm_ops;

template <class Library, class Overload, class... Order>
struct all_reduce_add_rms_norm_ops<Library, Overload, types<Order...>> {
  static constexpr const char* name = "all_reduce_add_rms_norm";
  static constexpr const char* writing_name = "all_reduce_add_rms_norm_";
  static constexpr const char* core_name = "_all_reduce_add_rms_norm_";
  static constexpr const char* instead = "all_reduce_add and a norm of torch's";
  using nothing = typename Overload::nothing;

  static void define(::torch::Library& m) {
    const std::string rest = "Tensor weight, float eps, " + Overload::order_argument('c') +
                             R"(str op="sum", str group="", int tag=0) -> )";
    const std::string written = "(Tensor(a!) x, Tensor(b!) residual, " + rest;
    define_op<Overload>(m, name, "(Tensor x, Tensor residual, " + rest + "(Tensor, Tensor)");
    define_op<Overload>(m, core_name, written + Overload::nothing_schema);
    define_op<Overload>(m, writing_name, written + "(Tensor(a!), Tensor(b!))");
    implement_epilogue<Library, Overload, all_reduce_add_rms_norm_ops>(
        m, ::torch::CppFunction::makeFromBoxedFunction<
               &call_without_gradient<Library, all_reduce_add_rms_norm_ops, /*Writes=*/false>>());
  }

  static std::tuple<at::Tensor, at::Tensor> cpu(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps,
                                                Order... order, text_argument op,
                                                text_argument group_name, std::int64_t tag) {
    epilogue_call<Library> call(name, x, residual, op, group_name);
    check_weight(call, weight, x);
    call.begin(tag, order...);
    at::Tensor out = at::detail::empty_cpu(x.sizes(), x.scalar_type());
    at::Tensor sum = at::detail::empty_cpu(x.sizes(), x.scalar_type());
    run(call, contiguous_values(x).data(), contiguous_values(residual).data(),
        sum.mutable_data_ptr(), weight, eps, out.mutable_data_ptr());
    return {std::move(out), std::move(sum)};
  }

  static nothing writing_cpu(at::Tensor& x, at::Tensor& residual, const at::Tensor& weight,
                             double eps, Order... order, text_argument op, text_argument group_name,
                             std::int64_t tag) {
    epilogue_call<Library> call(writing_name, x, residual, op, group_name);
    check_weight(call, weight, x);
    check_writable(x, "x", call.where());
    check_writable(residual, "residual", call.where());
    call.begin(tag, order...);
    const written_values in(x);
    const written_values sum(residual);
    run(call, in.data(), sum.data(), sum.data(), weight, eps, in.data());
    in.store();
    sum.store();
    return nothing();
  }

  static std::tuple<at::Tensor, at::Tensor> meta(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, double, Order... order,
                                                 text_argument op, text_argument group_name,
                                                 std::int64_t) {
    check_traced(name, op, group_name, x, residual, weight, order...);
    return {at::empty_symint(x.sym_sizes(), x.options()),
            at::empty_symint(x.sym_sizes(), x.options())};
  }

  static nothing writing_meta(at::Tensor& x, at::Tensor& residual, const at::Tensor& weight, double,
                              Order... order, text_argument op, text_argument group_name,
                              std::int64_t) {
    check_traced(writing_name, op, group_name, x, residual, weight, order...);
    return nothing();
  }

 private:
  template <class Where>
  static void check_type(const at::Tensor& x, Where&& where) {
    const c10::ScalarType type = x.scalar_type();
    TORCH_CHECK(type == c10::ScalarType::Float || type == c10::ScalarType::BFloat16 ||
                    type == c10::ScalarType::Half,
                where(), ": x has dtype ", type, ", expected float32, bfloat16 or float16");
    TORCH_CHECK(x.dim() > 0, where(), ": x has no dimensions, expected rows to normalise");
  }

  static void check_weight(const epilogue_call<Library>& call, const at::Tensor& weight,
                           const at::Tensor& x) {
    check_type(x, call.where());
    TORCH_CHECK(x.sizes().back() > 0, call.where()(), ": x has sizes ", x.sizes(),
                ", expected rows of one element or more");
    call.check_same("weight", weight, x.sizes().slice(x.sizes().size() - 1), x);
  }

  static void check_traced(const char* form, text_argument op, text_argument group_name,
                           const at::Tensor& x, const at::Tensor& residual,
                           const at::Tensor& weight, const Order&... order) {
    check_traced_epilogue<Library, Overload>(form, op, group_name, x, residual, weight, order...);
    check_type(x, [&] { return groups<Library>::where(form, text(group_name)); });
  }

  static void run(const epilogue_call<Library>& call, const void* in, const void* residual,
                  void* sum, const at::Tensor& weight, double eps, void* out) {
    const contiguous_values weights(weight);
    call(in, [&] {
      return epilogues::add_rms_norm::of(residual, sum, weights.data(),
                                         static_cast<std::size_t>(weight.numel()),
                                         static_cast<float>(eps), out, call.count(), call.type());
    });
  }
};

template <class Library, class Overload>
void define_epilogues(::torch::Library& m) {
  all_reduce_add_ops<Library, Overload>::define(m);
  all_reduce_add_rms_norm_ops<Library, Overload>::define(m);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
