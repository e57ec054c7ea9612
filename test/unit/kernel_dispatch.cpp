// SPDX-License-Identifier: Apache-2.0
// What the choice of kernels does to the functions that give them. The kernels themselves: all
// tests of this program are run once for each instruction set. The choice: test/odr/dispatch.py.
#include <cstdlib>
#include <string>
#include <type_traits>

#include "rankfold/kernel/convert.hpp"
#include "rankfold/kernel/dispatch.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/rms_norm.hpp"
#include "support/catch.hpp"

namespace {

using namespace rankfold;

struct first {
  float operator()(float a, float) const { return a; }
};

}  // namespace

TEST_CASE("the instruction set has a name", "[kernel][dispatch]") {
  CHECK(kernel::isa<simd::scalar>() == "scalar");
  CHECK(kernel::isa<simd::compiled>() == simd::name_of<simd::compiled>());
#if defined(__AVX512BW__)
  CHECK(kernel::isa<simd::compiled>() == "avx512");
#elif defined(__AVX2__)
  CHECK(kernel::isa<simd::compiled>() == "avx2");
#elif defined(__SSE2__) && !defined(__SSE3__)
  CHECK(kernel::isa<simd::compiled>() == "sse2");
#endif
}

#ifdef RANKFOLD_DISPATCH

TEST_CASE("the built-in operators are those of the chosen instruction set", "[kernel][dispatch]") {
  const char* const wanted = std::getenv("RANKFOLD_ISA");
  if (wanted != nullptr && *wanted != '\0') CHECK(kernel::isa() == wanted);
  const dispatch::kernel_table& table = dispatch::kernels();
  CHECK(kernel::isa() == table.isa);
  CHECK(kernel::fold_for<bfloat16, avg>() == table.folds[5][3]);
  CHECK(kernel::partial_reducer_for<float16, prod>().finish == table.partials[2][4].finish);
  CHECK(kernel::convert_for<float, float8_e5m2>() == table.to_float[15]);
  CHECK(kernel::convert_for<float16, float>() == table.from_float[4]);
  CHECK(kernel::rms_norm_for(dtype::bfloat16) == table.rms_norms[3]);
}

TEST_CASE("what is not in the tables is compiled for the flags", "[kernel][dispatch]") {
  STATIC_REQUIRE(std::is_same_v<simd::native, simd::dispatched<simd::compiled>>);
  CHECK(kernel::fold_for<float, first>() == &kernel::fold<simd::native, first, float>);
  CHECK(kernel::fold_for<float, sum, simd::scalar>() == &kernel::fold<simd::scalar, sum, float>);
}

#else

TEST_CASE("without a choice, kernels are compiled for the flags", "[kernel][dispatch]") {
  STATIC_REQUIRE(std::is_same_v<simd::native, simd::compiled>);
  STATIC_REQUIRE(kernel::fold_for<float, sum>() == &kernel::fold<simd::compiled, sum, float>);
  STATIC_REQUIRE(noexcept(kernel::isa()));
}

#endif
