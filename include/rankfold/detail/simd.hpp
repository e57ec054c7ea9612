// SPDX-License-Identifier: Apache-2.0
// The only header that includes xsimd: names for its batches, and what it lacks or what its
// versions do differently (partial loads, multiplications, shifts of lanes by a constant).
//
// Everything here is a template on the target, so that translation units compiled with different
// flags never share code: the linker keeps one function of a name, whatever it was compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <xsimd/xsimd.hpp>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/inline.hpp"

#if XSIMD_VERSION_MAJOR < 8 || (XSIMD_VERSION_MAJOR == 8 && XSIMD_VERSION_MINOR < 1)
#  error "rankfold: xsimd 8.1 or newer is needed"
#endif

RANKFOLD_BEGIN_NAMESPACE
namespace simd {

/// An instruction set: xsimd's architecture (void for none), and as a number the extensions that
/// the compiler may use besides. Both are part of the name of every kernel.
template <class XsimdArch, unsigned Extensions>
struct target {
  using arch = XsimdArch;
};

namespace detail {

// One bit for each flag that changes the code that GCC and Clang make of plain C++ or of the
// intrinsics below.
inline constexpr unsigned extensions = 0U
#ifdef __SSE3__
                                       | 1U << 0
#endif
#ifdef __SSSE3__
                                       | 1U << 1
#endif
#ifdef __SSE4_1__
                                       | 1U << 2
#endif
#ifdef __SSE4_2__
                                       | 1U << 3
#endif
#ifdef __AVX__
                                       | 1U << 4
#endif
#ifdef __AVX2__
                                       | 1U << 5
#endif
#ifdef __FMA__
                                       | 1U << 6
#endif
#ifdef __F16C__
                                       | 1U << 7
#endif
#ifdef __BMI__
                                       | 1U << 8
#endif
#ifdef __BMI2__
                                       | 1U << 9
#endif
#ifdef __LZCNT__
                                       | 1U << 10
#endif
#ifdef __POPCNT__
                                       | 1U << 11
#endif
#ifdef __MOVBE__
                                       | 1U << 12
#endif
#ifdef __AVX512F__
                                       | 1U << 13
#endif
#ifdef __AVX512VL__
                                       | 1U << 14
#endif
#ifdef __AVX512DQ__
                                       | 1U << 15
#endif
#ifdef __AVX512BW__
                                       | 1U << 16
#endif
#ifdef __AVX512VBMI__
                                       | 1U << 17
#endif
#ifdef __AVX512VBMI2__
                                       | 1U << 18
#endif
#ifdef __AVX512FP16__
                                       | 1U << 19
#endif
    ;

template <class XsimdArch>
using native_target = std::conditional_t<xsimd::has_simd_register<std::uint8_t, XsimdArch>::value,
                                         target<XsimdArch, extensions>, target<void, extensions>>;

}  // namespace detail

/// Plain C++, one element at a time: the reference for the bits of every other target.
using scalar = target<void, detail::extensions>;

/// What the flags of this translation unit allow.
using native = detail::native_target<xsimd::default_arch>;

/// Whether the target has registers of elements of type `T`.
template <class Arch, class T>
inline constexpr bool has_batch_v = xsimd::has_simd_register<T, typename Arch::arch>::value;
template <unsigned Extensions, class T>
inline constexpr bool has_batch_v<target<void, Extensions>, T> = false;

template <class Arch, class T>
using batch = xsimd::batch<T, typename Arch::arch>;

/// A register, when what its elements are does not matter.
template <class Arch>
using bytes = batch<Arch, std::uint8_t>;

template <class Arch>
inline constexpr std::size_t width_bytes = sizeof(bytes<Arch>);

namespace detail {

// The intrinsics below ask for the register rather than for xsimd's architecture, of which there
// are more with every version.
template <class Arch>
using integer_register = typename bytes<Arch>::register_type;

#if defined(__SSE2__) && defined(__x86_64__)
template <class Arch>
inline constexpr bool is_sse = std::is_same_v<integer_register<Arch>, __m128i>;
#else
template <class Arch>
inline constexpr bool is_sse = false;
#endif
#if defined(__AVX__) && defined(__x86_64__)
template <class Arch>
inline constexpr bool is_avx = std::is_same_v<integer_register<Arch>, __m256i>;
#else
template <class Arch>
inline constexpr bool is_avx = false;
#endif
#if defined(__AVX512F__) && defined(__x86_64__)
template <class Arch>
inline constexpr bool is_avx512 = std::is_same_v<integer_register<Arch>, __m512i>;
#else
template <class Arch>
inline constexpr bool is_avx512 = false;
#endif

#ifdef __AVX2__
inline constexpr bool has_avx2 = true;
#else
inline constexpr bool has_avx2 = false;
#endif
#if defined(__AVX512BW__)
inline constexpr bool has_avx512bw = true;
#else
inline constexpr bool has_avx512bw = false;
#endif

// memcpy of a fixed size, which is one instruction.
template <class Word>
RANKFOLD_DETAIL_INLINE Word load_word(const std::byte* from) noexcept {
  Word word;
  __builtin_memcpy(&word, from, sizeof(Word));
  return word;
}
template <class Word>
RANKFOLD_DETAIL_INLINE void store_word(std::byte* to, std::uint64_t word) noexcept {
  const auto part = static_cast<Word>(word);
  __builtin_memcpy(to, &part, sizeof(Word));
}

#if defined(__SSE2__) && defined(__x86_64__)
// 1 to 15 bytes by two words that overlap: the overlapping bytes are the same bytes, so `or` joins
// them. No trip through memory, whose store-to-load forwarding would fail.
template <class Arch>
RANKFOLD_DETAIL_INLINE __m128i load_below_16(const std::byte* from, std::size_t size) noexcept {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  if (size >= 8) {
    low = load_word<std::uint64_t>(from);
    high = load_word<std::uint64_t>(from + size - 8) >> (8 * (15 - size)) >> 8;
  } else if (size >= 4) {
    low = load_word<std::uint32_t>(from) |
          std::uint64_t{load_word<std::uint32_t>(from + size - 4)} << (8 * (size - 4));
  } else if (size >= 2) {
    low = load_word<std::uint16_t>(from) |
          std::uint64_t{load_word<std::uint16_t>(from + size - 2)} << (8 * (size - 2));
  } else {
    low = load_word<std::uint8_t>(from);
  }
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

template <class Arch>
RANKFOLD_DETAIL_INLINE void store_below_16(std::byte* to, __m128i x, std::size_t size) noexcept {
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(x));
  if (size >= 8) {
    store_word<std::uint64_t>(to, low);
    if (size > 8) {
      const auto high = static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(x, x)));
      store_word<std::uint64_t>(to + size - 8, low >> (8 * (size - 8)) | high << (8 * (16 - size)));
    }
  } else if (size >= 4) {
    store_word<std::uint32_t>(to, low);
    store_word<std::uint32_t>(to + size - 4, low >> (8 * (size - 4)));
  } else if (size >= 2) {
    store_word<std::uint16_t>(to, low);
    store_word<std::uint16_t>(to + size - 2, low >> (8 * (size - 2)));
  } else {
    store_word<std::uint8_t>(to, low);
  }
}
#endif

}  // namespace detail

