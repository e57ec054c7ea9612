// SPDX-License-Identifier: Apache-2.0
// The only header that includes xsimd: names for its batches, and what it lacks or what its
// versions do differently (partial loads, small multiplications, …).
//
// Everything here is a template on the target or always inlined, so that translation units compiled
// with different flags never share code: the linker keeps one function of a name, whatever it was
// compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <xsimd/xsimd.hpp>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/cpu_extensions.hpp"

#if XSIMD_VERSION_MAJOR < 8 || (XSIMD_VERSION_MAJOR == 8 && XSIMD_VERSION_MINOR < 1)
#  error "rankfold: xsimd 8.1 or newer is needed"
#endif

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace simd {

/// An instruction set: xsimd's architecture (void for none), and as a number the extensions that
/// the compiler may use besides. Both are part of the name of every kernel.
template <class XsimdArch, unsigned Extensions>
struct target {
  using arch = XsimdArch;
};

namespace detail {

template <class XsimdArch>
using compiled_target = std::conditional_t<xsimd::has_simd_register<std::uint8_t, XsimdArch>::value,
                                           target<XsimdArch, rankfold::detail::compiled_extensions>,
                                           target<void, rankfold::detail::compiled_extensions>>;

}  // namespace detail

/// Plain C++, one element at a time: the reference for the bits of every other target.
using scalar = target<void, rankfold::detail::compiled_extensions>;

/// What the flags of this translation unit allow.
using compiled = detail::compiled_target<xsimd::default_arch>;

/// The kernels of the library's own operators are those that were chosen for this machine
/// (kernel/dispatch.hpp). All else, a user's operator, is compiled for `Compiled`, which keeps
/// functions of translation units with different flags apart.
template <class Compiled>
struct dispatched : Compiled {};

template <class Arch>
inline constexpr bool is_dispatched_v = false;
template <class Compiled>
inline constexpr bool is_dispatched_v<dispatched<Compiled>> = true;

/// What kernels are for unless somebody says otherwise.
#ifdef RANKFOLD_DISPATCH  // public: the program is linked with kernel/dispatch.cpp
using native = dispatched<compiled>;
#else
using native = compiled;
#endif

/// Whether the target has registers of elements of type `T`.
template <class Arch, class T>
inline constexpr bool has_batch_v =
    std::conjunction_v<std::negation<std::is_void<typename Arch::arch>>,
                       xsimd::has_simd_register<T, typename Arch::arch>>;

template <class Arch, class T>
using batch = xsimd::batch<T, typename Arch::arch>;

/// A register, when what its elements are does not matter.
template <class Arch>
using bytes = batch<Arch, std::uint8_t>;

template <class Arch>
inline constexpr std::size_t width_bytes = sizeof(bytes<Arch>);

/// What people call it: "sse2", "avx2", "avx512", another name of xsimd's, or "scalar".
template <class Arch>
constexpr const char* name_of() noexcept {
  if constexpr (!has_batch_v<Arch, std::uint8_t>) {
    return "scalar";
#ifdef __AVX512BW__
  } else if constexpr (width_bytes<Arch> == 64) {
    return "avx512";
#endif
#ifdef __AVX2__
  } else if constexpr (width_bytes<Arch> == 32) {
    return "avx2";
#endif
  } else {
    return Arch::arch::name();
  }
}

namespace detail {

template <class T>
struct tag {};

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

// What follows is one section for each x86 register size, as overloads on the register. The public
// functions below use what they find for their register, and xsimd otherwise. (The names must exist
// where no section does.)
void load_partial();
void store_partial();
void load_masked();
void store_masked();
void multiply();
void smaller();
void interleave();
void deinterleave();
void any_nan();
void select_less();
void load_bytes();
void store_bytes();

#if defined(__SSE2__) && defined(__x86_64__)

// 1 to 15 bytes by two words that overlap: the overlapping bytes are the same bytes, so `or` joins
// them. No trip through memory, where the load would wait for the stores before it.
RANKFOLD_DETAIL_INLINE void load_partial(__m128i& to, const std::byte* from,
                                         std::size_t size) noexcept {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  if (size >= 8) {
    low = load_word<std::uint64_t>(from);
    high = load_word<std::uint64_t>(from + size - 8) >> (8 * (15 - size)) >> 8;
  } else if (size >= 4) {
    low = load_word<std::uint32_t>(from) | std::uint64_t{load_word<std::uint32_t>(from + size - 4)}
                                               << (8 * (size - 4));
  } else if (size >= 2) {
    low = load_word<std::uint16_t>(from) | std::uint64_t{load_word<std::uint16_t>(from + size - 2)}
                                               << (8 * (size - 2));
  } else {
    low = load_word<std::uint8_t>(from);
  }
  to = _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

RANKFOLD_DETAIL_INLINE void store_partial(std::byte* to, __m128i x, std::size_t size) noexcept {
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

RANKFOLD_DETAIL_INLINE __m128i multiply(tag<std::uint16_t>, __m128i a, __m128i b) noexcept {
  return _mm_mullo_epi16(a, b);
}
RANKFOLD_DETAIL_INLINE __m128i multiply(tag<std::uint32_t>, __m128i a, __m128i b) noexcept {
#  ifdef __SSE4_1__
  return _mm_mullo_epi32(a, b);
#  else
  const __m128i even = _mm_mul_epu32(a, b);
  const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
  const __m128i mask = _mm_set1_epi64x(0xFFFF'FFFF);
  return _mm_or_si128(_mm_and_si128(even, mask), _mm_slli_epi64(odd, 32));
#  endif
}
RANKFOLD_DETAIL_INLINE __m128i multiply(tag<std::uint64_t>, __m128i a, __m128i b) noexcept {
  const __m128i cross = _mm_add_epi64(_mm_mul_epu32(_mm_srli_epi64(a, 32), b),
                                      _mm_mul_epu32(a, _mm_srli_epi64(b, 32)));
  return _mm_add_epi64(_mm_mul_epu32(a, b), _mm_slli_epi64(cross, 32));
}

// xsimd compares and selects for these two, which SSE2 has.
RANKFOLD_DETAIL_INLINE __m128i smaller(tag<std::uint8_t>, __m128i a, __m128i b) noexcept {
  return _mm_min_epu8(a, b);
}
RANKFOLD_DETAIL_INLINE __m128i smaller(tag<std::int16_t>, __m128i a, __m128i b) noexcept {
  return _mm_min_epi16(a, b);
}

// minps gives its second operand for two zeros and when there is a NaN.
RANKFOLD_DETAIL_INLINE __m128 smaller(tag<float>, __m128 a, __m128 b) noexcept {
  return _mm_or_ps(_mm_min_ps(a, b), _mm_min_ps(b, a));
}
RANKFOLD_DETAIL_INLINE __m128d smaller(tag<double>, __m128d a, __m128d b) noexcept {
  return _mm_or_pd(_mm_min_pd(a, b), _mm_min_pd(b, a));
}

// A comparison looks at two registers at once.
RANKFOLD_DETAIL_INLINE bool any_nan(__m128 a, __m128 b, __m128 c, __m128 d) noexcept {
  return _mm_movemask_ps(_mm_or_ps(_mm_cmpunord_ps(a, b), _mm_cmpunord_ps(c, d))) != 0;
}
RANKFOLD_DETAIL_INLINE bool any_nan(__m128d a, __m128d b, __m128d c, __m128d d) noexcept {
  return _mm_movemask_pd(_mm_or_pd(_mm_cmpunord_pd(a, b), _mm_cmpunord_pd(c, d))) != 0;
}

// From even and odd lanes to the lower and the upper half of the lanes in order, and back.
RANKFOLD_DETAIL_INLINE void interleave(__m128& a, __m128& b) noexcept {
  const __m128 even = a;
  a = _mm_unpacklo_ps(even, b);
  b = _mm_unpackhi_ps(even, b);
}
RANKFOLD_DETAIL_INLINE void deinterleave(__m128& a, __m128& b) noexcept {
  const __m128 low = a;
  a = _mm_shuffle_ps(low, b, 0x88);
  b = _mm_shuffle_ps(low, b, 0xDD);
}

RANKFOLD_DETAIL_INLINE void load_bytes(__m128i& to, const std::byte* from) noexcept {
  const __m128i x = _mm_cvtsi32_si128(load_word<std::int32_t>(from));
#  ifdef __SSE4_1__
  to = _mm_cvtepu8_epi32(x);
#  else
  const __m128i zero = _mm_setzero_si128();
  to = _mm_unpacklo_epi16(_mm_unpacklo_epi8(x, zero), zero);
#  endif
}
RANKFOLD_DETAIL_INLINE void store_bytes(std::byte* to, __m128i x) noexcept {
  const __m128i words = _mm_packs_epi32(x, x);
  const int four = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  store_word<std::uint32_t>(to, static_cast<std::uint32_t>(four));
}

#endif
#if defined(__AVX__) && defined(__x86_64__)

RANKFOLD_DETAIL_INLINE void load_partial(__m256i& to, const std::byte* from,
                                         std::size_t size) noexcept {
  __m128i low = _mm_setzero_si128();
  __m128i high = _mm_setzero_si128();
  if (size < 16) {
    load_partial(low, from, size);
  } else {
    low = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
    if (size > 16) {
      load_partial(high, from + 16, size - 16);
    }
  }
  to = _mm256_insertf128_si256(_mm256_castsi128_si256(low), high, 1);
}

RANKFOLD_DETAIL_INLINE void store_partial(std::byte* to, __m256i x, std::size_t size) noexcept {
  __m128i part = _mm256_castsi256_si128(x);
  if (size >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to), part);
    part = _mm256_extractf128_si256(x, 1);
    to += 16;
    size -= 16;
  }
  if (size != 0) {
    store_partial(to, part, size);
  }
}

RANKFOLD_DETAIL_INLINE __m256 smaller(tag<float>, __m256 a, __m256 b) noexcept {
  return _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
}
RANKFOLD_DETAIL_INLINE __m256d smaller(tag<double>, __m256d a, __m256d b) noexcept {
  return _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a));
}

RANKFOLD_DETAIL_INLINE bool any_nan(__m256 a, __m256 b, __m256 c, __m256 d) noexcept {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
}
RANKFOLD_DETAIL_INLINE bool any_nan(__m256d a, __m256d b, __m256d c, __m256d d) noexcept {
  return _mm256_movemask_pd(_mm256_or_pd(_mm256_cmp_pd(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_pd(c, d, _CMP_UNORD_Q))) != 0;
}

RANKFOLD_DETAIL_INLINE void interleave(__m256& a, __m256& b) noexcept {
  const __m256 low = _mm256_unpacklo_ps(a, b);  // of each half
  const __m256 high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}
RANKFOLD_DETAIL_INLINE void deinterleave(__m256& a, __m256& b) noexcept {
  const __m256 outer = _mm256_permute2f128_ps(a, b, 0x20);
  const __m256 inner = _mm256_permute2f128_ps(a, b, 0x31);
  a = _mm256_shuffle_ps(outer, inner, 0x88);
  b = _mm256_shuffle_ps(outer, inner, 0xDD);
}

RANKFOLD_DETAIL_INLINE void load_bytes(__m256i& to, const std::byte* from) noexcept {
  const __m128i x = _mm_cvtsi64_si128(load_word<std::int64_t>(from));
#  ifdef __AVX2__
  to = _mm256_cvtepu8_epi32(x);
#  else
  to = _mm256_insertf128_si256(_mm256_castsi128_si256(_mm_cvtepu8_epi32(x)),
                               _mm_cvtepu8_epi32(_mm_srli_si128(x, 4)), 1);
#  endif
}
RANKFOLD_DETAIL_INLINE void store_bytes(std::byte* to, __m256i x) noexcept {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extractf128_si256(x, 1));
  const long long eight = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
  store_word<std::uint64_t>(to, static_cast<std::uint64_t>(eight));
}

#endif
#if defined(__AVX2__) && defined(__x86_64__)

// xsimd before 13 compares unsigned bytes in functions for SSE, which must not be compiled twice.
RANKFOLD_DETAIL_INLINE __m256i select_less(tag<std::uint8_t>, __m256i x, __m256i y, __m256i then,
                                           __m256i otherwise) noexcept {
  const __m256i not_less = _mm256_cmpeq_epi8(_mm256_max_epu8(x, y), x);
  return _mm256_blendv_epi8(then, otherwise, not_less);
}
RANKFOLD_DETAIL_INLINE __m256i multiply(tag<std::uint16_t>, __m256i a, __m256i b) noexcept {
  return _mm256_mullo_epi16(a, b);
}
RANKFOLD_DETAIL_INLINE __m256i multiply(tag<std::uint32_t>, __m256i a, __m256i b) noexcept {
  return _mm256_mullo_epi32(a, b);
}
RANKFOLD_DETAIL_INLINE __m256i multiply(tag<std::uint64_t>, __m256i a, __m256i b) noexcept {
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                         _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));
  return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}

