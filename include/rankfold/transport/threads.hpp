// SPDX-License-Identifier: Apache-2.0
// The transport of ranks that are threads of one process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

struct threads_options {
  /// What a rank stages its data in, both halves together; rounded up to whole pages.
  std::size_t workspace_bytes = detail::default_workspace_bytes;
};

/// One rank of several in this process. Each thread takes one and makes its communicator of it.
///
/// A rank hangs up by destroying its transport (so its communicator): the others see it as `left`.
/// The memory of all ranks goes when the last of them is destroyed.
class threads_transport {
 public:
  static constexpr bool crosses_processes = false;

  /// Makes the transports of all ranks, in the order of their ranks.
  ///
  /// Throws: `std::invalid_argument` for a size or workspace out of range; `transport_error` when
  ///         there is no memory.
  static std::vector<threads_transport> create(int size, threads_options options = {}) {
    detail::check_world_size(size);
    const std::size_t bytes = detail::checked_segment_bytes(options.workspace_bytes, size);
    const std::size_t total = bytes * static_cast<std::size_t>(size);
    detail::check_memory(total, std::to_string(size) + " segments");
    const auto arena = std::make_shared<const detail::mapping>(detail::mapping::anonymous(total));
    std::vector<threads_transport> all;
    all.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(threads_transport(arena, bytes, rank, size, options));
      // Only the header's page is touched here, the rest by the rank's own thread.
      detail::init_segment(all.back().segment(rank), rank, size);
    }
    return all;
  }

  threads_transport(threads_transport&&) = default;
  threads_transport& operator=(threads_transport&& other) noexcept {
    threads_transport taken(std::move(other));
    std::swap(arena_, taken.arena_);
    std::swap(segment_bytes_, taken.segment_bytes_);
    std::swap(rank_, taken.rank_);
    std::swap(size_, taken.size_);
    std::swap(options_, taken.options_);
    return *this;
  }
  ~threads_transport() {
    if (arena_ != nullptr) detail::mark_left(segment(rank_));
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::string_view name() const noexcept { return "threads"; }
  std::byte* segment(int rank) const noexcept {
    RANKFOLD_ASSERT(2, arena_ != nullptr && rank >= 0 && rank < size_, "no such rank");
    return arena_->data() + static_cast<std::size_t>(rank) * segment_bytes_;
  }
  std::size_t segment_size() const noexcept { return segment_bytes_; }
  peer_state state(int rank) const noexcept {
    return detail::has_left(segment(rank)) ? peer_state::left : peer_state::alive;
  }

  /// The transport of a group: the first member to come makes the memory, and each waits until all
  /// have come.
  ///
  /// Throws: `rendezvous_error` where a member does not come in time, or could not.
  threads_transport child(std::span<const int> members, int rank, std::string_view key,
                          const child_options& options) const;

  /// Memory of all ranks: the first to come makes it, and each waits until all have come.
  ///
  /// Throws: as `child`; `transport_error` when there is no memory.
  symmetric_memory allocate(std::size_t bytes, std::string_view key,
                            const child_options& options) const;

 private:
  threads_transport(std::shared_ptr<const detail::mapping> arena, std::size_t segment_bytes,
                    int rank, int size, const threads_options& options) noexcept
      : arena_(std::move(arena)),
        segment_bytes_(segment_bytes),
        rank_(rank),
        size_(size),
        options_(options) {}

  std::shared_ptr<const detail::mapping> arena_;
  std::size_t segment_bytes_;
  int rank_;
  int size_;
  threads_options options_;
};

