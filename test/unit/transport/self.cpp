// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/self.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "support/catch.hpp"

TEST_CASE("self is one rank with a small zeroed segment of its own", "[transport][self]") {
  const rankfold::self_transport self;
  CHECK(self.rank() == 0);
  CHECK(self.size() == 1);
  CHECK(self.name() == "self");
  CHECK(self.state(0) == rankfold::peer_state::alive);
  CHECK(reinterpret_cast<std::uintptr_t>(self.segment(0)) % 4096 == 0);
  // The layout's 20 KiB and a page for each half of the workspace.
  CHECK(self.segment_size() == 20480 + 2 * 4096);
  CHECK(std::all_of(self.segment(0) + 4096, self.segment(0) + self.segment_size(),
                    [](std::byte b) { return b == std::byte{0}; }));
  const auto& header = rankfold::detail::header_of(self.segment(0));
  CHECK(header.rank == 0);
  CHECK(header.size == 1);
}

TEST_CASE("self can be moved, and what is moved from is empty", "[transport][self]") {
  rankfold::self_transport first;
  std::byte* const memory = first.segment(0);
  memory[20480] = std::byte{7};
  rankfold::self_transport second(std::move(first));
  CHECK(second.segment(0) == memory);
  rankfold::self_transport third;
  third = std::move(second);
  CHECK(third.segment(0) == memory);
  CHECK(third.segment(0)[20480] == std::byte{7});
  CHECK_FALSE(rankfold::detail::has_left(memory));
}
