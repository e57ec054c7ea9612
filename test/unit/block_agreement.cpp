// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/block_agreement.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contexts.hpp"

using namespace rankfold;

namespace {

void meet_over_blocks(test_context& ctx, const detail::uneven_blocks& blocks, bool first) {
  detail::publish_blocks(ctx, blocks, first);
  detail::await_blocks(ctx, blocks, first);
}

/// What each rank gets when rank r meets over tables[r]: "" where it goes on.
std::vector<std::string> meet(const std::vector<std::vector<std::size_t>>& tables) {
  const auto ranks = static_cast<int>(tables.size());
  std::vector<std::string> texts(tables.size());
  run_contexts(ranks, {}, [&](test_context& ctx) {
    const auto rank = static_cast<std::size_t>(ctx.rank());
    const detail::uneven_blocks blocks("test", "counts", tables[rank], ranks, 4, 4);
    try {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        meet_over_blocks(ctx, blocks, /*first=*/true);
      });
    } catch (const mismatch_error& e) {
      texts[rank] = e.what();
    }
  });
  return texts;
}

}  // namespace

TEST_CASE("ranks that pass the same counts meet in one step", "[block_agreement]") {
  CHECK(meet({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}) == std::vector<std::string>{"", "", ""});
  run_contexts(2, {}, [](test_context& ctx) {
    const detail::uneven_blocks blocks("test", "counts", std::vector<std::size_t>{5, 0}, 2, 4, 4);
    const std::uint64_t before = ctx.steps();
    ctx.run(test_call(), [&] {
      ctx.next_step();
      meet_over_blocks(ctx, blocks, true);
      ctx.next_step();
      meet_over_blocks(ctx, blocks, false);
    });
    if (ctx.steps() != before + 2) throw 1;
  });
}

TEST_CASE("whichever counts of whichever rank differ, all ranks get both numbers",
          "[block_agreement]") {
  for (std::size_t liar = 0; liar < 4; ++liar) {
    for (std::size_t about = 0; about < 4; ++about) {
      INFO("rank " << liar << " passes another count for rank " << about);
      std::vector<std::vector<std::size_t>> tables(4, {5, 6, 7, 8});
      tables[liar][about] = 99;
      const std::string number = std::to_string(5 + about);
      for (const std::string& text : meet(tables)) {
        INFO(text);
        CHECK(text.find("for the block of rank " + std::to_string(about)) != std::string::npos);
        CHECK(text.find(" 99") != std::string::npos);
        CHECK(text.find(" " + number) != std::string::npos);
        CHECK((liar == about ||
               text.find("rank " + std::to_string(liar) + " passed 99 elements, " + "rank " +
                         std::to_string(about) + " " + number) != std::string::npos));
      }
    }
  }
}

TEST_CASE("a pair that agrees goes on; one that does not gets a mismatch with both ranks",
          "[block_agreement]") {
  std::vector<std::string> texts(2);
  run_contexts(2, {}, [&](test_context& ctx) {
    try {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        const std::uint64_t numbers[] = {std::uint64_t(ctx.rank()) + 7, std::uint64_t{1} << 40};
        ctx.publish(numbers, sizeof numbers);
        ctx.wait_all();
        const int peer = 1 - ctx.rank();
        detail::check_pair(ctx, peer, detail::payload_number(ctx, peer, 1), ctx.rank(),
                           std::uint64_t{1} << 40);
        if (ctx.rank() == 0) detail::check_pair(ctx, 1, detail::payload_number(ctx, 1), 0, 9);
        ctx.next_step();
        ctx.publish();
        ctx.wait_all();
      });
    } catch (const mismatch_error& e) {
      texts[static_cast<std::size_t>(ctx.rank())] = e.what();
    }
  });
  for (const std::string& text : texts) {
    CHECK(text.find("rank 1 sends rank 0 8 elements, rank 0 expects 9") != std::string::npos);
  }
}
