// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/contexts.hpp"

using namespace rankfold;

namespace {

/// Byte i of what `from` sends `to`.
std::byte sent(std::size_t from, std::size_t to, std::size_t i) {
  return static_cast<std::byte>(from * 97 + to * 31 + i * 7 + (i >> 8));
}

using count_function = std::function<std::size_t(std::size_t from, std::size_t to)>;

/// The blocks of one rank, one behind the other: those it sends, or those it gets.
std::vector<std::byte> blocks_of(std::size_t rank, std::size_t ranks, bool sends,
                                 const count_function& count) {
  std::vector<std::byte> all;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t from = sends ? rank : r;
    const std::size_t to = sends ? r : rank;
    for (std::size_t i = 0; i < count(from, to); ++i) all.push_back(sent(from, to, i));
  }
  return all;
}

std::vector<std::size_t> counts_of(std::size_t rank, std::size_t ranks, bool sends,
                                   const count_function& count) {
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < ranks; ++r) counts.push_back(sends ? count(rank, r) : count(r, rank));
  return counts;
}

/// The steps that each rank took; throws where a byte is wrong.
std::uint64_t run_uneven(int ranks, const context_setup& setup, const count_function& count) {
  std::vector<std::uint64_t> steps(static_cast<std::size_t>(ranks));
  std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
  run_contexts(ranks, setup, [&](test_context& ctx) {
    const auto rank = static_cast<std::size_t>(ctx.rank());
    const auto P = static_cast<std::size_t>(ranks);
    const std::vector<std::byte> in = blocks_of(rank, P, true, count);
    const std::vector<std::byte> wanted = blocks_of(rank, P, false, count);
    std::vector<std::byte> out(wanted.size());
    const detail::uneven_blocks send("test", "send", counts_of(rank, P, true, count), ranks, 1, 1);
    const detail::uneven_blocks get("test", "get", counts_of(rank, P, false, count), ranks, 1, 1);
    const std::uint64_t before = ctx.steps();
    ctx.run(test_call(),
            [&] { algorithms::exchange_all_to_all_uneven(ctx, in.data(), send, out.data(), get); });
    steps[rank] = ctx.steps() - before;
    wrong[rank] = out != wanted;
  });
  CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  CHECK(steps == std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), steps[0]));
  return steps[0];
}

}  // namespace

TEST_CASE("exchange carries every block to its rank, at every chunk edge, in place too",
          "[algorithm][exchange]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const std::size_t chunk : {0u, 64u, 1024u, 1000000u}) {
      std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
      run_contexts(ranks, {.tune = {.chunk_bytes = chunk}}, [&](test_context& ctx) {
        const auto rank = static_cast<std::size_t>(ctx.rank());
        const auto P = static_cast<std::size_t>(ranks);
        for (const std::size_t bytes : {0u, 1u, 7u, 63u, 64u, 65u, 255u, 256u, 257u, 3000u}) {
          const auto count = [&](std::size_t, std::size_t) { return bytes; };
          std::vector<std::byte> in = blocks_of(rank, P, true, count);
          const std::vector<std::byte> wanted = blocks_of(rank, P, false, count);
          std::vector<std::byte> out(wanted.size());
          ctx.run(test_call(bytes),
                  [&] { algorithms::exchange_all_to_all(ctx, in.data(), out.data(), bytes); });
          wrong[rank] += out != wanted;
          ctx.run(test_call(bytes),
                  [&] { algorithms::exchange_all_to_all(ctx, in.data(), in.data(), bytes); });
          wrong[rank] += in != wanted;
        }
      });
      INFO(ranks << " ranks, chunks of " << chunk);
      CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
  }
}

TEST_CASE("two ranks exchange a whole chunk a step: nobody stages what only he reads",
          "[algorithm][exchange]") {
  run_contexts(2, {.tune = {.chunk_bytes = 1024}}, [](test_context& ctx) {
    std::vector<std::byte> x(2 * 4096);
    const auto steps = [&](std::size_t bytes) {
      const std::uint64_t before = ctx.steps();
      ctx.run(test_call(bytes),
              [&] { algorithms::exchange_all_to_all(ctx, x.data(), x.data(), bytes); });
      return ctx.steps() - before;
    };
    if (steps(0) != 1 || steps(1024) != 1 || steps(1025) != 2 || steps(4096) != 4) throw 1;
  });
}

