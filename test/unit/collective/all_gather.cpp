// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/all_gather.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
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
