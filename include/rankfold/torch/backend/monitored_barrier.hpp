// SPDX-License-Identifier: Apache-2.0
// A barrier over the store that says who is missing: rank 0 looks at who has come, and tells all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"
#include "rankfold/torch/python.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// Those of one group, in the order of the program. The words of the errors are gloo's.
class monitored_barriers {
  using clock = std::chrono::steady_clock;

 public:
  /// Throws: `timeout_error` where ranks are missing: on rank 0 with the first of them, or with all
  /// if `all_ranks`; elsewhere with what rank 0 said, if it did.
  void call(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
            bool all_ranks) {
    const std::string prefix = "monitored/" + std::to_string(++number_) + "/";
    const auto until = clock::now() + timeout;
    const std::string answer = prefix + "answer";
    if (rank != 0) {
      store.set(prefix + std::to_string(rank), "here");
      // What rank 0 says about others comes a moment after the time is over.
      const bool answered = await(store, answer, until + std::chrono::seconds(1));
      const std::string text = answered ? store.get_to_str(answer) : "";
      if (text == good) return;
      throw timeout_error("Rank " + std::to_string(rank) +
                          " successfully reached monitoredBarrier, but received errors while "
                          "waiting for send/recv from rank 0. Please check rank 0 logs for faulty "
                          "rank" +
                          (text.empty() ? std::string() : ": " + text));
    }
    const auto fail = [&](const std::string& text) {
      store.set(answer, text);
      throw timeout_error(text);
    };
    const std::string time = std::to_string(timeout.count()) + " ms";
    if (timeout.count() <= 0) fail("Rank 0 timed out in monitoredBarrier after " + time);
    std::vector<int> missing;
    for (int r = 1; r < size; ++r) {
      if (!await(store, prefix + std::to_string(r), until)) missing.push_back(r);
      if (!missing.empty() && !all_ranks) break;
    }
    if (missing.empty()) {
      store.set(answer, good);
      return;
    }
    std::string names;
    for (const int r : missing) names += (names.empty() ? "" : ", ") + std::to_string(r);
    fail((all_ranks ? "Ranks " : "Rank ") + names + " failed to pass monitoredBarrier in " + time);
  }

 private:
  static constexpr const char* good = "all are here";

  static bool await(c10d::Store& store, const std::string& key, clock::time_point until) {
    auto asked = clock::now();
    while (!store.check({key})) {
      const auto now = clock::now();
      if (now >= until) return false;
      if (now - asked >= std::chrono::milliseconds(100)) {
        asked = now;
        torch_ops::check_signals();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  std::uint64_t number_ = 0;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
