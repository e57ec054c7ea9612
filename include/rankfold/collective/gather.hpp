// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/rooted.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/detail/blocks.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Puts the `count` elements at `in` of every rank into the root's `out`, in rank order. There `in`
/// is apart from `out`, or is the rank's own block in it; elsewhere `out` is not looked at.
template <class Context>
void gather(Context& ctx, dtype type, std::size_t element_size, const void* in, void* out,
            std::size_t count, int root, const call_options& options) {
  detail::check_call("gather", count, options);
  detail::check_rank("gather", "root", root, ctx.size());
  const std::size_t bytes = count * element_size;
  if (ctx.rank() == root &&
      static_cast<std::byte*>(out) + bytes * static_cast<std::size_t>(root) != in) {
    detail::check_apart("gather", in, bytes, out, bytes * static_cast<std::size_t>(ctx.size()));
  }
  const algorithm how = algorithms::select(ctx, collective::gather, options.algorithm, bytes, 1);
  ctx.run(fingerprint::of(collective::gather, type == dtype::user ? bytes : count, type,
                          options.type_id, how, root, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_gather(ctx, in, out, bytes, root);
            } else {
              algorithms::rooted_gather(ctx, in, out, bytes, root);
            }
          });
}

/// The same with `count` elements of each rank's own choice. On the root, counts[r] is how many it
/// expects of rank r, and the own one is `count`; elsewhere `counts` is not looked at.
template <class Context>
void gather_uneven(Context& ctx, dtype type, std::size_t element_size, const void* in,
                   std::size_t count, void* out, std::span<const std::size_t> counts, int root,
                   const call_options& options) {
  constexpr collective what = collective::gather_uneven;
  detail::check_call(name_of(what), count, options);
  detail::check_call(name_of(what), element_size, options);
  detail::check_rank(name_of(what), "root", root, ctx.size());
  std::optional<detail::uneven_blocks> blocks;
  if (ctx.rank() == root) {
    const auto rank = static_cast<std::size_t>(root);
    blocks.emplace(name_of(what), "counts", counts, ctx.size(), element_size, element_size);
    detail::check_count(name_of(what), "in", count, counts[rank]);
    if (static_cast<std::byte*>(out) + blocks->begin(rank) != in) {
      detail::check_apart(name_of(what), in, blocks->size(rank), out, blocks->total());
    }
  }
  const algorithm how = algorithms::select(ctx, what, options.algorithm, 0, 1);
  ctx.run(fingerprint::of(what, type == dtype::user ? element_size : 0, type, options.type_id, how,
                          root, options.tag),
          [&] {
            algorithms::rooted_gather_uneven(ctx, in, count, element_size, out,
                                             blocks ? &*blocks : nullptr, root);
          });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
