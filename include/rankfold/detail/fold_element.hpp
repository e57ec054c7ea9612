// SPDX-License-Identifier: Apache-2.0
// The fold of one element at a time, in plain C++: what every vector kernel must equal bit by bit,
// and the only way to fold with a user's operator.
//
// All is templated on Arch although nothing here vectorises by hand: the compiler may use any
// instruction of the flags at hand, and functions of one name in two translation units are merged.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace detail {

template <std::size_t Size>
struct unsigned_of_size;
template <>
struct unsigned_of_size<1> : std::type_identity<std::uint8_t> {};
template <>
struct unsigned_of_size<2> : std::type_identity<std::uint16_t> {};
template <>
struct unsigned_of_size<4> : std::type_identity<std::uint32_t> {};
template <>
struct unsigned_of_size<8> : std::type_identity<std::uint64_t> {};

template <class T>
using unsigned_of_t = typename unsigned_of_size<sizeof(T)>::type;

template <class T>
RANKFOLD_DETAIL_INLINE T load_element(const std::byte* from) noexcept {
  struct image {
    std::byte bytes[sizeof(T)];
  } raw;
  __builtin_memcpy(&raw, from, sizeof(T));
  return __builtin_bit_cast(T, raw);  // T need not be default constructible
}

template <class T>
RANKFOLD_DETAIL_INLINE void store_element(std::byte* to, const T& value) noexcept {
  __builtin_memcpy(to, &value, sizeof(T));
}

// What distinguishes the bits of a float type.
template <class T>
struct float_layout;
template <>
struct float_layout<float> {
  using bits = std::uint32_t;
  static constexpr bits sign = 0x8000'0000U;
  static constexpr bits infinity = 0x7F80'0000U;
  static constexpr bits quiet_nan = 0x7FC0'0000U;
};
template <>
struct float_layout<double> {
  using bits = std::uint64_t;
  static constexpr bits sign = 0x8000'0000'0000'0000U;
  static constexpr bits infinity = 0x7FF0'0000'0000'0000U;
  static constexpr bits quiet_nan = 0x7FF8'0000'0000'0000U;
};
template <>
struct float_layout<bfloat16> {
  using bits = std::uint16_t;
  static constexpr bits sign = 0x8000U;
  static constexpr bits infinity = 0x7F80U;
  static constexpr bits quiet_nan = 0x7FC0U;
};
template <>
struct float_layout<float16> {
  using bits = std::uint16_t;
  static constexpr bits sign = 0x8000U;
  static constexpr bits infinity = 0x7C00U;
  static constexpr bits quiet_nan = 0x7E00U;
};

template <>
struct float_layout<float8_e4m3fn> {
  using bits = std::uint8_t;
  static constexpr bits sign = 0x80U;
  static constexpr bits infinity = 0x7EU;  // there is none: the largest number
  static constexpr bits quiet_nan = 0x7FU;
};
template <>
struct float_layout<float8_e5m2> {
  using bits = std::uint8_t;
  static constexpr bits sign = 0x80U;
  static constexpr bits infinity = 0x7CU;
  static constexpr bits quiet_nan = 0x7FU;
};

// By bits: a comparison `x != x` is removed by compilers that were told that there are no NaNs.
template <class T>
RANKFOLD_DETAIL_INLINE bool is_nan(T x) noexcept {
  using layout = float_layout<T>;
  const auto bits = __builtin_bit_cast(typename layout::bits, x);
  return (bits & static_cast<typename layout::bits>(~layout::sign)) > layout::infinity;
}

/// One element type under one operator: load, combine, store.
template <class Arch, class Op, class T>
struct element_fold;

// Integers: in unsigned arithmetic, which wraps.
template <class Arch, class Op, class T>
  requires builtin_operator<Op> && is_integer_v<T>
struct element_fold<Arch, Op, T> {
  using value = unsigned_of_t<T>;

  RANKFOLD_DETAIL_INLINE static value load(const std::byte* from) noexcept {
    const auto x = load_element<value>(from);
    if constexpr (std::is_same_v<Op, logical_and> || std::is_same_v<Op, logical_or>) {
      return x != 0 ? 1 : 0;
    } else {
      return x;
    }
  }

  RANKFOLD_DETAIL_INLINE static value combine(value a, value b) noexcept {
    using wide = std::common_type_t<value, unsigned>;  // 16-bit products would overflow as int
    if constexpr (std::is_same_v<Op, sum>) {
      return static_cast<value>(wide{a} + wide{b});
    } else if constexpr (std::is_same_v<Op, prod>) {
      return static_cast<value>(wide{a} * wide{b});
    } else if constexpr (std::is_same_v<Op, min>) {
      return static_cast<T>(b) < static_cast<T>(a) ? b : a;
    } else if constexpr (std::is_same_v<Op, max>) {
      return static_cast<T>(a) < static_cast<T>(b) ? b : a;
    } else if constexpr (std::is_same_v<Op, bit_xor>) {
      return a ^ b;
    } else if constexpr (std::is_same_v<Op, bit_and> || std::is_same_v<Op, logical_and>) {
      return a & b;
    } else {
      static_assert(std::is_same_v<Op, bit_or> || std::is_same_v<Op, logical_or>);
      return a | b;
    }
  }

