// SPDX-License-Identifier: Apache-2.0
// Kernels as one translation unit sees them.
#pragma once

#include <array>

#include "rankfold/kernel/convert.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/rms_norm.hpp"

/// A fold of two arrays of float in each kind of code: vectors, the tail, the stack of many inputs,
/// conversions, an operator of the user's.
struct kernel_list {
  std::array<rankfold::kernel::fold_function, 8> folds;
  std::array<rankfold::kernel::convert_function, 6> conversions;
  std::array<rankfold::kernel::partial_reducer, 3> partials;
  std::array<rankfold::kernel::rms_norm_function, 3> norms;
  rankfold::kernel::fold_function scalar;
};

struct smaller_magnitude {
  float operator()(float a, float b) const { return a * a < b * b ? a : b; }
};

/// Compiled in each translation unit.
template <class Unit>
kernel_list kernels() {
  using namespace rankfold;
  return {
      {kernel::fold_for<float, sum>(), kernel::fold_for<double, avg>(),
       kernel::fold_for<bfloat16, sum>(), kernel::fold_for<float16, rankfold::max>(),
       kernel::fold_for<float8_e4m3fn, sum>(), kernel::fold_for<float8_e5m2, rankfold::min>(),
       kernel::fold_for<std::int8_t, prod>(), kernel::fold_for<float, smaller_magnitude>()},
      {kernel::convert_for<float, bfloat16>(), kernel::convert_for<bfloat16, float>(),
       kernel::convert_for<float, float16>(), kernel::convert_for<float16, float>(),
       kernel::convert_for<float, float8_e4m3fn>(), kernel::convert_for<float8_e5m2, float>()},
      {kernel::partial_reducer_for<bfloat16, sum>(), kernel::partial_reducer_for<float16, avg>(),
       kernel::partial_reducer_for<float8_e5m2, avg>()},
      {kernel::rms_norm_for(dtype::float32), kernel::rms_norm_for(dtype::bfloat16),
       kernel::rms_norm_for(dtype::float16)},
      kernel::fold_for<float, sum, simd::scalar>()};
}
