// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/bounded_time.hpp"

#include <chrono>

#include "support/catch.hpp"

using namespace rankfold;
using namespace std::chrono_literals;

TEST_CASE("a time that is bounded can be added to now, and a usual one is as it was", "[time]") {
  for (const auto time : {-5ms, 0ms, 1ms, std::chrono::milliseconds(87600h)}) {
    CHECK(detail::bounded_time(time) == time);
  }
  const auto now = std::chrono::steady_clock::now();
  const auto most = std::chrono::milliseconds::max();
  CHECK(now + detail::bounded_time(most) == now + 87600h);
}
