// SPDX-License-Identifier: Apache-2.0
// The transport of ranks that are threads of one process.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
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
    const std::size_t bytes = detail::checked_segment_bytes(options.workspace_bytes);
    const std::size_t total = bytes * static_cast<std::size_t>(size);
    detail::check_memory(total, std::to_string(size) + " segments");
    const auto arena = std::make_shared<const detail::mapping>(detail::mapping::anonymous(total));
    std::vector<threads_transport> all;
    all.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(threads_transport(arena, bytes, rank, size));
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

 private:
  threads_transport(std::shared_ptr<const detail::mapping> arena, std::size_t segment_bytes,
                    int rank, int size) noexcept
      : arena_(std::move(arena)), segment_bytes_(segment_bytes), rank_(rank), size_(size) {}

  std::shared_ptr<const detail::mapping> arena_;
  std::size_t segment_bytes_;
  int rank_;
  int size_;
};
static_assert(memory_transport<threads_transport>);

RANKFOLD_END_NAMESPACE
