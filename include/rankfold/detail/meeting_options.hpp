// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator meet for something new, in the middle of a call.
#pragma once

#include <algorithm>
#include <chrono>

#include "rankfold/detail/config.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Within the call's deadline, and no longer than none of the communicator's ranks has failed: a
/// rank that fails gives the communicator up, and so ends the meeting of all.
template <class Context>
child_options meeting_options(Context& ctx) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(ctx.deadline_of_call() -
                                                                 std::chrono::steady_clock::now());
  return {.timeout = (std::max)(left, std::chrono::milliseconds(1)), .interrupt = [&ctx] {
            if (ctx.waiting().interrupt) ctx.waiting().interrupt();
            ctx.check_peers();
          }};
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
