// SPDX-License-Identifier: Apache-2.0
// The ops of one collective and one overload, made of its description (torch/op.hpp):
//
//   name(x, order, …) -> Tensor               a new tensor
//   writing_name(x, order, …) -> x            in place, or (out, x, order, …) -> out
//   _writing_name(the same) -> ()             what graphs hold; the one above is a composite of it
//
// The composite is what lets Inductor write in place without a copy: an op that returns its own
// argument does not compile, and with at::Tag::inplace it computes wrong results (torch 2.13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymInt.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/composite.hpp"
#include "rankfold/torch/gradient.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/rows.hpp"
#include "rankfold/torch/tensor.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// What a parameter of a description is in a kernel for tensors, and in one for tracers.
template <class T>
struct parameter {
  using concrete = T;
  using symbolic = T;
};
template <>
struct parameter<std::string_view> {
  using concrete = text_argument;
  using symbolic = text_argument;
};
template <>
struct parameter<rows_argument> {
  using concrete = at::OptionalIntArrayRef;
  using symbolic = at::OptionalSymIntArrayRef;
};

template <class T>
T described(T value) {
  return value;
}
#if RANKFOLD_TORCH_HAS_OWN_STRING_VIEW
constexpr std::string_view described(text_argument value) { return text(value); }
#endif
template <class Int>
std::optional<row_list<Int>> described(const c10::OptionalArrayRef<Int>& list) {
  if (!list) return std::nullopt;
  return row_list<Int>(list->data(), list->size());
}

/// `shape` with `rows` as its first dimension; one of no dimensions gets it.
template <class Int>
c10::SmallVector<Int, 5> with_rows(c10::ArrayRef<Int> shape, Int rows) {
  c10::SmallVector<Int, 5> result(shape.begin(), shape.end());
  if (result.empty()) result.resize(1);
  result.front() = std::move(rows);
  return result;
}

template <class Op, class Library, class Overload, class Order = typename Overload::order,
          class Arguments = typename Op::arguments>
struct collective_ops;

template <class Op, class Library, class Overload, class... Order, class... Arguments>
struct collective_ops<Op, Library, Overload, types<Order...>, types<Arguments...>> {
  static void define(::torch::Library& m) {
    define_forms<Op>(Overload::order_argument('b'), Overload::nothing_schema,
                     [&](std::string_view op, const std::string& signature) {
                       define_op<Overload>(m, op, signature);
                     });

    const std::string core = core_name<Op>();
    const auto implement = [&](const std::string& op, c10::DispatchKey key, auto&& kernel) {
      m.impl(overload_name<Overload>(op).c_str(),
             ::torch::dispatch(key, std::forward<decltype(kernel)>(kernel)));
    };
    using c10::DispatchKey;
    using ::torch::CppFunction;
    implement(Op::name, DispatchKey::CPU, TORCH_FN(functional_cpu));
    implement(Op::name, DispatchKey::Meta, TORCH_FN(functional_meta));
    implement(Op::name, DispatchKey::Autograd,
              CppFunction::makeFromBoxedFunction<&call_with_gradient<Library, Op>>());
    if constexpr (Op::keeps_shape) {
      implement(core, DispatchKey::CPU, TORCH_FN(in_place_cpu));
      implement(core, DispatchKey::Meta, TORCH_FN(in_place_meta));
    } else {
      implement(core, DispatchKey::CPU, TORCH_FN(into_cpu));
      implement(core, DispatchKey::Meta, TORCH_FN(into_meta));
    }
    implement(core, DispatchKey::Autograd,
              CppFunction::makeFromBoxedFunction<&write_without_gradient<Library, Op>>());
    implement(core, DispatchKey::ADInplaceOrView,
              CppFunction::makeFromBoxedFunction<&write_and_tell>());
    implement(Op::writing_name, DispatchKey::CompositeImplicitAutograd,
              CppFunction::makeFromBoxedFunctor(std::make_unique<writing_composite>(
                  find_op(Library::name, core.c_str(), Overload::name))));
    refuse_others<Library>(m, overload_name<Overload>(Op::name));
    refuse_others<Library>(m, overload_name<Overload>(core));
  }

 private:
  using nothing = typename Overload::nothing;

  /// A call whose arguments are right: what all forms do, but for where values come from and go to.
  class checked_call {
   public:
    checked_call(const char* name, const at::Tensor& x,
                 typename parameter<Arguments>::concrete... arguments, text_argument group_name)
        : name_(name),
          self_(groups<Library>::get(name, text(group_name))),
          here_(self_.here(name)),
          rows_(rows_of(x, arguments...)),
          call_(input_of(x), here_, where(), described(arguments)...) {}

    /// How messages begin, when it is asked.
    auto where() const {
      return [this] { return self_.where(name_); };
    }

