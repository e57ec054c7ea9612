// SPDX-License-Identifier: Apache-2.0
// Element types: the 16-bit and 8-bit floats, the run-time tag of a type, and the way from one to
// the other.
#pragma once

#include <bit>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// The element type of a buffer, as a value. The numbers travel between processes: never renumber.
enum class dtype : std::uint8_t {
  user = 0,  ///< any other trivially copyable type
  float32 = 1,
  float64 = 2,
  bfloat16 = 3,
  float16 = 4,
  int8 = 5,
  int16 = 6,
  int32 = 7,
  int64 = 8,
  uint8 = 9,
  uint16 = 10,
  uint32 = 11,
  uint64 = 12,
  boolean = 13,
  float8_e4m3fn = 14,
  float8_e5m2 = 15,
};

namespace detail {

/// The pattern of a float's magnitude as a binary float with `Fraction` bits of fraction and that
/// exponent bias: rounded to nearest even, by integers alone. Too large ones run on into patterns
/// that mean something else.
template <unsigned Fraction, unsigned Bias>
RANKFOLD_DETAIL_INLINE constexpr std::uint32_t narrow_magnitude(std::uint32_t magnitude) noexcept {
  constexpr unsigned dropped = 23U - Fraction;
  if (magnitude >= (128U - Bias) << 23) {  // a normal number there, too
    // Just below half a unit, plus one more if the kept part is odd: a tie goes to even. The carry
    // into the exponent is right.
    const std::uint32_t tie_to_even = (1U << (dropped - 1U)) - 1U + ((magnitude >> dropped) & 1U);
    return (magnitude + tie_to_even - ((127U - Bias) << 23)) >> dropped;
  }
  // In units of the smallest subnormal: significand · 2^-shift.
  const std::uint32_t shift = 151U - Bias - Fraction - (magnitude >> 23);
  if (shift > 24U) {
    return 0;
  }
  const std::uint32_t significand = (magnitude & 0x007F'FFFFU) | 0x0080'0000U;
  const std::uint32_t whole = significand >> shift;
  const std::uint32_t rest = significand & ((1U << shift) - 1U);
  const std::uint32_t half = 1U << (shift - 1U);
  const bool up = rest > half || (rest == half && (whole & 1U) != 0U);
  return whole + (up ? 1U : 0U);
}

/// The way back, for a number; exact.
template <unsigned Fraction, unsigned Bias>
RANKFOLD_DETAIL_INLINE constexpr std::uint32_t widen_magnitude(std::uint32_t magnitude) noexcept {
  if (magnitude >= 1U << Fraction) {
    return (magnitude << (23U - Fraction)) + ((127U - Bias) << 23);
  }
  constexpr float unit = std::bit_cast<float>((128U - Bias - Fraction) << 23);
  return std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * unit);  // a normal float
}

/// The pattern of `value` in `Bits`: every NaN is `nan`; magnitudes from the float's pattern
/// `limit` on are `beyond`.
template <unsigned Fraction, unsigned Bias, class Bits>
RANKFOLD_DETAIL_INLINE constexpr Bits narrow_float(float value, std::uint32_t limit,
                                                   std::uint32_t beyond, Bits nan) noexcept {
  constexpr unsigned width = 8U * sizeof(Bits);
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> (32U - width)) & (1U << (width - 1U));
  const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
  if (magnitude > 0x7F80'0000U) {
    return nan;
  }
  if (magnitude >= limit) {
    return static_cast<Bits>(sign | beyond);
  }
  return static_cast<Bits>(sign | narrow_magnitude<Fraction, Bias>(magnitude));
}

/// What all small floats have; they compare as floats.
template <class Float, class Bits>
struct small_float {
  static constexpr Float from_bits(Bits pattern) noexcept {
    Float result;
    result.bits = pattern;
    return result;
  }

  friend constexpr bool operator==(Float a, Float b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr std::partial_ordering operator<=>(Float a, Float b) noexcept {
    return static_cast<float>(a) <=> static_cast<float>(b);
  }
};

}  // namespace detail

