// SPDX-License-Identifier: Apache-2.0
// RMSNorm of one row: Zhang, Sennrich 2019, Root Mean Square Layer Normalization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/float16_batch.hpp"
#include "rankfold/detail/fold_element.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// RMSNorm of the `width` elements at `x`, which are weighted by those at `weight`, to `out`.
///
/// Requires:   width > 0; pointers at any alignment; `out` overlaps neither `x` nor `weight`; round
///             to nearest, no flushing of subnormals.
/// Numerics:   all in float32, whatever the instruction set: sum k of 32 is that of the squares of
///             the elements i with i mod 32 = k, in their order; then, for n = 16, 8, 4, 2, 1, sum
///             k is added to by sum k + n, for k < n. Of sum 0, s,
///                 r = 1 / sqrt(s / width + eps),    out[i] = (x[i] · r) · weight[i],
///             each operation rounded, none contracted, the last one to the element type, too; a
///             NaN is stored as the positive quiet one.
using rms_norm_function = dispatch::rms_norm_function;

/// Whether there is RMSNorm of rows of `T`.
template <class T>
inline constexpr bool has_rms_norm_v =
    std::is_same_v<T, float> || std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

}  // namespace kernel

namespace detail {

/// Keeps the compiler from contracting the product `x` with a sum.
template <class T>
RANKFOLD_DETAIL_INLINE void keep_product(T& x) noexcept {
#if defined(__SSE2__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
}

inline constexpr std::size_t rms_sums = 32;

/// Two registers of float of a row, of as many elements as a register has of 16 bits.
template <class Arch, class T>
struct row_batch {
  static constexpr std::size_t elements = simd::width_bytes<Arch> / 2;

  RANKFOLD_DETAIL_INLINE static float_pair<Arch> load(const std::byte* from,
                                                      std::size_t count) noexcept {
    if constexpr (std::is_same_v<T, float>) {
      return load_pair_up_to<Arch>(from, count * sizeof(float));
    } else {
      return half_batch<Arch, T>::unpack(load_up_to<Arch>(from, count * sizeof(T)));
    }
  }

  /// Stores products, whose NaNs are none that are canonical.
  RANKFOLD_DETAIL_INLINE static void store(std::byte* to, const float_pair<Arch>& x,
                                           std::size_t count) noexcept {
    const float_pair<Arch> settled{canonical_nan(x.first), canonical_nan(x.second)};
    if constexpr (std::is_same_v<T, float>) {
      store_pair_up_to<Arch>(to, settled, count * sizeof(float));
    } else {
      store_up_to<Arch>(to, half_batch<Arch, T>::pack(settled), count * sizeof(T));
    }
  }

  /// From the order of `load` to that of the elements.
  RANKFOLD_DETAIL_INLINE static void in_order(float_pair<Arch>& x) noexcept {
    if constexpr (!std::is_same_v<T, float>) {
      if constexpr (half_batch<Arch, T>::in_pairs) simd::interleave(x.first, x.second);
    }
  }
};

template <class Arch>
RANKFOLD_DETAIL_INLINE void add_square(simd::batch<Arch, float>& sum,
                                       const simd::batch<Arch, float>& x) noexcept {
  simd::batch<Arch, float> square = x * x;
  keep_product(square.data);
  sum = sum + square;
}

/// The 32 sums of squares of a row.
template <class Arch, class T>
RANKFOLD_DETAIL_INLINE void sums_of_squares(const std::byte* x, std::size_t width,
                                            float* sums) noexcept {
  using rows = row_batch<Arch, T>;
  constexpr std::size_t pairs = rms_sums / rows::elements;
  static_assert(pairs * rows::elements == rms_sums);
  using floats = simd::batch<Arch, float>;
  float_pair<Arch> sum[pairs];
  for (auto& s : sum) s = {floats(0.0F), floats(0.0F)};
  const auto add = [&](std::size_t i, std::size_t p, std::size_t count)
                       RANKFOLD_DETAIL_INLINE_LAMBDA {
                         const auto v = rows::load(x + i * sizeof(T), count);
                         add_square<Arch>(sum[p].first, v.first);
                         add_square<Arch>(sum[p].second, v.second);
                       };
  std::size_t i = 0;
  for (; i + rms_sums <= width; i += rms_sums) {
    for (std::size_t p = 0; p < pairs; ++p) add(i + p * rows::elements, p, rows::elements);
  }
  // What is missing of a register is loaded as zeros, whose squares change no sum.
  for (std::size_t p = 0; p < pairs && i < width; ++p, i += rows::elements) {
    add(i, p, width - i < rows::elements ? width - i : rows::elements);
  }
  for (std::size_t p = 0; p < pairs; ++p) {
    rows::in_order(sum[p]);
    sum[p].first.store_unaligned(sums + p * rows::elements);
    sum[p].second.store_unaligned(sums + p * rows::elements + rows::elements / 2);
  }
}

}  // namespace detail

