// SPDX-License-Identifier: Apache-2.0
// Inputs that lie in memory which all ranks address: who has one, where, and all_reduce of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/detail/symmetric_allocation.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// Whether ranks tell each other where their inputs lie, in an all_reduce of `bytes` that is not
/// carried out in the line: a function of what all share.
template <class Context>
bool tells_places(Context& ctx, std::size_t bytes, std::size_t element_size) {
  return ctx.symmetric().used() && bytes >= ctx.tuning().symmetric_min_bytes && ctx.size() > 1 &&
         detail::has_room_for_two_shot(ctx, element_size);
}

/// What is done with inputs of which some lie in symmetric memory.
enum class way_of_places { staged, direct, two_shot };

/// Where the inputs of a call lie, and what to do with them: the same on all ranks.
struct input_places {
  const std::byte* const* of;  // of each rank, as mapped here; null: in ordinary memory
  way_of_places way;
};

/// Each rank says where its `bytes` bytes at `in` lie, and whether its output is apart from them;
/// without symmetric memory the call would be carried out as `how`. Peers may read such inputs from
/// then on, until the last step of the call. Cost: 1 step of a line.
template <class Context>
[[gnu::noinline]] input_places exchange_places(Context& ctx, const void* in, bool apart_here,
                                               std::size_t bytes, algorithm how) {
  struct told {
    detail::symmetric_place place;
    std::uint64_t apart;
  };
  const told own{ctx.symmetric().place_of(in, bytes), apart_here ? 1U : 0U};
  ctx.next_step(0);
  ctx.publish(&own, sizeof own);
  ctx.wait_all();
  const std::byte** const places = ctx.places();
  bool any = false;
  bool all = true;
  bool apart = true;
  for (int r = 0; r < ctx.size(); ++r) {
    told theirs = own;
    if (r != ctx.rank()) std::memcpy(&theirs, ctx.payload(r), sizeof theirs);
    const bool lies = theirs.place.allocation != 0;
    places[r] = lies ? ctx.symmetric().find(theirs.place, r, bytes) : nullptr;
    if (lies && places[r] == nullptr) {
      ctx.mismatch("rank " + std::to_string(r) + " has its input in allocation " +
                   std::to_string(theirs.place.allocation) + ", which all ranks have destroyed");
    }
    any = any || lies;
    all = all && lies;
    apart = apart && theirs.apart != 0;
  }
  // In place a rank writes over what its peers read: one shot of it needs a copy, two do not.
  const bool in_two_shots =
      how == algorithm::two_shot ? any : all && bytes >= ctx.tuning().symmetric_in_place_min_bytes;
  const bool direct = how != algorithm::two_shot && all && apart;
  return {places, direct         ? way_of_places::direct
                  : in_two_shots ? way_of_places::two_shot
                                 : way_of_places::staged};
}

/// Every rank folds all inputs where they lie, into an output that is none of them. In a closing
/// step each waits until all have read its own.
///
/// Cost: 1 step of a line; a rank writes nothing to its segment and reads (P - 1) · bytes from its
/// peers' inputs.
template <class Context>
[[gnu::noinline]] void direct_all_reduce(Context& ctx, const kernel::reducer& reducer,
                                         const std::byte* const* places, void* out,
                                         std::size_t count) {
  const void** const inputs = ctx.inputs();
  for (int r = 0; r < ctx.size(); ++r) inputs[r] = places[r];
  reducer.fold(reducer.op, inputs, ctx.size(), out, count);
  ctx.next_step(0);
  ctx.publish();
  ctx.wait_all();
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
