// SPDX-License-Identifier: Apache-2.0
// Runs the library's conformance checks on a transport of one's own, socket_transport.hpp. A
// transport that passes them carries every collective.
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "socket_transport.hpp"
#include <rankfold/testing/conformance.hpp>

/// Calls f(communicator&) on every rank, each a thread; rethrows the first exception.
void run(int ranks, const rankfold::communicator_options& options,
         const std::function<void(rankfold::communicator<socket_transport>&)>& f) {
  auto transports = socket_transport::create(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (auto& transport : transports) {
      threads.emplace_back([&] {
        try {
          rankfold::communicator comm{std::move(transport), options};
          f(comm);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

int main() {
  const auto checks =
      rankfold::testing::conformance_checks<socket_transport>(run, {.ranks = {1, 2, 3, 4}});
  int failed = 0;
  for (const auto& check : checks) {
    try {
      check.body();
    } catch (const std::exception& e) {
      std::printf("%s: %s\n", check.name.c_str(), e.what());
      ++failed;
    }
  }
  std::printf("%zu conformance checks, %d failed\n", checks.size(), failed);
  return failed == 0 ? 0 : 1;
}
