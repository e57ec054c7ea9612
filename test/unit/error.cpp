// SPDX-License-Identifier: Apache-2.0
#include "rankfold/error.hpp"

#include <stdexcept>
#include <string>
#include <type_traits>

#include "support/catch.hpp"

using namespace rankfold;

TEMPLATE_TEST_CASE("every run-time error is a rankfold::error and keeps its text", "[error]",
                   timeout_error, peer_lost_error, mismatch_error, rendezvous_error,
                   transport_error, aborted_error) {
  STATIC_REQUIRE(std::is_base_of_v<error, TestType>);
  STATIC_REQUIRE(std::is_base_of_v<std::runtime_error, TestType>);
  try {
    throw TestType("rank 3 is late");
  } catch (const error& e) {
    CHECK(std::string(e.what()) == "rank 3 is late");
  }
}
