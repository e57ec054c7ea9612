// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/partition.hpp"

#include <cstddef>
#include <random>

#include "support/catch.hpp"

using namespace rankfold::detail;

TEST_CASE("elements per line fill whole cache lines", "[partition]") {
  CHECK(elements_per_line(1) == 64);
  CHECK(elements_per_line(4) == 16);
  CHECK(elements_per_line(8) == 8);
  CHECK(elements_per_line(12) == 16);
  CHECK(elements_per_line(64) == 1);
  CHECK(elements_per_line(100) == 16);
  CHECK(elements_per_line(4096) == 1);
}

namespace {

void check_slices(std::size_t count, std::size_t parts, std::size_t granularity) {
  INFO(count << " elements, " << parts << " parts, granularity " << granularity);
  std::size_t next = 0;
  bool holds = true;
  for (std::size_t i = 0; i < parts; ++i) {
    const slice s = slice_of(count, parts, i, granularity);
    holds = holds && s.begin == next && s.count <= largest_slice(count, parts, granularity);
    holds = holds && (s.count == 0 || s.begin % granularity == 0);
    next = s.begin + s.count;
  }
  CHECK(holds);
  CHECK(next == count);
}

}  // namespace

TEST_CASE("slices cover everything once, in order, in whole lines", "[partition]") {
  for (const std::size_t parts : {1u, 2u, 3u, 5u, 8u, 17u}) {
    for (std::size_t count = 0; count < 300; ++count) check_slices(count, parts, 16);
  }
}

TEST_CASE("slices are even to within a line", "[partition]") {
  const slice first = slice_of(160, 4, 0, 16);
  const slice last = slice_of(160, 4, 3, 16);
  CHECK(first.count == 48);
  CHECK(last.count == 32);
}

TEST_CASE("slices of more than 4 Gi elements do not overflow", "[partition]") {
  std::mt19937_64 random(20261130);
  for (int i = 0; i < 200; ++i) {
    const std::size_t count = (std::size_t{1} << 32) + random() % (std::size_t{1} << 44);
    check_slices(count, 1 + random() % 64, std::size_t{1} << random() % 7);
  }
}
