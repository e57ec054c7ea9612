// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/blocks.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"

using namespace rankfold;

namespace {

detail::uneven_blocks blocks(const std::vector<std::size_t>& counts, std::size_t element_size = 1,
                             std::size_t unit = 1) {
  return {"gather", "counts", counts, static_cast<int>(counts.size()), element_size, unit};
}

}  // namespace

TEST_CASE("even blocks lie one behind the other", "[blocks]") {
  constexpr std::size_t each = (std::size_t{1} << 33) + 1;
  const detail::even_blocks even{each};
  CHECK(even.begin(0) == 0);
  CHECK(even.begin(5) == 5 * each);
  CHECK(even.size(3) == each);
  CHECK(even.largest() == each);
}

TEST_CASE("uneven blocks lie one behind the other, in bytes or in elements", "[blocks]") {
  const auto in_bytes = blocks({3, 0, 5, 1}, 8, 8);
  CHECK(in_bytes.begin(0) == 0);
  CHECK(in_bytes.begin(1) == 24);
  CHECK(in_bytes.begin(2) == 24);
  CHECK(in_bytes.begin(3) == 64);
  CHECK(in_bytes.total() == 72);
  CHECK(in_bytes.size(2) == 40);
  CHECK(in_bytes.count(2) == 5);
  CHECK(in_bytes.largest() == 40);
  CHECK(in_bytes.largest_but(2) == 24);
  CHECK(in_bytes.largest_but(0) == 40);
  const auto in_elements = blocks({3, 0, 5, 1}, 8, 1);
  CHECK(in_elements.begin(3) == 8);
  CHECK(in_elements.size(2) == 5);
}

TEST_CASE("uneven blocks of more than 4 GiB do not overflow", "[blocks]") {
  constexpr std::size_t large = (std::size_t{1} << 32) + 3;
  const auto many = blocks({large, large, 1, large}, 4, 4);
  CHECK(many.begin(2) == 8 * large);
  CHECK(many.begin(3) == 8 * large + 4);
  CHECK(many.total() == 12 * large + 4);
  CHECK(many.largest() == 4 * large);
}

TEST_CASE("a sum of counts that is no size of memory is refused", "[blocks]") {
  constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
  CHECK_NOTHROW(blocks({most / 8, 0}, 8, 8));
  CHECK_THROWS_AS(blocks({most / 8, 1}, 8, 8), std::invalid_argument);
  CHECK_THROWS_AS(blocks({most / 2, most / 2, 2}), std::invalid_argument);
  CHECK_THROWS_WITH(blocks({most, most}), "gather: the sum of counts is more than memory can hold");
}

TEST_CASE("there must be a count a rank", "[blocks]") {
  CHECK_THROWS_WITH(
      detail::uneven_blocks("gather", "counts", std::vector<std::size_t>{1, 2}, 3, 4, 4),
      "gather: counts has 2 counts; expected one for each of the 3 ranks");
}

TEST_CASE("a rank's own block is found without a table of all", "[blocks]") {
  constexpr std::size_t large = (std::size_t{1} << 32) + 3;
  const std::vector<std::size_t> counts{3, 0, large, 5};
  const detail::block_place last = detail::place_of("gather", "counts", counts, 3, 4, 8);
  CHECK(last.begin == large + 3);
  CHECK(last.count == 5);
  CHECK(last.total == large + 8);
  const detail::block_place first = detail::place_of("gather", "counts", counts, 0, 4, 8);
  CHECK(first.begin == 0);
  CHECK(first.count == 3);
}

TEST_CASE("the hash tells lists of counts apart, also by their order", "[blocks]") {
  std::set<std::uint64_t> hashes;
  std::size_t lists = 0;
  for (std::size_t a = 0; a < 20; ++a) {
    for (std::size_t b = 0; b < 20; ++b) {
      for (std::size_t c = 0; c < 20; ++c, ++lists) hashes.insert(blocks({a, b, c}).hash());
    }
  }
  CHECK(hashes.size() == lists);
  CHECK(blocks({1, 2}, 8, 8).hash() == blocks({1, 2}, 4, 1).hash());
  CHECK(blocks({1, 2}).hash() != blocks({1, 2, 0}).hash());
}
