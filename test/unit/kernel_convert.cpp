// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "rankfold/kernel/convert.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold;

template <class Small>
using bits_of = decltype(Small::bits);

template <class Small>
bits_of<Small> exact_from_float(float x) {
  if constexpr (is_float8_v<Small>) {
    return reference::encode_float8<Small>(double{x});
  } else if constexpr (std::is_same_v<Small, bfloat16>) {
    return static_cast<std::uint16_t>(reference::encode<8, 7>(double{x}));
  } else {
    return static_cast<std::uint16_t>(reference::encode<5, 10>(double{x}));
  }
}

/// The float of a pattern: by exact arithmetic, and for NaNs by the rule that the payload stays, in
/// the upper bits of the fraction, and that all but those of bfloat16 become quiet.
template <class Small>
std::uint32_t exact_to_float(bits_of<Small> pattern) {
  std::byte bytes[sizeof(Small)];
  std::memcpy(bytes, &pattern, sizeof(Small));
  const float value = reference::read<Small>(bytes);
  if (!std::isnan(value)) {
    return std::bit_cast<std::uint32_t>(value);
  }
  constexpr int fraction = std::is_same_v<Small, bfloat16>        ? 7
                           : std::is_same_v<Small, float16>       ? 10
                           : std::is_same_v<Small, float8_e4m3fn> ? 3
                                                                  : 2;
  const std::uint32_t x = pattern;
  const std::uint32_t sign = x >> (8 * sizeof(Small) - 1) << 31;
  const std::uint32_t quiet = std::is_same_v<Small, bfloat16> ? 0 : 0x400000U;
  return sign | 0x7F800000U | quiet | (x & ((1U << fraction) - 1U)) << (23 - fraction);
}

/// All exponents with the fractions at which rounding has its edges, both signs, and random bits.
std::vector<float> sweep() {
  std::vector<std::uint32_t> fractions;
  for (int bit = 0; bit < 23; ++bit) {
    for (const std::uint32_t near : {0U, 1U, (1U << 23) - 1}) {  // the last is −1
      fractions.push_back(((1U << bit) + near) & 0x7FFFFFU);
      fractions.push_back(((3U << bit) + near) & 0x7FFFFFU);
      fractions.push_back((0x7FFFFFU - (1U << bit) + near) & 0x7FFFFFU);
    }
  }
  for (std::uint32_t upper = 0; upper < 1024; ++upper) {  // every kept part, each side of a tie
    for (const std::uint32_t rest : {0U, 0x0FFFU, 0x1000U, 0x1001U}) {
      fractions.push_back(upper << 13 | rest);
    }
  }
  for (std::uint32_t upper = 0; upper < 128; ++upper) {
    for (const std::uint32_t rest : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      fractions.push_back(upper << 16 | rest);
    }
  }
  std::sort(fractions.begin(), fractions.end());
  fractions.erase(std::unique(fractions.begin(), fractions.end()), fractions.end());
  std::vector<float> all;
  for (std::uint32_t exponent = 0; exponent < 512; ++exponent) {  // the sign is its upper bit
    for (const std::uint32_t fraction : fractions) {
      all.push_back(std::bit_cast<float>(exponent << 23 | fraction));
    }
  }
  values::random_bits bits(values::seed());
  for (int i = 0; i < 1 << 22; ++i) {
    all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits())));
  }
  return all;
}

template <class Small, class Arch>
void check_patterns_to_float() {
  std::vector<bits_of<Small>> patterns(std::size_t{1} << (8 * sizeof(Small)));
  std::iota(patterns.begin(), patterns.end(), bits_of<Small>{0});
  std::vector<std::uint32_t> floats(patterns.size());
  kernel::convert_for<float, Small, Arch>()(patterns.data(), floats.data(), patterns.size());
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto expected = exact_to_float<Small>(patterns[i]);
    const auto one =
        std::bit_cast<std::uint32_t>(static_cast<float>(Small::from_bits(patterns[i])));
    if (floats[i] != expected || one != expected) {
      FAIL(std::hex << "pattern " << i << " gave " << floats[i] << " and " << one << ", not "
                    << expected);
    }
  }
}

