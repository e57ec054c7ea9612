// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "rankfold/algorithm/exchange.hpp"
#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Puts block r of the P blocks of `count` elements at `in` into rank r's `out`, as its block of
/// this rank. `in` and `out` are the same or apart.
template <class Context>
void all_to_all(Context& ctx, dtype type, std::size_t element_size, const void* in, void* out,
                std::size_t count, const call_options& options) {
  detail::check_call("all_to_all", count, options);
  const std::size_t bytes = count * element_size;
  const std::size_t all = bytes * static_cast<std::size_t>(ctx.size());
  if (in != out) detail::check_apart("all_to_all", in, all, out, all);
  const algorithm how = algorithms::select(ctx, collective::all_to_all, options.algorithm, all, 1);
  ctx.run(fingerprint::of(collective::all_to_all, type == dtype::user ? bytes : count, type,
                          options.type_id, how, 0, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_all_to_all(ctx, in, out, bytes);
            } else {
              algorithms::exchange_all_to_all(ctx, in, out, bytes);
            }
          });
}

/// The same with send_counts[r] elements for rank r and recv_counts[r] of it. `in` and `out` are
/// apart, or the same with the same counts.
template <class Context>
void all_to_all_uneven(Context& ctx, dtype type, std::size_t element_size, const void* in,
                       std::span<const std::size_t> send_counts, void* out,
                       std::span<const std::size_t> recv_counts, const call_options& options) {
  constexpr collective what = collective::all_to_all_uneven;
  detail::check_call(name_of(what), element_size, options);
  algorithms::check_numbered_slots(ctx, what);
  const detail::uneven_blocks sent(name_of(what), "send_counts", send_counts, ctx.size(),
                                   element_size, element_size);
  const detail::uneven_blocks received(name_of(what), "recv_counts", recv_counts, ctx.size(),
                                       element_size, element_size);
  const auto rank = static_cast<std::size_t>(ctx.rank());
  if (sent.count(rank) != received.count(rank)) {
    throw std::invalid_argument(std::string(name_of(what)) + ": a rank sends itself " +
                                std::to_string(sent.count(rank)) + " elements, but expects " +
                                std::to_string(received.count(rank)));
  }
  if (in == out && sent != received && sent.total() != 0 && received.total() != 0) {
    throw std::invalid_argument(std::string(name_of(what)) +
                                ": in place, and send_counts and recv_counts differ; expected the "
                                "same numbers, or in and out apart");
  }
  if (in != out || sent != received) {
    detail::check_apart(name_of(what), in, sent.total(), out, received.total());
  }
  const algorithm how = algorithms::select(ctx, what, options.algorithm, 0, 1);
  ctx.run(fingerprint::of(what, type == dtype::user ? element_size : 0, type, options.type_id, how,
                          0, options.tag),
          [&] { algorithms::exchange_all_to_all_uneven(ctx, in, sent, out, received); });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