namespace kernel {

/// The `rms_norm_function` of rows of `T` for the instruction set `Arch`.
template <class Arch, class T>
  requires has_rms_norm_v<T>
void rms_norm(const void* x, const void* weight, float eps, void* out, std::size_t width) noexcept {
  const auto* from = static_cast<const std::byte*>(x);
  const auto* weights = static_cast<const std::byte*>(weight);
  auto* to = static_cast<std::byte*>(out);
  constexpr bool in_batches = simd::has_batch_v<Arch, double>;  // see folds_in_batches_v
  float sums[detail::rms_sums] = {};
  if constexpr (in_batches) {
    detail::sums_of_squares<Arch, T>(from, width, sums);
  } else {
    for (std::size_t i = 0; i < width; ++i) {
      const auto value = static_cast<float>(detail::load_element<T>(from + i * sizeof(T)));
      float square = value * value;
      detail::keep_product(square);
      sums[i % detail::rms_sums] += square;
    }
  }
  for (std::size_t n = detail::rms_sums / 2; n != 0; n /= 2) {
    for (std::size_t k = 0; k < n; ++k) sums[k] += sums[k + n];
  }
  const float scale = 1.0F / __builtin_sqrtf(sums[0] / static_cast<float>(width) + eps);
  if constexpr (in_batches) {
    using rows = detail::row_batch<Arch, T>;
    const simd::batch<Arch, float> scales(scale);
    const auto step = [&](std::size_t i, std::size_t count) RANKFOLD_DETAIL_INLINE_LAMBDA {
      const auto v = rows::load(from + i * sizeof(T), count);
      const auto w = rows::load(weights + i * sizeof(T), count);
      rows::store(to + i * sizeof(T),
                  {(v.first * scales) * w.first, (v.second * scales) * w.second}, count);
    };
    std::size_t i = 0;
    for (; i + rows::elements <= width; i += rows::elements) step(i, rows::elements);
    if (i < width) step(i, width - i);
  } else {
    for (std::size_t i = 0; i < width; ++i) {
      const auto v = static_cast<float>(detail::load_element<T>(from + i * sizeof(T)));
      const auto w = static_cast<float>(detail::load_element<T>(weights + i * sizeof(T)));
      float y = (v * scale) * w;
      if (detail::is_nan(y)) y = __builtin_bit_cast(float, detail::float_layout<float>::quiet_nan);
      detail::store_element(to + i * sizeof(T), static_cast<T>(y));
    }
  }
}

/// The function of rows of a type known at run time, for the instruction set of this translation
/// unit, or that was chosen for the machine.
///
/// Throws: std::invalid_argument for a type that is none of float32, bfloat16 and float16; and see
///         kernel/dispatch.hpp.
template <class Arch = simd::native>
rms_norm_function rms_norm_for(dtype type) {
  return visit(type, [type]<class T>() -> rms_norm_function {
    if constexpr (!has_rms_norm_v<T>) {
      throw std::invalid_argument("rms_norm: rows of " + std::string(name_of(type)) +
                                  "; expected float32, bfloat16 or float16");
    } else if constexpr (simd::is_dispatched_v<Arch>) {
      return dispatch::kernels().rms_norms[static_cast<std::size_t>(type)];
    } else {
      return &rms_norm<Arch, T>;
    }
  });
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
