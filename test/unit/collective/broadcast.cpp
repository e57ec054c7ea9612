// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/broadcast.hpp"

#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("broadcasts in a row from changing roots, with other collectives between, never mix",
          "[collective][broadcast]") {
  for (const int ranks : {2, 3, 5}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [](auto& comm) {
          int bad = 0;
          for (int i = 0; i < 300; ++i) {
            const int root = i * 7 % comm.size();
            // From inside a line to several chunks.
            std::vector<int> x(static_cast<std::size_t>(i * 37 % 900),
                               comm.rank() == root ? i : -1);
            comm.broadcast(std::span(x), root);
            for (const int value : x) bad += value != i;
            if (i % 11 == 0) {
              std::vector<int> y{1};
              comm.all_reduce(std::span(y));
              bad += y[0] != comm.size();
            }
          }
          return bad;
        },
        {.communicator = {.tune = {.chunk_bytes = 1024}}, .threads = {.workspace_bytes = 8192}});
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("a root does not wait for its readers", "[collective][broadcast]") {
  using namespace std::chrono_literals;
  const auto seconds = testing::run_ranks(2, [](auto& comm) {
    comm.barrier();
    if (comm.rank() == 1) std::this_thread::sleep_for(200ms);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int> x(5);
    comm.broadcast(std::span(x), 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  CHECK(seconds[0] < 0.1);
}
