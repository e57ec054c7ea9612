// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/select.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "rankfold/tuning.hpp"
#include "support/catch.hpp"

using namespace rankfold;

namespace {

struct stub {  // all that select looks at
  int ranks = 3;
  std::size_t half = 8192;
  rankfold::tuning tune = {.one_shot_max_bytes = 1000};
  int size() const { return ranks; }
  std::size_t half_bytes() const { return half; }
  const rankfold::tuning& tuning() const { return tune; }
};

algorithm pick(const stub& ctx, algorithm asked, std::size_t bytes, std::size_t element = 4,
               collective what = collective::all_reduce) {
  return algorithms::select(ctx, what, asked, bytes, element);
}

}  // namespace

TEST_CASE("the size picks the algorithm", "[algorithm][select]") {
  const stub ctx;
  CHECK(pick(ctx, algorithm::automatic, 0) == algorithm::inline_line);
  CHECK(pick(ctx, algorithm::automatic, 40) == algorithm::inline_line);
  CHECK(pick(ctx, algorithm::automatic, 44) == algorithm::one_shot);
  CHECK(pick(ctx, algorithm::automatic, 500) == algorithm::one_shot);  // reads 2 × 500 bytes
  CHECK(pick(ctx, algorithm::automatic, 504) == algorithm::two_shot);
  CHECK(pick(ctx, algorithm::automatic, 504, 4, collective::all_gather) == algorithm::one_shot);
  CHECK(pick({.ranks = 8}, algorithm::automatic, 140) == algorithm::one_shot);
  CHECK(pick({.ranks = 8}, algorithm::automatic, 144) == algorithm::two_shot);
}

TEST_CASE("two ranks are one-shot at any size", "[algorithm][select]") {
  CHECK(pick({.ranks = 2}, algorithm::automatic, 1 << 30) == algorithm::one_shot);
  CHECK(pick({.ranks = 2}, algorithm::two_shot, 1 << 30) == algorithm::two_shot);
}

TEST_CASE("a large reduce is two-shot from four ranks on, where the root has less to do so",
          "[algorithm][select]") {
  constexpr collective what = collective::reduce;
  CHECK(pick({.ranks = 3}, algorithm::automatic, 1 << 30, 4, what) == algorithm::one_shot);
  CHECK(pick({.ranks = 3}, algorithm::two_shot, 1 << 30, 4, what) == algorithm::two_shot);
  CHECK(pick({.ranks = 4}, algorithm::automatic, 332, 4, what) == algorithm::one_shot);
  CHECK(pick({.ranks = 4}, algorithm::automatic, 336, 4, what) == algorithm::two_shot);
}

TEST_CASE("an algorithm that is asked for is taken or refused with the reason",
          "[algorithm][select]") {
  const stub ctx;
  CHECK(pick(ctx, algorithm::two_shot, 4) == algorithm::two_shot);
  CHECK(pick(ctx, algorithm::one_shot, 100000) == algorithm::one_shot);
  CHECK_THROWS_WITH(pick(ctx, algorithm::inline_line, 44),
                    "all_reduce: algorithm inline_line carries 40 bytes at most, not 44");
  CHECK_THROWS_WITH(pick(ctx, algorithm::two_shot, 100, 1, collective::broadcast),
                    "broadcast: algorithm two_shot is for all_reduce and reduce only");
  CHECK_THROWS_AS(pick(ctx, static_cast<algorithm>(30), 100), std::invalid_argument);
}

TEST_CASE(
    "an element too large for the pipeline goes one-shot, one too large for the workspace is "
    "refused",
    "[algorithm][select]") {
  const stub ctx;
  CHECK(pick(ctx, algorithm::automatic, 30000, 3000) == algorithm::one_shot);
  CHECK_THROWS_AS(pick(ctx, algorithm::two_shot, 30000, 3000), std::invalid_argument);
  CHECK_THROWS_WITH(
      pick(ctx, algorithm::automatic, 9000, 9000),
      "all_reduce: an element of 9000 bytes does not fit in the workspace; raise workspace_bytes");
  // Two peers' slots of one element each.
  CHECK(pick(ctx, algorithm::automatic, 10000, 4096, collective::reduce_scatter) ==
        algorithm::one_shot);
  CHECK_THROWS_AS(pick(ctx, algorithm::automatic, 10000, 4097, collective::reduce_scatter),
                  std::invalid_argument);
  CHECK_THROWS_AS(pick(ctx, algorithm::automatic, 10000, 4097, collective::reduce_scatter_uneven),
                  std::invalid_argument);
}

TEST_CASE("uneven blocks never travel in a line, of which not all ranks know",
          "[algorithm][select]") {
  const stub ctx;
  for (const collective what :
       {collective::reduce_scatter_uneven, collective::all_gather_uneven, collective::gather_uneven,
        collective::scatter_uneven, collective::all_to_all_uneven}) {
    CHECK(pick(ctx, algorithm::automatic, 0, 1, what) == algorithm::one_shot);
    CHECK(pick(ctx, algorithm::one_shot, 8, 1, what) == algorithm::one_shot);
    CHECK_THROWS_WITH(
        pick(ctx, algorithm::inline_line, 8, 1, what),
        std::string(name_of(what)) + ": algorithm inline_line is for blocks of one size only");
  }
}
