// SPDX-License-Identifier: Apache-2.0
// The oracle for bits: a scalar recursion of the canonical tree. It shares no code with the
// library, only its types; conversions of the small floats are done in exact arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"

namespace reference {

/// The value of a binary float pattern with E exponent and F fraction bits; exact.
template <int E, int F>
inline double decode(std::uint32_t pattern) {
  const double sign = ((pattern >> (E + F)) & 1U) != 0 ? -1.0 : 1.0;
  const auto exponent = static_cast<int>((pattern >> F) & ((1U << E) - 1U));
  const auto fraction = static_cast<int>(pattern & ((1U << F) - 1U));
  const int bias = (1 << (E - 1)) - 1;
  if (exponent == (1 << E) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias - F)
                       : sign * std::ldexp(fraction + (1 << F), exponent - bias - F);
}

/// The pattern next to `x`, ties to the even one; every NaN gives the one positive quiet NaN.
template <int E, int F>
inline std::uint32_t encode(double x) {
  constexpr int bias = (1 << (E - 1)) - 1;
  constexpr std::uint32_t infinity = ((1U << E) - 1U) << F;
  if (std::isnan(x)) {
    return infinity | 1U << (F - 1);
  }
  const std::uint32_t sign = std::signbit(x) ? 1U << (E + F) : 0U;
  const double magnitude = std::fabs(x);
  if (magnitude == 0.0) {
    return sign;
  }
  if (std::isinf(x) || std::ilogb(magnitude) > bias) {
    return sign | infinity;
  }
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double scaled = std::ldexp(magnitude, F - exponent);  // exact, below 2^(F+1)
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0)) {
    whole += 1.0;
  }
  // A normal number's hidden bit adds one to the exponent field; so does a carry.
  const auto units = static_cast<std::uint32_t>(whole);
  return sign | std::min(infinity, units + (static_cast<std::uint32_t>(exponent + bias - 1) << F));
}

/// The numbers of an 8-bit float: the value of each magnitude up to the one that too large numbers
/// become, which for float8_e5m2 is infinity, in the place of 2^16.
template <class T>
inline const auto& float8_numbers() {
  constexpr bool is_e5m2 = std::is_same_v<T, rankfold::float8_e5m2>;
  constexpr int fraction = is_e5m2 ? 2 : 3;
  constexpr int bias = is_e5m2 ? 15 : 7;
  static const auto numbers = [] {
    std::array<double, (is_e5m2 ? 0x7C : 0x7E) + 1> all{};
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const int exponent = i >> fraction;
      const int digits = (i & ((1 << fraction) - 1)) + (exponent > 0 ? 1 << fraction : 0);
      all[static_cast<std::size_t>(i)] =
          std::ldexp(digits, std::max(exponent, 1) - bias - fraction);
    }
    return all;
  }();
  return numbers;
}

template <class T>
inline double decode_float8(std::uint8_t pattern) {
  const auto& numbers = float8_numbers<T>();
  const std::size_t magnitude = pattern & 0x7FU;
  const bool is_infinity = std::is_same_v<T, rankfold::float8_e5m2> && magnitude == 0x7C;
  const double x = is_infinity                  ? std::numeric_limits<double>::infinity()
                   : magnitude < numbers.size() ? numbers[magnitude]
                                                : std::numeric_limits<double>::quiet_NaN();
  return (pattern & 0x80U) != 0 ? -x : x;
}

/// The nearest of these numbers, of two the even one; every NaN gives 0x7F.
template <class T>
inline std::uint8_t encode_float8(double x) {
  if (std::isnan(x)) {
    return 0x7F;
  }
  const auto& numbers = float8_numbers<T>();
  const double magnitude = std::min(std::fabs(x), numbers.back());
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  auto nearest = static_cast<unsigned>(above - numbers.begin());
  if (*above != magnitude) {
    const double middle = (above[-1] + *above) / 2;
    nearest -= magnitude < middle || (magnitude == middle && nearest % 2 != 0) ? 1 : 0;
  }
  return static_cast<std::uint8_t>(nearest | (std::signbit(x) ? 0x80U : 0U));
}

/// What a fold of T computes in.
template <class T>
struct wide : std::type_identity<T> {};
template <>
struct wide<rankfold::bfloat16> : std::type_identity<float> {};
template <>
struct wide<rankfold::float16> : std::type_identity<float> {};
template <>
struct wide<rankfold::float8_e4m3fn> : std::type_identity<float> {};
template <>
struct wide<rankfold::float8_e5m2> : std::type_identity<float> {};
template <class T>
using wide_t = typename wide<T>::type;

template <class T>
inline wide_t<T> read(const std::byte* from) {
  if constexpr (std::is_same_v<T, bool>) {
    return *from != std::byte{0};
  } else {
    T x{};
    std::memcpy(static_cast<void*>(&x), from, sizeof(T));
    if constexpr (std::is_same_v<T, rankfold::bfloat16>) {
      return static_cast<float>(decode<8, 7>(x.bits));
    } else if constexpr (std::is_same_v<T, rankfold::float16>) {
      return static_cast<float>(decode<5, 10>(x.bits));
    } else if constexpr (rankfold::is_float8_v<T>) {
      return static_cast<float>(decode_float8<T>(x.bits));
    } else {
      return x;
    }
  }
}

