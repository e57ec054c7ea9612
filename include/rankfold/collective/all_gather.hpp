// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

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

/// Puts the `count` elements at `in` of every rank r to `place(r)`. `in` is apart from all these
/// places, or is the rank's own.
template <class Context, class Place>
void all_gather_to(Context& ctx, dtype type, std::size_t element_size, const void* in,
                   Place&& place, std::size_t count, const call_options& options) {
  const std::size_t bytes = count * element_size;
  const algorithm how =
      algorithms::select(ctx, collective::all_gather, options.algorithm, bytes, 1);
  ctx.run(fingerprint::of(collective::all_gather, type == dtype::user ? bytes : count, type,
                          options.type_id, how, 0, options.tag),
          [&] {
            if (how == algorithm::inline_line) {
              algorithms::inline_line_all_gather_to(ctx, in, place, bytes);
            } else {
              algorithms::one_shot_all_gather(ctx, in, place, detail::even_blocks{bytes});
            }
          });
}

/// The same with `blocks` of bytes.
template <class Context, class Place>
void all_gather_uneven_to(Context& ctx, dtype type, std::size_t element_size, const void* in,
                          Place&& place, const detail::uneven_blocks& blocks,
                          const call_options& options) {
  constexpr collective what = collective::all_gather_uneven;
  const algorithm how = algorithms::select(ctx, what, options.algorithm, blocks.largest(), 1);
  ctx.run(fingerprint::of(what, type == dtype::user ? element_size : 0, type, options.type_id, how,
                          0, options.tag),
          [&] { algorithms::one_shot_all_gather(ctx, in, place, blocks); });
}

/// Puts the `count` elements at `in` of every rank into `out`, in rank order. `in` is apart from
/// `out`, or is the rank's own block in it.
template <class Context>
void all_gather(Context& ctx, dtype type, std::size_t element_size, const void* in, void* out,
                std::size_t count, const call_options& options) {
  detail::check_call("all_gather", count, options);
  const std::size_t bytes = count * element_size;
  const std::size_t all = bytes * static_cast<std::size_t>(ctx.size());
  std::byte* const target = static_cast<std::byte*>(out);
  if (target + bytes * static_cast<std::size_t>(ctx.rank()) != in) {
    detail::check_apart("all_gather", in, bytes, out, all);
  }
  all_gather_to(
      ctx, type, element_size, in, [=](std::size_t r) { return target + bytes * r; }, count,
      options);
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
  std::byte* const target = static_cast<std::byte*>(out);
  if (target + blocks.begin(rank) != in) {
    detail::check_apart(name_of(what), in, blocks.size(rank), out, blocks.total());
  }
  all_gather_uneven_to(
      ctx, type, element_size, in, [&](std::size_t r) { return target + blocks.begin(r); }, blocks,
      options);
}

/// Where what is gathered goes that has memory of its own for each rank, outs[r] for rank r's;
/// `size(r)` is its bytes. Checks that `in` is apart from all of it, or is the rank's own.
template <class Context, class Size>
auto places_of(std::string_view name, Context& ctx, const void* in, std::span<void* const> outs,
               Size&& size) {
  const auto rank = static_cast<std::size_t>(ctx.rank());
  detail::check_count(name, "outs", outs.size(), static_cast<std::size_t>(ctx.size()));
  for (std::size_t r = 0; r < outs.size(); ++r) {
    if (r == rank && outs[r] == in) continue;
    detail::check_apart(name, in, size(rank), outs[r], size(r));
  }
  return [outs](std::size_t r) { return static_cast<std::byte*>(outs[r]); };
}

/// all_gather with the elements of rank r to outs[r].
template <class Context>
void all_gather(Context& ctx, dtype type, std::size_t element_size, const void* in,
                std::span<void* const> outs, std::size_t count, const call_options& options) {
  detail::check_call("all_gather", count, options);
  const auto place =
      places_of("all_gather", ctx, in, outs, [&](std::size_t) { return count * element_size; });
  all_gather_to(ctx, type, element_size, in, place, count, options);
}

template <class Context>
void all_gather_uneven(Context& ctx, dtype type, std::size_t element_size, const void* in,
                       std::span<void* const> outs, std::span<const std::size_t> counts,
                       const call_options& options) {
  constexpr collective what = collective::all_gather_uneven;
  detail::check_call(name_of(what), element_size, options);
  const detail::uneven_blocks blocks(name_of(what), "counts", counts, ctx.size(), element_size,
                                     element_size);
  const auto place =
      places_of(name_of(what), ctx, in, outs, [&](std::size_t r) { return blocks.size(r); });
  all_gather_uneven_to(ctx, type, element_size, in, place, blocks, options);
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
