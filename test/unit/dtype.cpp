// SPDX-License-Identifier: Apache-2.0
#include "rankfold/dtype.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("every element type has its tag, size and name", "[dtype]") {
  STATIC_REQUIRE(dtype_of_v<float> == dtype::float32);
  STATIC_REQUIRE(dtype_of_v<const double> == dtype::float64);
  STATIC_REQUIRE(dtype_of_v<bfloat16> == dtype::bfloat16);
  STATIC_REQUIRE(dtype_of_v<float16> == dtype::float16);
  STATIC_REQUIRE(dtype_of_v<std::int8_t> == dtype::int8);
  STATIC_REQUIRE(dtype_of_v<std::int16_t> == dtype::int16);
  STATIC_REQUIRE(dtype_of_v<int> == dtype::int32);
  STATIC_REQUIRE(dtype_of_v<long> == dtype::int64);
  STATIC_REQUIRE(dtype_of_v<long long> == dtype::int64);
  STATIC_REQUIRE(dtype_of_v<unsigned char> == dtype::uint8);
  STATIC_REQUIRE(dtype_of_v<unsigned short> == dtype::uint16);
  STATIC_REQUIRE(dtype_of_v<unsigned> == dtype::uint32);
  STATIC_REQUIRE(dtype_of_v<unsigned long long> == dtype::uint64);
  STATIC_REQUIRE(dtype_of_v<bool> == dtype::boolean);
  STATIC_REQUIRE(dtype_of_v<float8_e4m3fn> == dtype::float8_e4m3fn);
  STATIC_REQUIRE(dtype_of_v<float8_e5m2> == dtype::float8_e5m2);
  for (int i = 1; i <= 15; ++i) {
    const auto type = static_cast<dtype>(i);
    visit(type, [&]<class T>() {
      CHECK(dtype_of_v<T> == type);
      CHECK(size_of(type) == sizeof(T));
    });
    CHECK(name_of(type) != "unknown");
  }
  CHECK(name_of(dtype::bfloat16) == "bfloat16");
  CHECK(name_of(dtype::boolean) == "boolean");
  CHECK(name_of(dtype::float8_e4m3fn) == "float8_e4m3fn");
}

TEST_CASE("other types are the user's", "[dtype]") {
  struct pair {
    int a, b;
  };
  STATIC_REQUIRE(dtype_of_v<pair> == dtype::user);
  STATIC_REQUIRE(dtype_of_v<char> == dtype::user);
  STATIC_REQUIRE(dtype_of_v<char16_t> == dtype::user);
  STATIC_REQUIRE(dtype_of_v<long double> == dtype::user);
  STATIC_REQUIRE(dtype_of_v<int*> == dtype::user);
  CHECK(name_of(dtype::user) == "user");
}

TEST_CASE("a number that is no dtype is refused", "[dtype]") {
  CHECK(name_of(static_cast<dtype>(16)) == "unknown");
  CHECK_THROWS_WITH(size_of(static_cast<dtype>(16)), "rankfold: no dtype has the number 16");
  CHECK_THROWS_AS(size_of(dtype::user), std::invalid_argument);
}

TEST_CASE("the accumulator of the small floats is float", "[dtype]") {
  STATIC_REQUIRE(std::is_same_v<accumulator_t<bfloat16>, float>);
  STATIC_REQUIRE(std::is_same_v<accumulator_t<float16>, float>);
  STATIC_REQUIRE(std::is_same_v<accumulator_t<float8_e4m3fn>, float>);
  STATIC_REQUIRE(std::is_same_v<accumulator_t<float8_e5m2>, float>);
  STATIC_REQUIRE(std::is_same_v<accumulator_t<double>, double>);
  STATIC_REQUIRE(std::is_same_v<accumulator_t<std::int8_t>, std::int8_t>);
}

