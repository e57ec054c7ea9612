// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/one_shot.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Puts the `count` elements at `in` of every rank into `out`, in rank order. `in` is apart from
/// `out`, or is the rank's own block in it.
template <class Context>
void all_gather(Context& ctx, dtype type, std::size_t element_size, const void* in, void* out,
                std::size_t count, const call_options& options) {
  detail::check_call("all_gather", count, options);
  const std::size_t bytes = count * element_size;
  const std::size_t all = bytes * static_cast<std::size_t>(ctx.size());
  if (static_cast<std::byte*>(out) + bytes * static_cast<std::size_t>(ctx.rank()) != in) {
    detail::check_apart("all_gather", in, bytes, out, all);
  }
  const algorithm how =
      algorithms::select(ctx, collective::all_gather, options.algorithm, bytes, 1);
  ctx.run(fingerprint::of(collective::all_gather, type == dtype::user ? bytes : count, type, 0, how,
                          0, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_all_gather(ctx, in, out, bytes);
            } else {
              algorithms::one_shot_all_gather(ctx, in, out, detail::even_blocks{bytes});
            }
          });
}

/// The same with counts[r] elements of rank r; every rank passes the same counts.
template <class Context>
void all_gather_uneven(Context& ctx, dtype type, std::size_t element_size, const void* in,
                       void* out, std::span<const std::size_t> counts,
                       const call_options& options) {
  constexpr collective what = collective::all_gather_uneven;
  detail::check_call(name_of(what), element_size, options);
  const detail::uneven_blocks blocks(name_of(what), "counts", counts, ctx.size(), element_size,
                                     element_size);
  const auto rank = static_cast<std::size_t>(ctx.rank());
  if (static_cast<std::byte*>(out) + blocks.begin(rank) != in) {
    detail::check_apart(name_of(what), in, blocks.size(rank), out, blocks.total());
  }
  const algorithm how = algorithms::select(ctx, what, options.algorithm, blocks.largest(), 1);
  ctx.run(
      fingerprint::of(what, type == dtype::user ? element_size : 0, type, 0, how, 0, options.tag),
      [&] { algorithms::one_shot_all_gather(ctx, in, out, blocks); });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
