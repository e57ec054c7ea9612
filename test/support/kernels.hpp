// SPDX-License-Identifier: Apache-2.0
// The kernels of all built-in operators and types are compiled once for all tests
// (kernels_float.cpp, kernels_integer.cpp), not once in each file that names them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/reduction.hpp"

// `how` is `template`, or `extern template`.
#define TEST_KERNELS_OF(how, Op, T)                                           \
  how void rankfold::kernel::fold<rankfold::simd::native, rankfold::Op, T>(   \
      const void*, const void* const*, int, void*, std::size_t);              \
  how void rankfold::kernel::finish<rankfold::simd::native, rankfold::Op, T>( \
      const void*, const void* const*, int, int, void*, std::size_t);
#define TEST_KERNELS_OF_PARTIALS(how, Op, T)                                        \
  how void rankfold::kernel::fold_partial<rankfold::simd::native, rankfold::Op, T>( \
      const void*, const void* const*, int, void*, std::size_t);

#define TEST_KERNELS_OF_FLOAT(how, T) \
  TEST_KERNELS_OF(how, sum, T)        \
  TEST_KERNELS_OF(how, prod, T)       \
  TEST_KERNELS_OF(how, min, T)        \
  TEST_KERNELS_OF(how, max, T)        \
  TEST_KERNELS_OF(how, avg, T)
#define TEST_KERNELS_OF_SMALL_FLOAT(how, T) \
  TEST_KERNELS_OF_FLOAT(how, T)             \
  TEST_KERNELS_OF_PARTIALS(how, sum, T)     \
  TEST_KERNELS_OF_PARTIALS(how, prod, T)
#define TEST_KERNELS_OF_BITS(how, T)   \
  TEST_KERNELS_OF(how, min, T)         \
  TEST_KERNELS_OF(how, max, T)         \
  TEST_KERNELS_OF(how, bit_and, T)     \
  TEST_KERNELS_OF(how, bit_or, T)      \
  TEST_KERNELS_OF(how, bit_xor, T)     \
  TEST_KERNELS_OF(how, logical_and, T) \
  TEST_KERNELS_OF(how, logical_or, T)
#define TEST_KERNELS_OF_INTEGER(how, T) \
  TEST_KERNELS_OF_BITS(how, T)          \
  TEST_KERNELS_OF(how, sum, T)          \
  TEST_KERNELS_OF(how, prod, T)

#define TEST_KERNELS_OF_FLOATS(how)                         \
  TEST_KERNELS_OF_FLOAT(how, float)                         \
  TEST_KERNELS_OF_FLOAT(how, double)                        \
  TEST_KERNELS_OF_SMALL_FLOAT(how, rankfold::bfloat16)      \
  TEST_KERNELS_OF_SMALL_FLOAT(how, rankfold::float16)       \
  TEST_KERNELS_OF_SMALL_FLOAT(how, rankfold::float8_e4m3fn) \
  TEST_KERNELS_OF_SMALL_FLOAT(how, rankfold::float8_e5m2)
#define TEST_KERNELS_OF_INTEGERS(how)         \
  TEST_KERNELS_OF_INTEGER(how, std::int8_t)   \
  TEST_KERNELS_OF_INTEGER(how, std::int16_t)  \
  TEST_KERNELS_OF_INTEGER(how, std::int32_t)  \
  TEST_KERNELS_OF_INTEGER(how, std::int64_t)  \
  TEST_KERNELS_OF_INTEGER(how, std::uint8_t)  \
  TEST_KERNELS_OF_INTEGER(how, std::uint16_t) \
  TEST_KERNELS_OF_INTEGER(how, std::uint32_t) \
  TEST_KERNELS_OF_INTEGER(how, std::uint64_t) \
  TEST_KERNELS_OF_BITS(how, bool)

TEST_KERNELS_OF_FLOATS(extern template)
TEST_KERNELS_OF_INTEGERS(extern template)
