// SPDX-License-Identifier: Apache-2.0
// What a program with RANKFOLD_DISPATCH is linked with. On x86-64 this file is compiled three
// times, with -march=x86-64, -march=x86-64-v3 and -march=x86-64-v4, and always with -O2 or more;
// elsewhere once. See kernel/dispatch.hpp.
//
// Of an object for newer processors, no function may be taken for what others compile, too: all
// that it defines are functions whose names have its instruction set, and its table. A test looks
// (test/odr/dispatch_symbols.py).
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES  // of two modules in a process, each uses its own
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif
#include "rankfold/kernel/dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "rankfold/detail/cpu_extensions.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/kernel/convert.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/rms_norm.hpp"
#include "rankfold/reduction.hpp"

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#  define RANKFOLD_DETAIL_TABLE kernels_avx512
#elif defined(__AVX2__)
#  define RANKFOLD_DETAIL_TABLE kernels_avx2
#else
#  define RANKFOLD_DETAIL_TABLE kernels_base
#endif

RANKFOLD_BEGIN_NAMESPACE
namespace detail {
namespace {

consteval dispatch::kernel_table compiled_kernels() {
  using arch = simd::compiled;
  dispatch::kernel_table table{};
  table.isa = simd::name_of<arch>();
  table.extensions = compiled_extensions;
  for (std::size_t column = 1; column < dispatch::kernel_table::types; ++column) {
    visit(static_cast<dtype>(column), [&]<class T>() {
      if constexpr (kernel::convertible_elements<float, T>) {
        table.to_float[column] = kernel::convert_for<float, T, arch>();
        table.from_float[column] = kernel::convert_for<T, float, arch>();
      }
      if constexpr (kernel::has_rms_norm_v<T>) {
        table.rms_norms[column] = &kernel::rms_norm<arch, T>;
      }
      for (std::size_t row = 1; row < dispatch::kernel_table::operators; ++row) {
        visit(static_cast<reduction>(row), [&]<class Op>(Op) {
          if constexpr (supports_v<Op, T>) {
            table.folds[row][column] = kernel::fold_for<T, Op, arch>();
            table.partials[row][column] = kernel::partial_reducer_for<T, Op, arch>();
          }
        });
      }
    });
  }
  return table;
}

}  // namespace
}  // namespace detail
RANKFOLD_END_NAMESPACE

RANKFOLD_DETAIL_BEGIN_DISPATCH

[[gnu::visibility("hidden")]] extern const kernel_table kernels_base;
[[gnu::visibility("hidden")]] extern const kernel_table kernels_avx2;
[[gnu::visibility("hidden")]] extern const kernel_table kernels_avx512;

constinit const kernel_table RANKFOLD_DETAIL_TABLE = detail::compiled_kernels();

#ifndef __AVX2__

constinit std::atomic<const kernel_table*> chosen{nullptr};

namespace {

// The best last. The first needs nothing that the rest of the program does not need.
constexpr const kernel_table* tables[] = {
    &kernels_base,
#  ifdef __x86_64__
    &kernels_avx2,
    &kernels_avx512,
#  endif
};

const kernel_table& find_table() {
  const char* const variable = std::getenv("RANKFOLD_ISA");  // NOLINT(concurrency-mt-unsafe)
  const std::string wanted = variable == nullptr ? "" : variable;
  const unsigned here = detail::machine_extensions();
  const kernel_table* best = nullptr;
  std::string usable;
  for (const kernel_table* const table : tables) {
    if (table == &kernels_base || (table->extensions & ~here) == 0) {
      if (table->isa == wanted) {
        return *table;
      }
      best = table;
      usable += (usable.empty() ? "" : ", ") + std::string(table->isa);
    }
  }
  if (!wanted.empty()) {
    throw std::invalid_argument("rankfold: the environment variable RANKFOLD_ISA is \"" + wanted +
                                "\", expected an instruction set of this machine: " + usable);
  }
  return *best;
}

}  // namespace

const kernel_table& choose() {
  const kernel_table& table = find_table();
  chosen.store(&table, std::memory_order_relaxed);  // see kernels()
  return table;
}

#endif

RANKFOLD_DETAIL_END_DISPATCH
