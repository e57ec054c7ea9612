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
  STATIC_REQUIRE(bell_offset == 4032);
  STATIC_REQUIRE(offsetof(bell_line, sleepers) == 4);
  STATIC_REQUIRE(sizeof(packet_line) == 64);
  STATIC_REQUIRE(offsetof(packet_line, fingerprint) == 8);
  STATIC_REQUIRE(offsetof(packet_line, payload) == 24);
  STATIC_REQUIRE(sizeof(packet_ack) == 64);
  STATIC_REQUIRE(packet_slots == 4);
  STATIC_REQUIRE(layout_version == 3);
  STATIC_REQUIRE(flag_lines == 32);
  STATIC_REQUIRE(max_lead == 16);
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
  CHECK(segment_bytes(0, 1) == workspace_offset);
  CHECK(segment_bytes(1, 1) == workspace_offset + 8192);
  CHECK(segment_bytes(8192, 1) == workspace_offset + 8192);
  CHECK(segment_bytes(8193, 1) == workspace_offset + 16384);
  // A page of lines, and a ring: a quarter of the workspace, a page at least.
  CHECK(segment_bytes(8192, 2) == workspace_offset + 8192 + 4096 + 4096);
  CHECK(segment_bytes(65536, 2) == workspace_offset + 65536 + 4096 + 16384);
  CHECK(segment_bytes(65536, 3) == workspace_offset + 65536 + 4096 + 2 * 8192);
  CHECK(segment_bytes(65536, 13) == workspace_offset + 65536 + 8192 + 12 * 4096);
  CHECK(segment_bytes(std::size_t{4} << 20, 2) ==
        workspace_offset + (std::size_t{4} << 20) + 4096 + (std::size_t{256} << 10));
}

TEST_CASE("a segment's parts follow from its size: apart, within, and as large as asked for",
          "[segment_layout]") {
  for (const int size : {1, 2, 3, 4, 5, 8, 12, 13, 16, 64, 255, 4096}) {
    for (const std::size_t workspace :
         {std::size_t{1}, std::size_t{8192}, std::size_t{8193}, std::size_t{24576},
          std::size_t{65536}, std::size_t{1000003}, std::size_t{4} << 20, std::size_t{1} << 33}) {
      INFO(size << " ranks, " << workspace << " bytes");
      const std::size_t bytes = segment_bytes(workspace, size);
      const segment_map map = segment_map::of(bytes, size);
      const auto peers = static_cast<std::size_t>(size - 1);
      CHECK(map.half_bytes % page == 0);
      CHECK(2 * map.half_bytes == (workspace + 8191) / 8192 * 8192);
      CHECK(map.pairs_offset == workspace_offset + 2 * map.half_bytes);
      CHECK(map.ring_bytes % page == 0);
      CHECK(map.rings_offset + peers * map.ring_bytes == bytes);
      if (size == 1) continue;
      CHECK(map.rings_offset - map.pairs_offset >= static_cast<std::size_t>(size) * (4 * 64 + 64));
      CHECK(map.ring_bytes >= page);
      CHECK((map.ring_bytes == page || peers * map.ring_bytes <= map.half_bytes / 2));
      // Of other sizes, too, nothing lies outside.
      const segment_map odd = segment_map::of(bytes + 4096 * 3 + 17, size);
      CHECK(odd.rings_offset + peers * odd.ring_bytes <= bytes + 4096 * 3 + 17);
      CHECK(odd.half_bytes >= map.half_bytes);
    }
  }
  CHECK(segment_map::of(segment_bytes(1, 3) - 1, 3).half_bytes == 0);  // too small
  CHECK(segment_map::of(0, 2).half_bytes == 0);
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
