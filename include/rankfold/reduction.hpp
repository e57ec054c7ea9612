// SPDX-License-Identifier: Apache-2.0
// Operators: what a fold does with two elements.
#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// A built-in operator, as a value. The numbers travel between processes: never renumber.
enum class reduction : std::uint8_t {
  user = 0,  ///< a callable of the caller
  sum = 1,
  prod = 2,
  min = 3,
  max = 4,
  avg = 5,
  bit_and = 6,
  bit_or = 7,
  bit_xor = 8,
  logical_and = 9,
  logical_or = 10,
};

/// a + b; integers wrap as unsigned arithmetic does.
struct sum {};
/// a · b; integers wrap as unsigned arithmetic does.
struct prod {};
/// The smaller one; a NaN wins over every number, and −0 is below +0.
struct min {};
/// The larger one; a NaN wins over every number, and +0 is above −0.
struct max {};
/// The sum divided by the number of operands, both in the accumulator's type; floating types only.
struct avg {};
/// a & b of integers and bool.
struct bit_and {};
/// a | b of integers and bool.
struct bit_or {};
/// a ^ b of integers and bool.
struct bit_xor {};
/// 1 if both are non-zero, else 0; of integers and bool, also when there is only one operand.
struct logical_and {};
/// 1 if one of both is non-zero, else 0; of integers and bool, also when there is only one operand.
struct logical_or {};

namespace detail {

template <class Op>
consteval reduction find_reduction() {
  if constexpr (std::is_same_v<Op, sum>) {
    return reduction::sum;
  } else if constexpr (std::is_same_v<Op, prod>) {
    return reduction::prod;
  } else if constexpr (std::is_same_v<Op, min>) {
    return reduction::min;
  } else if constexpr (std::is_same_v<Op, max>) {
    return reduction::max;
  } else if constexpr (std::is_same_v<Op, avg>) {
    return reduction::avg;
  } else if constexpr (std::is_same_v<Op, bit_and>) {
    return reduction::bit_and;
  } else if constexpr (std::is_same_v<Op, bit_or>) {
    return reduction::bit_or;
  } else if constexpr (std::is_same_v<Op, bit_xor>) {
    return reduction::bit_xor;
  } else if constexpr (std::is_same_v<Op, logical_and>) {
    return reduction::logical_and;
  } else if constexpr (std::is_same_v<Op, logical_or>) {
    return reduction::logical_or;
  } else {
    return reduction::user;
  }
}

}  // namespace detail

/// The number of `Op`; `reduction::user` if it is not one of the library's operators.
template <class Op>
inline constexpr reduction reduction_of_v = detail::find_reduction<std::remove_cv_t<Op>>();

/// One of the library's operators: sum, prod, min, …
template <class Op>
concept builtin_operator = reduction_of_v<Op> != reduction::user;

namespace detail {

template <class Op, class T>
consteval bool find_support() {
  constexpr bool is_integer_or_bool = is_integer_v<T> || std::is_same_v<T, bool>;
  switch (reduction_of_v<Op>) {
    case reduction::sum:
    case reduction::prod:
      return is_floating_v<T> || is_integer_v<T>;
    case reduction::min:
    case reduction::max:
      return is_floating_v<T> || is_integer_or_bool;
    case reduction::avg:
      return is_floating_v<T>;
    case reduction::bit_and:
    case reduction::bit_or:
    case reduction::bit_xor:
    case reduction::logical_and:
    case reduction::logical_or:
      return is_integer_or_bool;
    case reduction::user:
      break;
  }
  return false;
}

// The name of types as the compiler writes it. Only equality matters.
template <class... Ts>
constexpr std::string_view type_names() noexcept {
  return __PRETTY_FUNCTION__;
}

// FNV-1a with the standard 32-bit parameters.
constexpr std::uint32_t fnv1a(std::string_view text) noexcept {
  std::uint32_t hash = 2166136261U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return hash;
}

template <class Op, class T>
consteval std::uint32_t find_operator_id() {
  constexpr std::uint32_t user_bit = 1U << 31;
  if constexpr (builtin_operator<Op>) {
    return static_cast<std::uint32_t>(reduction_of_v<Op>);
  } else if constexpr (requires {
                         { Op::id } -> std::convertible_to<std::uint32_t>;
                       }) {
    return user_bit | static_cast<std::uint32_t>(Op::id);
  } else {
    return user_bit | fnv1a(type_names<Op, T>());
  }
}

[[noreturn]] inline void throw_unknown_reduction(reduction operation) {
  throw std::invalid_argument(operation == reduction::user
                                  ? std::string("rankfold: reduction user has no operator known "
                                                "at run time")
                                  : "rankfold: no reduction has the number " +
                                        std::to_string(static_cast<int>(operation)));
}

}  // namespace detail

