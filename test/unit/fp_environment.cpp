// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/fp_environment.hpp"

#include <array>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rankfold/kernel/convert.hpp"
#include "rankfold/kernel/fold.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold;

#ifdef __SSE2__

std::uint32_t control() {
  std::uint32_t value = 0;
  asm volatile("stmxcsr %0" : "=m"(value));
  return value;
}
void set_control(std::uint32_t value) { asm volatile("ldmxcsr %0" : : "m"(value) : "memory"); }

constexpr std::uint32_t usual = 0x1F80;

struct restore {
  ~restore() { set_control(usual); }
};

#endif

}  // namespace

#ifdef __SSE2__

TEST_CASE("the environment is set for a fold and restored after it", "[detail][fp_environment]") {
  const restore at_end;
  for (const std::uint32_t strange : {0x8000U,               // flush to zero
                                      0x0040U,               // denormals are zero
                                      0x2000U, 0x4000U,      // down, up
                                      0x6000U | 0x8040U}) {  // to zero, with both
    set_control(usual | strange);
    {
      const detail::fp_environment guard;
      CHECK((control() & 0xFFC0U) == usual);
      volatile float tiny = 1e-40F;
      volatile float half = 0.5F;
      CHECK(tiny * half != 0.0F);
    }
    CHECK((control() & 0xFFC0U) == (usual | strange));
  }
}

TEST_CASE("an exception that is not masked does not trap in a fold", "[detail][fp_environment]") {
  const restore at_end;
  set_control(usual & ~0x1F80U);  // every exception traps
  const std::array<float, 3> a{3e38F, 1e-45F, 1.0F};
  const std::array<float, 3> b{3e38F, 1e-45F, 1e-30F};
  std::array<float, 3> out{};
  {
    const detail::fp_environment guard;
    const std::array<const void*, 2> in{a.data(), b.data()};
    kernel::fold_for<float, prod>()(nullptr, in.data(), 2, out.data(), 3);
  }
  const std::uint32_t after = control();
  set_control(usual);
  CHECK((after & 0x1FC0U) == 0);
  CHECK(out[1] == 0.0F);
}

TEST_CASE("an environment that is right already is left alone", "[detail][fp_environment]") {
  const restore at_end;
  set_control(usual);
  {
    const detail::fp_environment guard;
    volatile float third = 3.0F;
    third = 1.0F / third;
  }
  CHECK((control() & 0x20U) != 0);  // a flag raised within stays visible: nothing was restored
}

TEST_CASE("folds and conversions have their bits whatever the caller's environment",
          "[detail][fp_environment]") {
  const restore at_end;
  constexpr std::size_t count = 1000;
  for (const dtype type : {dtype::float32, dtype::float64, dtype::bfloat16, dtype::float16,
                           dtype::float8_e4m3fn, dtype::float8_e5m2}) {
    for (const reduction operation : {reduction::sum, reduction::avg, reduction::prod}) {
      std::vector<std::vector<std::byte>> data;
      std::vector<const void*> in;
      std::vector<const std::byte*> same;
      for (int k = 0; k < 5; ++k) {
        auto& rank = data.emplace_back(count * size_of(type));
        values::fill_hostile(type, rank.data(), count, k);
        in.push_back(rank.data());
        same.push_back(rank.data());
      }
      std::vector<std::byte> expected(count * size_of(type));
      reference::fold(type, operation, same.data(), 5, expected.data(), count);
      for (const std::uint32_t strange : {0x8040U, 0x2000U, 0x4000U, 0x6000U}) {
        std::vector<std::byte> out(expected.size());
        set_control(usual | strange);
        {
          const detail::fp_environment guard;
          kernel::fold_for(type, operation)(nullptr, in.data(), 5, out.data(), count);
        }
        set_control(usual);
        CHECK(out == expected);
      }
    }
  }
}

#endif

TEST_CASE("a rounding mode of <cfenv> is set aside and comes back", "[detail][fp_environment]") {
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  {
    const detail::fp_environment guard;
    volatile float one = 1.0F;
    volatile float small = 1e-30F;
    CHECK(one + small == 1.0F);
  }
  CHECK(std::fegetround() == FE_UPWARD);
  REQUIRE(std::fesetround(FE_TONEAREST) == 0);
}
