// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/one_shot.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/catch.hpp"
#include "support/contexts.hpp"

using namespace rankfold;

namespace {

/// An element of no convenient size that knows whether ranks were folded in order.
template <std::size_t Bytes>
struct block {
  std::uint16_t first;
  std::uint16_t last;
  std::array<std::uint8_t, Bytes - 4> rest;
};

struct join {
  template <class B>
  B operator()(const B& a, const B& b) const {
    B c = a;
    c.last = b.last;
    if (a.last + 1 != b.first) c.first = 999;
    for (std::size_t i = 0; i < c.rest.size(); ++i)
      c.rest[i] = static_cast<std::uint8_t>(a.rest[i] + b.rest[i]);
    return c;
  }
};

template <std::size_t Bytes>
void check(int ranks, std::size_t count, std::size_t chunk_bytes) {
  using element = block<Bytes>;
  INFO(ranks << " ranks, " << count << " elements of " << Bytes << " bytes, chunks of "
             << chunk_bytes);
  std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
  run_contexts(ranks, {.tune = {.chunk_bytes = chunk_bytes}}, [&](test_context& ctx) {
    const auto rank = static_cast<std::uint16_t>(ctx.rank());
    std::vector<element> x(count);
    for (std::size_t i = 0; i < count; ++i) {
      x[i].first = x[i].last = rank;
      for (std::size_t k = 0; k < x[i].rest.size(); ++k) {
        x[i].rest[k] = static_cast<std::uint8_t>(rank * 31 + i * 7 + k);
      }
    }
    std::vector<element> y(count);
    const join op;
    const kernel::reducer reducer = kernel::reducer_for<element>(op);
    ctx.run(test_call(count),
            [&] { algorithms::one_shot_all_reduce(ctx, reducer, x.data(), y.data(), count); });
    ctx.run(test_call(count),
            [&] { algorithms::one_shot_all_reduce(ctx, reducer, x.data(), x.data(), count); });
    int bad = 0;
    for (const auto* out : {&y, &x}) {
      for (std::size_t i = 0; i < count; ++i) {
        const element& e = (*out)[i];
        bad += e.first != 0 || e.last != ranks - 1;
        for (std::size_t k = 0; k < e.rest.size(); ++k) {
          std::size_t sum = 0;
          for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
            sum += r * 31 + i * 7 + k;
          bad += e.rest[k] != static_cast<std::uint8_t>(sum);
        }
      }
    }
    wrong[rank] = bad;
  });
  CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
}

}  // namespace

TEST_CASE("one_shot folds elements of any size in rank order, at every chunk edge",
          "[algorithm][one_shot]") {
  for (const int ranks : {2, 3, 5}) {
    for (const std::size_t count : {0u, 1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 200u, 1000u}) {
      for (const std::size_t chunk : {64u, 1024u, 1000000u}) {
        check<12>(ranks, count, chunk);
        check<16>(ranks, count, chunk);
      }
      check<5>(ranks, count, 512);
      check<100>(ranks, count, 1024);
    }
  }
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
  CHECK(algorithms::elements_in(1024, 4) == 256);
  CHECK(algorithms::elements_in(1000, 4) == 240);
  CHECK(algorithms::elements_in(60, 4) == 15);
  CHECK(algorithms::elements_in(3, 4) == 0);
}
