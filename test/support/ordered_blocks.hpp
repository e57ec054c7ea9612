// SPDX-License-Identifier: Apache-2.0
// A check of all-reduce algorithms with elements of no convenient size, whose operator notices a
// rank that is folded out of turn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rankfold/kernel/reducer.hpp"
#include "support/catch.hpp"
#include "support/contexts.hpp"

namespace ordered_blocks {

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

/// Checks `all_reduce(ctx, reducer, in, out, count)`, out of place and in place, on `count`
/// elements.
template <std::size_t Bytes, class AllReduce>
void check(int ranks, std::size_t count, const context_setup& setup, const AllReduce& all_reduce) {
  using element = block<Bytes>;
  INFO(ranks << " ranks, " << count << " elements of " << Bytes << " bytes, chunks of "
             << setup.tune.chunk_bytes);
  std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
  run_contexts(ranks, setup, [&](test_context& ctx) {
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
    const auto reducer = rankfold::kernel::reducer_for<element>(op);
    ctx.run(test_call(count), [&] { all_reduce(ctx, reducer, x.data(), y.data(), count); });
    ctx.run(test_call(count), [&] { all_reduce(ctx, reducer, x.data(), x.data(), count); });
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

/// Elements of 5 to 100 bytes, 2 to 5 ranks, counts around every chunk edge.
template <class AllReduce>
void check_all(std::size_t workspace_bytes, const AllReduce& all_reduce) {
  const auto setup = [&](std::size_t chunk_bytes) {
    return context_setup{.workspace_bytes = workspace_bytes, .tune = {.chunk_bytes = chunk_bytes}};
  };
  for (const int ranks : {2, 3, 5}) {
    for (const std::size_t count : {0u, 1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 200u, 1000u}) {
      for (const std::size_t chunk : {64u, 1024u, 1000000u}) {
        check<12>(ranks, count, setup(chunk), all_reduce);
        check<16>(ranks, count, setup(chunk), all_reduce);
      }
      check<5>(ranks, count, setup(512), all_reduce);
      check<100>(ranks, count, setup(1024), all_reduce);
    }
  }
}

}  // namespace ordered_blocks
