// SPDX-License-Identifier: Apache-2.0
// The transport of one rank alone, and the simplest model of `memory_transport`: start here to
// write your own.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// One rank, no peers: what a program uses that was not started by a launcher.
class self_transport {
 public:
  static constexpr bool crosses_processes = false;

  /// Throws: `transport_error` when there is no memory for the segment (a few pages).
  self_transport()
      // One byte asked for: the least with which neither half of the workspace is empty.
      : segment_(detail::mapping::anonymous(detail::segment_bytes(1, 1))) {
    detail::init_segment(segment_.data(), 0, 1);
  }
  self_transport(self_transport&&) = default;
  self_transport& operator=(self_transport&& other) noexcept {
    self_transport taken(std::move(other));
    std::swap(segment_, taken.segment_);
    return *this;
  }
  ~self_transport() {
    if (segment_.data() != nullptr) detail::mark_left(segment_.data());
  }

  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
  std::string_view name() const noexcept { return "self"; }
  std::byte* segment(int) const noexcept { return segment_.data(); }
  std::size_t segment_size() const noexcept { return segment_.size(); }
  peer_state state(int) const noexcept { return peer_state::alive; }

  /// The only group there can be: this rank again.
  self_transport child(std::span<const int> members, int rank, std::string_view /*key*/,
                       const child_options& /*options*/) const {
    detail::check_rank(rank, static_cast<int>(members.size()));
    if (members.size() != 1) {
      throw std::invalid_argument("rankfold: a group of " + std::to_string(members.size()) +
                                  " ranks of a transport that has one");
    }
    return {};
  }

  /// Memory for a rank alone.
  symmetric_memory allocate(std::size_t bytes, std::string_view /*key*/,
                            const child_options& /*options*/) const {
    const auto part = std::make_shared<const detail::mapping>(detail::mapping::anonymous(bytes));
    return {{part->data()}, part};
  }

 private:
  detail::mapping segment_;
};
static_assert(memory_transport<self_transport> && splittable_transport<self_transport> &&
              symmetric_transport<self_transport>);

RANKFOLD_END_NAMESPACE
