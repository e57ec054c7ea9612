// SPDX-License-Identifier: Apache-2.0
#include "rankfold/testing/run_ranks.hpp"

#include <chrono>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("run_ranks returns every rank's value in rank order", "[run_ranks]") {
  const auto values = testing::run_ranks(4, [](auto& comm) {
    std::vector<int> x{comm.rank() + 1};
    comm.all_reduce(std::span(x));
    return 100 * comm.rank() + x[0];
  });
  CHECK(values == std::vector<int>{10, 110, 210, 310});
}

TEST_CASE("run_ranks rethrows the first failure with its rank and original", "[run_ranks]") {
  try {
    testing::run_ranks(3, [](auto& comm) {
      if (comm.rank() == 1) throw std::out_of_range("no such layer");
      comm.barrier();
    });
    FAIL("nothing was thrown");
  } catch (const testing::rank_failure& e) {
    CHECK(e.rank() == 1);
    CHECK(std::string(e.what()) == "rank 1: no such layer");
    CHECK_THROWS_AS(std::rethrow_if_nested(e), std::out_of_range);
  }
}

TEST_CASE("run_ranks keeps the type of the library's own errors", "[run_ranks]") {
  CHECK_THROWS_AS(
      testing::run_ranks(2,
                         [](auto& comm) {
                           std::vector<float> x(static_cast<std::size_t>(comm.rank()) + 1);
                           comm.all_reduce(std::span(x));
                         }),
      mismatch_error);
  CHECK_THROWS_AS(
      testing::run_ranks(2,
                         [](auto& comm) {
                           if (comm.rank() == 0)
                             std::this_thread::sleep_for(std::chrono::milliseconds(400));
                           comm.barrier();
                         },
                         {.communicator = {.timeout = std::chrono::milliseconds(50)}}),
      timeout_error);
}

TEST_CASE("run_ranks refuses a number of ranks that makes no sense", "[run_ranks]") {
  CHECK_THROWS_AS(testing::run_ranks(0, [](auto&) {}), std::invalid_argument);
}
