// SPDX-License-Identifier: Apache-2.0
// The ops of all_reduce: schemas and kernels.
//
//   all_reduce(x, order, …) -> Tensor        a new tensor; differentiable for sum and avg
//   all_reduce_(x, order, …) -> x            in place: a composite of the next one
//   _all_reduce_(x, order, …) -> ()          what graphs hold
//
// The composite is what lets Inductor write in place without a copy: an op that returns its own
// argument does not compile, and with at::Tag::inplace it computes wrong results (torch 2.13).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/tensor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// The kernels of one overload; `Order` is its argument for the order token, if it has one.
template <class Library, class Overload, class... Order>
struct all_reduce_ops {
  using functional_signature = at::Tensor(const at::Tensor&, Order..., std::string_view,
                                          std::string_view, std::int64_t);
  using nothing = typename Overload::nothing;
  using core_signature = nothing(at::Tensor&, Order..., std::string_view, std::string_view,
                                 std::int64_t);

  static void define(::torch::Library& m) {
    const std::string rest =
        Overload::order_argument('b') + R"(str op="sum", str group="", int tag=0) -> )";
    define_op<Overload>(m, "all_reduce", "(Tensor x, " + rest + "Tensor");
    define_op<Overload>(m, "_all_reduce_", "(Tensor(a!) x, " + rest + Overload::nothing_schema);
    define_op<Overload>(m, "all_reduce_", "(Tensor(a!) x, " + rest + "Tensor(a!)");

    const std::string functional = overload_name<Overload>("all_reduce");
    const std::string core = overload_name<Overload>("_all_reduce_");
    m.impl(functional.c_str(), ::torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(functional_cpu)));
    m.impl(core.c_str(), ::torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(core_cpu)));
    m.impl(functional.c_str(),
           ::torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(functional_meta)));
    m.impl(core.c_str(), ::torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(core_meta)));
    m.impl(functional.c_str(),
           ::torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(functional_autograd)));
    m.impl(core.c_str(), ::torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(core_autograd)));
    refuse_others(m, functional);
    refuse_others(m, core);
    m.impl(overload_name<Overload>("all_reduce_").c_str(),
           ::torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(composite)));
  }

 private:
  static constexpr std::string_view functional_name = "all_reduce";
  static constexpr std::string_view in_place_name = "all_reduce_";

  static auto& functional_op() {
    static auto op = find_op<functional_signature>(Library::name, "all_reduce", Overload::name);
    return op;
  }
  static auto& core_op() {
    static auto op = find_op<core_signature>(Library::name, "_all_reduce_", Overload::name);
    return op;
  }

  /// A call whose arguments are right: what both forms do, but for where values come from and go
  /// to.
  struct call {
    call(std::string_view op_name, const at::Tensor& x, bool writes_x,
         std::string_view reduction_name, std::string_view group_name, std::int64_t tag,
         Order... order)
        : name(op_name), self(groups<Library>::get(op_name, group_name)) {
      const auto where = [&] { return self.where(name); };
      check_dense(x, where);
      if (writes_x) check_writable(x, where);
      op = parse_reduction(reduction_name, where);
      type = check_elements(x, op, where);
      options.tag = check_tag(tag, where);
      count = static_cast<std::size_t>(x.numel());
      (step_order(order, where), ...);
    }

    void operator()(const void* in, void* out) const {
      self.run(name,
               [&](communicator_type& c) { c.all_reduce(in, out, count, type, op, options); });
    }

    std::string_view name;
    group& self;
    reduction op;
    dtype type;
    std::size_t count;
    call_options options;
  };

  static at::Tensor functional_cpu(const at::Tensor& x, Order... order, std::string_view op,
                                   std::string_view group_name, std::int64_t tag) {
    return out_of_place(x, call(functional_name, x, false, op, group_name, tag, order...));
  }

  static nothing core_cpu(at::Tensor& x, Order... order, std::string_view op,
                          std::string_view group_name, std::int64_t tag) {
    in_place(x, call(in_place_name, x, true, op, group_name, tag, order...));
    return nothing();
  }

  static at::Tensor functional_meta(const at::Tensor& x, Order..., std::string_view op,
                                    std::string_view group_name, std::int64_t) {
    check_meta(functional_name, x, op, group_name);
    return at::empty_symint(x.sym_sizes(), x.options());
  }

  static nothing core_meta(at::Tensor& x, Order..., std::string_view op,
                           std::string_view group_name, std::int64_t) {
    check_meta(in_place_name, x, op, group_name);
    return nothing();
  }

  static void check_meta(std::string_view name, const at::Tensor& x, std::string_view op,
                         std::string_view group_name) {
    Overload::check_traceable(Library::name, name);
    const auto where = [&] { return groups<Library>::where(name, group_name); };
    check_elements(x, parse_reduction(op, where), where);
  }

  static at::Tensor& composite(at::Tensor& x, Order... order, std::string_view op,
                               std::string_view group_name, std::int64_t tag) {
    core_op().call(x, order..., op, group_name, tag);
    return x;
  }

  // --- autograd ---

  /// y_r = Σ_s x_s on every rank r, and the loss is Σ_r L_r, so dx = Σ_r dy_r: the same collective.
  /// The same holds for avg.
  struct all_reduce_function : ::torch::autograd::Function<all_reduce_function> {
    static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x,
                              Order... order, std::string_view op, std::string_view group_name,
                              std::int64_t tag) {
      auto& saved = context->saved_data;
      (saved.insert_or_assign("order", order), ...);
      saved["op"] = std::string(op);
      saved["group"] = std::string(group_name);
      saved["tag"] = tag;
      const at::AutoDispatchBelowADInplaceOrView below;
      return functional_op().call(x, order..., op, group_name, tag);
    }

    static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                     ::torch::autograd::variable_list gradients) {
      auto& saved = context->saved_data;
      const auto call = [&](auto&... order) {
        return functional_op().call(gradients[0], order..., saved["op"].toStringView(),
                                    saved["group"].toStringView(), saved["tag"].toInt());
      };
      ::torch::autograd::variable_list of_arguments(4 + sizeof...(Order));
      if constexpr (sizeof...(Order) == 0) {
        of_arguments[0] = call();
      } else {
        at::Tensor order = saved["order"].toTensor();
        of_arguments[0] = call(order);
      }
      return of_arguments;
    }
  };

  static bool needs_gradient(const at::Tensor& x) {
    return (x.requires_grad() && at::GradMode::is_enabled()) || x._fw_grad(/*level=*/0).defined();
  }

  static at::Tensor functional_autograd(c10::DispatchKeySet keys, const at::Tensor& x,
                                        Order... order, std::string_view op,
                                        std::string_view group_name, std::int64_t tag) {
    if (!needs_gradient(x)) {
      return functional_op().redispatch(keys & c10::after_autograd_keyset, x, order..., op,
                                        group_name, tag);
    }
    const auto where = [&] { return groups<Library>::where(functional_name, group_name); };
    const reduction r = parse_reduction(op, where);
    TORCH_CHECK(
        r == reduction::sum || r == reduction::avg, where(), ": x requires grad, which op ",
        name_of(r),
        " does not support, expected sum or avg; call it on x.detach(), or under torch.no_grad()");
    return all_reduce_function::apply(x, order..., op, group_name, tag);
  }

  static nothing core_autograd(c10::DispatchKeySet keys, at::Tensor& x, Order... order,
                               std::string_view op, std::string_view group_name, std::int64_t tag) {
    TORCH_CHECK(!needs_gradient(x), groups<Library>::where(in_place_name, group_name),
                ": x requires grad, which is not supported in place, expected all_reduce(x, …), ",
                "x.detach() or torch.no_grad()");
    core_op().redispatch(keys & c10::after_autograd_keyset, x, order..., op, group_name, tag);
    // So that autograd notices when a tensor that it has saved has changed.
    x.unsafeGetTensorImpl()->bump_version();
    return nothing();
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
