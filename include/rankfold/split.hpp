// SPDX-License-Identifier: Apache-2.0
// Groups: the ranks of a communicator agree on who belongs together, and each group meets by
// itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/meeting_options.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// The color of a rank that joins no group; any other negative number does as well.
inline constexpr int undefined = -1;

namespace detail {

/// What a rank says about itself when a communicator is split.
struct split_entry {
  std::int32_t color;
  std::int32_t key;
  std::uint8_t random[16];  // names the group of which this rank is the lowest
};
static_assert(sizeof(split_entry) == 24);

/// A group as one of its members sees it.
struct split_group {
  std::vector<int> members;  // ranks of the parent, in the order of their ranks in the group
  int rank = 0;              // the own place among them
  std::string key;
};

/// The group of rank `own`: the ranks of its color, by key, then by rank.
inline split_group group_of(const std::vector<split_entry>& entries, int own) {
  const auto entry = [&entries](int r) -> const split_entry& {
    return entries[static_cast<std::size_t>(r)];
  };
  split_group group;
  for (int r = 0; r < static_cast<int>(entries.size()); ++r) {
    if (entry(r).color == entry(own).color) group.members.push_back(r);
  }
  group.key = hex_text(entry(group.members.front()).random);
  std::stable_sort(group.members.begin(), group.members.end(),
                   [&](int a, int b) { return entry(a).key < entry(b).key; });
  group.rank = static_cast<int>(std::find(group.members.begin(), group.members.end(), own) -
                                group.members.begin());
  return group;
}

}  // namespace detail

namespace collectives {

/// Makes the transport of the group that this rank joins; none for a negative color. All ranks
/// return when all groups have met: a step before it, and one after.
///
/// While a group meets, each of its ranks looks at the parent ten times a second: a rank that fails
/// gives the parent up, and so ends the meeting of all.
template <class Context>
auto split(Context& ctx, int color, int key) {
  using transport = std::remove_cvref_t<decltype(ctx.transport())>;
  static_assert(splittable_transport<transport>,
                "rankfold: this transport cannot form groups: it has no member child(); see "
                "splittable_transport in rankfold/transport.hpp");
  std::optional<transport> made;
  const auto call =
      fingerprint::of(collective::split, 0, dtype::user, 0, algorithm::automatic, 0, 0);
  ctx.run(call, [&] {
    detail::split_entry own{color < 0 ? undefined : color, key, {}};
    detail::fill_random(own.random);
    const void* const* const inputs = algorithms::inline_line_exchange(ctx, &own, sizeof own);
    std::vector<detail::split_entry> entries(static_cast<std::size_t>(ctx.size()));
    for (std::size_t r = 0; r < entries.size(); ++r) {
      std::memcpy(&entries[r], inputs[r], sizeof own);
    }
    if (color >= 0) {
      const detail::split_group group = detail::group_of(entries, ctx.rank());
      made.emplace(ctx.transport().child(group.members, group.rank, group.key,
                                         detail::meeting_options(ctx)));
    }
    algorithms::inline_line_exchange(ctx, nullptr, 0);
  });
  return made;
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