template <class T>
inline void write(std::byte* to, wide_t<T> x) {
  if constexpr (std::is_same_v<T, bool>) {
    *to = std::byte{x};
  } else if constexpr (std::is_same_v<T, rankfold::bfloat16>) {
    const auto pattern = static_cast<std::uint16_t>(encode<8, 7>(double{x}));
    std::memcpy(to, &pattern, 2);
  } else if constexpr (std::is_same_v<T, rankfold::float16>) {
    const auto pattern = static_cast<std::uint16_t>(encode<5, 10>(double{x}));
    std::memcpy(to, &pattern, 2);
  } else if constexpr (rankfold::is_float8_v<T>) {
    *to = std::byte{encode_float8<T>(double{x})};
  } else {
    std::memcpy(to, &x, sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(x)) {
        const std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t> pattern =
            sizeof(T) == 4 ? 0x7FC00000U : 0x7FF8000000000000U;
        std::memcpy(to, &pattern, sizeof(T));
      }
    }
  }
}

/// a ⊕ b by the definition of the operator.
template <class Op, class W>
inline W combine(const Op& op, W a, W b) {
  using namespace rankfold;
  constexpr bool is_sum = std::is_same_v<Op, sum> || std::is_same_v<Op, avg>;
  if constexpr (!builtin_operator<Op>) {
    return op(a, b);
  } else if constexpr (std::is_floating_point_v<W>) {
    if constexpr (is_sum) {
      return a + b;
    } else if constexpr (std::is_same_v<Op, prod>) {
      return a * b;
    } else if (std::isnan(a) || std::isnan(b)) {
      return std::numeric_limits<W>::quiet_NaN();
    } else if (a == b) {
      return std::signbit(a) == std::is_same_v<Op, rankfold::min> ? a : b;
    } else {
      return std::is_same_v<Op, rankfold::min> ? std::fmin(a, b) : std::fmax(a, b);
    }
  } else if constexpr (std::is_same_v<Op, rankfold::min>) {
    return (std::min)(a, b);
  } else if constexpr (std::is_same_v<Op, rankfold::max>) {
    return (std::max)(a, b);
  } else if constexpr (std::is_same_v<Op, logical_and>) {
    return static_cast<W>(a != 0 && b != 0);
  } else if constexpr (std::is_same_v<Op, logical_or>) {
    return static_cast<W>(a != 0 || b != 0);
  } else {
    const auto x = static_cast<std::uint64_t>(a);  // modulo 2^64, hence modulo any smaller power
    const auto y = static_cast<std::uint64_t>(b);
    if constexpr (is_sum) {
      return static_cast<W>(x + y);
    } else if constexpr (std::is_same_v<Op, prod>) {
      return static_cast<W>(x * y);
    } else if constexpr (std::is_same_v<Op, bit_and>) {
      return static_cast<W>(x & y);
    } else if constexpr (std::is_same_v<Op, bit_or>) {
      return static_cast<W>(x | y);
    } else {
      return static_cast<W>(x ^ y);
    }
  }
}

/// The canonical tree: n operands are split at the largest power of two below n.
template <class W, class Op, class Get>
inline W tree(const Op& op, const Get& get, int first, int n) {
  if (n == 1) {
    return get(first);
  }
  int left = 1;
  while (2 * left < n) {
    left *= 2;
  }
  return combine<Op, W>(op, tree<W>(op, get, first, left),
                        tree<W>(op, get, first + left, n - left));
}

/// What `kernel::fold` must write, bit by bit, from n inputs of `count` elements.
template <class T, class Op>
inline void fold(const Op& op, const std::byte* const* in, int n, std::byte* out,
                 std::size_t count) {
  using W = wide_t<T>;
  for (std::size_t i = 0; i < count; ++i) {
    const auto get = [&](int k) { return read<T>(in[k] + i * sizeof(T)); };
    W x = tree<W>(op, get, 0, n);
    if constexpr (std::is_same_v<Op, rankfold::avg>) {
      x = x / static_cast<W>(n);
    } else if constexpr (std::is_same_v<Op, rankfold::logical_and> ||
                         std::is_same_v<Op, rankfold::logical_or>) {
      x = static_cast<W>(x != 0);
    }
    write<T>(out + i * sizeof(T), x);
  }
}

/// The same for a type and an operator known at run time.
inline void fold(rankfold::dtype type, rankfold::reduction operation, const std::byte* const* in,
                 int n, std::byte* out, std::size_t count) {
  rankfold::visit(operation, [&]<class Op>(Op op) {
    rankfold::visit(type, [&]<class T>() {
      if constexpr (rankfold::supports_v<Op, T>) {
        fold<T>(op, in, n, out, count);
      } else {
        throw std::invalid_argument("reference::fold: not supported");
      }
    });
  });
}

/// The same for vectors, one a rank, all of one size. Not for bool, whose vector has no elements.
template <class T, class Op>
inline std::vector<T> fold(const std::vector<std::vector<T>>& ranks, const Op& op = {}) {
  std::vector<const std::byte*> in;
  for (const auto& data : ranks) {
    in.push_back(reinterpret_cast<const std::byte*>(data.data()));
  }
  std::vector<T> out(ranks.at(0).size());
  fold<T>(op, in.data(), static_cast<int>(in.size()), reinterpret_cast<std::byte*>(out.data()),
          out.size());
  return out;
}

}  // namespace reference
