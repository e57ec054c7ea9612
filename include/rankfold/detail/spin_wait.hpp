// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#  include <immintrin.h>
#endif

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Tells the core that this thread spins.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__powerpc64__)
  asm volatile("or 27,27,27" ::: "memory");
#elif defined(__riscv)
  asm volatile(".insn i 0x0F, 0, x0, x0, 0x010" ::: "memory");
#endif
}

/// Asks for the cache line at `address`; not an access.
inline void prefetch(const void* address) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
