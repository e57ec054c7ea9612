// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/output.hpp"

#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("an output gets what is made for it, and what is there", "[detail][output]") {
  std::vector<int> source(10'000);
  std::iota(source.begin(), source.end(), 0);
  std::vector<int> result(source.size());
  std::vector<std::size_t> blocks;
  auto f = [&](const int* block, std::size_t first, std::size_t count) {
    blocks.push_back(count);
    std::memcpy(result.data() + first, block, count * sizeof(int));
  };
  // The elements from 1000 on, by both ways.
  const auto fill = [&](const auto& out) {
    out.put(1000, 5000, [&](std::size_t offset, std::size_t count, void* to) {
      std::memcpy(to, source.data() + 1000 + offset, count * sizeof(int));
    });
    out.take(6000, 4000, source.data() + 6000);
    return std::equal(source.begin() + 1000, source.end(), result.begin() + 1000) &&
           std::count(result.begin(), result.begin() + 1000, 0) == 1000;
  };
  CHECK(fill(detail::buffer_output(result.data(), sizeof(int))));
  std::fill(result.begin(), result.end(), 0);
  CHECK(fill(detail::epilogue_output(kernel::epilogue_for<int>(f), sizeof(int))));
  CHECK(blocks == std::vector<std::size_t>{2048, 2048, 904, 2048, 1952});
}

TEST_CASE("an epilogue's blocks are whole cache lines, of large elements as many as fit",
          "[detail][output]") {
  const auto sizes_of = [](std::size_t element, std::size_t count) {
    std::vector<std::size_t> sizes;
    auto f = [&](const void*, std::size_t, std::size_t now) { sizes.push_back(now); };
    const std::vector<std::byte> source(element * count);
    detail::epilogue_output(kernel::epilogue_for<void>(f), element).take(0, count, source.data());
    return sizes;
  };
  CHECK(sizes_of(12, 1000) == std::vector<std::size_t>{672, 328});
  CHECK(sizes_of(3000, 5) == std::vector<std::size_t>{2, 2, 1});
  CHECK(sizes_of(8192, 2) == std::vector<std::size_t>{1, 1});
  CHECK(sizes_of(4, 0).empty());
}
