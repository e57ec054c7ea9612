// SPDX-License-Identifier: Apache-2.0
// What rankfold asks of a transport: memory that the ranks share, or messages between them, and who
// is alive. Steps, waiting, deadlines, mismatch and abort are built on that once, in context.hpp
// and message_context.hpp.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

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
/// - `segment(r)` is rank r's segment as mapped here: page-aligned, `segment_size()` bytes (on
///   every rank as many), all zero before any rank can see it, at least
///   `detail::segment_bytes(1, size())` long, mapped until the transport is destroyed. Stores by
///   one rank become visible to the others as between threads of one process (coherent memory).
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

/// A transport whose ranks send each other messages.
///
/// Model requirements:
/// - `send(peer, channel, data, bytes)` and `receive(peer, channel, data, bytes)` start a transfer
///   and return at once. Until `done(request)` has returned true, the library leaves `data` alone,
///   and the transport may use it. A receive is met by the message of the same sender, receiver and
///   channel that was sent as the same in order, which has at most its size. Channels (0 to
///   `channels - 1`; at least 12 are needed) do not hold each other up. A small message need not be
///   received for its send to be done; a large one may.
/// - `done(request)` moves transfers on and tells whether this one is complete; afterwards the
///   request is spent. Never blocks. Throws transport_error where the transfer has failed.
/// - `abandon(request, memory)` takes over a request that nobody will ask for again and keeps
///   `memory`, where its data are, until the transfer is complete; for ever if it never is.
/// - `announce(notice)` tells all peers of the notice (at most `max_notice` bytes); best effort,
///   never blocks, at most once in a transport's life. Any thread, at any time.
/// - `heard(notice)` copies a notice that a peer has announced and returns its size; 0 if there is
///   none yet. Each notice once, or again and again. Never blocks.
/// - `state(r)` says how rank r stands now; `alive` where the transport cannot tell. Must not
/// block.
/// - All members but `announce` are called by one thread at a time.
template <class T>
concept message_transport =
    transport<T> &&
    requires(T& t, const T& c, int peer, int channel, const std::byte* out, std::byte* in,
             std::size_t bytes, typename T::request& request, std::shared_ptr<const void> memory,
             std::span<const std::byte> notice, std::span<std::byte> room) {
      requires std::movable<typename T::request>;
      { t.send(peer, channel, out, bytes) } -> std::same_as<typename T::request>;
      { t.receive(peer, channel, in, bytes) } -> std::same_as<typename T::request>;
      { t.done(request) } -> std::same_as<bool>;
      { t.abandon(std::move(request), memory) } noexcept;
      { t.announce(notice) } noexcept;
      { t.heard(room) } -> std::same_as<std::size_t>;
      { c.state(peer) } noexcept -> std::same_as<peer_state>;
      { T::channels } -> std::convertible_to<int>;
    };

/// How the ranks of a group meet; local to a rank.
struct child_options {
  /// How long they may take.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// Called about ten times a second while they meet; what it throws ends the meeting.
  std::function<void()> interrupt = {};
};

/// A transport whose ranks can form groups with transports of their own: what communicator::split
/// asks for.
///
/// Model requirements:
/// - `child(members, rank, key, options)` makes the transport of a group. Called by its members
///   only, by all of them. `members` are ranks of this transport in the order of their ranks in the
///   group, the same on all; `rank` is the caller's place in it; `key` is 32 hex digits, the same
///   on all, never used twice. Groups without a member in common are made at the same time.
/// - The child shares nothing with this transport: it may outlive it, and a failure of one is none
///   of the other. It has as much workspace a rank.
/// - Where the members do not come together in time, or one cannot, all throw a rankfold::error,
///   and nothing is left behind. What `options.interrupt` throws is passed on.
template <class T>
concept splittable_transport =
    transport<T> && requires(const T& t, std::span<const int> members, int rank,
                             std::string_view key, const child_options& options) {
      { t.child(members, rank, key, options) } -> std::same_as<T>;
    };

/// Memory of which every rank of a transport has a part, as one of them sees it.
struct symmetric_memory {
  std::vector<std::byte*> parts;      // of each rank, as mapped here
  std::shared_ptr<const void> owner;  // all parts stay mapped as long as this lives
};

/// A transport whose ranks can get more memory that all of them address: what
/// communicator::allocate asks of a transport.
///
/// Model requirements:
/// - `allocate(bytes, key, options)` gives each rank a part of `bytes` bytes, a multiple of 4096:
///   page-aligned, writable and zero but for its first 64 bytes, which are of the library. Called
///   by all ranks, with the same `bytes` and `key`; `key` and `options` are as for `child`.
/// - What it returns may outlive the transport, on each rank by itself: parts stay until the last
///   rank has let them go.
/// - Where the ranks do not come together in time, or one cannot, all throw a rankfold::error, and
///   nothing is left behind. What `options.interrupt` throws is passed on.
template <class T>
concept symmetric_transport =
    memory_transport<T> &&
    requires(const T& t, std::size_t bytes, std::string_view key, const child_options& options) {
      { t.allocate(bytes, key, options) } -> std::same_as<symmetric_memory>;
    };

/// The largest notice that a message transport is asked to announce, in bytes.
inline constexpr std::size_t max_notice = 1024;

RANKFOLD_END_NAMESPACE
