// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/one_shot.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/contexts.hpp"
#include "support/ordered_blocks.hpp"

using namespace rankfold;

TEST_CASE("one_shot folds elements of any size in rank order, at every chunk edge",
          "[algorithm][one_shot]") {
  ordered_blocks::check_all(
      16384, [](auto&&... arguments) { algorithms::one_shot_all_reduce(arguments...); });
}

TEST_CASE("one_shot takes one step a chunk, and one for nothing", "[algorithm][one_shot]") {
  run_contexts(2, {.tune = {.chunk_bytes = 1024}}, [](test_context& ctx) {
    std::vector<std::int32_t> x(1024);
    const sum op;
    const auto steps = [&](std::size_t count) {
      const std::uint64_t before = ctx.steps();
      ctx.run(test_call(count), [&] {
        algorithms::one_shot_all_reduce(ctx, kernel::reducer_for<std::int32_t>(op), x.data(),
                                        x.data(), count);
      });
      return ctx.steps() - before;
    };
    if (steps(0) != 1 || steps(256) != 1 || steps(257) != 2 || steps(1024) != 4) throw 1;
  });
}

TEST_CASE("elements_in gives whole lines where they fit", "[algorithm][one_shot]") {
  CHECK(detail::elements_in(1024, 4) == 256);
  CHECK(detail::elements_in(1000, 4) == 240);
  CHECK(detail::elements_in(60, 4) == 15);
  CHECK(detail::elements_in(3, 4) == 0);
}
