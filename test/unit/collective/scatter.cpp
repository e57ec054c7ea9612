// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/scatter.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/far_blocks.hpp"

using namespace rankfold;

namespace {

/// Element i of the root's buffer.
std::int32_t of(int root, std::size_t i) { return root * 100000 + static_cast<int>(i); }

std::vector<std::int32_t> row(int root, std::size_t begin, std::size_t count) {
  std::vector<std::int32_t> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = of(root, begin + i);
  return x;
}

testing::run_options small() {
  return {.communicator = {.tune = {.chunk_bytes = 256}}, .threads = {.workspace_bytes = 16384}};
}

}  // namespace

TEST_CASE("scatter hands out any root's blocks, in place too", "[collective][scatter]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          const auto P = static_cast<std::size_t>(ranks);
          const auto me = static_cast<std::size_t>(comm.rank());
          for (const std::size_t count : {0u, 1u, 5u, 63u, 64u, 65u, 300u}) {
            for (int root = 0; root < ranks; ++root) {
              const bool is_root = comm.rank() == root;
              const auto wanted = row(root, me * count, count);
              const auto before = row(root, 0, is_root ? count * P : 0);
              std::vector<std::int32_t> all = before;
              std::vector<std::int32_t> mine(count);
              comm.scatter(std::span<const std::int32_t>(all), std::span(mine), root);
              bad += mine != wanted;
              mine.assign(count, 0);
              comm.scatter(is_root ? std::span(all) : std::span(mine), root);
              bad += all != before || (!is_root && mine != wanted);
              mine.assign(count, 0);
              const auto own =
                  is_root ? std::span(all).subspan(me * count, count) : std::span(mine);
              comm.scatter(std::span(all), own, root);
              bad += all != before || (!is_root && mine != wanted);
            }
          }
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("an uneven scatter hands each rank as many as it expects", "[collective][scatter]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          const auto me = static_cast<std::size_t>(comm.rank());
          for (std::size_t table = 0; table < 6; ++table) {
            std::vector<std::size_t> counts;
            for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
              counts.push_back((r * 7 + table * 3) % 5 * table * 17);
            const std::size_t begin = std::accumulate(
                counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(me), std::size_t{0});
            const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
            for (int root = 0; root < ranks; ++root) {
              const bool is_root = comm.rank() == root;
              const auto known = is_root ? counts : std::vector<std::size_t>{};
              const auto all = row(root, 0, is_root ? total : 0);
              std::vector<std::int32_t> mine(counts[me]);
              comm.scatter(std::span(all), std::span(mine), known, root);
              bad += mine != row(root, begin, counts[me]);
            }
          }
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("scatter by run-time types, even and uneven", "[collective][scatter]") {
  const auto results = testing::run_ranks(2, [](auto& comm) {
    const std::vector<std::uint64_t> all{1, 2, 3, 4};
    const bool is_root = comm.rank() == 1;
    std::vector<std::uint64_t> mine(2);
    comm.scatter(is_root ? all.data() : nullptr, mine.data(), 2, dtype::float64, 1);
    const std::vector<std::size_t> counts{3, 1};
    std::vector<std::uint64_t> more(is_root ? 1 : 3);
    comm.scatter(is_root ? all.data() : nullptr, counts, more.data(), more.size(), dtype::float64,
                 1);
    mine.insert(mine.end(), more.begin(), more.end());
    return mine;
  });
  CHECK(results[0] == std::vector<std::uint64_t>{1, 2, 1, 2, 3});
  CHECK(results[1] == std::vector<std::uint64_t>{3, 4, 4});
}

TEST_CASE("a rank that expects another number than the root sends is a mismatch on all",
          "[collective][scatter]") {
  for (int liar = 0; liar < 2; ++liar) {
    const auto texts = testing::run_ranks(3, [&](auto& comm) -> std::string {
      const std::vector<std::size_t> counts{200, 200, 200};
      std::vector<float> mine(comm.rank() == liar ? 199 : 200);
      std::vector<float> all(600);
      try {
        comm.scatter(std::span(all), std::span(mine), counts, 2);
        comm.barrier();
      } catch (const mismatch_error& e) {
        return e.what();
      }
      return "";
    });
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(text.find("rank 2 sends rank " + std::to_string(liar) + " 200 elements, rank " +
                      std::to_string(liar) + " expects 199") != std::string::npos);
    }
  }
}

TEST_CASE("the root of a scatter does not wait", "[collective][scatter]") {
  using namespace std::chrono_literals;
  for (const bool uneven : {false, true}) {
    const auto seconds = testing::run_ranks(2, [&](auto& comm) {
      comm.barrier();
      if (comm.rank() == 1) std::this_thread::sleep_for(200ms);
      const auto begin = std::chrono::steady_clock::now();
      std::vector<int> all(200);
      std::vector<int> mine(100);
      const std::vector<std::size_t> counts{100, 100};
      if (uneven) {
        comm.scatter(std::span(all), std::span(mine), counts);
      } else {
        comm.scatter(std::span(all), std::span(mine));
      }
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    CHECK(seconds[0] < 0.1);
  }
}

TEST_CASE("a scatter finds its place behind 4 GiB", "[collective][scatter]") {
  constexpr std::size_t large = (std::size_t{1} << 32) + 7;
  const far_buffer all(large + 5);
  if (!all) LEAVE_OUT("no address space for 4 GiB");
  for (std::size_t i = 0; i < 5; ++i) all.span()[large + i] = static_cast<std::byte>(40 + i);
  const auto results = testing::run_ranks(2, [&](auto& comm) {
    const std::vector<std::size_t> counts{large, 5};
    std::vector<std::byte> mine(5);
    comm.scatter(comm.rank() == 0 ? all.span() : std::span(mine), counts, 0);
    return mine[4];
  });
  CHECK(results[1] == std::byte{44});
}

TEST_CASE("scatter refuses wrong arguments before anything is sent", "[collective][scatter]") {
  const auto refused = testing::run_ranks(2, [](auto& comm) {
    int n = 0;
    const auto refuses = [&](auto&& call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        ++n;
      }
    };
    std::vector<float> x(4);
    std::vector<float> y(8);
    const std::vector<std::size_t> counts{4, 4};
    const std::vector<std::size_t> other{3, 5};
    const int me = comm.rank();
    refuses([&] { comm.scatter(std::span(y), std::span(x), -1); });
    refuses([&] { comm.scatter(std::span(y).first(7), std::span(x), me); });
    refuses([&] { comm.scatter(std::span(y), std::span(y).subspan(1, 4), me); });
    refuses([&] { comm.scatter(std::span(y).first(7), me); });
    refuses([&] { comm.scatter(std::span(y), std::span(x), other, me); });
    refuses([&] { comm.scatter(std::span(y).first(7), std::span(x), counts, me); });
    comm.barrier();
    return n;
  });
  CHECK(refused == std::vector<int>{6, 6});
}
