// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/staging.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include "rankfold/tuning.hpp"
#include "support/catch.hpp"

using namespace rankfold;

namespace {

struct stub {
  rankfold::tuning tune;
  std::size_t half = 8192;
  const rankfold::tuning& tuning() const { return tune; }
  std::size_t half_bytes() const { return half; }
};

std::vector<std::pair<std::size_t, std::size_t>> chunks(std::size_t count, std::size_t limit) {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  detail::for_chunks(count, limit,
                     [&](std::size_t begin, std::size_t now) { all.emplace_back(begin, now); });
  return all;
}

}  // namespace

TEST_CASE("a step stages a chunk, what fits in a half, and a line at least", "[staging]") {
  CHECK(detail::staging_bytes(stub{.tune = {.chunk_bytes = 1024}}) == 1024);
  CHECK(detail::staging_bytes(stub{.tune = {.chunk_bytes = 1 << 20}}) == 8192);
  CHECK(detail::staging_bytes(stub{.tune = {.chunk_bytes = 0}}) == 64);
}

TEST_CASE("an exchange and a rooted collective have chunks of their own, no larger than a chunk",
          "[staging]") {
  const stub ctx{.tune = {.chunk_bytes = 4096, .exchange_chunk_bytes = 2048}};
  CHECK(detail::exchange_bytes(ctx) == 2048);
  CHECK(detail::exchange_bytes(stub{.tune = {.chunk_bytes = 1024}}) == 1024);
  const stub rooted{.tune = {.chunk_bytes = 4096, .rooted_chunk_bytes = 1024}};
  CHECK(detail::rooted_bytes(rooted, 0) == 256);
  CHECK(detail::rooted_bytes(rooted, 1024) == 256);
  CHECK(detail::rooted_bytes(rooted, 1200) == 320);
  CHECK(detail::rooted_bytes(rooted, 4096) == 1024);
  CHECK(detail::rooted_bytes(rooted, std::size_t{1} << 40) == 1024);
  CHECK(detail::rooted_bytes(stub{.tune = {.chunk_bytes = 128}}, 10000) == 128);
}

TEST_CASE("elements_in gives whole lines where they fit", "[staging]") {
  CHECK(detail::elements_in(1024, 4) == 256);
  CHECK(detail::elements_in(1000, 4) == 240);
  CHECK(detail::elements_in(60, 4) == 15);
  CHECK(detail::elements_in(3, 4) == 0);
}

TEST_CASE("chunks cover everything once, in order; nothing is one chunk", "[staging]") {
  using list = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(chunks(0, 8) == list{{0, 0}});
  CHECK(chunks(8, 8) == list{{0, 8}});
  CHECK(chunks(17, 8) == list{{0, 8}, {8, 8}, {16, 1}});
  constexpr std::size_t large = (std::size_t{1} << 33) + 7;
  CHECK(chunks(large, std::size_t{1} << 32) == list{{0, std::size_t{1} << 32},
                                                    {std::size_t{1} << 32, std::size_t{1} << 32},
                                                    {std::size_t{1} << 33, 7}});
}

TEST_CASE("a block's parts of the chunks add up to it, and are nothing behind its end",
          "[staging]") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{9},
                                  (std::size_t{1} << 32) + 5}) {
    const std::size_t limit = count < 100 ? 8 : std::size_t{1} << 31;
    std::size_t sum = 0;
    for (std::size_t begin = 0; begin < count + 3 * limit; begin += limit) {
      const std::size_t now = detail::part_of(count, begin, limit);
      CHECK(now <= limit);
      CHECK((now == 0 || begin + now <= count));
      sum += now;
    }
    CHECK(sum == count);
  }
}

TEST_CASE("every peer has a slot of its own, one fewer than ranks", "[staging]") {
  for (const std::size_t ranks : {2u, 3u, 8u}) {
    const detail::peer_slots slots{ranks};
    CHECK(slots.number() == ranks - 1);
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      std::vector<int> used(ranks - 1, 0);
      for (std::size_t reader = 0; reader < ranks; ++reader) {
        if (reader != owner) ++used.at(slots.index(owner, reader));
      }
      CHECK(used == std::vector<int>(ranks - 1, 1));
    }
  }
  CHECK(detail::peer_slots{1}.number() == 1);
}

TEST_CASE("a slot takes whole lines, its share at most, and no more than a block has",
          "[staging]") {
  const detail::peer_slots slots{4};
  CHECK(slots.bytes_for(1000, 1024) == 320);
  CHECK(slots.bytes_for(100, 1024) == 128);
  CHECK(slots.bytes_for(0, 1024) == 64);
  CHECK(slots.bytes_for(1000, 60) == 20);
  CHECK(slots.bytes_for(1000, 2) == 1);
}
