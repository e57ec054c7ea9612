// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// What is called when an invariant of rankfold itself is broken; must not return.
using assert_handler = void (*)(const char* file, int line, const char* condition,
                                const char* message);

namespace detail {

inline void default_assert_handler(const char* file, int line, const char* condition,
                                   const char* message) {
  std::fprintf(stderr, "rankfold: %s:%d: broken invariant `%s`: %s\n", file, line, condition,
               message);
}

// seq_cst: set once in tests, read only when the process is about to end.
inline std::atomic<assert_handler> assert_handler_slot{default_assert_handler};

[[noreturn]] inline void assert_failed(const char* file, int line, const char* condition,
                                       const char* message) {
  assert_handler_slot.load()(file, line, condition, message);
  std::abort();
}

}  // namespace detail

/// Replaces the handler and returns the one before; the process is aborted after it returns.
inline assert_handler set_assert_handler(assert_handler handler) noexcept {
  return detail::assert_handler_slot.exchange(handler);
}

RANKFOLD_END_NAMESPACE

/// Checks an invariant of rankfold's own at `level` (1 light, 2 normal, 3 heavy). Never evaluated
/// below that level, never an assumption of the optimiser.
#define RANKFOLD_ASSERT(level, condition, message)                                  \
  do {                                                                              \
    if constexpr ((level) <= RANKFOLD_ASSERT_LEVEL) {                               \
      if (!(condition)) {                                                           \
        ::rankfold::detail::assert_failed(__FILE__, __LINE__, #condition, message); \
      }                                                                             \
    }                                                                               \
  } while (false)
