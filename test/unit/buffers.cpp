// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/buffers.hpp"

#include <stdexcept>

#include "support/catch.hpp"

using namespace rankfold::detail;

TEST_CASE("buffers that overlap in part are refused, apart and empty ones are not", "[buffers]") {
  char x[32];
  CHECK_NOTHROW(check_apart("op", x, 16, x + 16, 16));
  CHECK_NOTHROW(check_apart("op", x + 16, 16, x, 16));
  CHECK_NOTHROW(check_apart("op", x, 0, x, 16));
  CHECK_THROWS_AS(check_apart("op", x, 17, x + 16, 16), std::invalid_argument);
  CHECK_THROWS_AS(check_apart("op", x + 15, 16, x, 16), std::invalid_argument);
  CHECK_THROWS_AS(check_apart("op", x + 4, 4, x, 16), std::invalid_argument);
}

TEST_CASE("a wrong count is refused with both numbers", "[buffers]") {
  CHECK_NOTHROW(check_count("all_gather", "out", 8, 8));
  CHECK_THROWS_WITH(check_count("all_gather", "out", 7, 8),
                    "all_gather: out has 7 elements; expected 8");
}

TEST_CASE("a rank outside the communicator is refused with the range", "[buffers]") {
  CHECK_NOTHROW(check_rank("broadcast", "root", 3, 4));
  CHECK_THROWS_WITH(check_rank("broadcast", "root", 4, 4), "broadcast: root is 4; expected 0 to 3");
  CHECK_THROWS_AS(check_rank("broadcast", "root", -1, 4), std::invalid_argument);
}