TEST_CASE("an uneven exchange carries every block, all ranks in as many steps as the largest needs",
          "[algorithm][exchange]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const std::size_t chunk : {0u, 64u, 300u, 1024u, 1000000u}) {
      const context_setup setup{.tune = {.chunk_bytes = chunk}};
      INFO(ranks << " ranks, chunks of " << chunk);
      const auto P = static_cast<std::size_t>(ranks);
      run_uneven(ranks, setup,
                 [](std::size_t from, std::size_t to) { return (from * 5 + to * 11) % 7 * 150; });
      CHECK(run_uneven(ranks, setup, [](std::size_t, std::size_t) { return 0u; }) == 1);
      // What a rank sends itself needs no step.
      CHECK(run_uneven(ranks, setup, [](std::size_t from, std::size_t to) {
              return from == to ? 100000u : 3u;
            }) == 1);
      const std::uint64_t skewed = run_uneven(ranks, setup, [=](std::size_t from, std::size_t to) {
        return from == P - 1 && to == 0 ? 50000u : 0u;
      });
      CHECK((skewed > 1 || ranks == 1));
    }
  }
}

TEST_CASE("an uneven exchange asks for the workspace that it needs", "[algorithm][exchange]") {
  CHECK(algorithms::numbered_slots::least_bytes(2) == 16);
  CHECK(algorithms::numbered_slots::least_bytes(300) == 299 * 16);
  struct stub {
    int size() const { return 300; }
    std::size_t half_bytes() const { return 4096; }
  };
  CHECK_THROWS_WITH(algorithms::check_numbered_slots(stub{}, collective::all_to_all_uneven),
                    "all_to_all (uneven) among 300 ranks needs a workspace of 9568 bytes; raise "
                    "workspace_bytes");
}

TEST_CASE("scatter hands each rank its block of any root, even and uneven",
          "[algorithm][exchange]") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t chunk : {64u, 1024u, 1000000u}) {
      std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
      run_contexts(ranks, {.tune = {.chunk_bytes = chunk}}, [&](test_context& ctx) {
        const auto rank = static_cast<std::size_t>(ctx.rank());
        const auto P = static_cast<std::size_t>(ranks);
        for (int root = 0; root < ranks; ++root) {
          const auto from = static_cast<std::size_t>(root);
          const auto block = [&](const count_function& count) {
            std::vector<std::byte> own;
            for (std::size_t i = 0; i < count(from, rank); ++i) own.push_back(sent(from, rank, i));
            return own;
          };
          const auto even = [](std::size_t, std::size_t) { return std::size_t{700}; };
          const std::vector<std::byte> in = blocks_of(from, P, true, even);
          std::vector<std::byte> out(700);
          ctx.run(test_call(), [&] {
            algorithms::exchange_scatter(ctx, ctx.rank() == root ? in.data() : nullptr, out.data(),
                                         700, root);
          });
          wrong[rank] += out != block(even);
          const auto uneven = [](std::size_t a, std::size_t b) { return (a + b * 3) % 5 * 400; };
          const std::vector<std::byte> blocks = blocks_of(from, P, true, uneven);
          const detail::uneven_blocks known("test", "counts", counts_of(from, P, true, uneven),
                                            ranks, 1, 1);
          std::vector<std::byte> mine(uneven(from, rank));
          ctx.run(test_call(), [&] {
            algorithms::exchange_scatter_uneven(ctx, ctx.rank() == root ? blocks.data() : nullptr,
                                                ctx.rank() == root ? &known : nullptr, mine.data(),
                                                mine.size(), 1, root);
          });
          wrong[rank] += mine != block(uneven);
        }
      });
      INFO(ranks << " ranks, chunks of " << chunk);
      CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
  }
}
