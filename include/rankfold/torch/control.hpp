// SPDX-License-Identifier: Apache-2.0
// The ops that are no collectives: init, order, finalize, abort, rank, size.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/loaded_once.hpp"
#include "rankfold/torch/order_token.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class Library>
struct control_ops {
  static void define(::torch::Library& m) {
    // The results of init and order are never None. Were they declared as Tensor, a tracer would
    // take the ops for constructors of tensors and call them with a device; so it comes to
    // `refuse_to_trace`.
    define(
        m,
        R"(init(str group="", int rank=-1, int size=-1, str key="", float timeout=0) -> Tensor?)",
        "init", TORCH_FN(init));
    define(m, "order() -> Tensor?", "order", TORCH_FN(order));
    define(m, R"(finalize(str group="") -> ())", "finalize", TORCH_FN(finalize));
    define(m, R"(abort(str reason="abort() was called", str group="") -> ())", "abort",
           TORCH_FN(abort));
    define(m, R"(rank(str group="") -> int)", "rank", TORCH_FN(rank));
    define(m, R"(size(str group="") -> int)", "size", TORCH_FN(size));
  }

 private:
  template <class Function>
  static void define(::torch::Library& m, const char* schema, const char* name, Function function) {
    m.def(schema);
    m.impl(name, ::torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
    m.impl(name,
           ::torch::dispatch(c10::DispatchKey::Meta,
                             ::torch::CppFunction::makeFromBoxedFunction<&refuse_to_trace>()));
  }

  /// torch.compile breaks the graph here, and calls the op between the two parts.
  static void refuse_to_trace(const c10::OperatorHandle& op, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                                ": cannot be traced; call it outside of the compiled function");
  }

  static std::optional<at::Tensor> init(text_argument group_name, std::int64_t rank,
                                        std::int64_t size, text_argument key, double timeout) {
    check_loaded_once<Library>();
    group& self = groups<Library>::get_or_add(text(group_name));
    self.join(
        parse_join_options(rank, size, text(key), timeout, [&] { return self.where("init"); }));
    return token();
  }

  static std::optional<at::Tensor> order() { return token(); }

  static void finalize(text_argument group_name) {
    groups<Library>::get("finalize", text(group_name)).leave();
  }
  static void abort(text_argument reason, text_argument group_name) {
    groups<Library>::get("abort", text(group_name)).abort(text(reason));
  }
  static std::int64_t rank(text_argument group_name) {
    return groups<Library>::get("rank", text(group_name)).rank();
  }
  static std::int64_t size(text_argument group_name) {
    return groups<Library>::get("size", text(group_name)).size();
  }

  static const at::Tensor& token() { return order_token::of_this_thread(); }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
