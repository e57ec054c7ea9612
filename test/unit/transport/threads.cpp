// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/threads.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"

using rankfold::peer_state;
using rankfold::threads_transport;

TEST_CASE("threads: every rank sees the same separate, zeroed, page-aligned segments",
          "[transport][threads]") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const auto ranks = threads_transport::create(size, {.workspace_bytes = 10000});
    REQUIRE(ranks.size() == static_cast<std::size_t>(size));
    std::vector<std::byte*> ends;
    for (int r = 0; r < size; ++r) {
      const threads_transport& rank = ranks[static_cast<std::size_t>(r)];
      CHECK(rank.rank() == r);
      CHECK(rank.size() == size);
      CHECK(rank.name() == "threads");
      // Each half in whole pages; then two kinds of page for messages between pairs.
      const auto pages = static_cast<std::size_t>(size == 1 ? 0 : size);
      CHECK(rank.segment_size() == 20480 + 16384 + 4096 * pages);
      for (int other = 0; other < size; ++other) {
        CHECK(rank.segment(other) == ranks[0].segment(other));
        CHECK(rank.state(other) == peer_state::alive);
      }
      std::byte* const own = rank.segment(r);
      CHECK(reinterpret_cast<std::uintptr_t>(own) % 4096 == 0);
      CHECK(std::all_of(own + 4096, own + rank.segment_size(),
                        [](std::byte b) { return b == std::byte{0}; }));
      for (const std::byte* end : ends) CHECK(own >= end);
      ends.push_back(own + rank.segment_size());
      CHECK(rankfold::detail::header_of(own).rank == r);
      CHECK(rankfold::detail::header_of(own).size == size);
    }
  }
}

TEST_CASE("threads: a rank leaves when its transport is destroyed, and only then",
          "[transport][threads]") {
  auto ranks = threads_transport::create(3);
  std::optional<threads_transport> first(std::move(ranks[0]));
  threads_transport second(std::move(ranks[1]));
  ranks.erase(ranks.begin(), ranks.begin() + 2);  // moved from: these say nothing
  CHECK(second.state(0) == peer_state::alive);
  CHECK(second.state(1) == peer_state::alive);
  CHECK(second.state(2) == peer_state::alive);
  std::byte* const memory = first->segment(0);
  first.reset();
  CHECK(second.state(0) == peer_state::left);
  CHECK(second.state(2) == peer_state::alive);
  ranks.clear();
  CHECK(second.state(2) == peer_state::left);
  CHECK(second.segment(0) == memory);  // still there for who is left
  memory[30000] = std::byte{1};
}

TEST_CASE("threads: what is assigned over leaves", "[transport][threads]") {
  auto one = threads_transport::create(2);
  auto two = threads_transport::create(2);
  one[0] = std::move(two[0]);
  CHECK(one[1].state(0) == peer_state::left);
  CHECK(two[1].state(0) == peer_state::alive);
  CHECK(one[0].segment(1) == two[1].segment(1));
}

TEST_CASE("threads: what one thread writes, the others read", "[transport][threads]") {
  constexpr int size = 4;
  auto ranks = threads_transport::create(size, {.workspace_bytes = 8192});
  std::atomic<int> written{0};
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r, rank = std::move(ranks[static_cast<std::size_t>(r)])] {
        std::fill_n(rank.segment(r) + 20480, 8192, static_cast<std::byte>(r + 1));
        ++written;
        while (written.load() < size) std::this_thread::yield();
        for (int other = 0; other < size; ++other) {
          wrong +=
              std::any_of(rank.segment(other) + 20480, rank.segment(other) + 20480 + 8192,
                          [other](std::byte b) { return b != static_cast<std::byte>(other + 1); });
        }
      });
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("threads: sizes out of range are errors, and so is lack of memory",
          "[transport][threads]") {
  CHECK_THROWS_AS(threads_transport::create(0), std::invalid_argument);
  CHECK_THROWS_AS(threads_transport::create(-3), std::invalid_argument);
  CHECK_THROWS_AS(threads_transport::create(4097), std::invalid_argument);
  CHECK_THROWS_AS(threads_transport::create(2, {.workspace_bytes = 0}), std::invalid_argument);
  CHECK_THROWS_AS(
      threads_transport::create(2, {.workspace_bytes = (std::numeric_limits<std::size_t>::max)()}),
      std::invalid_argument);
  try {
    threads_transport::create(2, {.workspace_bytes = std::size_t{1} << 45});
    FAIL("64 TiB were had");
  } catch (const rankfold::transport_error& e) {
    INFO(e.what());
    CHECK(contains(e.what(), "need 64.0 TiB"));
    CHECK(contains(e.what(), "have "));
  }
}
