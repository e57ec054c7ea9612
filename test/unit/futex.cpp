// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/futex.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "support/catch.hpp"

using namespace rankfold::detail;
using namespace std::chrono_literals;

TEST_CASE("the low half of a word is the half that changes first", "[futex]") {
  std::uint64_t word = 0x1122334455667788;
  CHECK(*low_half(&word) == 0x55667788);
}

TEST_CASE("a wait ends at once when the word has changed already", "[futex]") {
  std::uint64_t word = 2;
  const auto begin = std::chrono::steady_clock::now();
  futex_wait(low_half(&word), 1, 10s, false);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("a wait ends at its time limit", "[futex]") {
  std::uint64_t word = 1;
  const auto begin = std::chrono::steady_clock::now();
  futex_wait(low_half(&word), 1, 20ms, true);
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took >= 15ms);
  CHECK(took < 5s);
}

TEST_CASE("wake ends the wait of a sleeper, shared or private", "[futex]") {
  for (const bool shared : {false, true}) {
    alignas(8) std::uint64_t word = 1;
    std::atomic<bool> woken{false};
    std::jthread sleeper([&] {
      while (std::atomic_ref(word).load() == 1) futex_wait(low_half(&word), 1, 20s, shared);
      woken = true;
    });
    std::this_thread::sleep_for(20ms);
    CHECK_FALSE(woken);
    std::atomic_ref(word).store(2);
    futex_wake(low_half(&word), shared);
    const auto begin = std::chrono::steady_clock::now();
    sleeper.join();
    CHECK(std::chrono::steady_clock::now() - begin < 10s);
  }
}
