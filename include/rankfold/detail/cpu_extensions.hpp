// SPDX-License-Identifier: Apache-2.0
// Extensions of the instruction set: those that the flags of a translation unit allow, and those
// that processor and system offer.
#pragma once

#include <cstdint>

#include "rankfold/detail/config.hpp"

#ifdef __x86_64__
#  include <cpuid.h>
#endif

RANKFOLD_BEGIN_NAMESPACE
namespace detail {

/// One bit for each flag that changes the code that GCC and Clang make of plain C++ or of the
/// intrinsics of the kernels.
namespace extension {
enum bit : unsigned {
  sse3 = 1U << 0,
  ssse3 = 1U << 1,
  sse4_1 = 1U << 2,
  sse4_2 = 1U << 3,
  avx = 1U << 4,
  avx2 = 1U << 5,
  fma = 1U << 6,
  f16c = 1U << 7,
  bmi = 1U << 8,
  bmi2 = 1U << 9,
  lzcnt = 1U << 10,
  popcnt = 1U << 11,
  movbe = 1U << 12,
  avx512f = 1U << 13,
  avx512vl = 1U << 14,
  avx512dq = 1U << 15,
  avx512bw = 1U << 16,
  avx512vbmi = 1U << 17,
  avx512vbmi2 = 1U << 18,
  avx512fp16 = 1U << 19,
  avx512cd = 1U << 20,
};
}  // namespace extension

/// What this translation unit may use. (A constant to the compiler alone, since it differs between
/// translation units.)
inline constexpr unsigned compiled_extensions = 0U
#ifdef __SSE3__
                                                | extension::sse3
#endif
#ifdef __SSSE3__
                                                | extension::ssse3
#endif
#ifdef __SSE4_1__
                                                | extension::sse4_1
#endif
#ifdef __SSE4_2__
                                                | extension::sse4_2
#endif
#ifdef __AVX__
                                                | extension::avx
#endif
#ifdef __AVX2__
                                                | extension::avx2
#endif
#ifdef __FMA__
                                                | extension::fma
#endif
#ifdef __F16C__
                                                | extension::f16c
#endif
#ifdef __BMI__
                                                | extension::bmi
#endif
#ifdef __BMI2__
                                                | extension::bmi2
#endif
#ifdef __LZCNT__
                                                | extension::lzcnt
#endif
#ifdef __POPCNT__
                                                | extension::popcnt
#endif
#ifdef __MOVBE__
                                                | extension::movbe
#endif
#ifdef __AVX512F__
                                                | extension::avx512f
#endif
#ifdef __AVX512VL__
                                                | extension::avx512vl
#endif
#ifdef __AVX512DQ__
                                                | extension::avx512dq
#endif
#ifdef __AVX512BW__
                                                | extension::avx512bw
#endif
#ifdef __AVX512VBMI__
                                                | extension::avx512vbmi
#endif
#ifdef __AVX512VBMI2__
                                                | extension::avx512vbmi2
#endif
#ifdef __AVX512FP16__
                                                | extension::avx512fp16
#endif
#ifdef __AVX512CD__
                                                | extension::avx512cd
#endif
    ;

#ifdef __x86_64__

/// The words of cpuid in which the extensions are, and the register states that the system saves.
struct cpu_words {
  std::uint32_t leaf1_ecx;
  std::uint32_t leaf7_ebx;
  std::uint32_t leaf7_ecx;
  std::uint32_t leaf7_edx;
  std::uint32_t extended_ecx;  // of leaf 0x80000001
  std::uint32_t xcr0;          // 0 unless cpuid says that it may be read
};

/// The extensions that may be used: the processor has them, and the system saves their registers.
constexpr unsigned extensions_of(const cpu_words& cpu) noexcept {
  struct place {
    extension::bit bit;
    std::uint32_t cpu_words::* word;
    int position;
    std::uint32_t state;  // bits of xcr0
  };
  constexpr std::uint32_t ymm = 0x06;  // xmm and the upper halves of ymm
  constexpr std::uint32_t zmm = 0xE6;  // these, the masks, and both parts of zmm
  constexpr place places[] = {
      {extension::sse3, &cpu_words::leaf1_ecx, 0, 0},
      {extension::ssse3, &cpu_words::leaf1_ecx, 9, 0},
      {extension::sse4_1, &cpu_words::leaf1_ecx, 19, 0},
      {extension::sse4_2, &cpu_words::leaf1_ecx, 20, 0},
      {extension::avx, &cpu_words::leaf1_ecx, 28, ymm},
      {extension::avx2, &cpu_words::leaf7_ebx, 5, ymm},
      {extension::fma, &cpu_words::leaf1_ecx, 12, ymm},
      {extension::f16c, &cpu_words::leaf1_ecx, 29, ymm},
      {extension::bmi, &cpu_words::leaf7_ebx, 3, 0},
      {extension::bmi2, &cpu_words::leaf7_ebx, 8, 0},
      {extension::lzcnt, &cpu_words::extended_ecx, 5, 0},
      {extension::popcnt, &cpu_words::leaf1_ecx, 23, 0},
      {extension::movbe, &cpu_words::leaf1_ecx, 22, 0},
      {extension::avx512f, &cpu_words::leaf7_ebx, 16, zmm},
      {extension::avx512vl, &cpu_words::leaf7_ebx, 31, zmm},
      {extension::avx512dq, &cpu_words::leaf7_ebx, 17, zmm},
      {extension::avx512bw, &cpu_words::leaf7_ebx, 30, zmm},
      {extension::avx512vbmi, &cpu_words::leaf7_ecx, 1, zmm},
      {extension::avx512vbmi2, &cpu_words::leaf7_ecx, 6, zmm},
      {extension::avx512fp16, &cpu_words::leaf7_edx, 23, zmm},
      {extension::avx512cd, &cpu_words::leaf7_ebx, 28, zmm},
  };
  unsigned found = 0;
  for (const place& p : places) {
    const bool there = (cpu.*p.word >> p.position & 1U) != 0;
    if (there && (cpu.xcr0 & p.state) == p.state) {
      found |= p.bit;
    }
  }
  return found;
}

/// Those of this machine. (Not by xsimd, which before version 13 does not ask what the system
/// saves.)
inline cpu_words read_cpu_words() noexcept {
  cpu_words cpu{};
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
    cpu.leaf1_ecx = ecx;
    if ((ecx >> 27 & 1U) != 0) {  // the system lets programs read xcr0
      std::uint32_t upper = 0;
      asm("xgetbv" : "=a"(cpu.xcr0), "=d"(upper) : "c"(0));
    }
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    cpu.leaf7_ebx = ebx;
    cpu.leaf7_ecx = ecx;
    cpu.leaf7_edx = edx;
  }
  if (__get_cpuid(0x8000'0001U, &eax, &ebx, &ecx, &edx) != 0) {
    cpu.extended_ecx = ecx;
  }
  return cpu;
}

#endif

/// Those of this machine.
inline unsigned machine_extensions() noexcept {
#ifdef __x86_64__
  return extensions_of(read_cpu_words());
#else
  return 0;
#endif
}

}  // namespace detail
RANKFOLD_END_NAMESPACE
