// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/segment_memory.hpp"

#include <stdexcept>
#include <utility>

#include <sys/mman.h>

#include "support/catch.hpp"

namespace detail = rankfold::detail;

TEST_CASE("a mapping is unmapped once, by its last owner", "[detail][segment_memory]") {
  std::byte* address = nullptr;
  // mincore fails with ENOMEM where nothing is mapped.
  const auto mapped = [&address] {
    unsigned char resident[2];
    return ::mincore(address, 8192, resident) == 0;
  };
  {
    detail::mapping second;
    {
      detail::mapping first = detail::mapping::anonymous(8192);
      address = first.data();
      CHECK(first.size() == 8192);
      CHECK(first.data()[8191] == std::byte{0});
      second = std::move(first);
    }
    CHECK(second.data() == address);
    CHECK(mapped());
  }
  CHECK_FALSE(mapped());
}

TEST_CASE("workspaces, sizes and ranks out of range are errors", "[detail][segment_memory]") {
  CHECK(detail::checked_segment_bytes(1, 1) == 20480 + 8192);
  CHECK(detail::checked_segment_bytes(8193, 1) == 20480 + 16384);
  CHECK_THROWS_AS(detail::checked_segment_bytes(0, 1), std::invalid_argument);
  CHECK_THROWS_AS(detail::checked_segment_bytes(~std::size_t{0}, 1), std::invalid_argument);
  CHECK_NOTHROW(detail::check_world_size(4096));
  CHECK_THROWS_AS(detail::check_world_size(4097), std::invalid_argument);
  CHECK_THROWS_AS(detail::check_world_size(0), std::invalid_argument);
  CHECK_NOTHROW(detail::check_rank(1, 2));
  CHECK_THROWS_AS(detail::check_rank(2, 2), std::invalid_argument);
  CHECK_THROWS_AS(detail::check_rank(-1, 2), std::invalid_argument);
}
