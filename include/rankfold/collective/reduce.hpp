// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/rooted.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/algorithm/two_shot.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fp_environment.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Folds `count` elements at `in` over all ranks into the root's `out`; there they are the same or
/// apart, elsewhere `out` is not looked at.
template <class Context>
void reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
            std::size_t count, int root, const call_options& options) {
  detail::check_call("reduce", count, options);
  detail::check_rank("reduce", "root", root, ctx.size());
  const std::size_t bytes = count * reducer.element_size;
  if (ctx.rank() == root && in != out) detail::check_apart("reduce", in, bytes, out, bytes);
  const algorithm how =
      algorithms::select(ctx, collective::reduce, options.algorithm, bytes, reducer.element_size);
  const detail::fp_environment environment;
  ctx.run(fingerprint::of(collective::reduce, reducer.type == dtype::user ? bytes : count,
                          reducer.type, reducer.operator_id, how, root, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_reduce(ctx, reducer, in, out, count, root);
            } else if (how == algorithm::two_shot && ctx.size() > 1) {
              algorithms::two_shot_reduce(ctx, reducer, in, out, count, root);
            } else {
              algorithms::rooted_reduce(ctx, reducer, in, out, count, root);
            }
          });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