/// Whether the built-in operator `Op` makes sense for elements of type `T`: sum and prod for all
/// but bool, min and max for all, avg for floating types, bit_* and logical_* for integers and
/// bool.
template <class Op, class T>
inline constexpr bool supports_v = detail::find_support<Op, std::remove_cv_t<T>>();

/// An operator that can fold elements of type `T`: a built-in one that supports it, or a callable
/// `(T, T) -> T` of the user's.
///
/// **Model requirements** of a user's operator: it is called as const, from the thread that calls
/// the collective, in the canonical order and association (docs/numerics.md), so that it need be
/// neither commutative nor associative; it must give equal results for equal operands on every
/// rank, and should not throw. If ranks may be built by different compilers, give it a
/// `static constexpr std::uint32_t id`, since its type's name is spelt differently there.
template <class Op, class T>
concept reduction_op =
    std::is_trivially_copyable_v<T> &&
    (supports_v<Op, T> ||
     (!builtin_operator<Op> && std::is_invocable_r_v<T, const Op&, const T&, const T&>));

/// Tells operators apart in the fingerprint of a call: the `reduction` number of a built-in one;
/// for a user's, bit 31 and its `id`, or a hash of the names of `Op` and `T` if it has none.
template <class Op, class T>
inline constexpr std::uint32_t operator_id_v =
    detail::find_operator_id<std::remove_cv_t<Op>, std::remove_cv_t<T>>();

/// Calls `f(op)` with the operator object of `operation` and returns its result, which must have
/// the same type for each operator.
///
/// Throws: `std::invalid_argument` for `reduction::user` and for a number that is no reduction.
template <class F>
constexpr decltype(auto) visit(reduction operation, F&& f) {
  switch (operation) {
    case reduction::sum:
      return f(sum{});
    case reduction::prod:
      return f(prod{});
    case reduction::min:
      return f(min{});
    case reduction::max:
      return f(max{});
    case reduction::avg:
      return f(avg{});
    case reduction::bit_and:
      return f(bit_and{});
    case reduction::bit_or:
      return f(bit_or{});
    case reduction::bit_xor:
      return f(bit_xor{});
    case reduction::logical_and:
      return f(logical_and{});
    case reduction::logical_or:
      return f(logical_or{});
    case reduction::user:
      break;
  }
  detail::throw_unknown_reduction(operation);
}

/// "sum", "prod", …, "user"; "unknown" for a number that is no reduction.
constexpr std::string_view name_of(reduction operation) noexcept {
  switch (operation) {
    case reduction::user:
      return "user";
    case reduction::sum:
      return "sum";
    case reduction::prod:
      return "prod";
    case reduction::min:
      return "min";
    case reduction::max:
      return "max";
    case reduction::avg:
      return "avg";
    case reduction::bit_and:
      return "bit_and";
    case reduction::bit_or:
      return "bit_or";
    case reduction::bit_xor:
      return "bit_xor";
    case reduction::logical_and:
      return "logical_and";
    case reduction::logical_or:
      return "logical_or";
  }
  return "unknown";
}

/// `supports_v` for values; false for `user` and for unknown numbers.
constexpr bool supports(reduction operation, dtype type) noexcept {
  if (name_of(operation) == "unknown" || operation == reduction::user ||
      name_of(type) == "unknown" || type == dtype::user) {
    return false;
  }
  return visit(operation, [type]<class Op>(Op) {
    return visit(type, []<class T>() { return supports_v<Op, T>; });
  });
}

RANKFOLD_END_NAMESPACE
