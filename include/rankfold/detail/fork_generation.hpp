// SPDX-License-Identifier: Apache-2.0
// Tells a process from its forked children: what was made before a fork is not theirs to use.
#pragma once

#include <atomic>

#include <pthread.h>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

inline std::atomic<unsigned> fork_generation_counter{0};

/// How many forks lie between the first call's process and this one. An object that keeps the value
/// from its creation and later reads another one has been copied into a child by fork().
///
/// Seen: fork() and what is built on it. Not seen: a raw clone() or _Fork(), which run no handlers.
inline unsigned fork_generation() noexcept {
  // Once per process image; a handler of a library that is closed goes with it. Should registration
  // fail (no memory), children are not told apart: nothing better is left to do.
  [[maybe_unused]] static const bool registered =
      ::pthread_atfork(nullptr, nullptr, [] {
        // relaxed: the child has one thread, and threads it starts come after this.
        fork_generation_counter.fetch_add(1, std::memory_order_relaxed);
      }) == 0;
  // relaxed: see above; the value never changes while more than one thread could see the change.
  return fork_generation_counter.load(std::memory_order_relaxed);
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
