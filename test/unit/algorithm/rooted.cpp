// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/rooted.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/contexts.hpp"
#include "support/ordered_blocks.hpp"

using namespace rankfold;

namespace {

/// Byte i of rank r.
std::byte of(std::size_t rank, std::size_t i) {
  return static_cast<std::byte>(rank * 89 + i * 5 + (i >> 8));
}

std::vector<std::byte> row(std::size_t rank, std::size_t count) {
  std::vector<std::byte> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = of(rank, i);
  return x;
}

}  // namespace

TEST_CASE("a rooted reduce folds elements of any size in rank order, at every chunk edge",
          "[algorithm][rooted]") {
  // Every rank is the root once, so that the check of all_reduce finds all results.
  ordered_blocks::check_all(
      16384, [](auto& ctx, const auto& reducer, const void* in, void* out, std::size_t count) {
        std::vector<std::byte> kept(count * reducer.element_size);
        for (int root = 0; root < ctx.size(); ++root) {
          std::byte* const to = ctx.rank() == root ? kept.data() : nullptr;
          algorithms::rooted_reduce(ctx, reducer, in, to, count, root);
        }
        std::copy(kept.begin(), kept.end(), static_cast<std::byte*>(out));
      });
}

TEST_CASE("gather and broadcast carry every byte from and to any root, at every chunk edge",
          "[algorithm][rooted]") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t chunk : {64u, 1024u, 1000000u}) {
      std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
      run_contexts(ranks, {.tune = {.chunk_bytes = chunk}}, [&](test_context& ctx) {
        const auto rank = static_cast<std::size_t>(ctx.rank());
        const auto P = static_cast<std::size_t>(ranks);
        for (const std::size_t bytes : {0u, 1u, 63u, 64u, 65u, 1024u, 1025u, 9000u}) {
          for (int root = 0; root < ranks; ++root) {
            std::vector<std::byte> data = row(rank, bytes);
            ctx.run(test_call(bytes),
                    [&] { algorithms::rooted_broadcast(ctx, data.data(), bytes, root); });
            wrong[rank] += data != row(static_cast<std::size_t>(root), bytes);
            const std::vector<std::byte> in = row(rank, bytes);
            std::vector<std::byte> wanted;
            for (std::size_t r = 0; r < P; ++r) {
              for (std::size_t i = 0; i < bytes; ++i) wanted.push_back(of(r, i));
            }
            if (ctx.rank() != root) wanted.clear();
            std::vector<std::byte> out(wanted.size());
            ctx.run(test_call(bytes),
                    [&] { algorithms::rooted_gather(ctx, in.data(), out.data(), bytes, root); });
            wrong[rank] += out != wanted;
          }
        }
      });
      INFO(ranks << " ranks, chunks of " << chunk);
      CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
  }
}

TEST_CASE("an uneven gather takes as many steps as the largest block of a peer needs",
          "[algorithm][rooted]") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (int root = 0; root < ranks; ++root) {
      for (const std::size_t largest : {0u, 1000u, 1024u, 1025u, 5000u}) {
        std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
        std::vector<std::uint64_t> steps(static_cast<std::size_t>(ranks), 0);
        run_contexts(ranks, {.tune = {.chunk_bytes = 1024}}, [&](test_context& ctx) {
          const auto rank = static_cast<std::size_t>(ctx.rank());
          const auto P = static_cast<std::size_t>(ranks);
          std::vector<std::size_t> counts(P, 3);
          counts[(static_cast<std::size_t>(root) + 1) % P] = largest;
          counts[static_cast<std::size_t>(root)] = 20000;
          const std::vector<std::byte> in = row(rank, counts[rank]);
          std::vector<std::byte> wanted;
          for (std::size_t r = 0; r < P; ++r) {
            for (std::size_t i = 0; i < counts[r]; ++i) wanted.push_back(of(r, i));
          }
          if (ctx.rank() != root) wanted.clear();
          std::vector<std::byte> out(wanted.size());
          const detail::uneven_blocks blocks("test", "counts", counts, ranks, 1, 1);
          const std::uint64_t before = ctx.steps();
          ctx.run(test_call(), [&] {
            algorithms::rooted_gather_uneven(ctx, in.data(), counts[rank], 1, out.data(),
                                             ctx.rank() == root ? &blocks : nullptr, root);
          });
          steps[rank] = ctx.steps() - before;
          wrong[rank] = out != wanted;
        });
        INFO(ranks << " ranks, root " << root << ", largest " << largest);
        CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
        const std::uint64_t expected = ranks == 1 || largest <= 1024 ? 1 : (largest + 1023) / 1024;
        CHECK(steps == std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), expected));
      }
    }
  }
}

TEST_CASE("who sends to a root runs ahead of it, but not without bound", "[algorithm][rooted]") {
  std::atomic<std::uint64_t> done_by_root{0};
  std::atomic<std::uint64_t> most_ahead{0};
  run_contexts(2, {.tune = {.chunk_bytes = 64}}, [&](test_context& ctx) {
    std::vector<std::byte> in(64);
    std::vector<std::byte> out(128);
    for (std::uint64_t call = 1; call <= 200; ++call) {
      if (ctx.rank() == 0 && call % 100 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      ctx.run(test_call(64), [&] { algorithms::rooted_gather(ctx, in.data(), out.data(), 64, 0); });
      if (ctx.rank() == 0) {
        done_by_root = call;
      } else {
        const std::uint64_t root_at = done_by_root;
        if (call > root_at && call - root_at > most_ahead) most_ahead = call - root_at;
      }
    }
  });
  // The lead of the context, and the call that the root is in.
  CHECK(most_ahead <= 33);
  CHECK(most_ahead >= 1);
}
