// SPDX-License-Identifier: Apache-2.0
// A barrier over the store that says who is missing: rank 0 looks at who has come, and tells all.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
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
  /// A barrier that all pass, or come to late, leaves nothing in the store.
  void call(c10d::Store& group_store, int rank, int size, std::chrono::milliseconds timeout,
            bool all_ranks) {
    const std::lock_guard one_at_a_time(mutex_);
    // A connection of its own: other threads may wait for keys over the one there is.
    if (!store_) store_ = group_store.clone();
    const std::string prefix = "monitored/" + std::to_string(++number_) + "/";
    const auto until = clock::now() + timeout;
    if (rank == 0) {
      look_for_all(prefix, size, timeout, until, all_ranks);
    } else {
      report(prefix, rank, until);
    }
  }

 private:
  static constexpr const char* good = "all are here";

  static std::string arrival(const std::string& prefix, int rank) {
    return prefix + std::to_string(rank);
  }
  static std::string answer(const std::string& prefix, int rank) {
    return arrival(prefix, rank) + "/answer";
  }

  /// What rank 0 does.
  void look_for_all(const std::string& prefix, int size, std::chrono::milliseconds timeout,
                    clock::time_point until, bool all_ranks) {
    const auto tell_all = [&](const std::string& text) {
      for (int r = 1; r < size; ++r) store_->set(answer(prefix, r), text);
    };
    const auto fail = [&](const std::string& text) {
      tell_all(text);
      throw timeout_error(text);
    };
    const std::string time = std::to_string(timeout.count()) + " ms";
    if (timeout.count() <= 0) fail("Rank 0 timed out in monitoredBarrier after " + time);
    std::vector<int> missing;
    for (int r = 1; r < size; ++r) {
      if (!await(arrival(prefix, r), until)) missing.push_back(r);
      if (!missing.empty() && !all_ranks) break;
    }
    if (missing.empty()) return tell_all(good);
    std::string names;
    for (const int r : missing) names += (names.empty() ? "" : ", ") + std::to_string(r);
    fail((all_ranks ? "Ranks " : "Rank ") + names + " failed to pass monitoredBarrier in " + time);
  }

  /// What the others do; each takes away what was said by it and to it.
  void report(const std::string& prefix, int rank, clock::time_point until) {
    store_->set(arrival(prefix, rank), "here");
    // What rank 0 says about others comes a moment after the time is over.
    std::string text;
    try {
      if (await(answer(prefix, rank), until + std::chrono::seconds(1))) {
        text = store_->get_to_str(answer(prefix, rank));
      }
    } catch (...) {
      store_->deleteKey(arrival(prefix, rank));
      throw;
    }
    store_->deleteKey(arrival(prefix, rank));
    store_->deleteKey(answer(prefix, rank));
    if (text == good) return;
    throw timeout_error("Rank " + std::to_string(rank) +
                        " successfully reached monitoredBarrier, but received errors while "
                        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty "
                        "rank" +
                        (text.empty() ? std::string() : ": " + text));
  }

  bool await(const std::string& key, clock::time_point until) {
    auto asked = clock::now();
    while (!store_->check({key})) {
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

  std::mutex mutex_;
  std::uint64_t number_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
