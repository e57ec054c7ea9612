// SPDX-License-Identifier: Apache-2.0
// The object that people call.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/collective/all_gather.hpp"
#include "rankfold/collective/all_reduce.hpp"
#include "rankfold/collective/all_to_all.hpp"
#include "rankfold/collective/allocate.hpp"
#include "rankfold/collective/barrier.hpp"
#include "rankfold/collective/broadcast.hpp"
#include "rankfold/collective/gather.hpp"
#include "rankfold/collective/reduce.hpp"
#include "rankfold/collective/reduce_scatter.hpp"
#include "rankfold/collective/scatter.hpp"
#include "rankfold/collective/send_recv.hpp"
#include "rankfold/context.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/output.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/hierarchical_context.hpp"
#include "rankfold/kernel/epilogue.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/reducer.hpp"
#include "rankfold/message_context.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/split.hpp"
#include "rankfold/symmetric_buffer.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuner.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Options of a communicator. `tune` must be the same on every rank, and so must what `tuner` asks
/// for; the rest is each rank's own.
struct communicator_options {
  /// A call that has not completed after this time throws timeout_error. Default: RANKFOLD_TIMEOUT
  /// (seconds, such as 30 or 0.5), else 5 minutes.
  std::chrono::milliseconds timeout = default_timeout();
  tuning tune = {};
  /// Whether to measure, when the communicator is made, what of `tune` to replace. Default: what
  /// RANKFOLD_TUNE and RANKFOLD_TUNING_FILE say, else not to.
  tuner_options tuner = default_tuner();
  /// Called about ten times a second while a call sleeps; what it throws ends the call.
  std::function<void()> interrupt = {};
  /// How long a rank stays awake before it sleeps, where every rank has a CPU of its own: a 32nd of
  /// it spinning, the rest offering the CPU to others. 0: sleep at once.
  std::chrono::microseconds spin{200};
};

