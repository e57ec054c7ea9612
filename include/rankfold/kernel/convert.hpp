// SPDX-License-Identifier: Apache-2.0
// Between float and the 16-bit and 8-bit floats, as arrays.
#pragma once

#include <cstddef>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/float16_batch.hpp"
#include "rankfold/detail/float8_batch.hpp"
#include "rankfold/detail/fold_element.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// A conversion of `count` elements, as a plain function.
///
/// Requires:   the pointers are readable and writable for `count` elements, at any alignment, and
///             the ranges do not overlap; round to nearest, no flushing of subnormals.
/// Numerics:   bit by bit what the explicit conversions of `bfloat16`, `float16`, `float8_e4m3fn`
///             and `float8_e5m2` give: exact to float; from float to nearest even, every NaN to the
///             positive quiet one.
using convert_function = void (*)(const void* in, void* out, std::size_t count);

/// Whether there is a conversion: from float to a 16-bit or 8-bit float, or back.
template <class To, class From>
concept convertible_elements = is_floating_v<To> && is_floating_v<From> &&
                               (std::is_same_v<From, float> || std::is_same_v<To, float>) &&
                               sizeof(From) + sizeof(To) < 2 * sizeof(float);

/// The `convert_function` for the instruction set `Arch`.
template <class Arch, class To, class From>
  requires convertible_elements<To, From>
void convert(const void* in, void* out, std::size_t count) noexcept {
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  if constexpr (!simd::has_batch_v<Arch, double>) {  // see folds_in_batches_v
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = detail::load_element<From>(from + i * sizeof(From));
      detail::store_element(to + i * sizeof(To), static_cast<To>(x));
    }
  } else if constexpr (is_float8_v<From>) {
    detail::widen_float8<Arch, From>(in, out, count);
  } else if constexpr (is_float8_v<To>) {
    detail::narrow_float8<Arch, To>(in, out, count);
  } else {
    using half = detail::half_batch<Arch, std::conditional_t<std::is_same_v<To, float>, From, To>>;
    constexpr std::size_t width = simd::width_bytes<Arch>;  // of a register of 16-bit floats
    const std::size_t half_size = 2 * count;
    for (std::size_t i = 0; i < half_size; i += width) {
      const std::size_t left = half_size - i;  // bytes of 16-bit floats
      if constexpr (std::is_same_v<To, float>) {
        auto x = half::unpack(left >= width ? simd::load<Arch>(from + i)
                                            : simd::load_partial<Arch>(from + i, left));
        if constexpr (half::in_pairs) {
          simd::interleave(x.first, x.second);
        }
        detail::store_pair_up_to<Arch>(to + 2 * i, x, 2 * left);
      } else {
        auto x = detail::load_pair_up_to<Arch>(from + 2 * i, 2 * left);
        if constexpr (half::in_pairs) {
          simd::deinterleave(x.first, x.second);
        }
        detail::store_up_to<Arch>(
            to + i, half::pack({detail::canonical_nan(x.first), detail::canonical_nan(x.second)}),
            left);
      }
    }
  }
}

/// The conversion from `From` to `To` for the instruction set of this translation unit, or that was
/// chosen for the machine.
///
/// Throws: see kernel/dispatch.hpp; nothing without it.
template <class To, class From, class Arch = simd::native>
  requires convertible_elements<To, From>
constexpr convert_function convert_for() noexcept(!simd::is_dispatched_v<Arch>) {
  if constexpr (!simd::is_dispatched_v<Arch>) {
    return &convert<Arch, To, From>;
  } else if constexpr (std::is_same_v<To, float>) {
    return dispatch::kernels().to_float[static_cast<std::size_t>(dtype_of_v<From>)];
  } else {
    return dispatch::kernels().from_float[static_cast<std::size_t>(dtype_of_v<To>)];
  }
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
