// SPDX-License-Identifier: Apache-2.0
// The object that people call.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/collective/all_gather.hpp"
#include "rankfold/collective/all_reduce.hpp"
#include "rankfold/collective/barrier.hpp"
#include "rankfold/collective/broadcast.hpp"
#include "rankfold/collective/reduce_scatter.hpp"
#include "rankfold/context.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/message_context.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Options of a communicator. `tune` must be the same on every rank; the rest is each rank's own.
struct communicator_options {
  /// A call that has not completed after this time throws timeout_error. Default: RANKFOLD_TIMEOUT
  /// (seconds, such as 30 or 0.5), else 5 minutes.
  std::chrono::milliseconds timeout = default_timeout();
  tuning tune = {};
  /// Called about ten times a second while a call sleeps; what it throws ends the call.
  std::function<void()> interrupt = {};
  /// How long a rank stays awake before it sleeps, where every rank has a CPU of its own: a 32nd of
  /// it spinning, the rest offering the CPU to others. 0: sleep at once.
  std::chrono::microseconds spin{200};
};

/// An element that collectives can carry.
template <class T>
concept element = std::is_trivially_copyable_v<T> && !std::is_const_v<T>;

/// A group of ranks and the collectives among them. Every collective must be called by all ranks,
/// in the same order, with the same count, type, operator and options; ranks that differ get
/// mismatch_error.
///
/// Errors:  timeout_error, peer_lost_error, mismatch_error on every rank that had not completed the
///          call. After that the communicator is given up: every later call throws aborted_error
///          with the first cause. A wrong argument of one's own throws std::invalid_argument before
///          anything is sent and leaves the communicator as it was.
/// Thread-safety: one call at a time, from any thread; `abort` at any time.
/// See docs/numerics.md for the bits, docs/errors.md for the errors.
///
/// Arch, where a member has it, is the instruction set of the kernels: by default the one that the
/// calling translation unit is compiled for.
template <transport Transport>
class communicator {
 public:
  /// Takes over `transport`. Does not wait for the peers.
  explicit communicator(Transport transport, communicator_options options = {})
      : context_(make_context(std::move(transport), std::move(options))) {}

  int rank() const noexcept { return context_->rank(); }
  int size() const noexcept { return context_->size(); }
  const Transport& transport() const noexcept { return context_->transport(); }
  const rankfold::tuning& tuning() const noexcept { return context_->tuning(); }
  std::chrono::milliseconds timeout() const noexcept { return context_->timeout(); }

  /// Returns when every rank has called it. Cost: 1 step.
  void barrier(const call_options& options = {}) { collectives::barrier(*context_, options); }

