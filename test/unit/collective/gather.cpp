// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/gather.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
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

struct record {  // no dtype of the library
  std::int32_t key;
  std::array<char, 9> text;
};

/// What rank r has at i.
record of(int r, std::size_t i) { return {r * 1000 + static_cast<int>(i), {"rank"}}; }

std::vector<record> row(int r, std::size_t count) {
  std::vector<record> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = of(r, i);
  return x;
}

/// How many records of `found` are not those of the ranks' rows of these counts.
int wrong_in(std::span<const record> found, const std::vector<std::size_t>& counts) {
  int bad = 0;
  std::size_t at = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    for (std::size_t i = 0; i < counts[r]; ++i, ++at) {
      bad += at >= found.size() || found[at].key != of(static_cast<int>(r), i).key;
    }
  }
  return bad + (at != found.size());
}

testing::run_options small() {
  return {.communicator = {.tune = {.chunk_bytes = 256}}, .threads = {.workspace_bytes = 16384}};
}

}  // namespace

TEST_CASE("gather brings any trivially copyable type to any root, in place too",
          "[collective][gather]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          for (const std::size_t count : {0u, 1u, 3u, 20u, 100u}) {
            const std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), count);
            for (int root = 0; root < ranks; ++root) {
              const bool is_root = comm.rank() == root;
              std::vector<record> mine = row(comm.rank(), count);
              std::vector<record> all(is_root ? count * counts.size() : 0);
              comm.gather(std::span<const record>(mine), std::span(all), root);
              if (is_root) bad += wrong_in(all, counts);
              // In place, in both forms.
              for (const bool one_span : {false, true}) {
                std::fill(all.begin(), all.end(), record{});
                const std::span<record> own =
                    is_root ? std::span(all).subspan(static_cast<std::size_t>(root) * count, count)
                            : std::span(mine);
                std::copy(mine.begin(), mine.end(), own.begin());
                if (one_span) {
                  comm.gather(is_root ? std::span(all) : std::span(mine), root);
                } else {
                  comm.gather(own, std::span(all), root);
                }
                if (is_root) bad += wrong_in(all, counts);
              }
            }
          }
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("an uneven gather brings what each rank likes to send; the others know no counts",
          "[collective][gather]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          for (std::size_t table = 0; table < 6; ++table) {
            std::vector<std::size_t> counts;
            for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
              counts.push_back((r * 7 + table * 3) % 5 * table * 9);
            for (int root = 0; root < ranks; ++root) {
              const bool is_root = comm.rank() == root;
              const auto known = is_root ? counts : std::vector<std::size_t>{};
              std::size_t total = 0;
              for (const std::size_t count : known) total += count;
              const auto mine = row(comm.rank(), counts[static_cast<std::size_t>(comm.rank())]);
              std::vector<record> all(total);
              comm.gather(std::span<const record>(mine), std::span(all), known, root);
              bad += wrong_in(all, known);
            }
          }
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("gather by run-time types, even and uneven", "[collective][gather]") {
  const auto results = testing::run_ranks(2, [](auto& comm) {
    const auto rank = static_cast<std::uint16_t>(comm.rank());
    const std::vector<std::uint16_t> mine(3, static_cast<std::uint16_t>(0x7F01 + rank));
    std::vector<std::uint16_t> all(6);
    comm.gather(mine.data(), rank == 1 ? all.data() : nullptr, 3, dtype::bfloat16, 1);
    std::vector<std::uint16_t> some(4);
    const std::vector<std::size_t> counts{1, 3};
    comm.gather(mine.data(), rank == 0 ? 1 : 3, some.data(), counts, dtype::bfloat16, 1);
    all.insert(all.end(), some.begin(), some.end());
    return all;
  });
  CHECK(results[1] == std::vector<std::uint16_t>{0x7F01, 0x7F01, 0x7F01, 0x7F02, 0x7F02, 0x7F02,
                                                 0x7F01, 0x7F02, 0x7F02, 0x7F02});
}

TEST_CASE("a rank that sends another number than the root expects is a mismatch on all",
          "[collective][gather]") {
  for (int liar = 1; liar < 3; ++liar) {
    const auto texts = testing::run_ranks(3, [&](auto& comm) -> std::string {
      const std::vector<std::size_t> counts{2, 2, 2};
      std::vector<float> mine(comm.rank() == liar ? 1000 : 2);
      std::vector<float> all(6);
      try {
        comm.gather(std::span(mine), std::span(all), counts, 0);
        comm.barrier();
      } catch (const mismatch_error& e) {
        return e.what();
      }
      return "";
    });
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(text.find("rank " + std::to_string(liar) +
                      " sends rank 0 1000 elements, rank 0 expects 2") != std::string::npos);
    }
  }
}

TEST_CASE("user types of different sizes are a mismatch in uneven calls, too",
          "[collective][gather]") {
  CHECK_THROWS_AS(testing::run_ranks(2,
                                     [](auto& comm) {
                                       std::vector<std::array<char, 3>> x(4);
                                       std::vector<std::array<char, 5>> y(4);
                                       const std::vector<std::size_t> counts{2, 2};
                                       if (comm.rank() == 0) {
                                         comm.gather(std::span(x), counts, 0);
                                       } else {
                                         comm.gather(std::span(y).first(2), counts, 0);
                                       }
                                       comm.barrier();
                                     }),
                  mismatch_error);
}

TEST_CASE("only the root of a gather waits", "[collective][gather]") {
  using namespace std::chrono_literals;
  const auto seconds = testing::run_ranks(2, [](auto& comm) {
    comm.barrier();
    if (comm.rank() == 0) std::this_thread::sleep_for(200ms);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int> x(100);
    comm.gather(std::span(x).first(50), std::span(x).first(comm.rank() == 0 ? 100 : 0), 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  CHECK(seconds[1] < 0.1);
}

TEST_CASE("a gather finds its place behind 4 GiB", "[collective][gather]") {
  constexpr std::size_t large = (std::size_t{1} << 32) + 7;
  const far_buffer all(large + 5);
  if (!all) LEAVE_OUT("no address space for 4 GiB");
  testing::run_ranks(2, [&](auto& comm) {
    const std::vector<std::size_t> counts{large, 5};
    std::vector<std::byte> mine(5, std::byte{42});
    comm.gather(comm.rank() == 0 ? all.span() : std::span(mine), counts, 0);
  });
  CHECK(all.span()[large - 1] == std::byte{0});
  CHECK(all.span()[large] == std::byte{42});
  CHECK(all.span()[large + 4] == std::byte{42});
}

TEST_CASE("gather refuses wrong arguments before anything is sent", "[collective][gather]") {
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
    const std::vector<std::size_t> few{4};
    const std::vector<std::size_t> counts{4, 4};
    const std::vector<std::size_t> other{3, 5};
    const int me = comm.rank();
    refuses([&] { comm.gather(std::span(x), std::span(y), 2); });
    refuses([&] { comm.gather(std::span(x), std::span(x), me); });
    refuses([&] { comm.gather(std::span(y).subspan(2, 4), std::span(y), me); });
    refuses([&] { comm.gather(std::span(y).first(3), me); });
    refuses([&] { comm.gather(std::span(x), std::span(y), few, me); });
    refuses([&] { comm.gather(std::span(x), std::span(y), other, me); });
    refuses([&] { comm.gather(std::span(x), std::span(y).first(7), counts, me); });
    refuses([&] {
      comm.gather(std::span(x), std::span(y), counts, me, {.algorithm = algorithm::inline_line});
    });
    comm.barrier();
    return n;
  });
  CHECK(refused == std::vector<int>{8, 8});
}
