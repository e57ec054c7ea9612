// SPDX-License-Identifier: Apache-2.0
// Which way inputs go, told by the steps that a call takes; test/unit/collective/allocate.cpp has
// the values.
#include "rankfold/algorithm/symmetric.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rankfold/collective/all_reduce.hpp"
#include "rankfold/collective/allocate.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/contexts.hpp"

using namespace rankfold;

namespace {

using memory = std::shared_ptr<detail::symmetric_allocation>;

context_setup setup() {
  return {.workspace_bytes = 32768,
          .tune = {.one_shot_max_bytes = 2048,
                   .chunk_bytes = 1024,
                   .symmetric_min_bytes = 512,
                   .symmetric_in_place_min_bytes = 4096},
          .waiting = {}};
}

memory allocate(test_context& ctx, std::size_t bytes) {
  return collectives::allocate(ctx, dtype::uint8, 1, bytes);
}

/// The steps that an all_reduce of `bytes` takes.
std::uint64_t steps(test_context& ctx, const std::byte* in, std::byte* out, std::size_t bytes,
                    algorithm how = algorithm::automatic) {
  const std::uint64_t before = ctx.steps();
  const sum op;
  collectives::all_reduce(ctx, kernel::reducer_for<std::int32_t>(op), in, out, bytes / 4,
                          {.algorithm = how});
  return ctx.steps() - before;
}

/// Runs `f(context, vector of ordinary memory)` and fails with the text that it throws.
template <class F>
void on(int ranks, F&& f) {
  std::string problem;
  try {
    run_contexts(ranks, setup(), [&](test_context& ctx) {
      std::vector<std::byte> ordinary(2 * 8192);
      f(ctx, ordinary.data());
    });
  } catch (const std::string& e) {
    problem = e;
  }
  CHECK(problem == "");
}

void expect(const char* what, std::uint64_t found, std::uint64_t wanted) {
  if (found != wanted) {
    throw std::string(what) + ": " + std::to_string(found) + " steps, not " +
        std::to_string(wanted);
  }
}

}  // namespace

TEST_CASE("a communicator that has allocated nothing tells no places", "[algorithm][symmetric]") {
  on(2, [](test_context& ctx, std::byte* ordinary) {
    expect("one-shot", steps(ctx, ordinary, ordinary, 8192), 8);
  });
}

TEST_CASE("two ranks fold symmetric inputs where they lie, in one step more than the telling",
          "[algorithm][symmetric]") {
  on(2, [](test_context& ctx, std::byte* ordinary) {
    const memory lies = allocate(ctx, 2 * 8192);
    std::byte* const in = lies->data();
    const bool first = ctx.rank() == 0;
    expect("a short one", steps(ctx, in, ordinary, 508), 1);
    expect("direct", steps(ctx, in, ordinary, 512), 2);
    expect("direct, at an offset", steps(ctx, in + 4, in + 8192, 8192 - 4), 2);
    expect("in place, short", steps(ctx, in, in, 4092), 1 + 4);
    expect("in place", steps(ctx, in, in, 4096), 1 + 4);
    expect("in place, longer", steps(ctx, in, in, 8192), 1 + 8);
    expect("one of them in place", steps(ctx, in, first ? in : ordinary, 8192), 1 + 8);
    expect("two-shot", steps(ctx, in, ordinary, 8192, algorithm::two_shot), 1 + 8);
    expect("one in ordinary memory", steps(ctx, first ? in : ordinary, ordinary + 8192, 8192),
           1 + 8);
    expect("of which the end is not in it", steps(ctx, in + 8192 + 4, ordinary, 8192), 1 + 8);
    expect("all in ordinary memory", steps(ctx, ordinary, ordinary, 8192), 1 + 8);
  });
}

TEST_CASE("symmetric inputs are not staged", "[algorithm][symmetric]") {
  for (const algorithm how : {algorithm::one_shot, algorithm::two_shot}) {
    on(3, [how](test_context& ctx, std::byte* ordinary) {
      const memory lies = allocate(ctx, 8192);
      // No sum of them has bytes like theirs.
      std::memset(lies->data(), 0x11 * (ctx.rank() + 1), 8192);
      steps(ctx, lies->data(), ordinary, 8192, how);
      std::string seen;
      for (int half = 0; half < 2; ++half) {
        ctx.run(test_call(), [&] {
          ctx.next_step();
          const std::byte* const begin = ctx.half(ctx.rank());
          for (std::size_t i = 0; i < ctx.half_bytes(); ++i) {
            if (begin[i] == std::byte(0x11 * (ctx.rank() + 1))) seen = "an input was staged";
          }
          ctx.publish();
          ctx.wait_all();
        });
      }
      if (!seen.empty()) throw seen;
    });
  }
}

TEST_CASE("in two shots some ranks stage and the others do not", "[algorithm][symmetric]") {
  on(3, [](test_context& ctx, std::byte* ordinary) {
    const memory lies = allocate(ctx, 8192);
    // ⌈6144 / 960⌉ chunks: a third of 1024 is 5 lines.
    expect("all lie", steps(ctx, lies->data(), ordinary, 6144), 1 + 7);
    expect("one stages", steps(ctx, ctx.rank() == 1 ? ordinary : lies->data(), ordinary, 6144),
           1 + 7 + 1);
    expect("all stage", steps(ctx, ordinary, ordinary, 6144), 1 + 7 + 1);
  });
}

TEST_CASE("a place in memory that all have destroyed is an error", "[algorithm][symmetric]") {
  std::string text;
  try {
    run_contexts(2, setup(), [](test_context& ctx) {
      memory freed = allocate(ctx, 1024);
      std::byte* const in = freed->data();
      freed->release();
      ctx.run(test_call(), [&] {
        ctx.next_step(0);
        ctx.publish();
        ctx.wait_all();
      });
      // Rank 1 has let it go, and rank 0 keeps it in spite of all.
      std::optional<detail::symmetric_allocations> kept;
      if (ctx.rank() == 0) kept = ctx.symmetric();
      allocate(ctx, 1024);
      if (kept) std::swap(*kept, ctx.symmetric());
      steps(ctx, in, in, 512);
    });
  } catch (const mismatch_error& e) {
    text = e.what();
  }
  INFO(text);
  CHECK(contains(text, "rank 0 has its input in allocation 1, which all ranks have destroyed"));
}
