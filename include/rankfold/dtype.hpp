// SPDX-License-Identifier: Apache-2.0
// Element types: the 16-bit floats, the run-time tag of a type, and the way from one to the other.
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
};

/// Brain float: the upper half of an IEEE binary32. For storage; arithmetic is done in float.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() noexcept = default;

  /// Rounds to nearest even; every NaN becomes 0x7FC0. Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit bfloat16(float value) noexcept : bits(round(value)) {}

  /// Exact; also for NaNs, whose payload is kept.
  RANKFOLD_DETAIL_INLINE constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  static constexpr bfloat16 from_bits(std::uint16_t pattern) noexcept {
    bfloat16 result;
    result.bits = pattern;
    return result;
  }

  friend constexpr bool operator==(bfloat16 a, bfloat16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr std::partial_ordering operator<=>(bfloat16 a, bfloat16 b) noexcept {
    return static_cast<float>(a) <=> static_cast<float>(b);
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
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() noexcept = default;

  /// Rounds to nearest even; every NaN becomes 0x7E00. Independent of the rounding mode.
  RANKFOLD_DETAIL_INLINE constexpr explicit float16(float value) noexcept : bits(round(value)) {}

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
    if (magnitude >= 0x0400U) {
      return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
    }
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;  // exact, a normal float
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
  }

  static constexpr float16 from_bits(std::uint16_t pattern) noexcept {
    float16 result;
    result.bits = pattern;
    return result;
  }

  friend constexpr bool operator==(float16 a, float16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr std::partial_ordering operator<=>(float16 a, float16 b) noexcept {
    return static_cast<float>(a) <=> static_cast<float>(b);
  }

 private:
  RANKFOLD_DETAIL_INLINE static constexpr std::uint16_t round(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000U;
    const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
    if (magnitude > 0x7F80'0000U) {
      return 0x7E00U;
    }
    if (magnitude >= 0x4780'0000U) {  // 65536 and above; 65520 to 65536 carry to infinity below
      return static_cast<std::uint16_t>(sign | 0x7C00U);
    }
    if (magnitude >= 113U << 23) {  // a normal number as binary16, too
      const std::uint32_t tie_to_even = 0x0FFFU + ((magnitude >> 13) & 1U);
      return static_cast<std::uint16_t>(sign | (magnitude + tie_to_even - (112U << 23)) >> 13);
    }
    // In units of 2^-24, the smallest subnormal: significand · 2^-shift.
    const std::uint32_t shift = 126U - (magnitude >> 23);
    if (shift > 24U) {
      return static_cast<std::uint16_t>(sign);
    }
    const std::uint32_t significand = (magnitude & 0x007F'FFFFU) | 0x0080'0000U;
    const std::uint32_t whole = significand >> shift;
    const std::uint32_t rest = significand & ((1U << shift) - 1U);
    const std::uint32_t half = 1U << (shift - 1U);
    const bool up = rest > half || (rest == half && (whole & 1U) != 0U);
    return static_cast<std::uint16_t>(sign | (whole + (up ? 1U : 0U)));
  }
};

static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);
static_assert(sizeof(float16) == 2 && std::is_trivially_copyable_v<float16>);
static_assert(sizeof(bool) == 1);

/// True for the floating-point element types: float, double, bfloat16, float16.
template <class T>
inline constexpr bool is_floating_v = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                      std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

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

template <class T>
struct accumulator : std::type_identity<T> {};
template <>
struct accumulator<bfloat16> : std::type_identity<float> {};
template <>
struct accumulator<float16> : std::type_identity<float> {};

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

/// The type in which elements of type `T` are folded: float for the 16-bit floats, else `T`.
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
  }
  return "unknown";
}

RANKFOLD_END_NAMESPACE
