// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set as a table of pointers, and which of the tables is used. In a
// namespace without the assert level, which kernels do not depend on: so kernel/dispatch.cpp fits a
// program that is compiled with other flags.
#pragma once

#include <atomic>
#include <cstddef>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"

RANKFOLD_DETAIL_BEGIN_DISPATCH

// What they do stands in kernel/fold.hpp, kernel/partial.hpp, kernel/convert.hpp,
// kernel/rms_norm.hpp.
using fold_function = void (*)(const void* op, const void* const* in, int n, void* out,
                               std::size_t count);
using finish_function = void (*)(const void* op, const void* const* in, int n, int total, void* out,
                                 std::size_t count);
using convert_function = void (*)(const void* in, void* out, std::size_t count);
using rms_norm_function = void (*)(const void* x, const void* weight, float eps, void* out,
                                   std::size_t width);
struct partial_reducer {
  fold_function fold;
  fold_function combine;
  finish_function finish;
  std::size_t size;  ///< bytes of a partial
};

/// By the numbers of `reduction` and `dtype`; null where a type is not supported.
struct kernel_table {
  static constexpr std::size_t operators = 11;
  static constexpr std::size_t types = 16;

  const char* isa;
  unsigned extensions;  // the machine must have them; see detail/cpu_extensions.hpp
  fold_function folds[operators][types];
  partial_reducer partials[operators][types];
  convert_function to_float[types];
  convert_function from_float[types];
  rms_norm_function rms_norms[types];
};

/// The table in use; null until it is first asked for.
[[gnu::visibility("hidden")]] extern constinit std::atomic<const kernel_table*> chosen;

/// Chooses it.
[[gnu::visibility("hidden")]] const kernel_table& choose();

/// The table in use. Throws: see kernel/dispatch.hpp.
RANKFOLD_DETAIL_INLINE const kernel_table& kernels() {
  // Relaxed: tables are constants, which nobody writes. Who comes before the choice makes the same.
  const kernel_table* const table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) [[unlikely]] {
    return choose();
  }
  return *table;
}

RANKFOLD_DETAIL_END_DISPATCH