/// The same bits as elements of another type. (xsimd's own has changed its template parameters.)
template <class Arch, class To, class From>
RANKFOLD_DETAIL_INLINE batch<Arch, To> cast(const xsimd::batch<From, typename Arch::arch>& x) noexcept {
  static_assert(sizeof(batch<Arch, To>) == sizeof(x));
  return __builtin_bit_cast(batch<Arch, To>, x);
}

/// A whole register from any address.
template <class Arch>
RANKFOLD_DETAIL_INLINE bytes<Arch> load(const std::byte* from) noexcept {
  return bytes<Arch>::load_unaligned(reinterpret_cast<const std::uint8_t*>(from));
}

template <class Arch>
RANKFOLD_DETAIL_INLINE void store(std::byte* to, const bytes<Arch>& x) noexcept {
  x.store_unaligned(reinterpret_cast<std::uint8_t*>(to));
}

/// The first `size` bytes of a register, 0 < size < width; the others are zero and are not read.
template <class Arch>
RANKFOLD_DETAIL_INLINE bytes<Arch> load_partial(const std::byte* from, std::size_t size) noexcept {
#if defined(__AVX512BW__) && defined(__x86_64__)
  if constexpr (detail::is_avx512<Arch>) {
    return bytes<Arch>(_mm512_maskz_loadu_epi8(~std::uint64_t{0} >> (64 - size), from));
  } else
#endif
#if defined(__AVX__) && defined(__x86_64__)
      if constexpr (detail::is_avx<Arch>) {
    if (size < 16) {
      return bytes<Arch>(_mm256_zextsi128_si256(detail::load_below_16<Arch>(from, size)));
    }
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
    const __m128i high =
        size == 16 ? _mm_setzero_si128() : detail::load_below_16<Arch>(from + 16, size - 16);
    return bytes<Arch>(_mm256_insertf128_si256(_mm256_castsi128_si256(low), high, 1));
  } else
#endif
#if defined(__SSE2__) && defined(__x86_64__)
      if constexpr (detail::is_sse<Arch>) {
    return bytes<Arch>(detail::load_below_16<Arch>(from, size));
  } else
#endif
  {
    std::byte buffer[width_bytes<Arch>] = {};
    __builtin_memcpy(buffer, from, size);
    return load<Arch>(buffer);
  }
}

