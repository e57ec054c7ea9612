// SPDX-License-Identifier: Apache-2.0
// The shm transport between threads of this process: the memory, futexes and rendezvous are those
// of processes. test/unit/shm.cpp has the processes.
#include "rankfold/transport/shm.hpp"

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "conformance/check.hpp"

using namespace rankfold;

namespace {

void run_over_shm(int ranks, const communicator_options& options,
                  const std::function<void(communicator<shm_transport>&)>& f) {
  static std::atomic<int> ordinal{0};
  const std::string key =
      "conformance-" + std::to_string(::getpid()) + "-" + std::to_string(ordinal++);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          communicator<shm_transport> comm(
              shm_transport::connect(key, r, ranks, {.workspace_bytes = 65536}), options);
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

}  // namespace

TEST_CASE("shm transport passes the conformance checks", "[conformance][shm]") {
  check_conformance<shm_transport>(run_over_shm, {.seed = 4});
}
