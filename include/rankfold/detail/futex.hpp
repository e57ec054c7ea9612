// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word that other threads or processes change.
#pragma once

#include <bit>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#if defined(__linux__)
#  include <unistd.h>

#  include <linux/futex.h>
#  include <sys/syscall.h>
#else
#  include <algorithm>
#  include <thread>
#endif

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// The half of a 64-bit word that changes with every step: what a futex sleeps on.
inline std::uint32_t* low_half(std::uint64_t* word) noexcept {
  return reinterpret_cast<std::uint32_t*>(word) + (std::endian::native == std::endian::big ? 1 : 0);
}

/// Sleeps while `*word == expected`, for `timeout` at most. May return early for no reason.
inline void futex_wait(std::uint32_t* word, std::uint32_t expected,
                       std::chrono::nanoseconds timeout, bool crosses_processes) noexcept {
#if defined(__linux__)
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{};
  relative.tv_sec = static_cast<std::time_t>(seconds.count());
  relative.tv_nsec = static_cast<long>((timeout - seconds).count());
  // Its result does not matter: whoever sleeps here looks at the word again.
  syscall(SYS_futex, word, crosses_processes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, expected, &relative,
          nullptr, 0);
#else
  (void)word, (void)expected, (void)crosses_processes;
  std::this_thread::sleep_for((std::min)(timeout, std::chrono::nanoseconds(100'000)));
#endif
}

/// Wakes all that sleep on `word`.
inline void futex_wake(std::uint32_t* word, bool crosses_processes) noexcept {
#if defined(__linux__)
  syscall(SYS_futex, word, crosses_processes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
#else
  (void)word, (void)crosses_processes;
#endif
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