template <class Small, class Arch>
void check_rounding(const std::vector<float>& floats) {
  std::vector<bits_of<Small>> patterns(floats.size());
  kernel::convert_for<Small, float, Arch>()(floats.data(), patterns.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const unsigned expected = exact_from_float<Small>(floats[i]);
    const unsigned found = patterns[i];
    const unsigned one = Small(floats[i]).bits;
    if (found != expected || one != expected) {
      FAIL(std::hex << "float " << std::bit_cast<std::uint32_t>(floats[i]) << " gave " << found
                    << " and " << one << ", not " << expected);
    }
  }
}

template <class To, class From, class Arch>
void check_lengths() {
  const std::size_t longest = 3 * 32 + 1;
  const auto source = values::hostile<From>(longest, 0);
  std::vector<std::byte> expected(longest * sizeof(To));
  for (std::size_t i = 0; i < longest; ++i) {
    const To x = static_cast<To>(source[i]);
    std::memcpy(expected.data() + i * sizeof(To), &x, sizeof(To));
  }
  for (std::size_t count = 0; count <= longest; ++count) {
    for (std::size_t offset = 0; offset < 64; offset += 1 + offset / 8) {
      // Blocks of the exact size: a sanitizer sees what is touched beyond.
      std::vector<std::byte> in(offset + count * sizeof(From));
      std::vector<std::byte> out(offset + count * sizeof(To), std::byte{0xC5});
      if (count != 0) {
        std::memcpy(in.data() + offset, source.data(), count * sizeof(From));
      }
      kernel::convert_for<To, From, Arch>()(in.data() + offset, out.data() + offset, count);
      if (count != 0 &&
          std::memcmp(out.data() + offset, expected.data(), count * sizeof(To)) != 0) {
        FAIL("count " << count << ", offset " << offset);
      }
      if (std::any_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(offset),
                      [](std::byte b) { return b != std::byte{0xC5}; })) {
        FAIL("wrote before the elements; count " << count << ", offset " << offset);
      }
    }
  }
}

}  // namespace

TEST_CASE("every pattern of a small float has the right float", "[kernel][convert]") {
  check_patterns_to_float<bfloat16, simd::native>();
  check_patterns_to_float<float16, simd::native>();
  check_patterns_to_float<float8_e4m3fn, simd::native>();
  check_patterns_to_float<float8_e5m2, simd::native>();
  check_patterns_to_float<bfloat16, simd::scalar>();
  check_patterns_to_float<float16, simd::scalar>();
  check_patterns_to_float<float8_e4m3fn, simd::scalar>();
  check_patterns_to_float<float8_e5m2, simd::scalar>();
}

TEST_CASE("a float is rounded to the nearest small float, ties to even", "[kernel][convert]") {
  INFO("seed " << values::seed());
  const auto floats = sweep();
  check_rounding<bfloat16, simd::native>(floats);
  check_rounding<float16, simd::native>(floats);
  check_rounding<float8_e4m3fn, simd::native>(floats);
  check_rounding<float8_e5m2, simd::native>(floats);
}

namespace {

template <class Small>
void check_there_and_back() {
  for (std::uint32_t i = 0; i < 1U << (8 * sizeof(Small)); ++i) {
    const auto x = Small::from_bits(static_cast<bits_of<Small>>(i));
    const auto back = Small(static_cast<float>(x));
    const bool same = x == x ? back.bits == i : back.bits == detail::float_layout<Small>::quiet_nan;
    if (!same) {
      FAIL("pattern " << i);
    }
  }
}

}  // namespace

TEST_CASE("there and back again is the same pattern", "[kernel][convert]") {
  check_there_and_back<bfloat16>();
  check_there_and_back<float16>();
  check_there_and_back<float8_e4m3fn>();
  check_there_and_back<float8_e5m2>();
}

TEST_CASE("a conversion touches its elements only, at every length", "[kernel][convert]") {
  check_lengths<float, bfloat16, simd::native>();
  check_lengths<float, float16, simd::native>();
  check_lengths<float, float8_e4m3fn, simd::native>();
  check_lengths<float, float8_e5m2, simd::native>();
  check_lengths<bfloat16, float, simd::native>();
  check_lengths<float16, float, simd::native>();
  check_lengths<float8_e4m3fn, float, simd::native>();
  check_lengths<float8_e5m2, float, simd::native>();
  check_lengths<float16, float, simd::scalar>();
  check_lengths<float8_e4m3fn, float, simd::scalar>();
}
