// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/two_shot.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rankfold/detail/output.hpp"
#include "support/catch.hpp"
#include "support/contexts.hpp"
#include "support/ordered_blocks.hpp"

using namespace rankfold;

TEST_CASE("two_shot folds elements of any size in rank order, at every chunk edge",
          "[algorithm][two_shot]") {
  ordered_blocks::check_all(
      32768, [](auto& ctx, const auto& reducer, const void* in, void* out, std::size_t count) {
        algorithms::two_shot_all_reduce(ctx, reducer, in,
                                        detail::buffer_output(out, reducer.element_size), count);
      });
}

TEST_CASE("two_shot to a root folds elements of any size in rank order, at every chunk edge",
          "[algorithm][two_shot]") {
  // Every rank is the root once, so that the check of all_reduce finds all results.
  ordered_blocks::check_all(
      32768, [](auto& ctx, const auto& reducer, const void* in, void* out, std::size_t count) {
        std::vector<std::byte> kept(count * reducer.element_size);
        for (int root = 0; root < ctx.size(); ++root) {
          std::byte* const to = ctx.rank() == root ? kept.data() : nullptr;
          algorithms::two_shot_reduce(ctx, reducer, in, to, count, root);
        }
        std::copy(kept.begin(), kept.end(), static_cast<std::byte*>(out));
      });
}

TEST_CASE("two_shot takes one step a chunk and one more", "[algorithm][two_shot]") {
  run_contexts(2, {.tune = {.chunk_bytes = 1024}}, [](test_context& ctx) {
    std::vector<std::int32_t> x(1024);
    const sum op;
    const auto steps = [&](std::size_t count) {
      const std::uint64_t before = ctx.steps();
      ctx.run(test_call(count), [&] {
        algorithms::two_shot_all_reduce(ctx, kernel::reducer_for<std::int32_t>(op), x.data(),
                                        detail::buffer_output(x.data(), 4), count);
      });
      return ctx.steps() - before;
    };
    if (steps(0) != 1 || steps(256) != 2 || steps(257) != 3 || steps(1024) != 5) throw 1;
  });
}