#endif
#if defined(__AVX512F__) && defined(__x86_64__)

#  ifdef __AVX512BW__
RANKFOLD_DETAIL_INLINE void load_masked(__m512i& to, const std::byte* from,
                                        std::size_t size) noexcept {
  to = _mm512_maskz_loadu_epi8(~std::uint64_t{0} >> (64 - size), from);
}
RANKFOLD_DETAIL_INLINE void store_masked(std::byte* to, __m512i x, std::size_t size) noexcept {
  _mm512_mask_storeu_epi8(to, ~std::uint64_t{0} >> (64 - size), x);
}

RANKFOLD_DETAIL_INLINE __m512i multiply(tag<std::uint16_t>, __m512i a, __m512i b) noexcept {
  return _mm512_mullo_epi16(a, b);
}

// xsimd before 10 does not compile a selection of small integers for AVX-512.
RANKFOLD_DETAIL_INLINE __m512i select_less(tag<std::int16_t>, __m512i x, __m512i y, __m512i then,
                                           __m512i otherwise) noexcept {
  return _mm512_mask_mov_epi16(otherwise, _mm512_cmplt_epi16_mask(x, y), then);
}
RANKFOLD_DETAIL_INLINE __m512i select_less(tag<std::uint8_t>, __m512i x, __m512i y, __m512i then,
                                           __m512i otherwise) noexcept {
  return _mm512_mask_mov_epi8(otherwise, _mm512_cmplt_epu8_mask(x, y), then);
}
#  endif
RANKFOLD_DETAIL_INLINE __m512i multiply(tag<std::uint32_t>, __m512i a, __m512i b) noexcept {
  return _mm512_mullo_epi32(a, b);
}
RANKFOLD_DETAIL_INLINE __m512i multiply(tag<std::uint64_t>, __m512i a, __m512i b) noexcept {
#  ifdef __AVX512DQ__
  return _mm512_mullo_epi64(a, b);
#  else
  return _mm512_mullox_epi64(a, b);
#  endif
}

