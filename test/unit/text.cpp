// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/text.hpp"

#include <chrono>
#include <vector>

#include "support/catch.hpp"

namespace detail = rankfold::detail;

TEST_CASE("bytes are given in the largest unit that fits, rounded down", "[detail][text]") {
  CHECK(detail::bytes_text(0) == "0 bytes");
  CHECK(detail::bytes_text(1023) == "1023 bytes");
  CHECK(detail::bytes_text(1024) == "1.0 KiB");
  CHECK(detail::bytes_text(4 * 1024 * 1024 + 512 * 1024) == "4.5 MiB");
  CHECK(detail::bytes_text(1ULL << 40) == "1.0 TiB");
  CHECK(detail::bytes_text(1ULL << 50) == "1024.0 TiB");
}

TEST_CASE("ranks are listed in words, and not without end", "[detail][text]") {
  CHECK(detail::ranks_text({2}) == "rank 2");
  CHECK(detail::ranks_text({1, 3}) == "ranks 1 and 3");
  CHECK(detail::ranks_text({1, 3, 5}) == "ranks 1, 3 and 5");
  std::vector<int> many;
  for (int r = 0; r < 20; ++r) many.push_back(r);
  CHECK(detail::ranks_text(many) ==
        "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");
}

TEST_CASE("durations are given in seconds", "[detail][text]") {
  CHECK(detail::duration_text(std::chrono::seconds(300)) == "300 s");
  CHECK(detail::duration_text(std::chrono::milliseconds(2500)) == "2.5 s");
  CHECK(detail::duration_text(std::chrono::milliseconds(5)) == "0.005 s");
}

TEST_CASE("a message loses its prefix inside another", "[detail][text]") {
  CHECK(detail::inner_text("rankfold: no memory") == "no memory");
  CHECK(detail::inner_text("no rankfold: here") == "no rankfold: here");
}
