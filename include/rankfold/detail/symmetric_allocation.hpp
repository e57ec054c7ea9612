// SPDX-License-Identifier: Apache-2.0
// Memory that ranks have allocated together: who still uses it, and where in it an address lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include <sys/mman.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// One allocation on one rank. Its owner there is a symmetric_buffer, which releases it; the
/// communicator keeps it until all ranks have, since it reads their parts until then.
///
/// A part is a page of the library's, and what the user has asked for.
class symmetric_allocation {
 public:
  symmetric_allocation(symmetric_memory memory, int rank, std::size_t bytes) noexcept
      : memory_(std::move(memory)), rank_(rank), bytes_(bytes), generation_(fork_generation()) {}

  /// How large a part of `bytes` bytes is.
  static constexpr std::size_t part_bytes(std::size_t bytes) {
    return page + segment_map::whole_pages(bytes);
  }

  std::byte* data(int rank) const noexcept { return part(rank) + page; }
  std::byte* data() const noexcept { return data(rank_); }
  std::size_t size() const noexcept { return bytes_; }

  /// This rank has no more use of its part: its pages go at once, its addresses with those of the
  /// last rank. Any thread. A forked child leaves it alone.
  void release() noexcept {
    if (generation_ != fork_generation()) return;
    const std::size_t whole = segment_map::whole_pages(bytes_);
    // Whoever may still read it is in a call that has failed. The second is for private memory.
    if (whole != 0 && ::madvise(data(), whole, MADV_REMOVE) != 0) {
      ::madvise(data(), whole, MADV_DONTNEED);
    }
    mark_left(part(rank_));
  }

  /// Whether all ranks have released it: then nobody publishes it any more.
  bool released() const noexcept {
    for (std::byte* const p : memory_.parts) {
      if (!has_left(p)) return false;
    }
    return true;
  }

 private:
  std::byte* part(int rank) const noexcept { return memory_.parts[static_cast<std::size_t>(rank)]; }

  symmetric_memory memory_;
  int rank_;
  std::size_t bytes_;
  unsigned generation_;
};

/// Where a rank's data lie, as it tells its peers. Allocations are counted from 1, alike on all
/// ranks; 0: not in memory that they address.
struct symmetric_place {
  std::uint64_t allocation = 0;
  std::uint64_t offset = 0;
};

/// The allocations of a communicator, on one rank.
class symmetric_allocations {
 public:
  /// Whether there has ever been one: the same on all ranks, since all add it in the same call.
  bool used() const noexcept { return count_ != 0; }

  /// Adds the next one, and lets go of those that no rank uses any more.
  void add(std::shared_ptr<symmetric_allocation> added) {
    for (auto it = by_number_.begin(); it != by_number_.end();) {
      if (it->second->released()) {
        by_address_.erase(it->second->data());
        it = by_number_.erase(it);
      } else {
        ++it;
      }
    }
    by_address_.emplace(added->data(), count_ + 1);
    by_number_.emplace(++count_, std::move(added));
  }

  /// Where `bytes` bytes at `data` lie.
  symmetric_place place_of(const void* data, std::size_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(data);
    auto found = by_address_.upper_bound(begin);
    if (found == by_address_.begin()) return {};
    --found;
    const symmetric_allocation& in = *by_number_.at(found->second);
    const auto offset = static_cast<std::size_t>(begin - found->first);
    if (offset > in.size() || bytes > in.size() - offset) return {};
    return {found->second, offset};
  }

  /// Where rank `rank` has put `bytes` bytes, as mapped here; null where that is no place.
  const std::byte* find(const symmetric_place& place, int rank, std::size_t bytes) const {
    const auto found = by_number_.find(place.allocation);
    if (found == by_number_.end()) return nullptr;
    const symmetric_allocation& in = *found->second;
    if (place.offset > in.size() || bytes > in.size() - place.offset) return nullptr;
    return in.data(rank) + place.offset;
  }

 private:
  std::uint64_t count_ = 0;
  std::map<std::uint64_t, std::shared_ptr<symmetric_allocation>> by_number_;
  std::map<const std::byte*, std::uint64_t, std::less<>> by_address_;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