RANKFOLD_DETAIL_INLINE __m512 smaller(tag<float>, __m512 a, __m512 b) noexcept {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_min_ps(a, b)),
                                             _mm512_castps_si512(_mm512_min_ps(b, a))));
}
RANKFOLD_DETAIL_INLINE __m512d smaller(tag<double>, __m512d a, __m512d b) noexcept {
  return _mm512_castsi512_pd(_mm512_or_si512(_mm512_castpd_si512(_mm512_min_pd(a, b)),
                                             _mm512_castpd_si512(_mm512_min_pd(b, a))));
}

RANKFOLD_DETAIL_INLINE bool any_nan(__m512 a, __m512 b, __m512 c, __m512 d) noexcept {
  return (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(c, d, _CMP_UNORD_Q)) != 0;
}
RANKFOLD_DETAIL_INLINE bool any_nan(__m512d a, __m512d b, __m512d c, __m512d d) noexcept {
  return (_mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_pd_mask(c, d, _CMP_UNORD_Q)) != 0;
}

RANKFOLD_DETAIL_INLINE void interleave(__m512& a, __m512& b) noexcept {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __m512 even = a;
  a = _mm512_permutex2var_ps(even, low, b);
  b = _mm512_permutex2var_ps(even, high, b);
}
RANKFOLD_DETAIL_INLINE void deinterleave(__m512& a, __m512& b) noexcept {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 low = a;
  a = _mm512_permutex2var_ps(low, even, b);
  b = _mm512_permutex2var_ps(low, odd, b);
}

