// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/spin_wait.hpp"

#include <atomic>
#include <thread>

#include "support/catch.hpp"

TEST_CASE("a spinning thread sees another thread's store", "[spin_wait]") {
  std::atomic<int> flag{0};
  std::jthread other([&] { flag = 1; });
  while (flag == 0) {
    rankfold::detail::spin_pause();
    std::this_thread::yield();  // one CPU is enough for this test
  }
  CHECK(flag == 1);
}
