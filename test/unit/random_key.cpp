// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/random_key.hpp"

#include <cstdint>
#include <string>

#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("a key is written as two hex digits a byte, in order", "[random_key]") {
  const std::uint8_t bytes[16] = {0x00, 0x01, 0x0f, 0x10, 0xab, 0xff, 0x7e, 0x80,
                                  0,    0,    0,    0,    0,    0,    0,    0xc3};
  CHECK(detail::hex_text(bytes) == "00010f10abff7e8000000000000000c3");
}

TEST_CASE("no key comes twice", "[random_key]") {
  std::uint8_t first[16] = {};
  std::uint8_t second[16] = {};
  detail::fill_random(first);
  detail::fill_random(second);
  CHECK(detail::hex_text(first) != detail::hex_text(second));
  CHECK(detail::hex_text(first) != std::string(32, '0'));
}
