// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 in registers: a register of packed elements becomes two of float and back.
// Which element goes to which lane differs between the forms below; an elementwise fold does not
// care.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fold_element.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace detail {

/// The two registers of float that one register of 16-bit floats becomes.
template <class Arch>
struct float_pair {
  simd::batch<Arch, float> first;
  simd::batch<Arch, float> second;
};

/// Every NaN becomes the positive quiet NaN without payload.
template <class T, class XsimdArch>
RANKFOLD_DETAIL_INLINE xsimd::batch<T, XsimdArch> canonical_nan(
    const xsimd::batch<T, XsimdArch>& x) noexcept {
  using layout = float_layout<T>;
  const xsimd::batch<T, XsimdArch> nan(__builtin_bit_cast(T, layout::quiet_nan));
  return xsimd::select(x == x, x, nan);
}

/// As much of a register as `size` bytes give, or fill.
template <class Arch>
RANKFOLD_DETAIL_INLINE simd::bytes<Arch> load_up_to(const std::byte* from,
                                                    std::size_t size) noexcept {
  return size >= simd::width_bytes<Arch> ? simd::load<Arch>(from)
                                         : simd::load_partial<Arch>(from, size);
}
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_up_to(std::byte* to, const simd::bytes<Arch>& x,
                                        std::size_t size) noexcept {
  if (size >= simd::width_bytes<Arch>) {
    simd::store<Arch>(to, x);
  } else {
    simd::store_partial<Arch>(to, x, size);
  }
}

/// `size` bytes of floats, 0 < size <= 2 registers, as the lower and the upper half of a pair.
template <class Arch>
RANKFOLD_DETAIL_INLINE float_pair<Arch> load_pair_up_to(const std::byte* from,
                                                        std::size_t size) noexcept {
  constexpr std::size_t width = simd::width_bytes<Arch>;
  float_pair<Arch> x{simd::cast<float>(load_up_to<Arch>(from, size)),
                     simd::batch<Arch, float>(0.0F)};
  if (size > width) {
    x.second = simd::cast<float>(load_up_to<Arch>(from + width, size - width));
  }
  return x;
}
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_pair_up_to(std::byte* to, const float_pair<Arch>& x,
                                             std::size_t size) noexcept {
  constexpr std::size_t width = simd::width_bytes<Arch>;
  store_up_to<Arch>(to, simd::cast<std::uint8_t>(x.first), size);
  if (size > width) {
    store_up_to<Arch>(to + width, simd::cast<std::uint8_t>(x.second), size - width);
  }
}

/// How `Half` is unpacked and packed on `Arch`. `pack` rounds to nearest even and wants NaNs to be
/// canonical already. If `in_pairs`, the first register of a pair holds the even elements and the
/// second the odd ones; else they hold the lower and the upper half.
template <class Arch, class Half>
struct half_batch;

// As lanes of 32 bits the elements come in pairs, and a bfloat16 is the upper half of its float:
// one shift for the one, one mask for the other.
template <class Arch>
struct half_batch<Arch, bfloat16> {
  static constexpr bool in_pairs = true;
  using lanes = simd::batch<Arch, std::uint32_t>;

  RANKFOLD_DETAIL_INLINE static float_pair<Arch> unpack(const simd::bytes<Arch>& x) noexcept {
    const lanes pairs = simd::cast<std::uint32_t>(x);
    return {simd::cast<float>(pairs << 16), simd::cast<float>(pairs & upper())};
  }

  RANKFOLD_DETAIL_INLINE static simd::bytes<Arch> pack(const float_pair<Arch>& x) noexcept {
    return simd::cast<std::uint8_t>((round(x.first) >> 16) | (round(x.second) & upper()));
  }

