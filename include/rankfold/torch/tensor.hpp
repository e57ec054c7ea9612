// SPDX-License-Identifier: Apache-2.0
// What ops ask of tensors and arguments, and how tensors become buffers of rankfold.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/reduction.hpp"

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
    default:
      return std::nullopt;
  }
}

inline constexpr reduction reductions[] = {
    reduction::sum,         reduction::prod,      reduction::min,    reduction::max,
    reduction::avg,         reduction::bit_and,   reduction::bit_or, reduction::bit_xor,
    reduction::logical_and, reduction::logical_or};

/// The operator of that name. `where()` begins the message if there is none.
template <class Where>
reduction parse_reduction(std::string_view name, Where&& where) {
  for (const reduction r : reductions) {
    if (name == name_of(r)) return r;
  }
  std::string all;
  for (const reduction r : reductions) all.append(all.empty() ? "" : ", ").append(name_of(r));
  TORCH_CHECK(false, where(), ": op is \"", name, "\", expected one of ", all);
}

/// For messages: what an operator is defined for.
constexpr std::string_view types_of(reduction op) noexcept {
  switch (op) {
    case reduction::sum:
    case reduction::prod:
      return "a floating or integer type";
    case reduction::avg:
      return "a floating type";
    case reduction::min:
    case reduction::max:
      return "any type";
    default:
      return "an integer type or bool";
  }
}

/// Checks that `x` can be a collective's buffer with that operator; returns its element type.
template <class Where>
dtype check_elements(const at::Tensor& x, reduction op, Where&& where) {
  const std::optional<dtype> type = dtype_of(x.scalar_type());
  TORCH_CHECK(type, where(), ": x has dtype ", x.scalar_type(),
              ", expected float32, float64, bfloat16, float16, bool or an integer type");
  TORCH_CHECK(supports(op, *type), where(), ": op ", name_of(op), " is not defined for dtype ",
              name_of(*type), ", expected ", types_of(op));
  return *type;
}

template <class Where>
void check_dense(const at::Tensor& x, Where&& where) {
  TORCH_CHECK(x.layout() == c10::kStrided && x.device().is_cpu(), where(), ": x has layout ",
              x.layout(), " on device ", x.device(), ", expected a dense (strided) tensor on cpu");
  TORCH_CHECK(!x.is_conj() && !x.is_neg(), where(), ": x is a lazy ",
              x.is_neg() ? "negative" : "conjugate",
              " view, expected plain values; call x.resolve_neg().resolve_conj() first");
}

template <class Where>
std::uint32_t check_tag(std::int64_t tag, Where&& where) {
  TORCH_CHECK(tag >= 0 && tag <= std::int64_t{fingerprint::max_tag}, where(), ": tag is ", tag,
              ", expected 0 to ", fingerprint::max_tag);
  return static_cast<std::uint32_t>(tag);
}

/// The order token is only there to be written, for compilers to see; it counts the collectives.
template <class Where>
void step_order(const at::Tensor& order, Where&& where) {
  TORCH_CHECK(
      order.scalar_type() == c10::ScalarType::Long && order.numel() == 1 && order.device().is_cpu(),
      where(), ": order is a tensor of ", order.numel(), " elements of dtype ", order.scalar_type(),
      " on ", order.device(), ", expected the order token that init() returned");
  // relaxed: no other memory depends on it. Atomic: ranks that are threads share the token.
  std::atomic_ref(*order.mutable_data_ptr<std::int64_t>()).fetch_add(1, std::memory_order_relaxed);
}

namespace strides {

/// Whether two indices of `x` can be one place in memory. Not called for contiguous tensors.
inline bool overlaps(const at::Tensor& x) {
  struct dimension {
    std::int64_t stride;
    std::int64_t size;
  };
  std::vector<dimension> dims;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) == 0) return false;
    if (x.size(d) > 1) dims.push_back({x.stride(d), x.size(d)});
  }
  std::sort(dims.begin(), dims.end(),
            [](const dimension& a, const dimension& b) { return a.stride < b.stride; });
  std::int64_t extent = 0;  // the last place that the dimensions so far reach
  bool apart = true;
  for (const dimension& d : dims) {
    apart = apart && d.stride > extent;
    extent += (d.size - 1) * d.stride;
  }
  if (apart) return false;
  // The dimensions interleave, which as_strided alone can make: look at every place.
  std::vector<bool> taken(static_cast<std::size_t>(extent) + 1);
  std::vector<std::int64_t> index(dims.size(), 0);
  for (std::int64_t place = 0;;) {
    if (taken[static_cast<std::size_t>(place)]) return true;
    taken[static_cast<std::size_t>(place)] = true;
    std::size_t d = 0;
    for (; d < dims.size(); ++d) {
      place += dims[d].stride;
      if (++index[d] < dims[d].size) break;
      place -= dims[d].stride * dims[d].size;
      index[d] = 0;
    }
    if (d == dims.size()) return false;
  }
}

}  // namespace strides

/// Checks that `x` can be written to.
template <class Where>
void check_writable(const at::Tensor& x, Where&& where) {
  if (x.is_contiguous()) return;
  TORCH_CHECK(
      !strides::overlaps(x), where(), ": x has sizes ", x.sizes(), " and strides ", x.strides(),
      ", so that elements share memory, expected a tensor that does not overlap itself (as ",
      "expand() makes one); call x.clone() first");
}

/// A new contiguous tensor like `x`.
inline at::Tensor empty_contiguous(const at::Tensor& x) {
  return at::detail::empty_cpu(x.sizes(), x.scalar_type());
}

/// A contiguous copy of `x`, which is not contiguous; nothing that autograd sees.
inline at::Tensor contiguous_copy(const at::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return x.contiguous();
}

/// Calls `reduce(in, out)` with contiguous memory of the values of `x` and of a new tensor, which
/// it returns.
template <class Reduce>
at::Tensor out_of_place(const at::Tensor& x, Reduce&& reduce) {
  if (x.is_contiguous()) {
    at::Tensor out = empty_contiguous(x);
    reduce(x.const_data_ptr(), out.mutable_data_ptr());
    return out;
  }
  // A copy whatever the layout: what looks dense here may not on another rank.
  at::Tensor out = contiguous_copy(x);
  void* data = out.mutable_data_ptr();
  reduce(data, data);
  return out;
}

/// Calls `reduce(in, out)`, both the same, with contiguous memory of the values of `x`, which holds
/// the result afterwards.
template <class Reduce>
void in_place(const at::Tensor& x, Reduce&& reduce) {
  if (x.is_contiguous()) {
    void* data = x.mutable_data_ptr();
    reduce(data, data);
    return;
  }
  at::Tensor copy = contiguous_copy(x);
  void* data = copy.mutable_data_ptr();
  reduce(data, data);
  const at::AutoDispatchBelowADInplaceOrView below;
  x.copy_(copy);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