/// Stores the first `size` bytes of a register, 0 < size < width.
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_partial(std::byte* to, const bytes<Arch>& x,
                                          std::size_t size) noexcept {
#if defined(__AVX512BW__) && defined(__x86_64__)
  if constexpr (detail::is_avx512<Arch>) {
    _mm512_mask_storeu_epi8(to, ~std::uint64_t{0} >> (64 - size), x);
  } else
#endif
#if defined(__AVX__) && defined(__x86_64__)
      if constexpr (detail::is_avx<Arch>) {
    const __m256i all = x;
    __m128i part = _mm256_castsi256_si128(all);
    if (size >= 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to), part);
      to += 16;
      size -= 16;
      part = _mm256_extractf128_si256(all, 1);
    }
    if (size != 0) {
      detail::store_below_16<Arch>(to, part, size);
    }
  } else
#endif
#if defined(__SSE2__) && defined(__x86_64__)
      if constexpr (detail::is_sse<Arch>) {
    detail::store_below_16<Arch>(to, x, size);
  } else
#endif
  {
    std::byte buffer[width_bytes<Arch>];
    store<Arch>(buffer, x);
    __builtin_memcpy(to, buffer, size);
  }
}

/// The product of unsigned integers of any width, modulo 2^bits. xsimd multiplies one element
/// after the other where there is no instruction for the width.
template <class Arch, class U>
RANKFOLD_DETAIL_INLINE batch<Arch, U> multiply(const batch<Arch, U>& a,
                                               const batch<Arch, U>& b) noexcept {
  static_assert(std::is_unsigned_v<U>);
  if constexpr (sizeof(U) == 1) {
    // As 16-bit lanes: the even bytes are the low half of the product of the lanes; for the odd
    // ones, a's is shifted down and b's stands alone, so that their product is in the upper half.
    using lanes = batch<Arch, std::uint16_t>;
    const lanes x = cast<Arch, std::uint16_t, U>(a);
    const lanes y = cast<Arch, std::uint16_t, U>(b);
    const lanes low(std::uint16_t{0x00FF});
    const lanes high(std::uint16_t{0xFF00});
    const lanes even = multiply<Arch, std::uint16_t>(x, y) & low;
    const lanes odd = multiply<Arch, std::uint16_t>(x >> 8, y & high);
    return cast<Arch, U, std::uint16_t>(even | odd);
  }
#if defined(__AVX512F__) && defined(__x86_64__)
  else if constexpr (detail::is_avx512<Arch> && sizeof(U) == 4) {
    return batch<Arch, U>(_mm512_mullo_epi32(a, b));
  }
#  if defined(__AVX512BW__)
  else if constexpr (detail::is_avx512<Arch> && sizeof(U) == 2) {
    return batch<Arch, U>(_mm512_mullo_epi16(a, b));
  }
#  endif
#  if defined(__AVX512DQ__)
  else if constexpr (detail::is_avx512<Arch> && sizeof(U) == 8) {
    return batch<Arch, U>(_mm512_mullo_epi64(a, b));
  }
#  endif
#endif
#if defined(__AVX2__) && defined(__x86_64__)
  else if constexpr (detail::is_avx<Arch> && sizeof(U) == 2) {
    return batch<Arch, U>(_mm256_mullo_epi16(a, b));
  } else if constexpr (detail::is_avx<Arch> && sizeof(U) == 4) {
    return batch<Arch, U>(_mm256_mullo_epi32(a, b));
  } else if constexpr (detail::is_avx<Arch> && sizeof(U) == 8) {
    const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                           _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));
    return batch<Arch, U>(
        _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32)));
  }
