// SPDX-License-Identifier: Apache-2.0
// The 8-bit floats in registers, and whole arrays of them to float and back. Moved to where a
// binary16 has its bits, they have the value of that binary16, or 2^8 times it: so they are widened
// as binary16. Narrowing rounds to the 8 bits at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/float16_batch.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace detail {

// With the conversion instructions; as in simd.hpp, one overload for each register size. (The names
// must exist without them, too.)
void load_float8(float8_e4m3fn);
void load_float8(float8_e5m2);

#if defined(__F16C__) && defined(__AVX__)

RANKFOLD_DETAIL_INLINE void load_float8(float8_e5m2, __m256& to, const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(from));
  to = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
}
RANKFOLD_DETAIL_INLINE void load_float8(float8_e4m3fn, __m256& to, const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(from));
  const __m128i upper = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8);
  // The sign came along; its copy goes. The largest pattern is the NaN, and gets the upper bit of a
  // NaN's exponent.
  const __m128i half = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(-0x4080));
  const __m128i nan =
      _mm_and_si128(_mm_add_epi16(half, _mm_set1_epi16(0x0080)), _mm_set1_epi16(0x4000));
  to = _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(0x1p+8F));
}

#endif
#ifdef __AVX512F__

RANKFOLD_DETAIL_INLINE void load_float8(float8_e5m2, __m512& to, const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
  to = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
RANKFOLD_DETAIL_INLINE void load_float8(float8_e4m3fn, __m512& to, const std::byte* from) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
  const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16(-0x4080));
  const __m256i nan = _mm256_and_si256(_mm256_add_epi16(half, _mm256_set1_epi16(0x0080)),
                                       _mm256_set1_epi16(0x4000));
  to = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(0x1p+8F));
}

#endif

/// How the 8-bit floats are loaded and stored on `Arch`: as many as there are lanes of float.
template <class Arch>
struct float8_batch {
  using lanes = simd::batch<Arch, std::int32_t>;  // signed: comparisons cost less
  using floats = simd::batch<Arch, float>;

