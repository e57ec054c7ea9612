// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/fork_generation.hpp"

#include <string>

#include "support/catch.hpp"
#include "support/fork_ranks.hpp"

TEST_CASE("the generation differs in a child, again in its child, and stays in the parent",
          "[detail][fork_generation]") {
  const unsigned before = rankfold::detail::fork_generation();
  const auto outcomes = fork_ranks(1, [before](int, const rank_voice&) {
    const unsigned child = rankfold::detail::fork_generation();
    const auto inner = fork_ranks(1, [child](int, const rank_voice&) {
      return std::string(rankfold::detail::fork_generation() != child ? "differs" : "same");
    });
    return (child != before ? "differs " : "same ") + inner[0].text +
           (rankfold::detail::fork_generation() == child ? " stays" : " changes");
  });
  CHECK(outcomes[0].text == "differs differs stays");
  CHECK(rankfold::detail::fork_generation() == before);
}
