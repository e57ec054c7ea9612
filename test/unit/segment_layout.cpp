// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/segment_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/catch.hpp"

using namespace rankfold::detail;

TEST_CASE("the layout of a segment is fixed, to the byte", "[segment_layout]") {
  // Literal numbers on purpose: processes built from different versions must agree, or be told
  // apart.
  STATIC_REQUIRE(offsetof(segment_header, magic) == 0);
  STATIC_REQUIRE(offsetof(segment_header, layout) == 8);
  STATIC_REQUIRE(offsetof(segment_header, life) == 12);
  STATIC_REQUIRE(offsetof(segment_header, rank) == 16);
  STATIC_REQUIRE(offsetof(segment_header, size) == 20);
  STATIC_REQUIRE(offsetof(segment_header, tuning_hash) == 24);
  STATIC_REQUIRE(sleepers_offset == 64);
  STATIC_REQUIRE(abort_offset == 128);
  STATIC_REQUIRE(cpus_offset == 1152);
  STATIC_REQUIRE(flags_offset == 4096);
  STATIC_REQUIRE(sizeof(flag_line) == 128);
  STATIC_REQUIRE(offsetof(flag_line, fingerprint) == 8);
  STATIC_REQUIRE(offsetof(flag_line, payload) == 24);
  STATIC_REQUIRE(workspace_offset == 20480);
  std::uint64_t magic = 0;
  std::memcpy(&magic, "rnkfold1", 8);
  CHECK(segment_magic == magic);
}

TEST_CASE("a segment is whole pages and holds two page-aligned halves", "[segment_layout]") {
  CHECK(segment_bytes(0) == workspace_offset);
  CHECK(segment_bytes(1) == workspace_offset + 8192);
  CHECK(segment_bytes(8192) == workspace_offset + 8192);
  CHECK(segment_bytes(8193) == workspace_offset + 16384);
}

TEST_CASE("leaving is seen, and only after it happened", "[segment_layout]") {
  alignas(64) std::byte segment[workspace_offset] = {};
  init_segment(segment, 3, 8);
  CHECK(header_of(segment).rank == 3);
  CHECK(header_of(segment).size == 8);
  CHECK(header_of(segment).layout == layout_version);
  CHECK_FALSE(has_left(segment));
  mark_left(segment);
  CHECK(has_left(segment));
}