namespace detail {
template <class Transport>
class async_engine;
}
template <class Transport>
class async_queue;

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
  /// Takes over `transport`. Waits for the peers only if `options.tuner` is on: then a collective
  /// call of about `options.tuner.budget`, with the errors of one.
  template <class Arch = simd::native>
  explicit communicator(Transport transport, communicator_options options = {})
      : communicator(make<Arch>(std::move(transport), std::move(options))) {}

  int rank() const { return ctx().rank(); }
  int size() const { return ctx().size(); }
  const Transport& transport() const { return ctx().transport(); }
  const rankfold::tuning& tuning() const { return ctx().tuning(); }
  /// What came of measuring it, for people, the same text on all ranks; empty where
  /// `communicator_options::tuner` was off.
  const std::string& tuning_report() const noexcept { return tuning_report_; }
  std::chrono::milliseconds timeout() const { return ctx().timeout(); }
  /// For later calls of this rank; `milliseconds::max()` is as good as none.
  void set_timeout(std::chrono::milliseconds timeout) {
    check_timeout(timeout);
    ctx().set_timeout(timeout);
  }

  /// Returns when every rank has called it. Cost: 1 step.
  void barrier(const call_options& options = {}) { collectives::barrier(ctx(), options); }

  /// Folds `data` over all ranks, in place; every rank ends with the same bits.
  ///
  /// Numerics: canonical fold order, one rounding; the bits depend on neither algorithm, size,
  ///           tail, alignment, transport nor instruction set. See docs/numerics.md.
  /// Cost:     up to 40 bytes 1 step of one cache line; then (P - 1) · bytes read from peers by
  ///           each rank, in steps of a chunk; with more than two ranks, above
  ///           tuning::one_shot_max_bytes, 2 (P - 1) / P · bytes.
  /// Throws:   see the class.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  void all_reduce(std::span<T, N> data, const Op& op = {}, const call_options& options = {}) {
    collectives::all_reduce(ctx(), reducer_of<T, Op, Arch>(op), data.data(), data.data(),
                            data.size(), options);
  }

  /// Folds `in` over all ranks into `out`, of the same size and apart from it (or the same).
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void all_reduce(std::span<In, N> in, std::span<T, M> out, const Op& op = {},
                  const call_options& options = {}) {
    detail::check_count("all_reduce", "out", out.size(), in.size());
    collectives::all_reduce(ctx(), reducer_of<T, Op, Arch>(op), in.data(), out.data(), in.size(),
                            options);
  }

  /// Run-time types: `count` elements of `type` at `in` and `out`, which are the same or apart.
  template <class Arch = simd::native>
  void all_reduce(const void* in, void* out, std::size_t count, dtype type, reduction op,
                  const call_options& options = {}) {
    collectives::all_reduce(ctx(), reducer_of<Arch>(type, op), in, out, count, options);
  }

  /// Folds `in` over all ranks and puts f(x, i) into `out`, on every rank, for each element x of
  /// the result and its index i: a residual added, a scale, a cast. `out` is of the same size, of
  /// whatever type f returns, and apart from `in`, or the same and of elements of the same size.
  ///
  /// f is each rank's own, and so is what it reads: a peer may pass another one, or none. It may
  /// read `out` at i, where it finds what was there before the call: out[i] = x + out[i].
  /// Effects:  f is called once for each element, in the order of the indices, on blocks of the
  ///           result that are still in the first cache, under round-to-nearest without flushing of
  ///           subnormals.
  /// Numerics: x has the bits that all_reduce gives, rounded to T; the rest is f's.
  /// Throws:   what f throws; the communicator is then given up. A peer that has all it needs
  ///           completes its call; the others get aborted_error.
  template <class In, std::size_t N, element Out, std::size_t M, class Op, class F,
            class Arch = simd::native>
    requires element<std::remove_const_t<In>> && reduction_op<Op, std::remove_const_t<In>> &&
             element_epilogue<F, std::remove_const_t<In>>
  void all_reduce(std::span<In, N> in, std::span<Out, M> out, const Op& op, F&& f,
                  const call_options& options = {}) {
    using T = std::remove_const_t<In>;
    static_assert(std::same_as<std::invoke_result_t<F&, const T&, std::size_t>, Out>,
                  "rankfold: the epilogue returns another type than the elements of out");
    detail::check_count("all_reduce", "out", out.size(), in.size());
    if (sizeof(T) != sizeof(Out) || static_cast<const void*>(in.data()) != out.data()) {
      detail::check_apart("all_reduce", in.data(), in.size_bytes(), out.data(), out.size_bytes());
    }
    const auto blocks = [&f, to = out.data()](const T* block, std::size_t first,
                                              std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) to[first + i] = f(block[i], first + i);
    };
    all_reduce_through<Arch>(in, op, blocks, options);
  }

  /// The same in place.
  template <element T, std::size_t N, class Op, class F, class Arch = simd::native>
    requires reduction_op<Op, T> && element_epilogue<F, T>
  void all_reduce(std::span<T, N> data, const Op& op, F&& f, const call_options& options = {}) {
    all_reduce<T, N, T, N, Op, F&, Arch>(data, data, op, f, options);
  }

  /// Folds `in` over all ranks and calls f(block, first, count) on every rank for each block of the
  /// result: `count` elements, of which the first has the index `first`. f puts what it makes of
  /// them wherever it likes, in `in` too, up to the end of the block; the library writes nothing.
  ///
  /// Blocks have up to 8 KiB and come in ascending order without gaps, so that f can finish a row
  /// when its last part arrives. If f has a member check(type, in, count), that is called before
  /// anything is sent; what it throws leaves the communicator as it was (epilogues.hpp has such).
  /// The rest is as above.
  template <class In, std::size_t N, class Op, class F, class Arch = simd::native>
    requires element<std::remove_const_t<In>> && reduction_op<Op, std::remove_const_t<In>> &&
             block_epilogue<F, std::remove_const_t<In>>
  void all_reduce(std::span<In, N> in, const Op& op, F&& f, const call_options& options = {}) {
    check_epilogue(f, dtype_of_v<std::remove_const_t<In>>, in.data(), in.size());
    all_reduce_through<Arch>(in, op, f, options);
  }

  /// Run-time types; f gets a pointer to void.
  template <class F, class Arch = simd::native>
    requires block_epilogue<F, void>
  void all_reduce(const void* in, std::size_t count, dtype type, reduction op, F&& f,
                  const call_options& options = {}) {
    check_epilogue(f, type, in, count);
    collectives::all_reduce(ctx(), reducer_of<Arch>(type, op), in, kernel::epilogue_for<void>(f),
                            count, options);
  }

  /// Folds `in` over all ranks into the root's `out`, of the same size and apart from it (or the
  /// same); elsewhere `out` is not looked at and may be empty.
  ///
  /// Numerics: the bits of all_reduce.
  /// Cost:     up to 40 bytes 1 step of one cache line; then the root reads (P - 1) · bytes, in
  ///           steps of a chunk, and nobody waits for it; with more than three ranks, above
  ///           tuning::one_shot_max_bytes, every rank folds a slice: the root reads
  ///           2 (P - 1) / P · bytes, the others half of that.
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void reduce(std::span<In, N> in, std::span<T, M> out, int root = 0, const Op& op = {},
              const call_options& options = {}) {
    if (rank() == root) detail::check_count("reduce", "out", out.size(), in.size());
    collectives::reduce(ctx(), kernel::reducer_for<T, Op, Arch>(op), in.data(), out.data(),
                        in.size(), root, options);
  }

  /// In place: the root's `data` gets the result; the others' keep what they hold.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  void reduce(std::span<T, N> data, int root = 0, const Op& op = {},
              const call_options& options = {}) {
    collectives::reduce(ctx(), kernel::reducer_for<T, Op, Arch>(op), data.data(), data.data(),
                        data.size(), root, options);
  }

  /// Run-time types; `out` may be null but on the root.
  template <class Arch = simd::native>
  void reduce(const void* in, void* out, std::size_t count, dtype type, int root, reduction op,
              const call_options& options = {}) {
    collectives::reduce(ctx(), kernel::reducer_for<Arch>(type, op), in, out, count, root, options);
  }

  /// Folds `in`, P blocks of out.size() elements, over all ranks; rank r gets block r.
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void reduce_scatter(std::span<In, N> in, std::span<T, M> out, const Op& op = {},
                      const call_options& options = {}) {
    detail::check_count("reduce_scatter", "in", in.size(), out.size() * ranks());
    collectives::reduce_scatter(ctx(), kernel::reducer_for<T, Op, Arch>(op), in.data(), out.data(),
                                out.size(), options);
  }

  /// In place: `data` holds P blocks; returns this rank's block, which holds the result. The other
  /// blocks keep what they hold.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  std::span<T> reduce_scatter(std::span<T, N> data, const Op& op = {},
                              const call_options& options = {}) {
    const std::span<T> own = own_block<T>("reduce_scatter", data);
    collectives::reduce_scatter(ctx(), kernel::reducer_for<T, Op, Arch>(op), data.data(),
                                own.data(), own.size(), options);
    return own;
  }

  /// Run-time types: `count` elements a block.
  template <class Arch = simd::native>
  void reduce_scatter(const void* in, void* out, std::size_t count, dtype type, reduction op,
                      const call_options& options = {}) {
    collectives::reduce_scatter(ctx(), kernel::reducer_for<Arch>(type, op), in, out, count,
                                options);
  }

  /// Uneven: `in` holds a block of counts[r] elements for each rank r, one behind the other without
  /// displacements; rank r gets block r. Every rank passes the same counts; where they differ, all
  /// get mismatch_error with two ranks' numbers.
  ///
  /// Cost: (P - 1) times the own block read from peers, in as many steps as the largest block
  /// needs.
  template <class In, std::size_t N, element T, std::size_t M, class Op = sum,
            class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<Op, T>
  void reduce_scatter(std::span<In, N> in, std::span<T, M> out, std::span<const std::size_t> counts,
                      const Op& op = {}, const call_options& options = {}) {
    const detail::block_place own = place_of<T>("reduce_scatter", "counts", counts);
    detail::check_count("reduce_scatter", "in", in.size(), own.total);
    detail::check_count("reduce_scatter", "out", out.size(), own.count);
    collectives::reduce_scatter_uneven(ctx(), kernel::reducer_for<T, Op, Arch>(op), in.data(),
                                       out.data(), counts, options);
  }

  /// Uneven, in place: returns this rank's block of `data`, which holds the result. The other
  /// blocks keep what they hold.
  template <element T, std::size_t N, class Op = sum, class Arch = simd::native>
    requires reduction_op<Op, T>
  std::span<T> reduce_scatter(std::span<T, N> data, std::span<const std::size_t> counts,
                              const Op& op = {}, const call_options& options = {}) {
    const std::span<T> own = own_block<T>("reduce_scatter", data, counts);
    collectives::reduce_scatter_uneven(ctx(), kernel::reducer_for<T, Op, Arch>(op), data.data(),
                                       own.data(), counts, options);
    return own;
  }

  /// Uneven, run-time types.
  template <class Arch = simd::native>
  void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, dtype type,
                      reduction op, const call_options& options = {}) {
    collectives::reduce_scatter_uneven(ctx(), kernel::reducer_for<Arch>(type, op), in, out, counts,
                                       options);
  }

  /// Puts `in` of every rank into `out`, in rank order; bytes are copied as they are.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void all_gather(std::span<In, N> in, std::span<T, M> out, const call_options& options = {}) {
    detail::check_count("all_gather", "out", out.size(), in.size() * ranks());
    collectives::all_gather(ctx(), dtype_of_v<T>, sizeof(T), in.data(), out.data(), in.size(),
                            options);
  }

  /// In place: `data` holds P blocks, of which this rank has filled its own.
  template <element T, std::size_t N>
  void all_gather(std::span<T, N> data, const call_options& options = {}) {
    const std::span<T> own = own_block<T>("all_gather", data);
    collectives::all_gather(ctx(), dtype_of_v<T>, sizeof(T), own.data(), data.data(), own.size(),
                            options);
  }

  /// Run-time types: `count` elements a rank.
  void all_gather(const void* in, void* out, std::size_t count, dtype type,
                  const call_options& options = {}) {
    collectives::all_gather(ctx(), type, size_of(type), in, out, count, options);
  }

  /// The same into memory of its own for each rank: outs[r] gets the elements of rank r. `in` is
  /// apart from all of it, or is this rank's own. To the other ranks it is the call above.
  void all_gather(const void* in, std::span<void* const> outs, std::size_t count, dtype type,
                  const call_options& options = {}) {
    collectives::all_gather(ctx(), type, size_of(type), in, outs, count, options);
  }

  /// Uneven: rank r has counts[r] elements; `out` gets the blocks one behind the other, without
  /// displacements. Every rank passes the same counts; where they differ, all get mismatch_error
  /// with two ranks' numbers.
  ///
  /// Cost: as all_gather, in as many steps as the largest block needs.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void all_gather(std::span<In, N> in, std::span<T, M> out, std::span<const std::size_t> counts,
                  const call_options& options = {}) {
    const detail::block_place own = place_of<T>("all_gather", "counts", counts);
    detail::check_count("all_gather", "in", in.size(), own.count);
    detail::check_count("all_gather", "out", out.size(), own.total);
    collectives::all_gather_uneven(ctx(), dtype_of_v<T>, sizeof(T), in.data(), out.data(), counts,
                                   options);
  }

  /// Uneven, in place: of the blocks in `data` this rank has filled its own.
  template <element T, std::size_t N>
  void all_gather(std::span<T, N> data, std::span<const std::size_t> counts,
                  const call_options& options = {}) {
    const std::span<T> own = own_block<T>("all_gather", data, counts);
    collectives::all_gather_uneven(ctx(), dtype_of_v<T>, sizeof(T), own.data(), data.data(), counts,
                                   options);
  }

  /// Uneven, run-time types.
  void all_gather(const void* in, void* out, std::span<const std::size_t> counts, dtype type,
                  const call_options& options = {}) {
    collectives::all_gather_uneven(ctx(), type, size_of(type), in, out, counts, options);
  }
  void all_gather(const void* in, std::span<void* const> outs, std::span<const std::size_t> counts,
                  dtype type, const call_options& options = {}) {
    collectives::all_gather_uneven(ctx(), type, size_of(type), in, outs, counts, options);
  }

  /// Puts `in` of every rank into the root's `out`, in rank order; elsewhere `out` is not looked at
  /// and may be empty. The root's `in` is apart from `out`, or is its own block in it.
  ///
  /// Cost: up to 40 bytes 1 step of one cache line; then the root reads (P - 1) · bytes from its
  ///       peers, which do not wait for it, in steps of a chunk.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void gather(std::span<In, N> in, std::span<T, M> out, int root = 0,
              const call_options& options = {}) {
    if (rank() == root) detail::check_count("gather", "out", out.size(), in.size() * ranks());
    collectives::gather(ctx(), dtype_of_v<T>, sizeof(T), in.data(), out.data(), in.size(), root,
                        options);
  }

  /// In place: on the root `data` holds P blocks, of which it has filled its own; elsewhere it is
  /// the block to send.
  template <element T, std::size_t N>
  void gather(std::span<T, N> data, int root = 0, const call_options& options = {}) {
    const std::span<T> own = rank() == root ? own_block<T>("gather", data) : std::span<T>(data);
    collectives::gather(ctx(), dtype_of_v<T>, sizeof(T), own.data(), data.data(), own.size(), root,
                        options);
  }

  /// Run-time types: `count` elements a rank; `out` may be null but on the root.
  void gather(const void* in, void* out, std::size_t count, dtype type, int root,
              const call_options& options = {}) {
    collectives::gather(ctx(), type, size_of(type), in, out, count, root, options);
  }

  /// Uneven: every rank sends what it likes; on the root, counts[r] is how many elements it expects
  /// of rank r, and `out` gets the blocks one behind the other, without displacements. Elsewhere
  /// `out` and `counts` are not looked at and may be empty. Where a rank sends another number than
  /// the root expects, all get mismatch_error with both, in this call or the next.
  ///
  /// Cost: as gather, in as many steps as the largest block needs; all wait for the root's first
  ///       step.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void gather(std::span<In, N> in, std::span<T, M> out, std::span<const std::size_t> counts,
              int root = 0, const call_options& options = {}) {
    if (rank() == root) {
      detail::check_count("gather", "out", out.size(),
                          place_of<T>("gather", "counts", counts).total);
    }
    collectives::gather_uneven(ctx(), dtype_of_v<T>, sizeof(T), in.data(), in.size(), out.data(),
                               counts, root, options);
  }

  /// Uneven, in place: on the root `data` holds all blocks, of which it has filled its own;
  /// elsewhere it is the block to send.
  template <element T, std::size_t N>
  void gather(std::span<T, N> data, std::span<const std::size_t> counts, int root = 0,
              const call_options& options = {}) {
    const std::span<T> own =
        rank() == root ? own_block<T>("gather", data, counts) : std::span<T>(data);
    collectives::gather_uneven(ctx(), dtype_of_v<T>, sizeof(T), own.data(), own.size(), data.data(),
                               counts, root, options);
  }

  /// Uneven, run-time types: this rank sends `count` elements.
  void gather(const void* in, std::size_t count, void* out, std::span<const std::size_t> counts,
              dtype type, int root, const call_options& options = {}) {
    collectives::gather_uneven(ctx(), type, size_of(type), in, count, out, counts, root, options);
  }

  /// Puts block r of the P blocks in the root's `in` into rank r's `out`; elsewhere `in` is not
  /// looked at and may be empty. The root's `out` is apart from `in`, or is its own block in it.
  ///
  /// Cost: all blocks together up to 40 bytes 1 step of one cache line; then the root writes
  ///       (P - 1) blocks, each other rank reads its own, in steps of a chunk for all of them. The
  ///       root does not wait.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void scatter(std::span<In, N> in, std::span<T, M> out, int root = 0,
               const call_options& options = {}) {
    if (rank() == root) detail::check_count("scatter", "in", in.size(), out.size() * ranks());
    collectives::scatter(ctx(), dtype_of_v<T>, sizeof(T), in.data(), out.data(), out.size(), root,
                         options);
  }

  /// In place: on the root `data` holds P blocks, of which its own stays where it is; elsewhere it
  /// is the block to get.
  template <element T, std::size_t N>
  void scatter(std::span<T, N> data, int root = 0, const call_options& options = {}) {
    const std::span<T> own = rank() == root ? own_block<T>("scatter", data) : std::span<T>(data);
    collectives::scatter(ctx(), dtype_of_v<T>, sizeof(T), data.data(), own.data(), own.size(), root,
                         options);
  }

  /// Run-time types: `count` elements a rank; `in` may be null but on the root.
  void scatter(const void* in, void* out, std::size_t count, dtype type, int root,
               const call_options& options = {}) {
    collectives::scatter(ctx(), type, size_of(type), in, out, count, root, options);
  }

  /// Uneven: the root's `in` holds counts[r] elements for each rank r, one behind the other,
  /// without displacements; every rank expects out.size() of them. Elsewhere `in` and `counts` are
  /// not looked at and may be empty. Where the root sends another number than a rank expects, all
  /// get mismatch_error with both, in this call or the next.
  ///
  /// Cost: as scatter, in as many steps as the largest block needs.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void scatter(std::span<In, N> in, std::span<T, M> out, std::span<const std::size_t> counts,
               int root = 0, const call_options& options = {}) {
    if (rank() == root) {
      detail::check_count("scatter", "in", in.size(),
                          place_of<T>("scatter", "counts", counts).total);
    }
    collectives::scatter_uneven(ctx(), dtype_of_v<T>, sizeof(T), in.data(), counts, out.data(),
                                out.size(), root, options);
  }

  /// Uneven, in place: on the root `data` holds all blocks, of which its own stays where it is;
  /// elsewhere it is the block to get.
  template <element T, std::size_t N>
  void scatter(std::span<T, N> data, std::span<const std::size_t> counts, int root = 0,
               const call_options& options = {}) {
    const std::span<T> own =
        rank() == root ? own_block<T>("scatter", data, counts) : std::span<T>(data);
    collectives::scatter_uneven(ctx(), dtype_of_v<T>, sizeof(T), data.data(), counts, own.data(),
                                own.size(), root, options);
  }

  /// Uneven, run-time types: this rank expects `count` elements.
  void scatter(const void* in, std::span<const std::size_t> counts, void* out, std::size_t count,
               dtype type, int root, const call_options& options = {}) {
    collectives::scatter_uneven(ctx(), type, size_of(type), in, counts, out, count, root, options);
  }

  /// Puts block r of the P blocks in `in` into rank r's `out`, as its block of this rank. `in` and
  /// `out` are of one size and apart.
  ///
  /// Cost: all blocks together up to 40 bytes 1 step of one cache line; then (P - 1) blocks written
  ///       and read, in steps of a chunk for all of them; the own one is copied directly.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void all_to_all(std::span<In, N> in, std::span<T, M> out, const call_options& options = {}) {
    detail::check_count("all_to_all", "out", out.size(), in.size());
    collectives::all_to_all(ctx(), dtype_of_v<T>, sizeof(T), in.data(), out.data(),
                            own_block<const T>("all_to_all", in).size(), options);
  }

  /// In place: block r of `data` is sent to rank r and replaced by what that sends.
  template <element T, std::size_t N>
  void all_to_all(std::span<T, N> data, const call_options& options = {}) {
    collectives::all_to_all(ctx(), dtype_of_v<T>, sizeof(T), data.data(), data.data(),
                            own_block<T>("all_to_all", data).size(), options);
  }

  /// Run-time types: `count` elements a block.
  void all_to_all(const void* in, void* out, std::size_t count, dtype type,
                  const call_options& options = {}) {
    collectives::all_to_all(ctx(), type, size_of(type), in, out, count, options);
  }

  /// Uneven: `in` holds send_counts[r] elements for each rank r and `out` gets recv_counts[r] of
  /// it, both one behind the other, without displacements. Ranks need not know each other's counts,
  /// but where i sends j another number than j expects of i, all get mismatch_error with both.
  ///
  /// Cost: as all_to_all, in as many steps as the largest block between two ranks needs.
  template <class In, std::size_t N, element T, std::size_t M>
    requires std::same_as<std::remove_const_t<In>, T>
  void all_to_all(std::span<In, N> in, std::span<const std::size_t> send_counts,
                  std::span<T, M> out, std::span<const std::size_t> recv_counts,
                  const call_options& options = {}) {
    detail::check_count("all_to_all", "in", in.size(),
                        place_of<T>("all_to_all", "send_counts", send_counts).total);
    detail::check_count("all_to_all", "out", out.size(),
                        place_of<T>("all_to_all", "recv_counts", recv_counts).total);
    collectives::all_to_all_uneven(ctx(), dtype_of_v<T>, sizeof(T), in.data(), send_counts,
                                   out.data(), recv_counts, options);
  }

  /// Uneven, in place: the counts[r] elements for rank r are replaced by as many of it.
  template <element T, std::size_t N>
  void all_to_all(std::span<T, N> data, std::span<const std::size_t> counts,
                  const call_options& options = {}) {
    detail::check_count("all_to_all", "data", data.size(),
                        place_of<T>("all_to_all", "counts", counts).total);
    collectives::all_to_all_uneven(ctx(), dtype_of_v<T>, sizeof(T), data.data(), counts,
                                   data.data(), counts, options);
  }

  /// Uneven, run-time types.
  void all_to_all(const void* in, std::span<const std::size_t> send_counts, void* out,
                  std::span<const std::size_t> recv_counts, dtype type,
                  const call_options& options = {}) {
    collectives::all_to_all_uneven(ctx(), type, size_of(type), in, send_counts, out, recv_counts,
                                   options);
  }

  /// Copies the root's `data` to every rank.
  template <element T, std::size_t N>
  void broadcast(std::span<T, N> data, int root = 0, const call_options& options = {}) {
    collectives::broadcast(ctx(), dtype_of_v<T>, sizeof(T), data.data(), data.size(), root,
                           options);
  }

  /// Run-time types.
  void broadcast(void* data, std::size_t count, dtype type, int root,
                 const call_options& options = {}) {
    collectives::broadcast(ctx(), type, size_of(type), data, count, root, options);
  }

  /// Sends `data` to rank `destination`, which receives it with recv. Returns when `data` may be
  /// changed, which may be before it is received. To this rank itself: kept until it is received.
  ///
  /// Messages of one rank to another are received in the order in which they were sent; sends and
  /// receives need no order with collectives. Count, type and tag of both ends must be the same.
  /// Throws: as a collective, on both ranks; no other rank need call anything.
  template <class T, std::size_t N>
    requires element<std::remove_const_t<T>>
  void send(std::span<T, N> data, int destination, const call_options& options = {}) {
    using type = std::remove_const_t<T>;
    collectives::send(ctx(), dtype_of_v<type>, sizeof(type), data.data(), data.size(), destination,
                      options);
  }

  /// Run-time types.
  void send(const void* data, std::size_t count, dtype type, int destination,
            const call_options& options = {}) {
    collectives::send(ctx(), type, size_of(type), data, count, destination, options);
  }

  /// Receives into `data` what rank `source` sends; see send. From this rank itself: what it has
  /// sent before.
  template <element T, std::size_t N>
  void recv(std::span<T, N> data, int source, const call_options& options = {}) {
    collectives::recv(ctx(), dtype_of_v<T>, sizeof(T), data.data(), data.size(), source, options);
  }

  /// Run-time types.
  void recv(void* data, std::size_t count, dtype type, int source,
            const call_options& options = {}) {
    collectives::recv(ctx(), type, size_of(type), data, count, source, options);
  }

  /// Memory for `count` elements on each rank that all ranks of this communicator address, zero at
  /// first. An all_reduce whose input lies in it, with a result in memory of any kind, is read by
  /// the peers where it lies, with no copy: from tuning::symmetric_min_bytes on if that holds for
  /// all ranks; in place only where the call is in two shots, and else from
  /// tuning::symmetric_in_place_min_bytes on. Ranks may mix it with ordinary memory as they like;
  /// bits do not depend on it. On transports without shared memory, and over several hosts, it is
  /// ordinary memory.
  ///
  /// Collective: all ranks, with the same count and type; each frees its own when it likes.
  /// Cost:       milliseconds; one mapping a rank. From the first allocate of a communicator on,
  ///             each all_reduce of tuning::symmetric_min_bytes or more begins with a step of a
  ///             cache line.
  /// Throws:     std::invalid_argument for more than 2^46 bytes; else as a collective, and
  ///             rendezvous_error or transport_error where the memory cannot be had. Whatever one
  ///             rank throws but std::invalid_argument gives up this communicator on all.
  template <element T>
  symmetric_buffer<T> allocate(std::size_t count) {
    return detail::make_symmetric_buffer<T>(
        collectives::allocate(ctx(), dtype_of_v<T>, sizeof(T), count), count);
  }

  /// Run-time types: as bytes.
  symmetric_buffer<std::byte> allocate(std::size_t count, dtype type) {
    const std::size_t size = size_of(type);
    return detail::make_symmetric_buffer<std::byte>(collectives::allocate(ctx(), type, size, count),
                                                    count * size);
  }

  /// Forms groups: the ranks that pass the same `color` (0 or more) get a communicator of their
  /// own, in the order of their `key`s, ranks of the same key in the order they have here. The
  /// group has flags, a workspace, a deadline and an abort state of its own; it works side by side
  /// with this communicator and may outlive it.
  ///
  /// Collective: all ranks call split or split_or_none; they return when all groups have met.
  /// Throws:     as a collective; rendezvous_error or transport_error where a group cannot be made.
  ///             Whatever one rank throws gives up this communicator on all.
  communicator split(int color, int key = 0) { return split(color, key, inherited_options()); }

  /// The same with options of the group's own: `options.tune` and `options.tuner` are the same on
  /// all of its ranks. Without them, a group has the tuning of this communicator, and measures
  /// none.
  template <class Arch = simd::native>
  communicator split(int color, int key, communicator_options options) {
    if (color < 0) {
      throw std::invalid_argument("split: color " + std::to_string(color) +
                                  "; expected 0 or more, or split_or_none for a rank that joins no "
                                  "group");
    }
    return std::move(*split_or_none<Arch>(color, key, std::move(options)));
  }

  /// The same for ranks that may join no group: nothing for a negative color, such as `undefined`.
  std::optional<communicator> split_or_none(int color, int key = 0) {
    return split_or_none(color, key, inherited_options());
  }
  template <class Arch = simd::native>
  std::optional<communicator> split_or_none(int color, int key, communicator_options options) {
    check_options(options);
    std::optional<Transport> group = collectives::split(ctx(), color, key);
    if (!group) return std::nullopt;
    return make<Arch>(std::move(*group), std::move(options));
  }

  /// Gives the communicator up on all ranks: calls that wait and later calls throw aborted_error
  /// with `reason`. From any thread; never blocks.
  void abort(std::string_view reason = "abort() was called") noexcept {
    if (context_ != nullptr) context_->abort(reason);
  }

  /// Hands this communicator over to a queue whose calls return at once, as rankfold/async.hpp
  /// says; `queue.release()` gives it back. Until then calls of this object throw std::logic_error.
  template <class Queue = async_queue<Transport>>
  Queue async() {
    return Queue(std::move(*this));
  }

 private:
  friend class detail::async_engine<Transport>;

  context<Transport>& ctx() const {
    if (context_ == nullptr) [[unlikely]] {
      throw std::logic_error(
          "rankfold: this communicator was moved from, or handed over to a queue by async(): use "
          "the "
          "queue, or take the communicator back by release()");
    }
    return *context_;
  }

  explicit communicator(std::unique_ptr<context<Transport>> context)
      : context_(std::move(context)) {}

  /// A template on the instruction set, as all that leads to a kernel.
  template <class Arch>
  static communicator make(Transport transport, communicator_options options) {
    check_options(options);
    communicator made(std::make_unique<context<Transport>>(
        std::move(transport), options.tune,
        wait_options{options.timeout, options.spin, std::move(options.interrupt)}));
    if (options.tuner.is_on()) {
      constexpr sum op;
      made.tuning_report_ =
          collectives::tune(made.ctx(), options.tuner, reducer_of<float, sum, Arch>(op));
    }
    return made;
  }

  static void check_options(const communicator_options& options) { check_timeout(options.timeout); }

  static void check_timeout(std::chrono::milliseconds timeout) {
    if (timeout.count() <= 0) {
      throw std::invalid_argument("rankfold: a communicator's timeout is " +
                                  std::to_string(timeout.count()) + " ms, expected more than 0");
    }
  }

  communicator_options inherited_options() const {
    const wait_options& waiting = ctx().waiting();
    return {.timeout = waiting.timeout,
            .tune = ctx().tuning(),
            .tuner = {},
            .interrupt = waiting.interrupt,
            .spin = std::chrono::duration_cast<std::chrono::microseconds>(waiting.spin)};
  }

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  template <class Arch, class In, std::size_t N, class Op, class F>
  void all_reduce_through(std::span<In, N> in, const Op& op, F& f, const call_options& options) {
    using T = std::remove_const_t<In>;
    static_assert(sizeof(T) <= detail::epilogue_output::block_bytes,
                  "rankfold: an element is larger than an epilogue's block of 8192 bytes");
    collectives::all_reduce(ctx(), reducer_of<T, Op, Arch>(op), in.data(),
                            kernel::epilogue_for<T>(f), in.size(), options);
  }

  template <class F>
  static void check_epilogue(F& f, dtype type, const void* in, std::size_t count) {
    if constexpr (requires { f.check(type, in, count); }) f.check(type, in, count);
  }

  /// The reducer that all_reduce needs: over several hosts, it folds in parts.
  template <class T, class Op, class Arch>
  static kernel::reducer reducer_of(const Op& op) {
    if constexpr (algorithms::has_hosts<context<Transport>>) {
      return kernel::reducer_in_parts_for<T, Op, Arch>(op);
    } else {
      return kernel::reducer_for<T, Op, Arch>(op);
    }
  }
  template <class Arch>
  static kernel::reducer reducer_of(dtype type, reduction op) {
    if constexpr (algorithms::has_hosts<context<Transport>>) {
      return kernel::reducer_in_parts_for<Arch>(type, op);
    } else {
      return kernel::reducer_for<Arch>(type, op);
    }
  }
  std::size_t own_index() const { return static_cast<std::size_t>(rank()); }

  template <class T>
  std::span<T> own_block(std::string_view name, std::span<T> data) const {
    if (data.size() % ranks() != 0) {
      throw std::invalid_argument(std::string(name) + ": data has " + std::to_string(data.size()) +
                                  " elements; expected a multiple of the " +
                                  std::to_string(size()) + " ranks");
    }
    const std::size_t count = data.size() / ranks();
    return data.subspan(count * own_index(), count);
  }

  template <class T>
  std::span<T> own_block(std::string_view name, std::span<T> data,
                         std::span<const std::size_t> counts) const {
    const detail::block_place own = place_of<T>(name, "counts", counts);
    detail::check_count(name, "data", data.size(), own.total);
    return data.subspan(own.begin, own.count);
  }

  template <class T>
  detail::block_place place_of(std::string_view name, std::string_view what,
                               std::span<const std::size_t> counts) const {
    return detail::place_of(name, what, counts, rank(), size(), sizeof(T));
  }

  std::unique_ptr<context<Transport>> context_;
  std::string tuning_report_;
};

RANKFOLD_END_NAMESPACE
