// SPDX-License-Identifier: Apache-2.0
// What ops ask of tensors and arguments, and how tensors become buffers of rankfold.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/order_token.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// The element type of a tensor; none where rankfold has no such type.
constexpr std::optional<dtype> dtype_of(c10::ScalarType type) noexcept {
  switch (type) {
    case c10::ScalarType::Float:
      return dtype::float32;
    case c10::ScalarType::Double:
      return dtype::float64;
    case c10::ScalarType::BFloat16:
      return dtype::bfloat16;
    case c10::ScalarType::Half:
      return dtype::float16;
    case c10::ScalarType::Char:
      return dtype::int8;
    case c10::ScalarType::Short:
      return dtype::int16;
    case c10::ScalarType::Int:
      return dtype::int32;
    case c10::ScalarType::Long:
      return dtype::int64;
    case c10::ScalarType::Byte:
      return dtype::uint8;
    case c10::ScalarType::UInt16:
      return dtype::uint16;
    case c10::ScalarType::UInt32:
      return dtype::uint32;
    case c10::ScalarType::UInt64:
      return dtype::uint64;
    case c10::ScalarType::Bool:
      return dtype::boolean;
    case c10::ScalarType::Float8_e4m3fn:
      return dtype::float8_e4m3fn;
    case c10::ScalarType::Float8_e5m2:
      return dtype::float8_e5m2;
    default:
      return std::nullopt;
  }
}

/// The element type of a collective's buffer; `name` is what messages call it.
template <class Where>
dtype element_type(const at::Tensor& x, const char* name, Where&& where) {
  const std::optional<dtype> type = dtype_of(x.scalar_type());
  if (!type) refuse_dtype(name, x.scalar_type(), where);
  return *type;
}

template <class Where>
void check_dense(const at::Tensor& x, const char* name, Where&& where) {
  TORCH_CHECK(x.layout() == c10::kStrided && x.device().is_cpu(), where(), ": ", name,
              " has layout ", x.layout(), " on device ", x.device(),
              ", expected a dense (strided) tensor on cpu");
  TORCH_CHECK(!x.is_conj() && !x.is_neg(), where(), ": ", name, " is a lazy ",
              x.is_neg() ? "negative" : "conjugate",
              " view, expected plain values; call resolve_neg().resolve_conj() first");
}

/// In a kernel for tracers, which is also called where one tensor of several has no values.
template <class Where>
void check_traced_tensor(const at::Tensor& x, const char* name, Where&& where) {
  TORCH_CHECK(x.device().is_meta(), where(), ": ", name, " is a tensor on device ", x.device(),
              " beside one on meta, expected all on cpu");
}

template <class Where>
void step_order(const at::Tensor& order, Where&& where) {
  if (order.scalar_type() != c10::ScalarType::Long || order.numel() != 1 ||
      !order.device().is_cpu()) {
    refuse_order(order.numel(), order.scalar_type(), order.device(), where);
  }
  step_order(*order.mutable_data_ptr<std::int64_t>());
  order_token::forget_version(order);
}

inline std::span<const std::int64_t> span_of(at::IntArrayRef list) {
  return {list.data(), list.size()};
}

/// Checks that `x` can be written to: also that, where it was made in inference mode, that is on.
/// (In a call with a tensor of another kind beside it, such as the order token, torch does not.)
template <class Where>
void check_writable(const at::Tensor& x, const char* name, Where&& where) {
  TORCH_CHECK(!x.is_inference() || c10::InferenceMode::is_enabled(), where(), ": ", name,
              " was made in inference mode, and this is not: Inplace update to inference tensor ",
              "outside InferenceMode is not allowed; call clone() first");
  if (!x.is_contiguous()) check_apart(span_of(x.sizes()), span_of(x.strides()), name, where);
}

template <class Where>
void check_out_dtype(const at::Tensor& out, const at::Tensor& x, Where&& where) {
  if (out.scalar_type() == x.scalar_type()) return;
  refuse_out_dtype(out.scalar_type(), x.scalar_type(), where);
}

/// Checks that `out` can take a result of that shape, of the dtype of `x`.
template <class Where>
void check_out(const at::Tensor& out, at::IntArrayRef shape, const at::Tensor& x, Where&& where) {
  check_dense(out, "out", where);
  check_writable(out, "out", where);
  check_out_dtype(out, x, where);
  check_out_sizes(span_of(out.sizes()), span_of(shape), where);
}

/// The values of a tensor in contiguous memory: its own, or that of a copy. A copy whatever the
/// layout, even one without holes: the other ranks may have another.
class contiguous_values {
 public:
  explicit contiguous_values(const at::Tensor& x) {
    if (x.is_contiguous()) {
      data_ = x.const_data_ptr();
    } else {
      const at::AutoDispatchBelowADInplaceOrView below;
      copy_ = x.contiguous();
      data_ = copy_.const_data_ptr();
    }
  }

  const void* data() const noexcept { return data_; }
  /// The copy, if there is one.
  const at::Tensor& copy() const noexcept { return copy_; }

 private:
  at::Tensor copy_;
  const void* data_;
};

/// Raw, so that autograd does not see it.
inline void copy_values(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
}

/// A tensor that a call reads and writes: its own memory, or that of a copy which is copied back.
class written_values {
 public:
  explicit written_values(const at::Tensor& x) : x_(x) {
    if (!x.is_contiguous()) copy_ = contiguous_values(x).copy();
  }
  void* data() const { return (copy_.defined() ? copy_ : x_).mutable_data_ptr(); }
  void store() const {
    if (copy_.defined()) copy_values(x_, copy_);
  }

 private:
  const at::Tensor& x_;
  at::Tensor copy_;
};

/// Calls `collective(in, out)` with the values of `x` and the memory of a new tensor of that shape,
/// which it returns.
template <class Collective>
at::Tensor out_of_place(const at::Tensor& x, at::IntArrayRef shape, Collective&& collective) {
  at::Tensor out = at::detail::empty_cpu(shape, x.scalar_type());
  collective(contiguous_values(x).data(), out.mutable_data_ptr());
  return out;
}

/// The same for what can be done in place: where there is a copy of `x`, it takes the result.
template <class Collective>
at::Tensor out_of_place(const at::Tensor& x, Collective&& collective) {
  if (x.is_contiguous()) return out_of_place(x, x.sizes(), collective);
  at::Tensor out = contiguous_values(x).copy();
  void* data = out.mutable_data_ptr();
  collective(data, data);
  return out;
}

/// Calls `collective(in, out)`, both the same, with the values of `x`, which holds the result
/// afterwards.
template <class Collective>
void in_place(const at::Tensor& x, Collective&& collective) {
  const written_values values(x);
  collective(values.data(), values.data());
  values.store();
}

/// Calls `collective(in, out)` with the values of `x`; `out` holds the result afterwards.
template <class Collective>
void into(const at::Tensor& out, const at::Tensor& x, Collective&& collective) {
  const contiguous_values in(x);
  if (out.is_contiguous()) {
    collective(in.data(), out.mutable_data_ptr());
    return;
  }
  const at::Tensor result = at::detail::empty_cpu(out.sizes(), out.scalar_type());
  collective(in.data(), result.mutable_data_ptr());
  copy_values(out, result);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
