// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>

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

/// Puts block r of the root's P blocks of `count` elements at `in` into rank r's `out`. On the root
/// `out` is apart from `in`, or is its own block in it; elsewhere `in` is not looked at.
template <class Context>
void scatter(Context& ctx, dtype type, std::size_t element_size, const void* in, void* out,
             std::size_t count, int root, const call_options& options) {
  detail::check_call("scatter", count, options);
  detail::check_rank("scatter", "root", root, ctx.size());
  const std::size_t bytes = count * element_size;
  const std::size_t all = bytes * static_cast<std::size_t>(ctx.size());
  if (ctx.rank() == root &&
      static_cast<const std::byte*>(in) + bytes * static_cast<std::size_t>(root) != out) {
    detail::check_apart("scatter", in, all, out, bytes);
  }
  const algorithm how = algorithms::select(ctx, collective::scatter, options.algorithm, all, 1);
  ctx.run(fingerprint::of(collective::scatter, type == dtype::user ? bytes : count, type,
                          options.type_id, how, root, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_scatter(ctx, in, out, bytes, root);
            } else {
              algorithms::exchange_scatter(ctx, in, out, bytes, root);
            }
          });
}

/// The same with counts[r] elements for rank r. Only the root's `counts` are looked at; every rank
/// passes as `count` how many it expects.
template <class Context>
void scatter_uneven(Context& ctx, dtype type, std::size_t element_size, const void* in,
                    std::span<const std::size_t> counts, void* out, std::size_t count, int root,
                    const call_options& options) {
  constexpr collective what = collective::scatter_uneven;
  detail::check_call(name_of(what), count, options);
  detail::check_call(name_of(what), element_size, options);
  detail::check_rank(name_of(what), "root", root, ctx.size());
  algorithms::check_numbered_slots(ctx, what);
  std::optional<detail::uneven_blocks> blocks;
  if (ctx.rank() == root) {
    const auto rank = static_cast<std::size_t>(root);
    blocks.emplace(name_of(what), "counts", counts, ctx.size(), element_size, element_size);
    detail::check_count(name_of(what), "out", count, counts[rank]);
    if (static_cast<const std::byte*>(in) + blocks->begin(rank) != out) {
      detail::check_apart(name_of(what), in, blocks->total(), out, blocks->size(rank));
    }
  }
  const algorithm how = algorithms::select(ctx, what, options.algorithm, 0, 1);
  ctx.run(fingerprint::of(what, type == dtype::user ? element_size : 0, type, options.type_id, how,
                          root, options.tag),
          [&] {
            algorithms::exchange_scatter_uneven(ctx, in, blocks ? &*blocks : nullptr, out, count,
                                                element_size, root);
          });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
