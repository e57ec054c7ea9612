// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that the kernels' promises rest on.
#pragma once

#include <cstdint>

#if !defined(__SSE2__) && !defined(__aarch64__)
#  include <cfenv>
#endif

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace detail {

/// Puts the calling thread into round-to-nearest, without flushing of subnormals and without
/// floating-point traps, for as long as it lives; restores what was there. Costs one read of the
/// control register where nothing has to be changed.
///
/// The accesses clobber memory for the compiler: a fold whose operands are loaded and whose
/// results are stored in between stays in between, even when it is inlined.
class fp_environment {
 public:
#if defined(__SSE2__)
  fp_environment() noexcept {
    asm volatile("stmxcsr %0" : "=m"(saved_) : : "memory");
    const std::uint32_t wanted =
        (saved_ & ~(rounding | flush_to_zero | denormals_are_zero)) | masks;
    if (wanted != saved_) {
      changed_ = true;
      asm volatile("ldmxcsr %0" : : "m"(wanted) : "memory");
    }
  }
  ~fp_environment() {
    if (changed_) {
      asm volatile("ldmxcsr %0" : : "m"(saved_) : "memory");
    }
  }
#elif defined(__aarch64__)
  fp_environment() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    const std::uint64_t wanted = saved_ & ~(rounding | flush | traps);
    if (wanted != saved_) {
      changed_ = true;
      asm volatile("msr fpcr, %0" : : "r"(wanted) : "memory");
    }
  }
  ~fp_environment() {
    if (changed_) {
      asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
    }
  }
#else
  fp_environment() noexcept : saved_(std::fegetround()) {
    changed_ = saved_ != FE_TONEAREST;
    if (changed_) {
      std::fesetround(FE_TONEAREST);
    }
  }
  ~fp_environment() {
    if (changed_) {
      std::fesetround(saved_);
    }
  }
#endif

  fp_environment(const fp_environment&) = delete;
  fp_environment& operator=(const fp_environment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr std::uint32_t rounding = 3U << 13;
  static constexpr std::uint32_t flush_to_zero = 1U << 15;
  static constexpr std::uint32_t denormals_are_zero = 1U << 6;
  // Vector code computes lanes that it then drops; they must not trap.
  static constexpr std::uint32_t masks = 0x3FU << 7;
  std::uint32_t saved_ = 0;
#elif defined(__aarch64__)
  static constexpr std::uint64_t rounding = 3U << 22;
  static constexpr std::uint64_t flush = 1U << 24 | 1U << 19 | 3U;  // FZ, FZ16, AH, FIZ
  static constexpr std::uint64_t traps = 0x9FU << 8;                // IDE, IXE, UFE, OFE, DZE, IOE
  std::uint64_t saved_ = 0;
#else
  int saved_ = 0;
#endif
  bool changed_ = false;
};

}  // namespace detail
RANKFOLD_END_NAMESPACE