RANKFOLD_DETAIL_INLINE void load_bytes(__m512i& to, const std::byte* from) noexcept {
  to = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
}
RANKFOLD_DETAIL_INLINE void store_bytes(std::byte* to, __m512i x) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to), _mm512_cvtepi32_epi8(x));
}

#endif

}  // namespace detail

/// The same bits as elements of another type. (xsimd's own has changed its template parameters.)
template <class To, class From, class XsimdArch>
RANKFOLD_DETAIL_INLINE xsimd::batch<To, XsimdArch> cast(
    const xsimd::batch<From, XsimdArch>& x) noexcept {
  return __builtin_bit_cast(xsimd::batch<To, XsimdArch>, x);
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

namespace detail {

// Functions of their own: a kernel has many partial loads, and they are long without masks.
template <class Arch>
[[gnu::noinline]] inline bytes<Arch> load_partial_call(const std::byte* from,
                                                       std::size_t size) noexcept {
  typename bytes<Arch>::register_type x;
  if constexpr (requires { load_partial(x, from, size); }) {
    load_partial(x, from, size);
    return bytes<Arch>(x);
  } else {
    std::byte buffer[width_bytes<Arch>] = {};
    __builtin_memcpy(buffer, from, size);
    return simd::load<Arch>(buffer);
  }
}

template <class Arch>
[[gnu::noinline]] inline void store_partial_call(std::byte* to, bytes<Arch> x,
                                                 std::size_t size) noexcept {
  if constexpr (requires { store_partial(to, x.data, size); }) {
    store_partial(to, x.data, size);
  } else {
    std::byte buffer[width_bytes<Arch>];
    simd::store<Arch>(buffer, x);
    __builtin_memcpy(to, buffer, size);
  }
}

}  // namespace detail

/// The first `size` bytes of a register, 0 < size < width; the others are zero and are not read.
template <class Arch>
RANKFOLD_DETAIL_INLINE bytes<Arch> load_partial(const std::byte* from, std::size_t size) noexcept {
  typename bytes<Arch>::register_type x;
  if constexpr (requires { detail::load_masked(x, from, size); }) {
    detail::load_masked(x, from, size);
    return bytes<Arch>(x);
  } else {
    return detail::load_partial_call<Arch>(from, size);
  }
}

/// Stores the first `size` bytes of a register, 0 < size < width.
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_partial(std::byte* to, const bytes<Arch>& x,
                                          std::size_t size) noexcept {
  if constexpr (requires { detail::store_masked(to, x.data, size); }) {
    detail::store_masked(to, x.data, size);
  } else {
    detail::store_partial_call<Arch>(to, x, size);
  }
}

/// As many bytes as there are lanes of 32 bits, one in each.
template <class Arch>
RANKFOLD_DETAIL_INLINE batch<Arch, std::int32_t> load_bytes(const std::byte* from) noexcept {
  typename batch<Arch, std::int32_t>::register_type x;
  if constexpr (requires { detail::load_bytes(x, from); }) {
    detail::load_bytes(x, from);
    return batch<Arch, std::int32_t>(x);
  } else {
    std::int32_t lanes[batch<Arch, std::int32_t>::size];
    for (std::int32_t& lane : lanes) {
      lane = static_cast<std::uint8_t>(*from++);
    }
    return batch<Arch, std::int32_t>::load_unaligned(lanes);
  }
}

/// The way back, of lanes from 0 to 255.
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_bytes(std::byte* to,
                                        const batch<Arch, std::int32_t>& x) noexcept {
  if constexpr (requires { detail::store_bytes(to, x.data); }) {
    detail::store_bytes(to, x.data);
  } else {
    std::int32_t lanes[batch<Arch, std::int32_t>::size];
    x.store_unaligned(lanes);
    for (const std::int32_t lane : lanes) {
      *to++ = static_cast<std::byte>(lane);
    }
  }
}

/// The product of unsigned integers, modulo 2^bits. (xsimd multiplies one element after the other
/// where the width has no instruction.)
template <class U, class XsimdArch>
RANKFOLD_DETAIL_INLINE xsimd::batch<U, XsimdArch> multiply(
    const xsimd::batch<U, XsimdArch>& a, const xsimd::batch<U, XsimdArch>& b) noexcept {
  static_assert(std::is_unsigned_v<U>);
  if constexpr (requires { detail::multiply(detail::tag<U>{}, a.data, b.data); }) {
    return xsimd::batch<U, XsimdArch>(detail::multiply(detail::tag<U>{}, a.data, b.data));
  } else if constexpr (sizeof(U) == 1) {
    // As 16-bit lanes: the lower byte of the product of two lanes is the product of their lower
    // bytes; with a's upper byte shifted down and b's left in place, the upper one is that of the
    // upper bytes.
    using lanes = xsimd::batch<std::uint16_t, XsimdArch>;
    const lanes x = cast<std::uint16_t>(a);
    const lanes y = cast<std::uint16_t>(b);
    const lanes lower(std::uint16_t{0x00FF});
    const lanes upper(std::uint16_t{0xFF00});
    return cast<U>((multiply(x, y) & lower) | multiply(x >> 8, y & upper));
  } else {
    return a * b;
  }
}

/// The smaller of two integers. Of two floats: −0 of two zeros, and some NaN if one of them is one.
template <class T, class XsimdArch>
RANKFOLD_DETAIL_INLINE xsimd::batch<T, XsimdArch> smaller(
    const xsimd::batch<T, XsimdArch>& a, const xsimd::batch<T, XsimdArch>& b) noexcept {
  if constexpr (requires { detail::smaller(detail::tag<T>{}, a.data, b.data); }) {
    return xsimd::batch<T, XsimdArch>(detail::smaller(detail::tag<T>{}, a.data, b.data));
  } else if constexpr (std::is_floating_point_v<T>) {
    // For two zeros, and when there is a NaN, this joins both operands; else one number twice.
    return xsimd::select(a < b, a, b) | xsimd::select(b < a, b, a);
  } else {
    return (xsimd::min)(a, b);
  }
}

/// x < y ? then : otherwise.
template <class T, class XsimdArch>
RANKFOLD_DETAIL_INLINE xsimd::batch<T, XsimdArch> select_less(
    const xsimd::batch<T, XsimdArch>& x, const xsimd::batch<T, XsimdArch>& y,
    const xsimd::batch<T, XsimdArch>& then, const xsimd::batch<T, XsimdArch>& otherwise) noexcept {
  if constexpr (requires {
                  detail::select_less(detail::tag<T>{}, x.data, y.data, then.data, otherwise.data);
                }) {
    return xsimd::batch<T, XsimdArch>(
        detail::select_less(detail::tag<T>{}, x.data, y.data, then.data, otherwise.data));
  } else {
    return xsimd::select(x < y, then, otherwise);
  }
}

/// Whether there is a NaN in any of four registers.
template <class T, class XsimdArch>
RANKFOLD_DETAIL_INLINE bool any_nan(const xsimd::batch<T, XsimdArch>& a,
                                    const xsimd::batch<T, XsimdArch>& b,
                                    const xsimd::batch<T, XsimdArch>& c,
                                    const xsimd::batch<T, XsimdArch>& d) noexcept {
  if constexpr (requires { detail::any_nan(a.data, b.data, c.data, d.data); }) {
    return detail::any_nan(a.data, b.data, c.data, d.data);
  } else {
    return !xsimd::all((a == a) & (b == b) & (c == c) & (d == d));
  }
}

/// From the even (a) and odd (b) lanes of a sequence to its first (a) and second (b) half.
template <class XsimdArch>
RANKFOLD_DETAIL_INLINE void interleave(xsimd::batch<float, XsimdArch>& a,
                                       xsimd::batch<float, XsimdArch>& b) noexcept {
  if constexpr (requires { detail::interleave(a.data, b.data); }) {
    detail::interleave(a.data, b.data);
  } else {
    constexpr std::size_t lanes = xsimd::batch<float, XsimdArch>::size;
    float split[2][lanes];
    float joined[2 * lanes];
    a.store_unaligned(split[0]);
    b.store_unaligned(split[1]);
    for (std::size_t i = 0; i < 2 * lanes; ++i) {
      joined[i] = split[i % 2][i / 2];
    }
    a = xsimd::batch<float, XsimdArch>::load_unaligned(joined);
    b = xsimd::batch<float, XsimdArch>::load_unaligned(joined + lanes);
  }
}

/// The way back.
template <class XsimdArch>
RANKFOLD_DETAIL_INLINE void deinterleave(xsimd::batch<float, XsimdArch>& a,
                                         xsimd::batch<float, XsimdArch>& b) noexcept {
  if constexpr (requires { detail::deinterleave(a.data, b.data); }) {
    detail::deinterleave(a.data, b.data);
  } else {
    constexpr std::size_t lanes = xsimd::batch<float, XsimdArch>::size;
    float split[2][lanes];
    float joined[2 * lanes];
    a.store_unaligned(joined);
    b.store_unaligned(joined + lanes);
    for (std::size_t i = 0; i < 2 * lanes; ++i) {
      split[i % 2][i / 2] = joined[i];
    }
    a = xsimd::batch<float, XsimdArch>::load_unaligned(split[0]);
    b = xsimd::batch<float, XsimdArch>::load_unaligned(split[1]);
  }
}

}  // namespace simd
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
