// SPDX-License-Identifier: Apache-2.0
// The values of torch's stable ABI: tensors, and the arguments and results of a kernel. All of it
// is C functions of libtorch; the C++ beside them is this header's, and no symbol of torch's C++ is
// needed at run time.
#pragma once

// The oldest torch that a binary is to run with. 2.10 is the first with texts as arguments.
#ifndef TORCH_TARGET_VERSION
#  define TORCH_TARGET_VERSION 0x020a000000000000
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/version.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/torch/argument.hpp"

static_assert(TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0,
              "rankfold/torch/stable.hpp needs TORCH_TARGET_VERSION 2.10 (0x020a000000000000) or "
              "newer: include it before other headers of torch, or leave the macro out");

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops::stable {

/// What a kernel of this library has last thrown in this thread. A call of one op by another goes
/// through C functions, which say only that it failed.
inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// Throws if a C function of libtorch has failed. It has written why to standard error.
inline void check(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) refuse("rankfold: torch failed at ", what);
}

/// A reference to a tensor.
class tensor {
 public:
  tensor() = default;
  /// Takes the reference over.
  explicit tensor(AtenTensorHandle handle) : handle_(handle) {}

  static tensor copy_of(AtenTensorHandle handle) {
    AtenTensorHandle copy = nullptr;
    check(aoti_torch_new_tensor_handle(handle, &copy), "aoti_torch_new_tensor_handle");
    return tensor(copy);
  }

  AtenTensorHandle get() const noexcept { return handle_.get(); }
  AtenTensorHandle release() noexcept { return handle_.release(); }
  tensor again() const { return copy_of(get()); }

  std::span<const std::int64_t> sizes() const {
    std::int64_t* data = nullptr;
    check(aoti_torch_get_sizes(get(), &data), "aoti_torch_get_sizes");
    return {data, dims()};
  }
  std::span<const std::int64_t> strides() const {
    std::int64_t* data = nullptr;
    check(aoti_torch_get_strides(get(), &data), "aoti_torch_get_strides");
    return {data, dims()};
  }
  std::size_t dims() const {
    std::int64_t n = 0;
    check(aoti_torch_get_dim(get(), &n), "aoti_torch_get_dim");
    return static_cast<std::size_t>(n);
  }
  std::int64_t count() const {
    std::int64_t n = 0;
    check(aoti_torch_get_numel(get(), &n), "aoti_torch_get_numel");
    return n;
  }
  bool contiguous() const {
    bool yes = false;
    check(aoti_torch_is_contiguous(get(), &yes), "aoti_torch_is_contiguous");
    return yes;
  }
  /// torch's number for the dtype.
  std::int32_t type() const {
    std::int32_t number = 0;
    check(aoti_torch_get_dtype(get(), &number), "aoti_torch_get_dtype");
    return number;
  }
  std::int32_t device_type() const {
    std::int32_t number = 0;
    check(aoti_torch_get_device_type(get(), &number), "aoti_torch_get_device_type");
    return number;
  }
  std::int32_t layout() const {
    std::int32_t number = 0;
    check(aoti_torch_get_layout(get(), &number), "aoti_torch_get_layout");
    return number;
  }
  const void* data() const {
    const void* pointer = nullptr;
    check(torch_get_const_data_ptr(get(), &pointer), "torch_get_const_data_ptr");
    return pointer;
  }
  void* mutable_data() const {
    void* pointer = nullptr;
    check(torch_get_mutable_data_ptr(get(), &pointer), "torch_get_mutable_data_ptr");
    return pointer;
  }

 private:
  struct deleter {
    void operator()(AtenTensorHandle handle) const noexcept {
      aoti_torch_delete_tensor_object(handle);
    }
  };
  std::unique_ptr<AtenTensorOpaque, deleter> handle_;
};

/// The arguments of a kernel, in their order, and its results. An argument belongs to the kernel:
/// each is taken once, whether it is of use or not.
class arguments {
 public:
  explicit arguments(StableIValue* values) noexcept : values_(values), next_(values) {}

  tensor next_tensor() { return tensor(next<AtenTensorHandle>()); }
  std::int64_t next_int() { return next<std::int64_t>(); }
  double next_float() { return next<double>(); }
  std::string next_text() {
    const std::unique_ptr<StringOpaque, string_deleter> handle(next<StringHandle>());
    std::size_t length = 0;
    const char* data = nullptr;
    check(torch_string_length(handle.get(), &length), "torch_string_length");
    check(torch_string_c_str(handle.get(), &data), "torch_string_c_str");
    return {data, length};
  }

  /// Of an argument that is declared as `SymInt[]?`.
  std::optional<std::vector<std::int64_t>> next_optional_list() {
    const std::unique_ptr<StableIValue> inner(next<StableIValue*>());
    if (!inner) return std::nullopt;
    arguments holder(inner.get());
    const std::unique_ptr<StableListOpaque, list_deleter> handle(holder.next<StableListHandle>());
    std::size_t size = 0;
    check(torch_list_size(handle.get(), &size), "torch_list_size");
    std::vector<std::int64_t> list(size);
    for (std::size_t i = 0; i < size; ++i) {
      StableIValue element = 0;
      check(torch_list_get_item(handle.get(), i, &element), "torch_list_get_item");
      list[i] = arguments(&element).next_int();
    }
    return list;
  }

