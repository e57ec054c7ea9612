// SPDX-License-Identifier: Apache-2.0
// Inputs that lie in memory which all ranks address: who has one, and where.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/detail/symmetric_allocation.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Whether ranks tell each other where their inputs lie, in an all_reduce of `bytes` that would
/// else be carried out as `how`: a function of what all share.
template <class Context>
bool tells_places(Context& ctx, algorithm how, std::size_t bytes, std::size_t element_size) {
  if constexpr (requires { ctx.symmetric(); }) {
    return ctx.symmetric().used() && bytes >= ctx.tuning().symmetric_min_bytes && ctx.size() > 1 &&
           how != algorithm::inline_line && detail::has_room_for_two_shot(ctx, element_size);
  } else {
    return false;
  }
}

/// Each rank says where its `bytes` bytes at `in` lie. Returns, by rank, where they are mapped
/// here, null for a rank with ordinary memory; null where that is all of them. Cost: 1 step of a
/// line.
///
/// Peers may read `in` from this step on, as two_shot does, until the call's last step.
template <class Context>
const std::byte* const* exchange_places(Context& ctx, const void* in, std::size_t bytes) {
  const detail::symmetric_place own = ctx.symmetric().place_of(in, bytes);
  ctx.next_step(0);
  ctx.publish(&own, sizeof own);
  ctx.wait_all();
  const std::byte** const places = ctx.places();
  bool any = false;
  for (int r = 0; r < ctx.size(); ++r) {
    detail::symmetric_place place;
    std::memcpy(&place, ctx.payload(r), sizeof place);
    places[r] = nullptr;
    if (place.allocation == 0) continue;
    any = true;
    places[r] = ctx.symmetric().find(place, r, bytes);
    if (places[r] == nullptr) {
      ctx.mismatch("rank " + std::to_string(r) + " has its input in allocation " +
                   std::to_string(place.allocation) + ", which all ranks have destroyed");
    }
  }
  return any ? places : nullptr;
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
