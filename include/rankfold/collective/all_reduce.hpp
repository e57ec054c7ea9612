// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/one_shot.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/algorithm/symmetric.hpp"
#include "rankfold/algorithm/two_level.hpp"
#include "rankfold/algorithm/two_shot.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fp_environment.hpp"
#include "rankfold/detail/output.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/epilogue.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Folds `count` elements at `in` over all ranks; every rank puts the result into its `out`, one of
/// detail/output.hpp.
template <class Context, class Output>
void all_reduce_to(Context& ctx, const kernel::reducer& reducer, const void* in, const Output& out,
                   std::size_t count, const call_options& options) {
  detail::check_call("all_reduce", count, options);
  const std::size_t bytes = count * reducer.element_size;
  const algorithm how = algorithms::select(ctx, collective::all_reduce, options.algorithm, bytes,
                                           reducer.element_size);
  const detail::fp_environment environment;
  const fingerprint print =
      fingerprint::of(collective::all_reduce, reducer.type == dtype::user ? bytes : count,
                      reducer.type, reducer.operator_id, how, 0, options.tag);
  const auto on_one_level = [&](auto& context, algorithm chosen) {
    if (chosen == algorithm::inline_line) {
      algorithms::inline_line_all_reduce(context, reducer, in, out, count);
      return;
    }
    const std::byte* const* places = nullptr;
    if constexpr (requires { context.symmetric(); }) {
      if (algorithms::tells_places(context, bytes, reducer.element_size)) [[unlikely]] {
        bool apart = false;  // an epilogue may write over the input
        if constexpr (Output::keeps) apart = in != out.at(0);
        const auto found = algorithms::exchange_places(context, in, apart, bytes, chosen);
        if constexpr (Output::keeps) {
          if (found.way == algorithms::way_of_places::direct) {
            algorithms::direct_all_reduce(context, reducer, found.of, out.at(0), count);
            return;
          }
        }
        if (found.way == algorithms::way_of_places::two_shot) places = found.of;
      }
    }
    if (places != nullptr || (chosen == algorithm::two_shot && context.size() > 1)) {
      algorithms::two_shot_all_reduce(context, reducer, in, out, count, places);
    } else {
      algorithms::one_shot_all_reduce(context, reducer, in, out, count);
    }
  };
  if constexpr (algorithms::has_hosts<Context>) {
    if (how == algorithm::two_level) {
      return ctx.run_two_level(print, [&] {
        if (ctx.layout().hosts() == 1) {
          on_one_level(ctx.local(),
                       algorithms::select(ctx.local(), collective::all_reduce, algorithm::automatic,
                                          bytes, reducer.element_size));
        } else {
          algorithms::two_level_all_reduce(ctx, reducer, in, out, count);
        }
      });
    }
  }
  ctx.run(print, [&] { on_one_level(ctx, how); });
}

/// The same into a buffer; `in` and `out` are the same or apart.
template <class Context>
void all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in, void* out,
                std::size_t count, const call_options& options) {
  const std::size_t bytes = count * reducer.element_size;
  if (in != out) detail::check_apart("all_reduce", in, bytes, out, bytes);
  all_reduce_to(ctx, reducer, in, detail::buffer_output(out, reducer.element_size), count, options);
}

/// The same through an epilogue, which gets each element of the result once, in ascending order.
template <class Context>
void all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in,
                const kernel::epilogue& epilogue, std::size_t count, const call_options& options) {
  all_reduce_to(ctx, reducer, in, detail::epilogue_output(epilogue, reducer.element_size), count,
                options);
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
