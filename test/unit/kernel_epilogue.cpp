// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include "rankfold/kernel/epilogue.hpp"
#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("an epilogue refers to what it was made of", "[kernel][epilogue]") {
  struct counting {
    std::size_t elements = 0;
    void operator()(const int* block, std::size_t first, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) elements += block[i] == static_cast<int>(first + i);
    }
  };
  counting f;
  const kernel::epilogue e = kernel::epilogue_for<int>(f);
  const std::vector<int> block{5, 6, 7};
  e.apply(e.f, block.data(), 5, 3);
  CHECK(f.elements == 3);
}

TEST_CASE("what takes a block is told from what takes an element", "[kernel][epilogue]") {
  const auto of_element = [](float x, std::size_t) { return x; };
  const auto of_block = [](const float*, std::size_t, std::size_t) {};
  const auto of_any_block = [](const void*, std::size_t, std::size_t) {};
  STATIC_REQUIRE(element_epilogue<decltype(of_element), float>);
  STATIC_REQUIRE(!element_epilogue<decltype(of_block), float>);
  STATIC_REQUIRE(block_epilogue<decltype(of_block), float>);
  STATIC_REQUIRE(!block_epilogue<decltype(of_block), int>);
  STATIC_REQUIRE(!block_epilogue<decltype(of_block), void>);
  STATIC_REQUIRE(!block_epilogue<decltype(of_element), float>);
  STATIC_REQUIRE(block_epilogue<decltype(of_any_block), float>);
  STATIC_REQUIRE(block_epilogue<decltype(of_any_block), void>);
}