/// Brain float: the upper half of an IEEE binary32. For storage; arithmetic is done in float.
struct bfloat16 : detail::small_float<bfloat16, std::uint16_t> {
  std::uint16_t bits = 0;

  constexpr bfloat16() noexcept = default;

  /// Rounds to nearest even; every NaN becomes 0x7FC0. Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit bfloat16(float value) noexcept : bits(round(value)) {}

  /// Exact; also for NaNs, whose payload is kept.
  RANKFOLD_DETAIL_INLINE constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  RANKFOLD_DETAIL_INLINE static constexpr std::uint16_t round(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7FFF'FFFFU) > 0x7F80'0000U) {
      return 0x7FC0U;
    }
    // Just below half a unit, plus one more if the kept part is odd: a tie goes to even. The carry
    // into the exponent is right, up to infinity.
    return static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
  }
};

/// IEEE binary16. For storage; arithmetic is done in float.
struct float16 : detail::small_float<float16, std::uint16_t> {
  std::uint16_t bits = 0;

  constexpr float16() noexcept = default;

  /// Rounds to nearest even; every NaN becomes 0x7E00. Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit float16(float value) noexcept
      // 65536 and above; 65520 to 65536 carry to infinity.
      : bits(detail::narrow_float<10, 15, std::uint16_t>(value, 0x4780'0000U, 0x7C00U, 0x7E00U)) {}

  /// Exact. A NaN keeps its payload and becomes quiet, as the conversion instructions do it.
  RANKFOLD_DETAIL_INLINE constexpr explicit operator float() const noexcept {
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t magnitude = bits & 0x7FFFU;
    if (magnitude > 0x7C00U) {
      return std::bit_cast<float>(sign | 0x7FC0'0000U | magnitude << 13);
    }
    if (magnitude == 0x7C00U) {
      return std::bit_cast<float>(sign | 0x7F80'0000U);
    }
    return std::bit_cast<float>(sign | detail::widen_magnitude<10, 15>(magnitude));
  }
};

/// Four bits of exponent, three of fraction; no infinities, and one NaN of each sign (the format
/// E4M3 of the Open Compute Project's *8-bit Floating Point Specification* and of Micikevicius et
/// al. 2022, *FP8 Formats for Deep Learning*, arXiv:2209.05433). Its numbers end at 448. For
/// storage; arithmetic is done in float.
struct float8_e4m3fn : detail::small_float<float8_e4m3fn, std::uint8_t> {
  std::uint8_t bits = 0;

  constexpr float8_e4m3fn() noexcept = default;

  /// Rounds to nearest even. What is beyond 448, infinities too, becomes ±448, as the specification
  /// has it for conversions that saturate, and as torch does it; every NaN becomes 0x7F.
  /// Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit float8_e4m3fn(float value) noexcept
      // 448 and above.
      : bits(detail::narrow_float<3, 7, std::uint8_t>(value, 0x43E0'0000U, 0x7EU, 0x7FU)) {}

  /// Exact. A NaN becomes a quiet NaN with its sign.
  RANKFOLD_DETAIL_INLINE constexpr explicit operator float() const noexcept {
    const std::uint32_t sign = (bits & 0x80U) << 24;
    const std::uint32_t magnitude = bits & 0x7FU;
    if (magnitude == 0x7FU) {
      return std::bit_cast<float>(sign | 0x7FF0'0000U);
    }
    return std::bit_cast<float>(sign | detail::widen_magnitude<3, 7>(magnitude));
  }
};

/// Five bits of exponent, two of fraction: the upper half of an IEEE binary16 (the format E5M2 of
/// the publications above). For storage; arithmetic is done in float.
struct float8_e5m2 : detail::small_float<float8_e5m2, std::uint8_t> {
  std::uint8_t bits = 0;

  constexpr float8_e5m2() noexcept = default;

  /// Rounds to nearest even: from 61440 on to infinity, as torch does it; every NaN becomes 0x7F.
  /// Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit float8_e5m2(float value) noexcept
      // 65536 and above; 61440 to 65536 carry to infinity.
      : bits(detail::narrow_float<2, 15, std::uint8_t>(value, 0x4780'0000U, 0x7CU, 0x7FU)) {}

  /// Exact. A NaN keeps its payload and becomes quiet.
  RANKFOLD_DETAIL_INLINE constexpr explicit operator float() const noexcept {
    return static_cast<float>(float16::from_bits(static_cast<std::uint16_t>(bits << 8)));
  }
};

static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);
static_assert(sizeof(float16) == 2 && std::is_trivially_copyable_v<float16>);
static_assert(sizeof(float8_e4m3fn) == 1 && std::is_trivially_copyable_v<float8_e4m3fn>);
static_assert(sizeof(float8_e5m2) == 1 && std::is_trivially_copyable_v<float8_e5m2>);
static_assert(sizeof(bool) == 1);

/// True for the 8-bit floats.
template <class T>
inline constexpr bool is_float8_v =
    std::is_same_v<T, float8_e4m3fn> || std::is_same_v<T, float8_e5m2>;

/// True for the floating-point element types: float, double, the 16-bit and the 8-bit floats.
template <class T>
inline constexpr bool is_floating_v =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, bfloat16> ||
    std::is_same_v<T, float16> || is_float8_v<T>;

/// True for the integer element types: signed and unsigned, 8 to 64 bits, by whatever name. Not
/// bool, and not the character types, which hold text.
template <class T>
inline constexpr bool is_integer_v =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
    !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
    !std::is_same_v<T, char32_t> && sizeof(T) <= 8;

namespace detail {

template <class T>
consteval dtype find_dtype() {
  if constexpr (std::is_same_v<T, float>) {
    return dtype::float32;
  } else if constexpr (std::is_same_v<T, double>) {
    return dtype::float64;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return dtype::bfloat16;
  } else if constexpr (std::is_same_v<T, float16>) {
    return dtype::float16;
  } else if constexpr (std::is_same_v<T, float8_e4m3fn>) {
    return dtype::float8_e4m3fn;
  } else if constexpr (std::is_same_v<T, float8_e5m2>) {
    return dtype::float8_e5m2;
  } else if constexpr (std::is_same_v<T, bool>) {
    return dtype::boolean;
  } else if constexpr (is_integer_v<T>) {
    const dtype first = std::is_signed_v<T> ? dtype::int8 : dtype::uint8;
    return static_cast<dtype>(static_cast<int>(first) + std::countr_zero(sizeof(T)));
  } else {
    return dtype::user;
  }
}

template <dtype Type>
struct element;
template <>
struct element<dtype::float32> : std::type_identity<float> {};
template <>
struct element<dtype::float64> : std::type_identity<double> {};
template <>
struct element<dtype::bfloat16> : std::type_identity<bfloat16> {};
template <>
struct element<dtype::float16> : std::type_identity<float16> {};
template <>
struct element<dtype::int8> : std::type_identity<std::int8_t> {};
template <>
struct element<dtype::int16> : std::type_identity<std::int16_t> {};
template <>
struct element<dtype::int32> : std::type_identity<std::int32_t> {};
template <>
struct element<dtype::int64> : std::type_identity<std::int64_t> {};
template <>
struct element<dtype::uint8> : std::type_identity<std::uint8_t> {};
template <>
struct element<dtype::uint16> : std::type_identity<std::uint16_t> {};
template <>
struct element<dtype::uint32> : std::type_identity<std::uint32_t> {};
template <>
struct element<dtype::uint64> : std::type_identity<std::uint64_t> {};
template <>
struct element<dtype::boolean> : std::type_identity<bool> {};
template <>
struct element<dtype::float8_e4m3fn> : std::type_identity<float8_e4m3fn> {};
template <>
struct element<dtype::float8_e5m2> : std::type_identity<float8_e5m2> {};

template <class T>
struct accumulator : std::type_identity<T> {};
template <>
struct accumulator<bfloat16> : std::type_identity<float> {};
template <>
struct accumulator<float16> : std::type_identity<float> {};
template <>
struct accumulator<float8_e4m3fn> : std::type_identity<float> {};
template <>
struct accumulator<float8_e5m2> : std::type_identity<float> {};

[[noreturn]] inline void throw_unknown_dtype(dtype type) {
  throw std::invalid_argument(
      type == dtype::user
          ? std::string("rankfold: dtype user has no element type known at run time")
          : "rankfold: no dtype has the number " + std::to_string(static_cast<int>(type)));
}

}  // namespace detail

/// The tag of `T`; `dtype::user` for a type that the library does not know.
template <class T>
inline constexpr dtype dtype_of_v = detail::find_dtype<std::remove_cv_t<T>>();

/// The element type with that tag: the one that `visit` passes.
template <dtype Type>
using element_t = typename detail::element<Type>::type;

/// The type in which elements of type `T` are folded: float for the 16-bit and
/// the 8-bit floats, else `T`.
template <class T>
using accumulator_t = typename detail::accumulator<T>::type;

/// Calls `f.template operator()<T>()` with the element type of `type` and returns its result, which
/// must have the same type for each `T`.
///
/// Throws: `std::invalid_argument` for `dtype::user` and for a number that is no dtype.
template <class F>
constexpr decltype(auto) visit(dtype type, F&& f) {
  switch (type) {
    case dtype::float32:
      return f.template operator()<float>();
    case dtype::float64:
      return f.template operator()<double>();
    case dtype::bfloat16:
      return f.template operator()<bfloat16>();
    case dtype::float16:
      return f.template operator()<float16>();
    case dtype::int8:
      return f.template operator()<std::int8_t>();
    case dtype::int16:
      return f.template operator()<std::int16_t>();
    case dtype::int32:
      return f.template operator()<std::int32_t>();
    case dtype::int64:
      return f.template operator()<std::int64_t>();
    case dtype::uint8:
      return f.template operator()<std::uint8_t>();
    case dtype::uint16:
      return f.template operator()<std::uint16_t>();
    case dtype::uint32:
      return f.template operator()<std::uint32_t>();
    case dtype::uint64:
      return f.template operator()<std::uint64_t>();
    case dtype::boolean:
      return f.template operator()<bool>();
    case dtype::float8_e4m3fn:
      return f.template operator()<float8_e4m3fn>();
    case dtype::float8_e5m2:
      return f.template operator()<float8_e5m2>();
    case dtype::user:
      break;
  }
  detail::throw_unknown_dtype(type);
}

/// Bytes of one element.
///
/// Throws: `std::invalid_argument` for `dtype::user` and for a number that is no dtype.
constexpr std::size_t size_of(dtype type) {
  return visit(type, []<class T>() { return sizeof(T); });
}

/// "float32", "bfloat16", …, "user"; "unknown" for a number that is no dtype.
constexpr std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case dtype::user:
      return "user";
    case dtype::float32:
      return "float32";
    case dtype::float64:
      return "float64";
    case dtype::bfloat16:
      return "bfloat16";
    case dtype::float16:
      return "float16";
    case dtype::int8:
      return "int8";
    case dtype::int16:
      return "int16";
    case dtype::int32:
      return "int32";
    case dtype::int64:
      return "int64";
    case dtype::uint8:
      return "uint8";
    case dtype::uint16:
      return "uint16";
    case dtype::uint32:
      return "uint32";
    case dtype::uint64:
      return "uint64";
    case dtype::boolean:
      return "boolean";
    case dtype::float8_e4m3fn:
      return "float8_e4m3fn";
    case dtype::float8_e5m2:
      return "float8_e5m2";
  }
  return "unknown";
}

RANKFOLD_END_NAMESPACE
