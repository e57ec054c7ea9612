// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another, beside the collectives.
//
// What a context offers for them is the concept below. A transfer is one end of a message: a state
// machine that whoever waits moves on, so that several are under way at the same time, also while a
// collective waits (wait_options::progress).
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <stdexcept>

#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// A context that carries send and recv.
///
/// Model requirements:
/// - `begin_send(peer, print, data, bytes)` and `begin_receive` make a transfer, with its place:
///   messages of a pair of ranks are received in the order in which their receives were begun, and
///   sent in the order of the sends. They send nothing and never block; throw where the
///   communicator was given up. A context's own rank may be the peer.
/// - `advance(t)` moves a transfer on without blocking, and returns whether it is complete: of
///   a send, that the data may be changed. Once it is, always true. Fails with mismatch_error where
///   the message is not the one that `print` says.
/// - `check(t, now)` fails where its deadline has passed or its peer is gone, and returns the
///   deadline; it may complete the transfer.
/// - `wait_transfers(done, look)` returns when `done()` does with true, and calls it when something
///   may have changed; `done` advances transfers. Calls `look(now)` before it sleeps and about ten
///   times a second; it returns when it wants to be called next at the latest, and may throw.
///   Throws what was recorded where the communicator is given up, and what `interrupt` throws.
/// - `nudge()` makes wait_transfers look at `done` soon. Any thread.
/// - `has_own_message()`: whether the rank has sent itself what it has not received.
template <class C>
concept transfer_context =
    requires(C& c, const C& constant, typename C::transfer& t, int peer, const fingerprint& print,
             const void* out, void* in, std::size_t bytes,
             std::chrono::steady_clock::time_point now, bool (*done)(),
             std::chrono::steady_clock::time_point (*look)(std::chrono::steady_clock::time_point)) {
      requires std::movable<typename C::transfer>;
      { c.begin_send(peer, print, out, bytes) } -> std::same_as<typename C::transfer>;
      { c.begin_receive(peer, print, in, bytes) } -> std::same_as<typename C::transfer>;
      { c.advance(t) } -> std::same_as<bool>;
      { c.check(t, now) } -> std::same_as<std::chrono::steady_clock::time_point>;
      c.wait_transfers(done, look);
      { c.nudge() } noexcept;
      { constant.has_own_message() } -> std::same_as<bool>;
    };

namespace collectives {

/// What both ends of a message must agree on.
inline fingerprint fingerprint_of_message(dtype type, std::size_t element_size, std::size_t count,
                                          const call_options& options) {
  return fingerprint::of(collective::send_recv, type == dtype::user ? count * element_size : count,
                         type, options.type_id, algorithm::automatic, 0, options.tag);
}

inline void check_message(const char* name, const char* what, int peer, int size, std::size_t count,
                          const call_options& options) {
  detail::check_call(name, count, options);
  detail::check_rank(name, what, peer, size);
}

/// Moves a transfer on until it is complete.
template <transfer_context Context>
void complete(Context& ctx, typename Context::transfer& transfer) {
  if (ctx.advance(transfer)) return;
  ctx.wait_transfers([&] { return ctx.advance(transfer); },
                     [&](auto now) { return ctx.check(transfer, now); });
}

/// Sends `count` elements at `data`; returns when they may be changed.
template <transfer_context Context>
void send(Context& ctx, dtype type, std::size_t element_size, const void* data, std::size_t count,
          int destination, const call_options& options) {
  check_message("send", "destination", destination, ctx.size(), count, options);
  const fingerprint print = fingerprint_of_message(type, element_size, count, options);
  ctx.run(print, [&] {
    auto transfer = ctx.begin_send(destination, print, data, count * element_size);
    complete(ctx, transfer);
  });
}

/// Receives what `source` has sent to `data`.
template <transfer_context Context>
void recv(Context& ctx, dtype type, std::size_t element_size, void* data, std::size_t count,
          int source, const call_options& options) {
  check_message("recv", "source", source, ctx.size(), count, options);
  // Unless something else of this rank sends meanwhile.
  if (source == ctx.rank() && !ctx.has_own_message() && !ctx.waiting().progress) {
    throw std::invalid_argument(
        "recv: the source is this rank itself, which has sent itself nothing, so that this would "
        "wait for ever; call send first");
  }
  const fingerprint print = fingerprint_of_message(type, element_size, count, options);
  ctx.run(print, [&] {
    auto transfer = ctx.begin_receive(source, print, data, count * element_size);
    complete(ctx, transfer);
  });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
