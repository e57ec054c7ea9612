// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/all_gather.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"

using namespace rankfold;

namespace {

struct record {  // no dtype of the library
  std::int64_t key;
  std::array<char, 13> text;
};

}  // namespace

TEST_CASE("all_gather carries any trivially copyable type", "[collective][all_gather]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto results = testing::run_ranks(ranks, [](auto& comm) {
      std::vector<record> mine(7);
      for (std::size_t i = 0; i < mine.size(); ++i)
        mine[i].key = comm.rank() * 100 + static_cast<int>(i);
      std::vector<record> all(mine.size() * static_cast<std::size_t>(comm.size()));
      comm.all_gather(std::span(mine), std::span(all));
      std::vector<std::int64_t> keys;
      for (const record& r : all) keys.push_back(r.key);
      return keys;
    });
    std::vector<std::int64_t> wanted;
    for (int r = 0; r < ranks; ++r) {
      for (int i = 0; i < 7; ++i) wanted.push_back(r * 100 + i);
    }
    for (const auto& keys : results) CHECK(keys == wanted);
  }
}

TEST_CASE("all_gather into memory of each rank's own is the same call to the others",
          "[collective][all_gather]") {
  // Rank 0 has its own elements where they go, rank 2 has not, rank 1 gathers into one block.
  const auto of = [](std::size_t rank, std::size_t count) {
    std::vector<std::int32_t> x(count);
    std::iota(x.begin(), x.end(), static_cast<std::int32_t>(1'000'000 * rank));
    return x;
  };
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{50'000}}) {
    for (const std::vector<std::size_t>& counts :
         {std::vector{count, count, count}, std::vector{count, std::size_t{0}, 2 * count}}) {
      const bool even = counts[1] == counts[0];
      const auto found = testing::run_ranks(3, [&](auto& comm) {
        const auto own = static_cast<std::size_t>(comm.rank());
        const std::vector<std::int32_t> in = of(own, counts[own]);
        std::vector<std::int32_t> all;
        const std::span<const std::size_t> blocks(counts);
        if (own == 1) {
          all.resize(counts[0] + counts[1] + counts[2]);
          even ? comm.all_gather(in.data(), all.data(), count, dtype::int32)
               : comm.all_gather(in.data(), all.data(), blocks, dtype::int32);
          return all;
        }
        std::vector<std::vector<std::int32_t>> places(3);
        std::vector<void*> outs;
        for (std::size_t r = 0; r < 3; ++r) {
          places[r] = own == 0 && r == 0 ? in : std::vector<std::int32_t>(counts[r]);
          outs.push_back(places[r].data());
        }
        const void* const from = own == 0 ? outs[0] : in.data();
        const std::span<void* const> to(outs);
        even ? comm.all_gather(from, to, count, dtype::int32)
             : comm.all_gather(from, to, blocks, dtype::int32);
        for (const auto& place : places) all.insert(all.end(), place.begin(), place.end());
        return all;
      });
      std::vector<std::int32_t> wanted;
      for (std::size_t r = 0; r < 3; ++r) {
        const std::vector<std::int32_t> x = of(r, counts[r]);
        wanted.insert(wanted.end(), x.begin(), x.end());
      }
      for (const auto& all : found) CHECK(all == wanted);
    }
  }
}

TEST_CASE("all_gather into memory of each rank's own says what cannot be",
          "[collective][all_gather]") {
  testing::run_ranks(1, [](auto& comm) {
    std::int32_t x[3] = {};
    void* const outs[2] = {x + 1, x};
    CHECK_THROWS_WITH(comm.all_gather(x, std::span<void* const>(outs), 2, dtype::int32),
                      "all_gather: outs has 2 elements; expected 1");
    CHECK_THROWS_WITH(
        comm.all_gather(x, std::span<void* const>(outs, 1), 2, dtype::int32),
        "all_gather: input and output overlap in part; they may be the same or apart");
  });
}

TEST_CASE("all_gather keeps every bit, NaN payloads too", "[collective][all_gather]") {
  const auto results = testing::run_ranks(2, [](auto& comm) {
    const std::vector<std::uint32_t> bits(20,
                                          0xFF812345u + static_cast<std::uint32_t>(comm.rank()));
    std::vector<std::uint32_t> all(40);
    comm.all_gather(bits.data(), all.data(), 20, dtype::float32);
    return all;
  });
  CHECK(results[0] == results[1]);
  CHECK(results[0][0] == 0xFF812345u);
  CHECK(results[0][39] == 0xFF812346u);
}