namespace detail {

/// Where the threads of a process that are given the same key find each other, and each gets a
/// `Share` of something. A key is here only while some of its ranks wait for the others.
template <class Share>
class thread_meetings {
 public:
  /// Takes part as `rank` of `members`; returns this rank's share when all have come. `make` makes
  /// the shares of all, in the first to come.
  template <class Make>
  static Share join(const std::string& key, std::span<const int> members, int rank,
                    const child_options& options, Make&& make) {
    thread_meetings& all = instance();
    // A copy: the meeting may be taken out of the map by others while this rank is in it.
    std::shared_ptr<meeting> here;
    std::unique_lock lock(all.mutex_);
    std::shared_ptr<meeting>& known = all.by_key_[key];
    if (known == nullptr) known = std::make_shared<meeting>(members.size());
    here = known;
    const auto own = static_cast<std::size_t>(rank);
    try {
      if (here->come.size() != members.size() || here->come[own]) {
        throw rendezvous_error("rankfold: the ranks of a group do not agree on who is in it");
      }
      here->come[own] = true;
      if (here->shares.empty()) here->shares = make();
      Share mine = std::move(here->shares[own]);
      if (++here->count == members.size()) {
        all.forget(key, here);
        here->changed.notify_all();
        return mine;
      }
      wait(*here, lock, members, options);
      return mine;
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (here->failure.empty()) {
        here->failure = "rank " + std::to_string(members[own]) +
                        " could not join its group: " + inner_text(text_of_current_exception());
      }
      all.forget(key, here);
      here->changed.notify_all();
      throw;
    }
  }

 private:
  struct meeting {
    explicit meeting(std::size_t size) : come(size) {}
    std::vector<Share> shares;
    std::vector<bool> come;
    std::size_t count = 0;
    std::string failure;
    std::condition_variable changed;
  };

  static thread_meetings& instance() {
    static thread_meetings* const all = new thread_meetings;  // never destroyed: used at exit too
    return *all;
  }

  void forget(const std::string& key, const std::shared_ptr<meeting>& which) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && found->second == which) by_key_.erase(found);
  }

  static void wait(meeting& here, std::unique_lock<std::mutex>& lock, std::span<const int> members,
                   const child_options& options) {
    using clock = std::chrono::steady_clock;
    const clock::time_point deadline = clock::now() + detail::bounded_time(options.timeout);
    while (here.count < members.size()) {
      if (!here.failure.empty()) throw rendezvous_error("rankfold: " + here.failure);
      const clock::time_point now = clock::now();
      if (now >= deadline) {
        std::vector<int> missing;
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (!here.come[i]) missing.push_back(members[i]);
        }
        throw rendezvous_error(
            "rankfold: " + ranks_text(missing) + " did not come to the meeting of a group of " +
            std::to_string(members.size()) + " ranks within " + duration_text(options.timeout));
      }
      here.changed.wait_until(lock, (std::min)(deadline, now + std::chrono::milliseconds(100)));
      if (options.interrupt && here.count < members.size()) {
        lock.unlock();
        options.interrupt();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<meeting>> by_key_;
};

}  // namespace detail

inline threads_transport threads_transport::child(std::span<const int> members, int rank,
                                                  std::string_view key,
                                                  const child_options& options) const {
  const int size = static_cast<int>(members.size());
  detail::check_rank(rank, size);
  return detail::thread_meetings<threads_transport>::join(std::string(key), members, rank, options,
                                                          [&] { return create(size, options_); });
}

inline symmetric_memory threads_transport::allocate(std::size_t bytes, std::string_view key,
                                                    const child_options& options) const {
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return detail::thread_meetings<symmetric_memory>::join(
      std::string(key), members, rank_, options, [&] {
        detail::check_memory(bytes * ranks, std::to_string(size_) + " parts of symmetric memory");
        const auto arena =
            std::make_shared<const detail::mapping>(detail::mapping::anonymous(bytes * ranks));
        symmetric_memory made{{}, arena};
        for (std::size_t r = 0; r < ranks; ++r) made.parts.push_back(arena->data() + r * bytes);
        return std::vector<symmetric_memory>(ranks, made);
      });
}

static_assert(memory_transport<threads_transport> && splittable_transport<threads_transport> &&
              symmetric_transport<threads_transport>);

RANKFOLD_END_NAMESPACE
