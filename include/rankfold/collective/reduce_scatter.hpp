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
#include "rankfold/detail/fp_environment.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Folds P blocks of `count` elements at `in` over all ranks; rank r's `out` gets block r. `out` is
/// apart from `in`, or is the rank's own block in it.
template <class Context>
void reduce_scatter(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                    std::size_t count, const call_options& options) {
  detail::check_call("reduce_scatter", count, options);
  const std::size_t bytes = count * reducer.element_size;
  const std::size_t all = bytes * static_cast<std::size_t>(ctx.size());
  if (static_cast<const std::byte*>(in) + bytes * static_cast<std::size_t>(ctx.rank()) != out) {
    detail::check_apart("reduce_scatter", in, all, out, bytes);
  }
  const algorithm how = algorithms::select(ctx, collective::reduce_scatter, options.algorithm, all,
                                           reducer.element_size);
  const detail::fp_environment environment;
  ctx.run(fingerprint::of(collective::reduce_scatter, reducer.type == dtype::user ? bytes : count,
                          reducer.type, reducer.operator_id, how, 0, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_reduce_scatter(ctx, reducer, in, out, count);
            } else {
              algorithms::one_shot_reduce_scatter(ctx, reducer, in, out,
                                                  detail::even_blocks{count});
            }
          });
}

/// The same with blocks of counts[r] elements; every rank passes the same counts.
template <class Context>
void reduce_scatter_uneven(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                           std::span<const std::size_t> counts, const call_options& options) {
  constexpr collective what = collective::reduce_scatter_uneven;
  const std::size_t size = reducer.element_size;
  detail::check_call(name_of(what), size, options);
  const detail::uneven_blocks blocks(name_of(what), "counts", counts, ctx.size(), size, 1);
  const auto rank = static_cast<std::size_t>(ctx.rank());
  if (static_cast<const std::byte*>(in) + blocks.begin(rank) * size != out) {
    detail::check_apart(name_of(what), in, blocks.total() * size, out, blocks.size(rank) * size);
  }
  const algorithm how =
      algorithms::select(ctx, what, options.algorithm, blocks.total() * size, size);
  const detail::fp_environment environment;
  ctx.run(fingerprint::of(what, reducer.type == dtype::user ? size : 0, reducer.type,
                          reducer.operator_id, how, 0, options.tag),
          [&] { algorithms::one_shot_reduce_scatter(ctx, reducer, in, out, blocks); });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
