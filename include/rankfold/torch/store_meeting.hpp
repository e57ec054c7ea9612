// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new group come together over a store of torch.distributed.
//
// Each leaves a name that it has never used, so that what is left of an earlier group with the same
// keys is told apart; rank 0 waits for all of them and answers to each by its name.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// 32 hexadecimal digits that nobody can guess, and nobody gets again.
inline std::string random_key() {
  std::uint8_t bytes[16];
  fill_random(bytes);
  return hex_text(bytes);
}

/// In a thread of its own: a store that does not answer holds its caller up for ever.
class store_meeting {
  using clock = std::chrono::steady_clock;

 public:
  struct place {
    std::string title;  // whose meeting it is, for messages
    c10::intrusive_ptr<::c10d::Store> store;
    std::string prefix;
    int rank;
    int size;
    std::chrono::milliseconds timeout;
  };

  /// `said` is what this rank tells all others, a word. `then`, if any, is called in the same
  /// thread, within the same time, when all have met.
  explicit store_meeting(place where, std::string said = "-",
                         std::function<void(store_meeting&)> then = {})
      : place_(std::move(where)),
        said_(std::move(said)),
        then_(std::move(then)),
        deadline_(clock::now() + bounded_time(place_.timeout)) {}

  /// Returns when all ranks have met; asks `interrupt` about ten times a second.
  /// Throws: `rendezvous_error` where they do not come in time, naming them, or the store fails.
  static void run(const std::shared_ptr<store_meeting>& self,
                  const std::function<void()>& interrupt) {
    std::thread helper;
    try {
      helper = std::thread([self] { self->meet(); });
    } catch (const std::system_error& e) {
      throw transport_error("rankfold: " + self->place_.title +
                            ": no thread can be started: " + std::string(e.what()));
    }
    try {
      self->await(interrupt);
    } catch (...) {
      self->given_up_ = true;
      helper.detach();  // it may wait for the store for ever; `self` stays with it
      throw;
    }
    helper.join();
  }

  /// A random key that all ranks of this meeting have, and nobody else.
  const std::string& session() const noexcept { return session_; }
  /// What each rank said.
  const std::vector<std::string>& words() const noexcept { return words_; }
  /// The place where the ranks met, over a connection of its own.
  const c10::intrusive_ptr<::c10d::Store>& store() const noexcept { return store_; }

 private:
  void await(const std::function<void()>& interrupt) {
    // What the helper says about a late rank is better than that it said nothing.
    const auto until = deadline_ + std::chrono::seconds(1);
    std::unique_lock lock(mutex_);
    while (!over_.wait_for(lock, std::chrono::milliseconds(100), [this] { return is_over_; })) {
      if (clock::now() >= until) {
        throw rendezvous_error(who() + "the process group's store, or a rank that has just come, " +
                               "did not answer within " + duration_text(place_.timeout));
      }
      if (interrupt) {
        lock.unlock();
        interrupt();
        lock.lock();
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

  void meet() noexcept {
    std::exception_ptr error;
    try {
      come_together();
      if (then_) then_(*this);
    } catch (const rankfold::error&) {
      error = std::current_exception();
    } catch (const std::exception& e) {
      try {
        error = std::make_exception_ptr(
            rendezvous_error(who() + "gloo or the store failed: " + first_line(e.what())));
      } catch (...) {
        error = std::current_exception();
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    is_over_ = true;
    over_.notify_all();
  }

  void come_together() {
    // A connection of its own: other threads may wait for other keys over the one there is.
    store_ = c10::make_intrusive<::c10d::PrefixStore>(place_.prefix, place_.store->clone());
    const std::string name = random_key();
    store_->set(arrival(place_.rank), name + " " + said_);
    std::string answer;
    if (place_.rank == 0) {
      std::vector<std::string> keys;
      for (int r = 0; r < place_.size; ++r) keys.push_back(arrival(r));
      all_there(keys);
      answer = random_key();
      std::vector<std::string> names;
      for (const std::string& key : keys) {
        const std::string theirs = store_->get_to_str(key);
        store_->deleteKey(key);  // so that the next meeting does not see it
        const std::size_t space = theirs.find(' ');
        names.push_back(theirs.substr(0, space));
        answer += theirs.substr(space);
      }
      for (std::size_t r = 1; r < names.size(); ++r) store_->set("go/" + names[r], answer);
    } else {
      all_there({"go/" + name});
      answer = store_->get_to_str("go/" + name);
      store_->deleteKey("go/" + name);
    }
    std::istringstream parts(answer);
    parts >> session_;
    for (std::string word; parts >> word;) words_.push_back(word);
  }

  void all_there(const std::vector<std::string>& keys) {
    const auto give_up = [this](const std::string& what) {
      store_->deleteKey(arrival(place_.rank));
      throw rendezvous_error(who() + what);
    };
    auto pause = std::chrono::milliseconds(1);
    while (!store_->check(keys)) {
      if (given_up_) give_up("given up");
      if (clock::now() >= deadline_) {
        std::vector<int> missing;
        for (int r = 0; r < place_.size; ++r) {
          if (!store_->check({arrival(r)})) missing.push_back(r);
        }
        // All that came at the same time give up at the same time: each is to see the others.
        std::this_thread::sleep_for(std::chrono::milliseconds(250));
        if (place_.rank != 0 && store_->check(keys)) return;
        give_up((missing.empty() ? "not all ranks" : ranks_text(missing)) +
                " did not come within " + duration_text(place_.timeout));
      }
      std::this_thread::sleep_for(pause);
      pause = (std::min)(2 * pause, std::chrono::milliseconds(50));
    }
  }

  static std::string arrival(int rank) { return "here/" + std::to_string(rank); }

  std::string who() const {
    return "rankfold: " + place_.title + ": rank " + std::to_string(place_.rank) + " of " +
           std::to_string(place_.size) + " could not start: ";
  }

  /// torch puts a stack of calls behind the text.
  static std::string first_line(std::string text) { return text.substr(0, text.find('\n')); }

  const place place_;
  const std::string said_;
  const std::function<void(store_meeting&)> then_;
  const clock::time_point deadline_;
  std::atomic<bool> given_up_{false};  // seq_cst: a flag, which orders nothing else
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<::c10d::Store> store_;
  std::string session_;
  std::vector<std::string> words_;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
