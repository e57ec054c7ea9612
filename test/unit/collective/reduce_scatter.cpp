// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/reduce_scatter.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

using namespace rankfold;

TEMPLATE_TEST_CASE("reduce_scatter gives each rank the oracle's bits of its block",
                   "[collective][reduce_scatter]", float, double, bfloat16, float16, std::int8_t,
                   std::uint64_t) {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const std::size_t count : {0u, 1u, 5u, 31u, 32u, 33u, 500u}) {
      INFO(ranks << " ranks, blocks of " << count);
      const std::size_t all = count * static_cast<std::size_t>(ranks);
      std::vector<std::vector<TestType>> in;
      for (int r = 0; r < ranks; ++r) in.push_back(values::hostile<TestType>(all, r, seed));
      const std::vector<TestType> wanted = reference::fold<TestType>(in, max{});
      const auto results = testing::run_ranks(
          ranks,
          [&](auto& comm) {
            std::vector<TestType> out(count);
            comm.reduce_scatter(std::span(in[static_cast<std::size_t>(comm.rank())]),
                                std::span(out), max{});
            return out;
          },
          {.communicator = {.tune = {.chunk_bytes = 256}}, .threads = {.workspace_bytes = 16384}});
      std::vector<TestType> joined;
      for (const auto& block : results) joined.insert(joined.end(), block.begin(), block.end());
      REQUIRE(joined.size() == all);
      CHECK((all == 0 || std::memcmp(joined.data(), wanted.data(), all * sizeof(TestType)) == 0));
    }
  }
}

TEST_CASE("reduce_scatter refuses an output inside the input that is not the own block",
          "[collective][reduce_scatter]") {
  testing::run_ranks(2, [](auto& comm) {
    std::vector<float> x(4);
    const std::size_t other = comm.rank() == 0 ? 2 : 0;
    try {
      comm.reduce_scatter(std::span(x), std::span(x).subspan(other, 2));
    } catch (const std::invalid_argument&) {
      comm.barrier();
      return;
    }
    throw std::runtime_error("was not refused");
  });
}
