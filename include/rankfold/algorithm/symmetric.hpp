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

/// Where the inputs of a call lie, as all ranks know it of all.
struct input_places {
  const std::byte* const* of = nullptr;  // of each rank, as mapped here; null: in ordinary memory
  bool any = false;                      // some rank's lies in symmetric memory
  bool all = true;                       // each rank's does
  bool apart = true;                     // no rank folds in place
};

/// Each rank says where its `bytes` bytes at `in` lie, and whether `out` is another place. Peers
/// may read symmetric memory from then on, until the last step of the call. Cost: 1 step of a line.
template <class Context>
input_places exchange_places(Context& ctx, const void* in, const void* out, std::size_t bytes) {
  struct told {
    detail::symmetric_place place;
    std::uint64_t apart;
  };
  const told own{ctx.symmetric().place_of(in, bytes), in != out};
  ctx.next_step(0);
  ctx.publish(&own, sizeof own);
  ctx.wait_all();
  const std::byte** const places = ctx.places();
  input_places all;
  all.of = places;
  for (int r = 0; r < ctx.size(); ++r) {
    told theirs = own;
    if (r != ctx.rank()) std::memcpy(&theirs, ctx.payload(r), sizeof theirs);
    const bool lies = theirs.place.allocation != 0;
    places[r] = lies ? ctx.symmetric().find(theirs.place, r, bytes) : nullptr;
    if (lies && places[r] == nullptr) {
      ctx.mismatch("rank " + std::to_string(r) + " has its input in allocation " +
                   std::to_string(theirs.place.allocation) + ", which all ranks have destroyed");
    }
    all.any = all.any || lies;
    all.all = all.all && lies;
    all.apart = all.apart && theirs.apart != 0;
  }
  return all;
}

/// Every rank folds all inputs where they lie, into an output that is none of them. In a closing
/// step each waits until all have read its own.
///
/// Cost: 1 step of a line; a rank writes nothing to its segment and reads (P - 1) · bytes from its
/// peers' inputs.
template <class Context>
void direct_all_reduce(Context& ctx, const kernel::reducer& reducer, const input_places& places,
                       void* out, std::size_t count) {
  const void** const inputs = ctx.inputs();
  for (int r = 0; r < ctx.size(); ++r) inputs[r] = places.of[r];
  reducer.fold(reducer.op, inputs, ctx.size(), out, count);
  ctx.next_step(0);
  ctx.publish();
  ctx.wait_all();
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