TEST_CASE("16-bit floats round to nearest even at compile time", "[dtype]") {
  STATIC_REQUIRE(bfloat16(1.0F).bits == 0x3F80);
  STATIC_REQUIRE(bfloat16(1.00390625F).bits == 0x3F80);  // 1 + 2^-8: a tie, down to even
  STATIC_REQUIRE(bfloat16(1.01171875F).bits == 0x3F82);  // 1 + 3·2^-8: a tie, up to even
  STATIC_REQUIRE(bfloat16(3.4e38F).bits == 0x7F80);
  STATIC_REQUIRE(bfloat16(-0.0F).bits == 0x8000);
  STATIC_REQUIRE(bfloat16(std::numeric_limits<float>::denorm_min()).bits == 0);
  STATIC_REQUIRE(bfloat16(-std::numeric_limits<float>::quiet_NaN()).bits == 0x7FC0);
  STATIC_REQUIRE(static_cast<float>(bfloat16::from_bits(1)) == 0x1p-133F);

  STATIC_REQUIRE(float16(1.0F).bits == 0x3C00);
  STATIC_REQUIRE(float16(65519.0F).bits == 0x7BFF);
  STATIC_REQUIRE(float16(65520.0F).bits == 0x7C00);
  STATIC_REQUIRE(float16(0x1p-24F).bits == 1);
  STATIC_REQUIRE(float16(0x1p-25F).bits == 0);  // a tie, down to even
  STATIC_REQUIRE(float16(0x1.000002p-25F).bits == 1);
  STATIC_REQUIRE(float16(-0x1p-26F).bits == 0x8000);
  STATIC_REQUIRE(float16(std::numeric_limits<float>::signaling_NaN()).bits == 0x7E00);
  STATIC_REQUIRE(static_cast<float>(float16::from_bits(0x03FF)) == 1023 * 0x1p-24F);
}

TEST_CASE("8-bit floats round to nearest even, and overflow as torch's do, at compile time",
          "[dtype]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  STATIC_REQUIRE(float8_e4m3fn(1.0F).bits == 0x38);
  STATIC_REQUIRE(float8_e4m3fn(1.0625F).bits == 0x38);   // a tie, down to even
  STATIC_REQUIRE(float8_e4m3fn(-1.1875F).bits == 0xBA);  // a tie, up to even
  STATIC_REQUIRE(float8_e4m3fn(448.0F).bits == 0x7E);
  STATIC_REQUIRE(float8_e4m3fn(480.0F).bits == 0x7E);
  STATIC_REQUIRE(float8_e4m3fn(-infinity).bits == 0xFE);
  STATIC_REQUIRE(float8_e4m3fn(-nan).bits == 0x7F);
  STATIC_REQUIRE(float8_e4m3fn(0x1p-10F).bits == 0);  // half of the smallest
  STATIC_REQUIRE(float8_e4m3fn(0x1.8p-9F).bits == 2);
  STATIC_REQUIRE(static_cast<float>(float8_e4m3fn::from_bits(0x07)) == 0x7p-9F);
  STATIC_REQUIRE(static_cast<float>(float8_e4m3fn::from_bits(0xF9)) == -288.0F);

  STATIC_REQUIRE(float8_e5m2(1.0F).bits == 0x3C);
  STATIC_REQUIRE(float8_e5m2(1.125F).bits == 0x3C);
  STATIC_REQUIRE(float8_e5m2(-1.375F).bits == 0xBE);
  STATIC_REQUIRE(float8_e5m2(57344.0F).bits == 0x7B);
  STATIC_REQUIRE(float8_e5m2(61439.0F).bits == 0x7B);
  STATIC_REQUIRE(float8_e5m2(61440.0F).bits == 0x7C);
  STATIC_REQUIRE(float8_e5m2(-infinity).bits == 0xFC);
  STATIC_REQUIRE(float8_e5m2(-nan).bits == 0x7F);
  STATIC_REQUIRE(float8_e5m2(0x1p-17F).bits == 0);
  STATIC_REQUIRE(float8_e5m2(-0x1.8p-16F).bits == 0x82);
  STATIC_REQUIRE(static_cast<float>(float8_e5m2::from_bits(0x03)) == 0x3p-16F);
}

TEST_CASE("small floats compare as numbers", "[dtype]") {
  STATIC_REQUIRE(bfloat16(0.0F) == bfloat16(-0.0F));
  STATIC_REQUIRE(float16(0.0F) == float16(-0.0F));
  STATIC_REQUIRE(bfloat16(1.0F) < bfloat16(2.0F));
  STATIC_REQUIRE(float16(-2.0F) < float16(-1.0F));
  STATIC_REQUIRE(bfloat16::from_bits(0x7FC0) != bfloat16::from_bits(0x7FC0));
  STATIC_REQUIRE(!(float16::from_bits(0x7E00) <= float16(1.0F)));
  STATIC_REQUIRE(float8_e4m3fn(0.0F) == float8_e4m3fn(-0.0F));
  STATIC_REQUIRE(float8_e4m3fn(-2.0F) < float8_e4m3fn(-1.0F));
  STATIC_REQUIRE(float8_e4m3fn::from_bits(0x7F) != float8_e4m3fn::from_bits(0x7F));
  STATIC_REQUIRE(float8_e5m2(1.0F) < float8_e5m2(2.0F));
  STATIC_REQUIRE(!(float8_e5m2::from_bits(0x7D) <= float8_e5m2(1.0F)));
}
