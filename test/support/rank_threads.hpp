// SPDX-License-Identifier: Apache-2.0
// A thread a rank, over any transport.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

/// Calls f(rank) on `ranks` threads and waits for all; rethrows the first exception.
template <class F>
void run_rank_threads(int ranks, F&& f) {
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          f(r);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}
