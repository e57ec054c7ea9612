// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rankfold/kernel/convert.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold;

template <class Half>
std::uint16_t exact_from_float(float x) {
  return static_cast<std::uint16_t>(std::is_same_v<Half, bfloat16>
                                        ? reference::encode<8, 7>(double{x})
                                        : reference::encode<5, 10>(double{x}));
}

/// The float of a pattern: by exact arithmetic, and for NaNs by the rule that the payload stays, a
/// float16 becoming quiet.
template <class Half>
std::uint32_t exact_to_float(std::uint16_t pattern) {
  constexpr bool is_brain = std::is_same_v<Half, bfloat16>;
  const double value =
      is_brain ? reference::decode<8, 7>(pattern) : reference::decode<5, 10>(pattern);
  if (std::isnan(value)) {
    const std::uint32_t sign = (pattern & 0x8000U) << 16;
    return is_brain ? std::uint32_t{pattern} << 16 : sign | 0x7FC00000U | (pattern & 0x03FFU) << 13;
  }
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
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
    for (const std::uint32_t rest : {0U, 0x7FFFU, 0x8000U, 0x8001U}) {
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

template <class Half, class Arch>
void check_patterns_to_float() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<std::uint16_t>(i);
  }
  std::vector<std::uint32_t> floats(patterns.size());
  kernel::convert_for<float, Half, Arch>()(patterns.data(), floats.data(), patterns.size());
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto expected = exact_to_float<Half>(patterns[i]);
    const auto one = std::bit_cast<std::uint32_t>(static_cast<float>(Half::from_bits(patterns[i])));
    if (floats[i] != expected || one != expected) {
      FAIL(std::hex << "pattern " << patterns[i] << " gave " << floats[i] << " and " << one
                    << ", not " << expected);
    }
  }
}

template <class Half, class Arch>
void check_rounding(const std::vector<float>& floats) {
  std::vector<std::uint16_t> patterns(floats.size());
  kernel::convert_for<Half, float, Arch>()(floats.data(), patterns.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const auto expected = exact_from_float<Half>(floats[i]);
    const auto one = Half(floats[i]).bits;
    if (patterns[i] != expected || one != expected) {
      FAIL(std::hex << "float " << std::bit_cast<std::uint32_t>(floats[i]) << " gave "
                    << patterns[i] << " and " << one << ", not " << expected);
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

TEST_CASE("every 16-bit pattern has the right float", "[kernel][convert]") {
  check_patterns_to_float<bfloat16, simd::native>();
  check_patterns_to_float<float16, simd::native>();
  check_patterns_to_float<bfloat16, simd::scalar>();
  check_patterns_to_float<float16, simd::scalar>();
}

TEST_CASE("a float is rounded to the nearest 16-bit float, ties to even", "[kernel][convert]") {
  INFO("seed " << values::seed());
  const auto floats = sweep();
  check_rounding<bfloat16, simd::native>(floats);
  check_rounding<float16, simd::native>(floats);
}

TEST_CASE("there and back again is the same pattern", "[kernel][convert]") {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto b = bfloat16::from_bits(static_cast<std::uint16_t>(pattern));
    const auto h = float16::from_bits(static_cast<std::uint16_t>(pattern));
    const bool b_is_nan = (pattern & 0x7FFFU) > 0x7F80U;
    const bool h_is_nan = (pattern & 0x7FFFU) > 0x7C00U;
    if (bfloat16(static_cast<float>(b)).bits != (b_is_nan ? 0x7FC0U : pattern) ||
        float16(static_cast<float>(h)).bits != (h_is_nan ? 0x7E00U : pattern)) {
      FAIL("pattern " << pattern);
    }
  }
}

TEST_CASE("a conversion touches its elements only, at every length", "[kernel][convert]") {
  check_lengths<float, bfloat16, simd::native>();
  check_lengths<float, float16, simd::native>();
  check_lengths<bfloat16, float, simd::native>();
  check_lengths<float16, float, simd::native>();
  check_lengths<float16, float, simd::scalar>();
}
