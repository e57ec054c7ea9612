// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/one_shot.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rankfold/detail/output.hpp"
#include "support/catch.hpp"
#include "support/contexts.hpp"
#include "support/ordered_blocks.hpp"

using namespace rankfold;

TEST_CASE("one_shot folds elements of any size in rank order, at every chunk edge",
          "[algorithm][one_shot]") {
  ordered_blocks::check_all(
      16384, [](auto& ctx, const auto& reducer, const void* in, void* out, std::size_t count) {
        algorithms::one_shot_all_reduce(ctx, reducer, in,
                                        detail::buffer_output(out, reducer.element_size), count);
      });
}

TEST_CASE("one_shot takes one step a chunk, and one for nothing", "[algorithm][one_shot]") {
  run_contexts(2, {.tune = {.chunk_bytes = 1024}}, [](test_context& ctx) {
    std::vector<std::int32_t> x(1024);
    const sum op;
    const auto steps = [&](std::size_t count) {
      const std::uint64_t before = ctx.steps();
      ctx.run(test_call(count), [&] {
        algorithms::one_shot_all_reduce(ctx, kernel::reducer_for<std::int32_t>(op), x.data(),
                                        detail::buffer_output(x.data(), 4), count);
      });
      return ctx.steps() - before;
    };
    if (steps(0) != 1 || steps(256) != 1 || steps(257) != 2 || steps(1024) != 4) throw 1;
  });
}

TEST_CASE("two ranks reduce_scatter a whole chunk a step: nobody stages what only he reads",
          "[algorithm][one_shot]") {
  run_contexts(2, {.tune = {.chunk_bytes = 1024}}, [](test_context& ctx) {
    std::vector<std::int32_t> x(2048);
    const sum op;
    const auto steps = [&](std::size_t count) {
      const std::uint64_t before = ctx.steps();
      ctx.run(test_call(count), [&] {
        algorithms::one_shot_reduce_scatter(ctx, kernel::reducer_for<std::int32_t>(op), x.data(),
                                            x.data() + count * static_cast<std::size_t>(ctx.rank()),
                                            detail::even_blocks{count});
      });
      return ctx.steps() - before;
    };
    if (steps(0) != 1 || steps(256) != 1 || steps(257) != 2 || steps(1024) != 4) throw 1;
  });
}

TEST_CASE("uneven blocks are gathered and reduced in as many steps as the largest needs",
          "[algorithm][one_shot]") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (std::size_t table = 0; table < 5; ++table) {
      std::vector<std::size_t> counts;
      std::vector<std::size_t> begins{0};
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
        counts.push_back((r * 3 + table) % 4 * table * 100);
        begins.push_back(begins.back() + counts.back());
      }
      std::vector<int> wrong(counts.size(), 0);
      std::vector<std::uint64_t> steps(counts.size(), 0);
      run_contexts(ranks, {.tune = {.chunk_bytes = 1024}}, [&](test_context& ctx) {
        const auto rank = static_cast<std::size_t>(ctx.rank());
        const detail::uneven_blocks bytes("test", "counts", counts, ranks, 4, 4);
        std::vector<std::int32_t> all(begins.back(), -1);
        for (std::size_t i = 0; i < counts[rank]; ++i)
          all[begins[rank] + i] = static_cast<int>(rank * 10000 + i);
        const std::uint64_t before = ctx.steps();
        ctx.run(test_call(), [&] {
          algorithms::one_shot_all_gather(
              ctx, all.data() + begins[rank],
              [&](std::size_t r) { return reinterpret_cast<std::byte*>(all.data() + begins[r]); },
              bytes);
        });
        steps[rank] = ctx.steps() - before;
        for (std::size_t r = 0; r < counts.size(); ++r) {
          for (std::size_t i = 0; i < counts[r]; ++i)
            wrong[rank] += all[begins[r] + i] != static_cast<int>(r * 10000 + i);
        }
        // Every rank adds rank + 1 times the same row; each gets its block of the sum.
        const detail::uneven_blocks elements("test", "counts", counts, ranks, 4, 1);
        for (std::int32_t& x : all) x *= ctx.rank() + 1;
        std::vector<std::int32_t> own(counts[rank]);
        const sum op;
        ctx.run(test_call(), [&] {
          algorithms::one_shot_reduce_scatter(ctx, kernel::reducer_for<std::int32_t>(op),
                                              all.data(), own.data(), elements);
        });
        for (std::size_t i = 0; i < own.size(); ++i) {
          wrong[rank] += own[i] != static_cast<int>(rank * 10000 + i) * (ranks * (ranks + 1) / 2);
        }
      });
      INFO(ranks << " ranks, table " << table);
      CHECK(wrong == std::vector<int>(counts.size(), 0));
      std::size_t largest = 0;
      for (const std::size_t count : counts) largest = largest < count ? count : largest;
      const std::uint64_t expected = largest == 0 ? 1 : (largest * 4 + 1023) / 1024;
      CHECK(steps == std::vector<std::uint64_t>(counts.size(), expected));
    }
  }
}
