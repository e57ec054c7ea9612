// SPDX-License-Identifier: Apache-2.0
// The n-ary fold: the one kernel behind every reduction. Knows nothing of ranks.
#pragma once

#include <cfloat>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fold_batch.hpp"
#include "rankfold/detail/fold_element.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"

#ifndef RANKFOLD_ALLOW_FAST_MATH  // public: accept results whose bits are not the documented ones
#  if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
      defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||                     \
      defined(__NO_SIGNED_ZEROS__)
#    error \
        "rankfold: -ffast-math (or a part of it) breaks the promise of equal bits on every rank; compile this file without it, or define RANKFOLD_ALLOW_FAST_MATH"
#  endif
#endif
#if FLT_EVAL_METHOD != 0
#  error "rankfold: float arithmetic must be done in float (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif

RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// A fold of one element type under one operator, as a plain function: so that algorithms are
/// compiled once, not once per type and operator.
///
/// out[i] = finish(in[0][i] ⊕ … ⊕ in[n-1][i]) for i < count, in the canonical order: the balanced
/// tree that splits n operands at the largest power of two below n.
///
/// Requires:   n >= 1; every pointer is readable or writable for `count` elements, at any
///             alignment; `out` is equal to one of the inputs or does not overlap any; `op` points
///             to the operator (null will do for a built-in one); round to nearest, no flushing of
///             subnormals (detail/fp_environment.hpp).
/// Effects:    nothing outside the `count` elements is read or written.
/// Numerics:   16-bit and 8-bit floats are combined as float and rounded once, at the end, to
///             nearest even; avg divides by n before that. A floating NaN is stored as the positive
///             quiet NaN without payload. Integers wrap. All this also for n = 1.
///             See docs/numerics.md.
/// Throws:     what a user's operator throws; `out` is then written in part.
using fold_function = void (*)(const void* op, const void* const* in, int n, void* out,
                               std::size_t count);

/// The `fold_function` of elements of type `T` under `Op`, for the instruction set `Arch`.
template <class Arch, class Op, class T>
  requires reduction_op<Op, T>
void fold(const void* op, const void* const* in, int n, void* out,
          std::size_t count) noexcept(builtin_operator<Op>) {
  if constexpr (builtin_operator<Op>) {
    detail::fold_builtin<Arch, Op, T, T>(in, n, n, out, count);
  } else {
    detail::fold_elements_user<Arch, Op, T>(*static_cast<const Op*>(op), in, n, out, count);
  }
}

}  // namespace kernel

namespace detail {

/// The place in a table of what belongs to `type` and `operation`; null for numbers that are none.
template <class Entry>
RANKFOLD_DETAIL_INLINE const Entry* find_entry(
    const Entry (&entries)[dispatch::kernel_table::operators][dispatch::kernel_table::types],
    dtype type, reduction operation) noexcept {
  const auto row = static_cast<std::size_t>(operation);
  const auto column = static_cast<std::size_t>(type);
  const bool inside =
      row < dispatch::kernel_table::operators && column < dispatch::kernel_table::types;
  return inside ? &entries[row][column] : nullptr;
}

}  // namespace detail

namespace kernel {

/// The fold of `T` under `Op` for the instruction set that this translation unit is compiled for,
/// or that was chosen for the machine.
///
/// Throws: see kernel/dispatch.hpp; nothing without it.
template <class T, class Op, class Arch = simd::native>
  requires reduction_op<Op, T>
constexpr fold_function fold_for() noexcept(!simd::is_dispatched_v<Arch>) {
  if constexpr (!builtin_operator<Op>) {
    return &fold<Arch, Op, T>;
  } else if constexpr (simd::is_dispatched_v<Arch>) {
    return *detail::find_entry(dispatch::kernels().folds, dtype_of_v<T>, reduction_of_v<Op>);
  } else {
    // One kernel per element type, whatever its name (long and long long).
    return &fold<Arch, Op, element_t<dtype_of_v<T>>>;
  }
}

[[noreturn]] inline void throw_undefined_fold(dtype type, reduction operation) {
  visit(operation, [type](auto) { return size_of(type); });  // which throw for an unknown one
  throw std::invalid_argument("rankfold: the operator " + std::string(name_of(operation)) +
                              " is not defined for elements of type " + std::string(name_of(type)));
}

/// The same for a type and an operator known only at run time. Instantiates all of them: call it
/// from few translation units.
///
/// Throws: `std::invalid_argument` if the operator does not support the type, or one is unknown.
template <class Arch = simd::native>
fold_function fold_for(dtype type, reduction operation) {
  if constexpr (simd::is_dispatched_v<Arch>) {
    const auto* const fold = detail::find_entry(dispatch::kernels().folds, type, operation);
    if (fold == nullptr || *fold == nullptr) {
      throw_undefined_fold(type, operation);
    }
    return *fold;
  } else {
    return visit(operation, [type, operation]<class Op>(Op) -> fold_function {
      return visit(type, [type, operation]<class T>() -> fold_function {
        if constexpr (supports_v<Op, T>) {
          return &fold<Arch, Op, T>;
        } else {
          throw_undefined_fold(type, operation);
        }
      });
    });
  }
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