    c10::SmallVector<std::int64_t, 5> shape_of(const at::Tensor& x) const {
      return with_rows(x.sizes(), rows_);
    }

    /// The last of the checks: from here on the call is one of those that the token counts.
    void begin(Order... order, std::int64_t tag) {
      options_.tag = check_tag(tag, where());
      (step_order(order, where()), ...);
    }

    void operator()(const void* in, void* out) const {
      self_.run(name_, [&](communicator_type& c) {
        check_place(c, here_);
        call_(c, in, out, options_);
      });
    }

   private:
    input input_of(const at::Tensor& x) const {
      check_dense(x, "x", where());
      return {span_of(x.sizes()), static_cast<std::size_t>(x.numel()),
              element_type(x, "x", where())};
    }

    std::int64_t rows_of(const at::Tensor& x,
                         const typename parameter<Arguments>::concrete&... arguments) const {
      if constexpr (Op::keeps_shape) {
        return 0;
      } else {
        return Op::template rows<std::int64_t>(span_of(x.sizes()), here_, where(),
                                               described(arguments)...);
      }
    }

    const char* name_;
    group& self_;
    place here_;
    std::int64_t rows_;
    typename Op::call call_;
    call_options options_;
  };

  static at::Tensor functional_cpu(const at::Tensor& x, Order... order,
                                   typename parameter<Arguments>::concrete... arguments,
                                   text_argument group_name, std::int64_t tag) {
    checked_call call(Op::name, x, arguments..., group_name);
    call.begin(order..., tag);
    if constexpr (Op::keeps_shape) {
      return out_of_place(x, call);
    } else {
      return out_of_place(x, call.shape_of(x), call);
    }
  }

  static nothing in_place_cpu(at::Tensor& x, Order... order,
                              typename parameter<Arguments>::concrete... arguments,
                              text_argument group_name, std::int64_t tag) {
    checked_call call(Op::writing_name, x, arguments..., group_name);
    check_writable(x, "x", call.where());
    call.begin(order..., tag);
    in_place(x, call);
    return nothing();
  }

  static nothing into_cpu(at::Tensor& out, const at::Tensor& x, Order... order,
                          typename parameter<Arguments>::concrete... arguments,
                          text_argument group_name, std::int64_t tag) {
    checked_call call(Op::writing_name, x, arguments..., group_name);
    check_out(out, call.shape_of(x), x, call.where());
    call.begin(order..., tag);
    into(out, x, call);
    return nothing();
  }

  static at::Tensor functional_meta(const at::Tensor& x, Order... order,
                                    typename parameter<Arguments>::symbolic... arguments,
                                    text_argument group_name, std::int64_t) {
    const auto where = [&] { return groups<Library>::where(Op::name, text(group_name)); };
    check_traced(Op::name, where, x, order..., arguments...);
    if constexpr (Op::keeps_shape) {
      return at::empty_symint(x.sym_sizes(), x.options());
    } else {
      const place here = groups<Library>::get(Op::name, text(group_name))
                             .here(Op::name,
                                   ", also before it is traced: the shape of the result "
                                   "depends on the size of the group");
      const c10::SymIntArrayRef shape = x.sym_sizes();
      return at::empty_symint(
          with_rows(shape, Op::template rows<c10::SymInt>({shape.data(), shape.size()}, here, where,
                                                          described(arguments)...)),
          x.options());
    }
  }

  static nothing in_place_meta(at::Tensor& x, Order... order,
                               typename parameter<Arguments>::symbolic... arguments,
                               text_argument group_name, std::int64_t) {
    const auto where = [&] { return groups<Library>::where(Op::writing_name, text(group_name)); };
    check_traced(Op::writing_name, where, x, order..., arguments...);
    return nothing();
  }

  static nothing into_meta(at::Tensor& out, const at::Tensor& x, Order... order,
                           typename parameter<Arguments>::symbolic... arguments,
                           text_argument group_name, std::int64_t) {
    const auto where = [&] { return groups<Library>::where(Op::writing_name, text(group_name)); };
    check_traced(Op::writing_name, where, x, order..., arguments...);
    check_traced_tensor(out, "out", where);
    check_out_dtype(out, x, where);
    return nothing();
  }

  /// What can be said of a call before there are values, and shapes that must hold for all.
  template <class Where>
  static void check_traced(const char* name, Where&& where, const at::Tensor& x, Order... order,
                           const typename parameter<Arguments>::symbolic&... arguments) {
    Overload::check_traceable(Library::name, name);
    check_traced_tensor(x, "x", where);
    (check_traced_tensor(order, "order", where), ...);
    const dtype type = element_type(x, "x", where);
    if constexpr (Op::reduces) {
      const auto check = [&](text_argument op, const auto&...) {
        check_operator(parse_reduction(text(op), where), type, where);
      };
      check(arguments...);
    }
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
