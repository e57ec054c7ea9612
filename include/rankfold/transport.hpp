// SPDX-License-Identifier: Apache-2.0
// What rankfold asks of a transport. A transport gives memory and tells who is alive; steps, flags,
// waiting and abort are built on that, once, in context.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// How a peer stands. `left`: it destroyed its communicator in order. `died`: it ended without.
enum class peer_state { alive, left, died };

/// Anything that knows its place among the ranks.
template <class T>
concept transport = std::movable<T> && requires(const T& t) {
  { t.rank() } noexcept -> std::same_as<int>;
  { t.size() } noexcept -> std::same_as<int>;
  { t.name() } noexcept -> std::convertible_to<std::string_view>;
};

/// A transport whose ranks can load from each other's memory.
///
/// Model requirements:
/// - `segment(r)` is rank r's segment as mapped here: page-aligned, `segment_size()` bytes (the
/// same
///   on every rank), all zero before any rank can see it, at least
///   `detail::segment_bytes({})` long, mapped until the transport is destroyed. Stores by one rank
///   become visible to the others as between threads of one process (coherent memory).
/// - `state(r)` says how rank r stands now. Called on the slow path only; must not block.
/// - `crosses_processes`: whether ranks can be in different processes (a shared futex is needed).
/// - The destructor calls `detail::mark_left(segment(rank()))` before it unmaps.
/// - All members may be called by any thread, one at a time, but for `segment` and `state`, which
///   any number of threads may call at the same time.
template <class T>
concept memory_transport = transport<T> && requires(const T& t, int r) {
  { t.segment(r) } noexcept -> std::same_as<std::byte*>;
  { t.segment_size() } noexcept -> std::same_as<std::size_t>;
  { t.state(r) } noexcept -> std::same_as<peer_state>;
  { T::crosses_processes } -> std::convertible_to<bool>;
};

RANKFOLD_END_NAMESPACE