  void result(tensor x) noexcept { values_[0] = value(x.release()); }
  void result(std::int64_t n) noexcept { values_[0] = value(n); }
  /// A result that is declared as `Tensor?`.
  void optional_result(tensor x) { values_[0] = optional(value(x.release())); }

  static bool as_bool(StableIValue v) noexcept { return arguments(&v).next<bool>(); }

  template <class T>
  static StableIValue value(T x) noexcept {
    static_assert(sizeof(T) <= sizeof(StableIValue) && std::is_trivially_copyable_v<T>);
    StableIValue v = 0;
    std::memcpy(&v, &x, sizeof x);  // the ABI's own rule, on little-endian machines
    return v;
  }
  static StableIValue text(std::string_view t) {
    StringHandle handle = nullptr;
    check(torch_new_string_handle(t.data(), t.size(), &handle), "torch_new_string_handle");
    return value(handle);
  }
  static StableIValue list(const std::vector<std::int64_t>& numbers) {
    StableListHandle handle = nullptr;
    check(torch_new_list_reserve_size(numbers.size(), &handle), "torch_new_list_reserve_size");
    std::unique_ptr<StableListOpaque, list_deleter> owner(handle);
    for (const std::int64_t n : numbers) {
      check(torch_list_push_back(handle, value(n)), "torch_list_push_back");
    }
    return value(owner.release());
  }
  /// torch deletes what it points to.
  static StableIValue optional(StableIValue v) { return value(new StableIValue(v)); }
  static StableIValue none() noexcept { return value(static_cast<void*>(nullptr)); }

 private:
  struct string_deleter {
    void operator()(StringHandle handle) const noexcept { torch_delete_string(handle); }
  };

  struct list_deleter {
    void operator()(StableListHandle handle) const noexcept { torch_delete_list(handle); }
  };

  template <class T>
  T next() noexcept {
    T x;
    std::memcpy(&x, next_++, sizeof x);
    return x;
  }

  StableIValue* values_;
  StableIValue* next_;
};

/// Calls an op through the dispatcher, from its top. `stack` holds the arguments, which are taken,
/// and then the results.
inline void call_op(const char* name, const char* overload, StableIValue* stack) {
  last_error().clear();
  if (torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS) return;
  if (!last_error().empty()) throw std::runtime_error(last_error());
  refuse("rankfold: torch refused a call of ", name, *overload != '\0' ? "." : "", overload,
         "; what it says is on standard error");
}

/// The first result of an op that takes a tensor and `rest`.
template <class... Rest>
StableIValue call_with(const char* name, const char* overload, const tensor& x, Rest... rest) {
  StableIValue stack[] = {arguments::value(x.again().release()), rest...};
  call_op(name, overload, stack);
  return stack[0];
}

template <class... Rest>
tensor tensor_from(const char* name, const char* overload, const tensor& x, Rest... rest) {
  StableIValue v = call_with(name, overload, x, rest...);
  return arguments(&v).next_tensor();
}

/// A kernel as torch calls it.
template <void (*Kernel)(arguments)>
void boxed(StableIValue* stack, std::uint64_t, std::uint64_t) {
  try {
    Kernel(arguments(stack));
  } catch (const std::exception& e) {
    last_error() = e.what();
    throw;
  }
}

/// The element type of torch's number; none where rankfold has no such type.
inline std::optional<dtype> dtype_of(std::int32_t type) {
  static const std::pair<std::int32_t, dtype> known[] = {
      {aoti_torch_dtype_float32(), dtype::float32},
      {aoti_torch_dtype_float64(), dtype::float64},
      {aoti_torch_dtype_bfloat16(), dtype::bfloat16},
      {aoti_torch_dtype_float16(), dtype::float16},
      {aoti_torch_dtype_int8(), dtype::int8},
      {aoti_torch_dtype_int16(), dtype::int16},
      {aoti_torch_dtype_int32(), dtype::int32},
      {aoti_torch_dtype_int64(), dtype::int64},
      {aoti_torch_dtype_uint8(), dtype::uint8},
      {aoti_torch_dtype_uint16(), dtype::uint16},
      {aoti_torch_dtype_uint32(), dtype::uint32},
      {aoti_torch_dtype_uint64(), dtype::uint64},
      {aoti_torch_dtype_bool(), dtype::boolean},
      {aoti_torch_dtype_float8_e4m3fn(), dtype::float8_e4m3fn},
      {aoti_torch_dtype_float8_e5m2(), dtype::float8_e5m2}};
  for (const auto& [number, element] : known) {
    if (number == type) return element;
  }
  return std::nullopt;
}

/// torch's name for its number of a dtype, for messages.
inline const char* name_of_type(std::int32_t type) {
  return ::torch::headeronly::toString(static_cast<::torch::headeronly::ScalarType>(type));
}

/// The same of a layout.
inline std::string name_of_layout(std::int32_t layout) {
  if (layout == aoti_torch_layout_strided()) return "Strided";
  if (layout == aoti_torch_layout_sparse_coo()) return "Sparse";
  if (layout == aoti_torch_layout_sparse_csr()) return "SparseCsr";
  if (layout == aoti_torch_layout__mkldnn()) return "Mkldnn";
  return "number " + std::to_string(layout);
}

}  // namespace torch_ops::stable

RANKFOLD_END_NAMESPACE
