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
#include "rankfold/torch/tensor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// How elements of a tensor travel where nothing is done with their values: those of types that
/// rankfold does not know as bytes.
struct moved_type {
  explicit moved_type(const at::Tensor& x) {
    if (const auto known = torch_ops::dtype_of(x.scalar_type())) {
      type = *known;
    } else {
      per_element = static_cast<std::size_t>(x.element_size());
    }
  }
  std::size_t count(const at::Tensor& x) const {
    return static_cast<std::size_t>(x.numel()) * per_element;
  }
  dtype type = dtype::uint8;
  std::size_t per_element = 1;
};

inline std::size_t bytes_of(const at::Tensor& x) { return static_cast<std::size_t>(x.nbytes()); }

/// Contiguous memory with the values of a tensor: its own, or a copy that `store` writes back.
class buffer {
 public:
  explicit buffer(const at::Tensor& x) : tensor_(x) {
    if (tensor_.is_contiguous() && !tensor_.is_conj() && !tensor_.is_neg()) {
      memory_ = tensor_;
    } else {
      const at::AutoDispatchBelowADInplaceOrView below;
      memory_ = tensor_.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
    }
  }
  const void* in() const { return memory_.const_data_ptr(); }
  void* out() const { return memory_.mutable_data_ptr(); }
  /// Writes what is in the memory to the tensor, or to another one.
  void store() const { store(tensor_); }
  void store(const at::Tensor& x) const {
    if (memory_.is_same(x)) return;
    const at::AutoDispatchBelowADInplaceOrView below;
    x.copy_(memory_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

/// Contiguous memory for a list of tensors, one behind the other.
class list_buffer {
 public:
  explicit list_buffer(const std::vector<at::Tensor>& list) : list_(list) {
    if (is_one_block()) return;
    std::size_t bytes = 0;
    for (const at::Tensor& x : list_) bytes += bytes_of(x);
    staging_ = at::detail::empty_cpu({static_cast<std::int64_t>(bytes)}, c10::ScalarType::Byte);
  }

  /// The memory, with the values of the list.
  const void* load() {
    each([](std::byte* place, const at::Tensor& x) {
      const buffer values(x);
      if (x.numel() != 0) std::memcpy(place, values.in(), bytes_of(x));
    });
    return out();
  }
  void* out() const {
    if (staging_.defined()) return staging_.mutable_data_ptr();
    const auto first = std::find_if(list_.begin(), list_.end(), has_elements);
    return first == list_.end() ? nullptr : first->mutable_data_ptr();
  }
  void store() {
    each([](std::byte* place, const at::Tensor& x) {
      const buffer values(x);
      if (x.numel() != 0) std::memcpy(values.out(), place, bytes_of(x));
      values.store();
    });
  }

 private:
  static bool has_elements(const at::Tensor& x) { return x.numel() != 0; }

  bool is_one_block() const {
    const std::byte* next = nullptr;
    for (const at::Tensor& x : list_) {
      if (!has_elements(x)) continue;
      const auto* data = static_cast<const std::byte*>(x.const_data_ptr());
      if (!x.is_contiguous() || x.is_conj() || x.is_neg()) return false;
      if (next != nullptr && data != next) return false;
      next = data + bytes_of(x);
    }
    return true;
  }

  template <class F>
  void each(F&& f) {
    if (!staging_.defined()) return;
    auto* place = static_cast<std::byte*>(staging_.mutable_data_ptr());
    for (const at::Tensor& x : list_) {
      f(place, x);
      place += bytes_of(x);
    }
  }

  const std::vector<at::Tensor>& list_;
  at::Tensor staging_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
