// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter then all-gather, pipelined in chunks that stay in cache: memory sees each byte of
// the caller's buffers once in and once out.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rankfold/assert.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/output.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Who gets the result of a two_shot: one rank, or all.
inline constexpr int everyone = -1;

/// In step c a rank stages chunk c, in P slices, beside its reduced slice of chunk c - 1; after the
/// wait it fetches the other ranks' slices of chunk c - 1, if the result is for it, and reduces its
/// own slice of chunk c, into the half of the step to come.
///
/// An epilogue gets its own slice, too, only then: so it gets the slices in their order.
///
/// Rank r whose input its peers read where it lies, at places[r], stages nothing but its reduced
/// slices; where all are such ranks, the step in which they said so serves as the first. Slice r of
/// an input is read by rank r alone, before the step in which it hands out what it made of it: so
/// nobody reads what a rank has seen reduced, and nothing after the last wait. `places` is null
/// where all stage.
///
/// With a root, the last step has nothing to read for the others, who do not wait: next_step of the
/// next call does, before it writes over what the root reads.
template <class Context, class Output>
void two_shot(Context& ctx, const kernel::reducer& reducer, const void* in, const Output& out,
              std::size_t count, int root, const std::byte* const* places) {
  const std::size_t size = reducer.element_size;
  const auto ranks = static_cast<std::size_t>(ctx.size());
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const bool gets = root == everyone || root == ctx.rank();
  const bool gives = root != ctx.rank();
  const std::size_t line = detail::elements_per_line(size);
  // A half holds a chunk and one slice of another: (P + 1) slices.
  const std::size_t room =
      (std::min)(ctx.half_bytes() / (ranks + 1),
                 (std::max)(detail::cache_line, ctx.tuning().chunk_bytes / ranks));
  const std::size_t slice_limit = (std::max)(line, detail::round_down(room / size, line));
  const std::size_t chunk = slice_limit * ranks;
  const std::size_t chunks = (count + chunk - 1) / chunk;
  const std::size_t reduced_offset = chunk * size;
  RANKFOLD_ASSERT(1, reduced_offset + slice_limit * size <= ctx.half_bytes(),
                  "select let through an element that is too large");
  // The slice is folded in pieces that are still in the first cache when they are copied out.
  const std::size_t piece = (std::max)(line, detail::round_down(16384 / size, line));

  const auto slice_in = [&](std::size_t c, std::size_t r) {
    const std::size_t begin = c * chunk;
    detail::slice s = detail::slice_of((std::min)(chunk, count - begin), ranks, r, line);
    s.begin += begin;
    return s;
  };
  const auto lies = [&](std::size_t r) { return places != nullptr && places[r] != nullptr; };
  const bool all_lie =
      places != nullptr && std::find(places, places + ranks, nullptr) == places + ranks;
  const std::byte* const source = static_cast<const std::byte*>(in);

  for (std::size_t c = 0; c <= chunks; ++c) {
    if (c > 0 || !all_lie) {
      ctx.next_step();
      if (c < chunks && !lies(rank)) {
        for (std::size_t r = 0; r < ranks; ++r) {
          if (r == rank) continue;
          const detail::slice s = slice_in(c, r);
          kernel::copy(ctx.half(ctx.rank()) + r * slice_limit * size, source + s.begin * size,
                       s.count * size);
          ctx.give(static_cast<int>(r), r * slice_limit * size, s.count * size);
        }
      }
      if (c > 0 && gives) {
        const std::size_t bytes = slice_in(c - 1, rank).count * size;
        if (root == everyone) {
          ctx.give_all(reduced_offset, bytes);
        } else {
          ctx.give(root, reduced_offset, bytes);
        }
      }
      ctx.publish();
      if (c == chunks && !gets) break;
      ctx.wait_all();
    }
    if (c < chunks) {
      const detail::slice s = slice_in(c, rank);
      std::byte* const reduced = ctx.next_half() + reduced_offset;
      for (std::size_t begin = 0; begin < s.count; begin += piece) {
        const std::size_t now = (std::min)(piece, s.count - begin);
        const void** const inputs = ctx.inputs();
        for (std::size_t r = 0; r < ranks; ++r) {
          inputs[r] = lies(r) ? places[r] + (s.begin + begin) * size
                              : ctx.half(static_cast<int>(r)) + (rank * slice_limit + begin) * size;
        }
        inputs[rank] = source + (s.begin + begin) * size;
        std::byte* to = reduced + begin * size;
        if constexpr (Output::keeps) {
          if (gets) to = out.at(s.begin + begin);
        }
        reducer.fold(reducer.op, inputs, ctx.size(), to, now);
        if (Output::keeps && gets && gives) kernel::copy(reduced + begin * size, to, now * size);
      }
    }
    if (c > 0 && gets) {
      for (std::size_t r = 0; r < ranks; ++r) {
        if (Output::keeps && r == rank) continue;  // is there already
        const detail::slice s = slice_in(c - 1, r);
        out.take(s.begin, s.count, ctx.half(static_cast<int>(r)) + reduced_offset);
      }
    }
  }
}

/// Cost: ⌈bytes / chunk⌉ + 1 steps, one wait each; a rank writes `bytes` to its segment and reads
/// 2 (P - 1) / P · `bytes` from its peers'. From a rank in `places` they read as much, of which it
/// writes a P-th; with all ranks there, ⌈bytes / chunk⌉ steps.
template <class Context, class Output>
void two_shot_all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in,
                         const Output& out, std::size_t count,
                         const std::byte* const* places = nullptr) {
  two_shot(ctx, reducer, in, out, count, everyone, places);
}

/// Cost: as two_shot_all_reduce for the root; the other ranks read (P - 1) / P · `bytes`.
template <class Context>
void two_shot_reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                     std::size_t count, int root) {
  two_shot(ctx, reducer, in, detail::buffer_output(out, reducer.element_size), count, root,
           nullptr);
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
