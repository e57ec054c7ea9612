// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/barrier.hpp"

#include <atomic>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("nobody passes a barrier before all have come", "[collective][barrier]") {
  for (const int ranks : {1, 2, 3, 8}) {
    std::atomic<int> come{0};
    const auto early = testing::run_ranks(ranks, [&](auto& comm) {
      int bad = 0;
      for (int i = 1; i <= 200; ++i) {
        ++come;
        comm.barrier();
        bad += come < i * comm.size();
        comm.barrier();
      }
      return bad;
    });
    CHECK(early == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("barriers with different tags do not meet", "[collective][barrier]") {
  CHECK_THROWS_AS(
      testing::run_ranks(
          2, [](auto& comm) { comm.barrier({.tag = static_cast<unsigned>(comm.rank())}); }),
      mismatch_error);
}
