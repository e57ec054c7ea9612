// SPDX-License-Identifier: Apache-2.0
// The payload travels in the flag's own cache line: one line transfer, one way.
#pragma once

#include <cstddef>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/output.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Every rank publishes `bytes` of payload and waits for every other; then `inputs()` points at all
/// ranks' payloads, at `in` for the own one.
template <class Context>
const void* const* inline_line_exchange(Context& ctx, const void* in, std::size_t bytes) {
  ctx.next_step(0);
  ctx.publish(in, bytes);
  ctx.wait_all();
  const void** const inputs = ctx.inputs();
  for (int r = 0; r < ctx.size(); ++r) inputs[r] = r == ctx.rank() ? in : ctx.payload(r);
  return inputs;
}

/// Cost: 1 step; P - 1 lines read by each rank.
template <class Context, class Output>
void inline_line_all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in,
                            const Output& out, std::size_t count) {
  const void* const* const inputs = inline_line_exchange(ctx, in, count * reducer.element_size);
  // One block: a line has no more.
  out.put(0, count, [&](std::size_t, std::size_t now, void* to) {
    reducer.fold(reducer.op, inputs, ctx.size(), to, now);
  });
}

/// `count` elements a rank; `in` holds P blocks of them. Cost: as inline_line_all_reduce.
template <class Context>
void inline_line_reduce_scatter(Context& ctx, const kernel::reducer& reducer, const void* in,
                                void* out, std::size_t count) {
  const std::size_t block = count * reducer.element_size;
  inline_line_exchange(ctx, in, block * static_cast<std::size_t>(ctx.size()));
  const void** const inputs = ctx.inputs();
  for (int r = 0; r < ctx.size(); ++r) {
    inputs[r] =
        static_cast<const std::byte*>(inputs[r]) + block * static_cast<std::size_t>(ctx.rank());
  }
  reducer.fold(reducer.op, inputs, ctx.size(), out, count);
}

/// `bytes` from every rank r, to `place(r)`. Cost: as inline_line_all_reduce.
template <class Context, class Place>
void inline_line_all_gather_to(Context& ctx, const void* in, Place&& place, std::size_t bytes) {
  const void* const* const inputs = inline_line_exchange(ctx, in, bytes);
  for (int r = 0; r < ctx.size(); ++r) {
    std::byte* const to = place(static_cast<std::size_t>(r));
    if (to != inputs[r]) kernel::copy(to, inputs[r], bytes);
  }
}

/// The same to `out`, in rank order.
template <class Context>
void inline_line_all_gather(Context& ctx, const void* in, void* out, std::size_t bytes) {
  inline_line_all_gather_to(
      ctx, in, [&](std::size_t r) { return static_cast<std::byte*>(out) + bytes * r; }, bytes);
}

/// Cost: 1 step; the root's line read by each rank; the root does not wait.
template <class Context>
void inline_line_broadcast(Context& ctx, void* data, std::size_t bytes, int root) {
  ctx.next_step(0);
  if (ctx.rank() == root) {
    ctx.publish(data, bytes);
  } else {
    ctx.publish();
    ctx.wait(root);
    kernel::copy(data, ctx.payload(root), bytes);
  }
}

/// Cost: 1 step; P - 1 lines read by the root; the others do not wait.
template <class Context>
void inline_line_reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                        std::size_t count, int root) {
  if (ctx.rank() == root) {
    const detail::buffer_output to(out, reducer.element_size);
    return inline_line_all_reduce(ctx, reducer, in, to, count);
  }
  ctx.next_step(0);
  ctx.publish(in, count * reducer.element_size);
}

/// Cost: as inline_line_reduce.
template <class Context>
void inline_line_gather(Context& ctx, const void* in, void* out, std::size_t bytes, int root) {
  if (ctx.rank() == root) return inline_line_all_gather(ctx, in, out, bytes);
  ctx.next_step(0);
  ctx.publish(in, bytes);
}

/// `in` holds P blocks of `bytes`, all in the root's line. Cost: as inline_line_broadcast.
template <class Context>
void inline_line_scatter(Context& ctx, const void* in, void* out, std::size_t bytes, int root) {
  const auto rank = static_cast<std::size_t>(ctx.rank());
  ctx.next_step(0);
  if (ctx.rank() == root) {
    ctx.publish(in, bytes * static_cast<std::size_t>(ctx.size()));
    const std::byte* const own = static_cast<const std::byte*>(in) + rank * bytes;
    if (out != own) kernel::copy(out, own, bytes);
  } else {
    ctx.publish();
    ctx.wait(root);
    kernel::copy(out, ctx.payload(root) + rank * bytes, bytes);
  }
}

/// `in` holds P blocks of `bytes`, all in the line. Cost: as inline_line_all_reduce.
template <class Context>
void inline_line_all_to_all(Context& ctx, const void* in, void* out, std::size_t bytes) {
  const auto rank = static_cast<std::size_t>(ctx.rank());
  const void* const* const inputs =
      inline_line_exchange(ctx, in, bytes * static_cast<std::size_t>(ctx.size()));
  for (std::size_t r = 0; r < static_cast<std::size_t>(ctx.size()); ++r) {
    std::byte* const to = static_cast<std::byte*>(out) + bytes * r;
    const std::byte* const from = static_cast<const std::byte*>(inputs[r]) + bytes * rank;
    if (to != from) kernel::copy(to, from, bytes);
  }
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