  RANKFOLD_DETAIL_INLINE static void store(std::byte* to, value x, int) noexcept {
    store_element(to, x);
  }
};

// bool: a byte, true if not zero; any other byte than 0 and 1 would be undefined as a bool.
template <class Arch, class Op>
  requires supports_v<Op, bool>
struct element_fold<Arch, Op, bool> {
  using value = std::uint8_t;

  RANKFOLD_DETAIL_INLINE static value load(const std::byte* from) noexcept {
    return *from != std::byte{0} ? 1 : 0;
  }

  RANKFOLD_DETAIL_INLINE static value combine(value a, value b) noexcept {
    if constexpr (std::is_same_v<Op, bit_xor>) {
      return a ^ b;
    } else if constexpr (std::is_same_v<Op, bit_and> || std::is_same_v<Op, logical_and> ||
                         std::is_same_v<Op, min>) {
      return a & b;
    } else {
      return a | b;
    }
  }

  RANKFOLD_DETAIL_INLINE static void store(std::byte* to, value x, int) noexcept {
    *to = static_cast<std::byte>(x);
  }
};

// Floats: in the accumulator's type, with one rounding and one NaN at the end.
template <class Arch, class Op, class T>
  requires builtin_operator<Op> && is_floating_v<T>
struct element_fold<Arch, Op, T> {
  using value = accumulator_t<T>;
  using bits = typename float_layout<value>::bits;

  RANKFOLD_DETAIL_INLINE static value load(const std::byte* from) noexcept {
    return static_cast<value>(load_element<T>(from));
  }

  RANKFOLD_DETAIL_INLINE static value combine(value a, value b) noexcept {
    if constexpr (std::is_same_v<Op, sum> || std::is_same_v<Op, avg>) {
      return a + b;
    } else if constexpr (std::is_same_v<Op, prod>) {
      return a * b;
    } else {
      static_assert(std::is_same_v<Op, min> || std::is_same_v<Op, max>);
      if (is_nan(a)) {
        return a;
      }
      if (is_nan(b)) {
        return b;
      }
      if (a == b) {  // of two zeros, the signs decide
        const auto x = __builtin_bit_cast(bits, a);
        const auto y = __builtin_bit_cast(bits, b);
        return __builtin_bit_cast(value, std::is_same_v<Op, min> ? x | y : x & y);
      }
      return (a < b) == std::is_same_v<Op, min> ? a : b;
    }
  }

  RANKFOLD_DETAIL_INLINE static void store(std::byte* to, value x, int divisor) noexcept {
    if constexpr (std::is_same_v<Op, avg>) {
      x /= static_cast<value>(divisor);
    }
    if constexpr (std::is_same_v<T, value>) {
      const bits pattern = is_nan(x) ? float_layout<T>::quiet_nan : __builtin_bit_cast(bits, x);
      store_element(to, pattern);
    } else {
      store_element(to, T(x));
    }
  }
};

// The canonical tree over in[first] … in[first + n - 1] at one offset: split at the largest power
// of two below n. `combine` may be a user's operator.
template <class Arch, class Value, class Load, class Combine>
Value fold_tree(const Load& load, const Combine& combine, int first, int n) {
  if (n == 1) {
    return load(first);
  }
  int left = 1;
  while (left < n - left) {
    left *= 2;
  }
  const Value a = fold_tree<Arch, Value>(load, combine, first, left);
  return combine(a, fold_tree<Arch, Value>(load, combine, first + left, n - left));
}

/// The fold of a built-in operator, element by element, from elements of From to elements of To,
/// which are folded in one type. `avg` divides by `divisor`.
template <class Arch, class Op, class From, class To>
void fold_elements(const void* const* in, int n, int divisor, void* out,
                   std::size_t count) noexcept {
  using source = element_fold<Arch, Op, From>;
  using value = typename source::value;
  for (std::size_t i = 0; i < count; ++i) {
    const auto load = [&](int k) {
      return source::load(static_cast<const std::byte*>(in[k]) + i * sizeof(From));
    };
    const auto combine = [](value a, value b) { return source::combine(a, b); };
    element_fold<Arch, Op, To>::store(static_cast<std::byte*>(out) + i * sizeof(To),
                                      fold_tree<Arch, value>(load, combine, 0, n), divisor);
  }
}

/// The fold of a user's operator, over T itself; the result is stored as it is.
template <class Arch, class Op, class T>
void fold_elements_user(const Op& op, const void* const* in, int n, void* out, std::size_t count) {
  const auto combine = [&](const T& a, const T& b) -> T { return op(a, b); };
  if (n == 2) {  // the usual case, free of the recursion
    const auto* a = static_cast<const std::byte*>(in[0]);
    const auto* b = static_cast<const std::byte*>(in[1]);
    auto* to = static_cast<std::byte*>(out);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t offset = i * sizeof(T);
      store_element<T>(to + offset,
                       combine(load_element<T>(a + offset), load_element<T>(b + offset)));
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = i * sizeof(T);
    const auto load = [&](int k) {
      return load_element<T>(static_cast<const std::byte*>(in[k]) + offset);
    };
    store_element<T>(static_cast<std::byte*>(out) + offset,
                     fold_tree<Arch, T>(load, combine, 0, n));
  }
}

}  // namespace detail
RANKFOLD_END_NAMESPACE
