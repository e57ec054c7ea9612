// SPDX-License-Identifier: Apache-2.0
// The shm transport between threads of this process (the memory, futexes and rendezvous are those
// of processes), and between processes.
#include "rankfold/transport/shm.hpp"

#include <atomic>
#include <chrono>
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
#include "support/fork_ranks.hpp"

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

TEST_CASE("shm transport passes the conformance checks between processes",
          "[conformance][shm][processes]") {
  const std::string key = "conformance-processes-" + std::to_string(::getpid());
  const auto outcomes = fork_ranks(
      3,
      [&](int rank, const rank_voice&) {
        int ordinal = 0;
        const auto run = [&](int ranks, const communicator_options& options,
                             const std::function<void(communicator<shm_transport>&)>& f) {
          const std::string next = key + '-' + std::to_string(ordinal++);
          if (rank >= ranks) return;
          communicator<shm_transport> comm(
              shm_transport::connect(next, rank, ranks, {.workspace_bytes = 65536}), options);
          f(comm);
        };
        std::string failures;
        int checks = 0;
        for (const auto& check : testing::conformance_checks<shm_transport>(
                 run, {.ranks = {1, 2, 3}, .seed = 5, .processes = true})) {
          ++checks;
          try {
            check.body();
          } catch (const std::exception& e) {
            failures += check.name + ": " + e.what() + '\n';
          }
        }
        return std::to_string(checks) + " checks\n" + failures;
      },
      std::chrono::seconds(120));
  for (const rank_outcome& outcome : outcomes) {
    CHECK(outcome.returned);
    CHECK(outcome.text == outcomes[0].text.substr(0, outcomes[0].text.find('\n') + 1));
    CHECK(outcome.text.size() > 9);
  }
}
