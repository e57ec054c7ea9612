// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/rooted.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Copies the root's `count` elements at `data` to every rank.
template <class Context>
void broadcast(Context& ctx, dtype type, std::size_t element_size, void* data, std::size_t count,
               int root, const call_options& options) {
  detail::check_call("broadcast", count, options);
  detail::check_rank("broadcast", "root", root, ctx.size());
  const std::size_t bytes = count * element_size;
  const algorithm how = algorithms::select(ctx, collective::broadcast, options.algorithm, bytes, 1);
  ctx.run(fingerprint::of(collective::broadcast, type == dtype::user ? bytes : count, type,
                          options.type_id, how, root, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_broadcast(ctx, data, bytes, root);
            } else {
              algorithms::rooted_broadcast(ctx, data, bytes, root);
            }
          });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