#endif
#if defined(__SSE2__) && defined(__x86_64__)
  else if constexpr (detail::is_sse<Arch> && sizeof(U) == 2) {
    return batch<Arch, U>(_mm_mullo_epi16(a, b));
  } else if constexpr (detail::is_sse<Arch> && sizeof(U) == 4) {
#  ifdef __SSE4_1__
    return batch<Arch, U>(_mm_mullo_epi32(a, b));
#  else
    const __m128i even = _mm_mul_epu32(a, b);
    const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
    const __m128i mask = _mm_set1_epi64x(0xFFFF'FFFF);
    return batch<Arch, U>(_mm_or_si128(_mm_and_si128(even, mask), _mm_slli_epi64(odd, 32)));
#  endif
  } else if constexpr (detail::is_sse<Arch> && sizeof(U) == 8) {
    const __m128i cross = _mm_add_epi64(_mm_mul_epu32(_mm_srli_epi64(a, 32), b),
                                        _mm_mul_epu32(a, _mm_srli_epi64(b, 32)));
    return batch<Arch, U>(_mm_add_epi64(_mm_mul_epu32(a, b), _mm_slli_epi64(cross, 32)));
  }
#endif
  else {
    return a * b;
  }
}

/// The smaller of two integers.
template <class Arch, class I>
RANKFOLD_DETAIL_INLINE batch<Arch, I> smaller(const batch<Arch, I>& a,
                                              const batch<Arch, I>& b) noexcept {
#if defined(__SSE2__) && defined(__x86_64__)
  // The two that SSE2 has; xsimd compares and selects.
  if constexpr (detail::is_sse<Arch> && std::is_same_v<I, std::uint8_t>) {
    return batch<Arch, I>(_mm_min_epu8(a, b));
  } else if constexpr (detail::is_sse<Arch> && std::is_same_v<I, std::int16_t>) {
    return batch<Arch, I>(_mm_min_epi16(a, b));
  } else
#endif
  {
    return xsimd::min(a, b);
  }
}

/// The smaller of two floats, and −0 of two zeros; some NaN if one of both is a NaN.
template <class Arch, class T>
RANKFOLD_DETAIL_INLINE batch<Arch, T> smaller_float(const batch<Arch, T>& a,
                                                    const batch<Arch, T>& b) noexcept {
#if defined(__SSE2__) && defined(__x86_64__)
  // minps gives its second operand for two zeros and when there is a NaN, so that both orders
  // together hold both operands in these cases, and the same number twice in all others.
  if constexpr (detail::is_sse<Arch> || detail::is_avx<Arch> || detail::is_avx512<Arch>) {
    return xsimd::min(a, b) | xsimd::min(b, a);
  } else
#endif
  {
    return xsimd::select(a < b, a, b) | xsimd::select(b < a, b, a);
  }
}

}  // namespace simd
RANKFOLD_END_NAMESPACE
