// SPDX-License-Identifier: Apache-2.0
// Runs code on contexts, below the communicator: for tests of algorithms and of the protocol.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/context.hpp"
#include "rankfold/transport/threads.hpp"

using test_context = rankfold::context<rankfold::threads_transport>;

struct context_setup {
  std::size_t workspace_bytes = 16384;  // two halves of 8 KiB
  rankfold::tuning tune = {};
  rankfold::wait_options waiting = {};
};

/// Calls f(context&) on `ranks` threads; rethrows the first exception.
template <class F>
void run_contexts(int ranks, const context_setup& setup, F&& f) {
  auto transports =
      rankfold::threads_transport::create(ranks, {.workspace_bytes = setup.workspace_bytes});
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          test_context ctx(std::move(transports[static_cast<std::size_t>(r)]), setup.tune,
                           setup.waiting);
          f(ctx);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

/// A call that only the tests make; every rank passes the same.
inline rankfold::fingerprint test_call(std::size_t count = 0, std::uint32_t tag = 0) {
  return rankfold::fingerprint::of(rankfold::collective::all_reduce, count, rankfold::dtype::int32,
                                   1, rankfold::algorithm::automatic, 0, tag);
}