  template <class Float8>
  RANKFOLD_DETAIL_INLINE static floats load(const std::byte* from) noexcept {
    typename floats::register_type x;
    if constexpr (requires { load_float8(Float8{}, x, from); }) {
      load_float8(Float8{}, x, from);
      return floats(x);
    } else {
      constexpr int fraction = std::is_same_v<Float8, float8_e5m2> ? 2 : 3;
      const lanes bytes = simd::load_bytes<Arch>(from);
      const lanes magnitude = (bytes & all(0x7FU)) << (23 - fraction);
      const floats number = half_batch_portable<Arch>::widen(magnitude, bytes << 24);
      if constexpr (fraction == 2) {
        return number;
      } else {  // 480 would have the pattern of the NaN
        const lanes nan = xsimd::select(magnitude > all(0x7EU << 20), all(0x7F80'0000U), all(0U));
        return as_floats(as_lanes(number * floats(0x1p+8F)) | nan);
      }
    }
  }

  /// Rounds to nearest even; every NaN becomes 0x7F.
  template <class Float8>
  RANKFOLD_DETAIL_INLINE static void store(std::byte* to, const floats& x) noexcept {
    if constexpr (std::is_same_v<Float8, float8_e5m2>) {
      simd::store_bytes<Arch>(to, narrow<2, 15>(x, 65536.0F));
    } else {
      simd::store_bytes<Arch>(to, narrow<3, 7>(x, 448.0F));
    }
  }

 private:
  RANKFOLD_DETAIL_INLINE static lanes all(std::uint32_t bits) noexcept {
    return lanes(static_cast<std::int32_t>(bits));
  }
  RANKFOLD_DETAIL_INLINE static lanes as_lanes(const floats& x) noexcept {
    return simd::cast<std::int32_t>(x);
  }
  RANKFOLD_DETAIL_INLINE static floats as_floats(const lanes& x) noexcept {
    return simd::cast<float>(x);
  }

  // A number of exponent e, or of the smaller type's least exponent if that is larger, has to be a
  // multiple of 2^(e−F). It is added to 2^(e+23−F), whose last bit that is: the addition rounds,
  // and adds the multiple to the lower byte of the pattern. What the exponent adds to it, modulo
  // 256, is less one, since the multiple has the hidden bit; an even part of it may be there before
  // the addition. All from `limit` on get the pattern of `limit`.
  template <unsigned Fraction, unsigned Bias>
  RANKFOLD_DETAIL_INLINE static lanes narrow(const floats& x, float limit) noexcept {
    constexpr std::uint32_t least = 128U - Bias;  // the least exponent, as a float has it
    constexpr std::uint32_t less = 256U - (least << Fraction) % 256U;
    static_assert(less % 2 == 0);
    const lanes u = as_lanes(x);
    const lanes magnitude = u & all(0x7FFF'FFFFU);
    const floats number = (xsimd::min)(as_floats(magnitude), floats(limit));
    const floats power_of_two = as_floats(as_lanes(number) & all(0x7F80'0000U));
    const lanes power = as_lanes((xsimd::max)(power_of_two, as_floats(all(least << 23))));
    const lanes sum = as_lanes(as_floats(power + all((23U - Fraction) << 23 | less)) + number);
    const lanes pattern = sum + (power >> static_cast<int>(23U - Fraction));
    const lanes result = (pattern & all(0x7FU)) | ((u >> 24) & all(0x80U));
    return as_lanes(xsimd::select(x == x, as_floats(result), as_floats(all(0x7FU))));
  }
};

// The conversions of arrays; see kernel/convert.hpp.

// The elements of one array, or the sums or products of two, as floats.
template <class Arch, class Float8, int Inputs, bool Product>
RANKFOLD_DETAIL_INLINE void widen_float8s(const std::byte* const* in, void* out,
                                          std::size_t count) noexcept {
  using batch = float8_batch<Arch>;
  auto* to = static_cast<std::byte*>(out);
  constexpr std::size_t width = simd::batch<Arch, float>::size;
  const auto widen = [](const std::byte* a, const std::byte* b) RANKFOLD_DETAIL_INLINE_LAMBDA {
    const auto x = batch::template load<Float8>(a);
    if constexpr (Inputs == 1) {
      return simd::cast<std::uint8_t>(x);
    } else if constexpr (Product) {
      return simd::cast<std::uint8_t>(x * batch::template load<Float8>(b));
    } else {
      return simd::cast<std::uint8_t>(x + batch::template load<Float8>(b));
    }
  };
  const std::byte* const a = in[0];
  const std::byte* const b = in[Inputs - 1];
  std::size_t i = 0;
  for (; count - i >= width; i += width) {
    simd::store<Arch>(to + i * sizeof(float), widen(a + i, b + i));
  }
  if (i < count) {
    std::byte rest[2][width] = {};
    __builtin_memcpy(rest[0], a + i, count - i);
    __builtin_memcpy(rest[1], b + i, count - i);
    store_up_to<Arch>(to + i * sizeof(float), widen(rest[0], rest[1]), (count - i) * sizeof(float));
  }
}

template <class Arch, class Float8>
void widen_float8(const void* in, void* out, std::size_t count) noexcept {
  const auto* const from = static_cast<const std::byte*>(in);
  widen_float8s<Arch, Float8, 1, false>(&from, out, count);
}

template <class Arch, class Float8, bool Product>
void widen_two_float8(const void* a, const void* b, void* out, std::size_t count) noexcept {
  const std::byte* const from[] = {static_cast<const std::byte*>(a),
                                   static_cast<const std::byte*>(b)};
  widen_float8s<Arch, Float8, 2, Product>(from, out, count);
}

template <class Arch, class Float8>
void narrow_float8(const void* in, void* out, std::size_t count) noexcept {
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  constexpr std::size_t width = simd::batch<Arch, float>::size;
  const auto narrow = [](std::byte* place, const simd::bytes<Arch>& x)
                          RANKFOLD_DETAIL_INLINE_LAMBDA {
                            float8_batch<Arch>::template store<Float8>(place, simd::cast<float>(x));
                          };
  std::size_t i = 0;
  for (; count - i >= width; i += width) {
    narrow(to + i, simd::load<Arch>(from + i * sizeof(float)));
  }
  if (i < count) {
    std::byte rest[width];
    narrow(rest, load_up_to<Arch>(from + i * sizeof(float), (count - i) * sizeof(float)));
    __builtin_memcpy(to + i, rest, count - i);
  }
}

}  // namespace detail
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
