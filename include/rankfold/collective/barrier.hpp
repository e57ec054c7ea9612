// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rankfold/detail/config.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Returns when every rank of `ctx` has called it. Cost: 1 step.
template <class Context>
void barrier(Context& ctx, const call_options& options) {
  detail::check_call("barrier", 0, options);
  ctx.run(
      fingerprint::of(collective::barrier, 0, dtype::user, 0, algorithm::automatic, 0, options.tag),
      [&] {
        ctx.next_step(0);
        ctx.publish();
        ctx.wait_all();
      });
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
