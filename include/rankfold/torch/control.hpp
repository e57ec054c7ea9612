// SPDX-License-Identifier: Apache-2.0
// The ops that are no collectives: init, order, finalize, abort, rank, size.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/loaded_once.hpp"

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

  static std::optional<at::Tensor> init(std::string_view group_name, std::int64_t rank,
                                        std::int64_t size, std::string_view key, double timeout) {
    check_loaded_once<Library>();
    group& self = groups<Library>::get_or_add(group_name);
    const auto where = [&] { return self.where("init"); };
    join_options options;
    options.key = key;
    if (rank != -1 || size != -1) {
      constexpr std::int64_t most = (std::numeric_limits<int>::max)();
      TORCH_CHECK(size >= 1 && size <= most, where(), ": rank is ", rank, " and size is ", size,
                  ", expected size 1 or more (or neither of them, for what the launcher's "
                  "environment says)");
      TORCH_CHECK(rank >= 0 && rank < size, where(), ": rank is ", rank, " and size is ", size,
                  ", expected rank 0 to ", size - 1);
      TORCH_CHECK(size == 1 || !key.empty(), where(),
                  ": rank and size are given and key is not, expected a ",
                  "text that is the same on all ranks of this group and on no others");
      options.rank = static_cast<int>(rank);
      options.size = static_cast<int>(size);
    } else {
      TORCH_CHECK(key.empty(), where(),
                  ": key is given, and rank and size are not, expected all three or none");
    }
    if (timeout != 0) {
      TORCH_CHECK(std::isfinite(timeout) && timeout >= 0.001 && timeout <= 1e9, where(),
                  ": timeout is ", timeout,
                  ", expected seconds from 0.001 to 1000000000, or 0 for the default");
      options.timeout =
          std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(timeout * 1000)));
    }
    self.join(options);
    return token();
  }

  static std::optional<at::Tensor> order() { return token(); }

  static void finalize(std::string_view group_name) {
    groups<Library>::get("finalize", group_name).leave();
  }
  static void abort(std::string_view reason, std::string_view group_name) {
    groups<Library>::get("abort", group_name).abort(reason);
  }
  static std::int64_t rank(std::string_view group_name) {
    return groups<Library>::get("rank", group_name).rank();
  }
  static std::int64_t size(std::string_view group_name) {
    return groups<Library>::get("size", group_name).size();
  }

  /// One for all groups: collectives block, so that their order matters across groups, too.
  static const at::Tensor& token() {
    static const at::Tensor* const made = [] {
      const c10::InferenceMode off(false);  // else it could not be used outside of inference mode
      auto* tensor = new at::Tensor(at::detail::empty_cpu({1}, c10::ScalarType::Long));
      *tensor->mutable_data_ptr<std::int64_t>() = 0;
      return tensor;
    }();
    return *made;
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