  /// Folds `data` over all ranks, in place; every rank ends with the same bits.
  ///
  /// Numerics: canonical fold order, one rounding; the bits depend on neither algorithm, size,
  /// tail,
  ///           alignment, transport nor instruction set. See docs/numerics.md.
  /// Cost:     up to 40 bytes 1 step of one cache line; then (P - 1) · bytes read from peers a
  /// rank, in
  ///           steps of a chunk; with more than two ranks, above tuning::one_shot_max_bytes,
  ///           2 (P - 1) / P · bytes.
  /// Throws:   see the class.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  void all_reduce(std::span<T, N> data, const Op& op = {}, const call_options& options = {}) {
    collectives::all_reduce(*context_, kernel::reducer_for<T, Op, Arch>(op), data.data(),
                            data.data(), data.size(), options);
  }

  /// Folds `in` over all ranks into `out`, of the same size and apart from it (or the same).
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void all_reduce(std::span<In, N> in, std::span<T, M> out, const Op& op = {},
                  const call_options& options = {}) {
    detail::check_count("all_reduce", "out", out.size(), in.size());
    collectives::all_reduce(*context_, kernel::reducer_for<T, Op, Arch>(op), in.data(), out.data(),
                            in.size(), options);
  }

  /// Run-time types: `count` elements of `type` at `in` and `out`, which are the same or apart.
  template <class Arch = simd::native>
  void all_reduce(const void* in, void* out, std::size_t count, dtype type, reduction op,
                  const call_options& options = {}) {
    collectives::all_reduce(*context_, kernel::reducer_for<Arch>(type, op), in, out, count,
                            options);
  }

  /// Folds `in`, P blocks of out.size() elements, over all ranks; rank r gets block r.
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void reduce_scatter(std::span<In, N> in, std::span<T, M> out, const Op& op = {},
                      const call_options& options = {}) {
    detail::check_count("reduce_scatter", "in", in.size(), out.size() * ranks());
    collectives::reduce_scatter(*context_, kernel::reducer_for<T, Op, Arch>(op), in.data(),
                                out.data(), out.size(), options);
  }

  /// In place: `data` holds P blocks; returns this rank's block, which holds the result. The other
  /// blocks keep what they hold.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  std::span<T> reduce_scatter(std::span<T, N> data, const Op& op = {},
                              const call_options& options = {}) {
    const std::span<T> own = own_block<T>("reduce_scatter", data);
    collectives::reduce_scatter(*context_, kernel::reducer_for<T, Op, Arch>(op), data.data(),
                                own.data(), own.size(), options);
    return own;
  }

  /// Run-time types: `count` elements a block.
  template <class Arch = simd::native>
  void reduce_scatter(const void* in, void* out, std::size_t count, dtype type, reduction op,
                      const call_options& options = {}) {
    collectives::reduce_scatter(*context_, kernel::reducer_for<Arch>(type, op), in, out, count,
                                options);
  }

  /// Puts `in` of every rank into `out`, in rank order; bytes are copied as they are.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void all_gather(std::span<In, N> in, std::span<T, M> out, const call_options& options = {}) {
    detail::check_count("all_gather", "out", out.size(), in.size() * ranks());
    collectives::all_gather(*context_, dtype_of_v<T>, sizeof(T), in.data(), out.data(), in.size(),
                            options);
  }

  /// In place: `data` holds P blocks, of which this rank has filled its own.
  template <element T, std::size_t N>
  void all_gather(std::span<T, N> data, const call_options& options = {}) {
    const std::span<T> own = own_block<T>("all_gather", data);
    collectives::all_gather(*context_, dtype_of_v<T>, sizeof(T), own.data(), data.data(),
                            own.size(), options);
  }

  /// Run-time types: `count` elements a rank.
  void all_gather(const void* in, void* out, std::size_t count, dtype type,
                  const call_options& options = {}) {
    collectives::all_gather(*context_, type, size_of(type), in, out, count, options);
  }

  /// Copies the root's `data` to every rank.
  template <element T, std::size_t N>
  void broadcast(std::span<T, N> data, int root = 0, const call_options& options = {}) {
    collectives::broadcast(*context_, dtype_of_v<T>, sizeof(T), data.data(), data.size(), root,
                           options);
  }

  /// Run-time types.
  void broadcast(void* data, std::size_t count, dtype type, int root,
                 const call_options& options = {}) {
    collectives::broadcast(*context_, type, size_of(type), data, count, root, options);
  }

  /// Gives the communicator up on all ranks: calls that wait and later calls throw aborted_error
  /// with `reason`. From any thread; never blocks.
  void abort(std::string_view reason = "abort() was called") noexcept { context_->abort(reason); }

 private:
  static std::unique_ptr<context<Transport>> make_context(Transport transport,
                                                          communicator_options options) {
    if (options.timeout.count() <= 0) {
      throw std::invalid_argument("communicator_options::timeout must be positive");
    }
    return std::make_unique<context<Transport>>(
        std::move(transport), options.tune,
        wait_options{options.timeout, options.spin, std::move(options.interrupt)});
  }

  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }

  template <class T>
  std::span<T> own_block(std::string_view name, std::span<T> data) const {
    if (data.size() % ranks() != 0) {
      throw std::invalid_argument(std::string(name) + ": data has " + std::to_string(data.size()) +
                                  " elements; expected a multiple of the " +
                                  std::to_string(size()) + " ranks");
    }
    const std::size_t count = data.size() / ranks();
    return data.subspan(count * static_cast<std::size_t>(rank()), count);
  }

  std::unique_ptr<context<Transport>> context_;
};

RANKFOLD_END_NAMESPACE