 private:
  RANKFOLD_DETAIL_INLINE static lanes upper() noexcept {
    return lanes(std::uint32_t{0xFFFF'0000U});
  }

  // See bfloat16::round. What remains in the lower half is dropped by the caller.
  RANKFOLD_DETAIL_INLINE static lanes round(const simd::batch<Arch, float>& x) noexcept {
    const lanes u = simd::cast<std::uint32_t>(x);
    return u + (((u >> 16) & lanes(std::uint32_t{1})) + lanes(std::uint32_t{0x7FFF}));
  }
};

// The same pairs. The conversion itself takes neither subnormal floats nor gives any: they are slow
// on some processors.
template <class Arch>
struct half_batch_portable {
  static constexpr bool in_pairs = true;
  using lanes = simd::batch<Arch, std::int32_t>;  // signed: comparisons cost less
  using floats = simd::batch<Arch, float>;

  RANKFOLD_DETAIL_INLINE static float_pair<Arch> unpack(const simd::bytes<Arch>& x) noexcept {
    const lanes pairs = simd::cast<std::int32_t>(x);
    const lanes magnitude = all(0x7FFFU << 13);
    return {widen((pairs << 13) & magnitude, pairs << 16), widen((pairs >> 3) & magnitude, pairs)};
  }

  RANKFOLD_DETAIL_INLINE static simd::bytes<Arch> pack(const float_pair<Arch>& x) noexcept {
    const lanes first = simd::cast<std::int32_t>(x.first);
    const lanes second = simd::cast<std::int32_t>(x.second);
    const lanes low = narrow(first) | ((first >> 16) & all(0x8000U));
    const lanes high = (narrow(second) << 16) | (second & all(1U << 31));
    return simd::cast<std::uint8_t>(low | high);
  }

  /// The floats of binary16 in lanes of 32 bits. `m`: exponent and fraction, moved to where a
  /// float has them. `s`: the sign, and bits to ignore.
  RANKFOLD_DETAIL_INLINE static floats widen(const lanes& m, const lanes& s) noexcept {
    // The exponents 1 to 31 become 225 to 255: numbers 2^112 too large, infinities and NaNs, which
    // the product makes quiet.
    const floats large = as_float(m + all(224U << 23)) * floats(0x1p-112F);
    // Exponent 0: with the hidden bit of 2^-14, minus 2^-14.
    const lanes hidden = all(113U << 23);
    const floats small_ones = as_float(m + hidden) - as_float(hidden);
    const lanes magnitude = xsimd::select(m > all((1U << 23) - 1), simd::cast<std::int32_t>(large),
                                          simd::cast<std::int32_t>(small_ones));
    return as_float(magnitude | (s & all(1U << 31)));
  }

 private:
  RANKFOLD_DETAIL_INLINE static lanes all(std::uint32_t bits) noexcept {
    return lanes(static_cast<std::int32_t>(bits));
  }
  RANKFOLD_DETAIL_INLINE static floats as_float(const lanes& x) noexcept {
    return simd::cast<float>(x);
  }

  // The lower 15 bits of the result, in lanes of 32 bits. A number of exponent e, or −14 if that is
  // larger, has to be a multiple of 2^(e−10). Four times the number is added to 2^(e+15), whose
  // last bit is 2^(e−8): the addition rounds, and leaves the multiple in the lower bits of the sum
  // and e + 142, which is e + 14 modulo 32, in its exponent. The hidden bit of the multiple adds
  // the one that the exponent still lacks.
  RANKFOLD_DETAIL_INLINE static lanes narrow(const lanes& u) noexcept {
    const floats magnitude = as_float(u & all(0x7FFF'FFFFU));
    // From 65536 on: infinity.
    const floats fourfold = (magnitude * floats(0x1p+112F)) * floats(0x1p-110F);
    const floats power = (xsimd::max)(as_float(u & all(0x7F80'0000U)), floats(0x1p-14F));
    const floats bias = as_float(simd::cast<std::int32_t>(power) + all(15U << 23));
    const lanes sum = simd::cast<std::int32_t>(bias + fourfold);
    // Of a NaN, the quiet bit is kept; of a number, it is zero.
    return ((sum >> 13) & all(0x7E00U)) + (sum & all(0x0FFFU));
  }
};

template <class Arch>
struct half_batch<Arch, float16> : half_batch_portable<Arch> {};

#if defined(__F16C__) && defined(__AVX__)

// The conversion instructions, which know nothing of DAZ and FTZ for the 16-bit side and take
// their rounding from the instruction.
template <class Arch>
  requires(sizeof(simd::bytes<Arch>) == 32)
struct half_batch<Arch, float16> {
  static constexpr bool in_pairs = false;
  RANKFOLD_DETAIL_INLINE static float_pair<Arch> unpack(const simd::bytes<Arch>& x) noexcept {
    const __m256i all = x;
    return {simd::batch<Arch, float>(_mm256_cvtph_ps(_mm256_castsi256_si128(all))),
            simd::batch<Arch, float>(_mm256_cvtph_ps(_mm256_extractf128_si256(all, 1)))};
  }
  RANKFOLD_DETAIL_INLINE static simd::bytes<Arch> pack(const float_pair<Arch>& x) noexcept {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m128i low = _mm256_cvtps_ph(x.first, mode);
    const __m128i high = _mm256_cvtps_ph(x.second, mode);
    return simd::bytes<Arch>(_mm256_insertf128_si256(_mm256_castsi128_si256(low), high, 1));
  }
};

#endif
#ifdef __AVX512F__

template <class Arch>
  requires(sizeof(simd::bytes<Arch>) == 64)
struct half_batch<Arch, float16> {
  static constexpr bool in_pairs = false;
  RANKFOLD_DETAIL_INLINE static float_pair<Arch> unpack(const simd::bytes<Arch>& x) noexcept {
    const __m512i all = x;
    return {simd::batch<Arch, float>(_mm512_cvtph_ps(_mm512_castsi512_si256(all))),
            simd::batch<Arch, float>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1)))};
  }
  RANKFOLD_DETAIL_INLINE static simd::bytes<Arch> pack(const float_pair<Arch>& x) noexcept {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m256i low = _mm512_cvtps_ph(x.first, mode);
    const __m256i high = _mm512_cvtps_ph(x.second, mode);
    return simd::bytes<Arch>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
};

#endif

}  // namespace detail
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
