// SPDX-License-Identifier: Apache-2.0
// The ops that are in no graph: init, order, finalize, abort, rank, size, empty_symmetric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/symmetric_buffer.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/loaded_once.hpp"
#include "rankfold/torch/order_token.hpp"
#include "rankfold/torch/tensor.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class Library>
struct control_ops {
  static void define(::torch::Library& m) {
    // The results of init, order and empty_symmetric are never None. Were they declared as Tensor,
    // a tracer would take the ops for constructors of tensors and call them with a device; so it
    // comes to `refuse_to_trace`.
    define(
        m,
        R"(init(str group="", int rank=-1, int size=-1, str key="", float timeout=0) -> Tensor?)",
        "init", TORCH_FN(init));
    define(m, "order() -> Tensor?", "order", TORCH_FN(order));
    define(m, R"(finalize(str group="") -> ())", "finalize", TORCH_FN(finalize));
    define(m, R"(abort(str reason="abort() was called", str group="") -> ())", "abort",
           TORCH_FN(abort));
    define(m, R"(empty_symmetric(int[] size, ScalarType? dtype=None, str group="") -> Tensor?)",
           "empty_symmetric", TORCH_FN(empty_symmetric));
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

  /// A tensor in memory that all ranks of the group address; it keeps that memory, whatever becomes
  /// of the group. Its storage cannot be resized: it would become ordinary memory.
  static std::optional<at::Tensor> empty_symmetric(at::IntArrayRef size,
                                                   std::optional<c10::ScalarType> type,
                                                   text_argument group_name) {
    group& self = groups<Library>::get("empty_symmetric", text(group_name));
    const auto where = [&] { return self.where("empty_symmetric"); };
    const c10::ScalarType scalar = type.value_or(c10::get_default_dtype_as_scalartype());
    const std::optional<dtype> element = dtype_of(scalar);
    if (!element) refuse_dtype("the tensor", scalar, where);
    at::detail::check_size_nonnegative(size);
    const std::size_t bytes = at::detail::computeStorageNbytesContiguous(size, size_of(*element));
    using buffer = symmetric_buffer<std::byte>;
    auto memory = std::make_unique<buffer>();
    self.run("empty_symmetric", [&](communicator_type& c) {
      *memory = c.allocate(bytes / size_of(*element), *element);
    });
    void* const data = memory->data();
    c10::DataPtr owner(
        data, memory.release(), [](void* kept) { delete static_cast<buffer*>(kept); },
        c10::DeviceType::CPU);
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(owner), nullptr, false),
        c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(scalar));
    made.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    return made;
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
