// SPDX-License-Identifier: Apache-2.0
// How torch's tensors, one or a list of them, become the contiguous memory that calls take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/torch/backend/lane.hpp"
#include "rankfold/torch/tensor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// How elements of a tensor travel where nothing is done with their values: those of types that
/// rankfold does not know as bytes.
struct moved_type {
  explicit moved_type(const at::Tensor& x) {
    if (const auto known = torch_ops::dtype_of(x.scalar_type())) {
      type = {*known};
    } else {
      type = {dtype::uint8, static_cast<std::uint32_t>(x.scalar_type()) + 1};
      per_element = static_cast<std::size_t>(x.element_size());
    }
  }
  std::size_t count(const at::Tensor& x) const {
    return static_cast<std::size_t>(x.numel()) * per_element;
  }
  element_type type;
  std::size_t per_element = 1;
};

inline std::size_t bytes_of(const at::Tensor& x) { return static_cast<std::size_t>(x.nbytes()); }

/// Whether the memory of a tensor is its values, one behind the other.
inline bool is_plain(const at::Tensor& x) {
  return x.is_contiguous() && !x.is_conj() && !x.is_neg();
}

inline at::Tensor copy_of(const at::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return x.clone();
}

/// What is done with the memory of a buffer: its values are read, or all of them are written.
enum class access { read, write, both };

/// Contiguous memory for a tensor: its own, or another one that gets its values where they are
/// read, and that `store` writes back.
class buffer {
 public:
  buffer(const at::Tensor& x, access how) : tensor_(x) {
    if (is_plain(x)) {
      memory_ = x;
      return;
    }
    memory_ = at::detail::empty_cpu(x.sizes(), x.scalar_type());
    if (how != access::write) torch_ops::copy_values(memory_, x);
  }
  const void* in() const { return memory_.const_data_ptr(); }
  void* out() const { return memory_.mutable_data_ptr(); }
  /// Writes what is in the memory to the tensor, or to another one.
  void store() const { store(tensor_); }
  void store(const at::Tensor& x) const {
    if (!memory_.is_same(x)) torch_ops::copy_values(x, memory_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

/// Contiguous memory for a list of tensors of one type, one behind the other.
class list_buffer {
 public:
  explicit list_buffer(const std::vector<at::Tensor>& list) : list_(list) {
    if (is_one_block()) return;
    std::int64_t elements = 0;
    for (const at::Tensor& x : list_) elements += x.numel();
    staging_ = at::detail::empty_cpu({elements}, list_.front().scalar_type());
  }

  /// The memory, with the values of the list.
  const void* load() {
    each([](std::byte* place,
            const at::Tensor& x) { std::memcpy(place, x.const_data_ptr(), bytes_of(x)); },
         [](const at::Tensor& part, const at::Tensor& x) { torch_ops::copy_values(part, x); });
    return out();
  }
  void* out() const {
    if (staging_.defined()) return staging_.mutable_data_ptr();
    const auto first = std::find_if(list_.begin(), list_.end(), has_elements);
    return first == list_.end() ? nullptr : first->mutable_data_ptr();
  }
  void store() {
    each([](const std::byte* place,
            const at::Tensor& x) { std::memcpy(x.mutable_data_ptr(), place, bytes_of(x)); },
         [](const at::Tensor& part, const at::Tensor& x) { torch_ops::copy_values(x, part); });
  }

 private:
  static bool has_elements(const at::Tensor& x) { return x.numel() != 0; }

  bool is_one_block() const {
    const std::byte* next = nullptr;
    for (const at::Tensor& x : list_) {
      if (!has_elements(x)) continue;
      const auto* data = static_cast<const std::byte*>(x.const_data_ptr());
      if (!is_plain(x)) return false;
      if (next != nullptr && data != next) return false;
      next = data + bytes_of(x);
    }
    return true;
  }

  /// Calls `plain(place, x)` for tensors whose memory is their values, `other(part, x)` for others;
  /// `part` is the place of x in the staging as a tensor of its shape.
  template <class Plain, class Other>
  void each(Plain&& plain, Other&& other) {
    if (!staging_.defined()) return;
    std::int64_t begin = 0;
    for (const at::Tensor& x : list_) {
      if (has_elements(x) && is_plain(x)) {
        plain(static_cast<std::byte*>(staging_.mutable_data_ptr()) + begin * x.element_size(), x);
      } else if (has_elements(x)) {
        const at::AutoDispatchBelowADInplaceOrView below;
        other(staging_.narrow(0, begin, x.numel()).view(x.sizes()), x);
      }
      begin += x.numel();
    }
  }

  const std::vector<at::Tensor>& list_;
  at::Tensor staging_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
