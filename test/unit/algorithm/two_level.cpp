// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/two_level.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rankfold/detail/output.hpp"
#include "rankfold/hierarchical_context.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/simulated_hosts.hpp"
#include "support/values.hpp"

using namespace rankfold;

namespace {

/// The bits that every rank gets, in place and out of place, against the reference's fold.
template <class T, class Op>
void check(const std::vector<int>& marks, std::size_t count, const tuning& tune,
           std::uint64_t seed) {
  std::vector<std::vector<T>> inputs;
  for (std::size_t r = 0; r < marks.size(); ++r) {
    inputs.push_back(values::hostile<T>(count, static_cast<int>(r), seed));
  }
  const std::vector<T> wanted = reference::fold<T>(inputs, Op{});
  std::vector<std::string> wrong(marks.size());
  run_on_hosts(marks, {.timeout = std::chrono::seconds(60), .tune = tune}, [&](auto& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const call_options two_level{.algorithm = algorithm::two_level};
    std::vector<T> out(count);
    comm.all_reduce(std::span<const T>(inputs[rank]), std::span(out), Op{}, two_level);
    std::vector<T> data = inputs[rank];
    comm.all_reduce(std::span(data), Op{}, two_level);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(&out[i], &wanted[i], sizeof(T)) != 0) {
        wrong[rank] = "element " + std::to_string(i);
      }
      if (std::memcmp(&data[i], &wanted[i], sizeof(T)) != 0) {
        wrong[rank] = "in place, element " + std::to_string(i);
      }
    }
  });
  CHECK(wrong == std::vector<std::string>(marks.size()));
}

}  // namespace

TEST_CASE("two_level gives the canonical fold's bits in random layouts", "[algorithm][two_level]") {
  std::mt19937_64 random(values::seed());
  for (int round = 0; round < 40; ++round) {
    const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
    const std::size_t ranks = 2 + below(7);
    const std::size_t hosts = 1 + below(ranks - 1);  // fewer than ranks: two levels
    std::vector<int> marks(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      marks[r] = static_cast<int>(r < hosts ? r : below(hosts));
    }
    if (below(2) == 0) std::shuffle(marks.begin(), marks.end(), random);
    if (below(3) == 0) std::sort(marks.begin(), marks.end());
    tuning tune;
    tune.chunk_bytes = std::size_t{256} << below(5);
    tune.one_shot_max_bytes = std::size_t{64} << below(8);
    tune.whole_rail_max_bytes = std::size_t{64} << below(8);
    const std::size_t count = below(3) == 0 ? below(4) : below(6000);
    std::string text = std::to_string(count) + " elements, hosts";
    for (const int mark : marks) text += " " + std::to_string(mark);
    INFO("seed " << values::seed() << ", round " << round << ": " << text << ", chunk "
                 << tune.chunk_bytes << ", one shot " << tune.one_shot_max_bytes << ", whole "
                 << tune.whole_rail_max_bytes);
    switch (round % 5) {
      case 0:
        check<float16, sum>(marks, count, tune, random());
        break;
      case 1:
        check<bfloat16, avg>(marks, count, tune, random());
        check<float8_e4m3fn, sum>(marks, count, tune, random());
        break;
      case 2:
        check<float, prod>(marks, count, tune, random());
        break;
      case 3:
        check<double, min>(marks, count, tune, random());
        break;
      default:
        check<std::int8_t, sum>(marks, count, tune, random());
    }
  }
}

TEST_CASE("two_level takes two local steps, and one more for each chunk more",
          "[algorithm][two_level]") {
  // Two hosts of two ranks, chunks of 1 KiB in two slices.
  std::vector<std::vector<std::uint64_t>> local(4);
  std::vector<std::vector<std::uint64_t>> rail(4);
  tuning tune;
  tune.chunk_bytes = 1024;
  tune.whole_rail_max_bytes = 0;
  run_transports_on_hosts(std::vector<int>{0, 0, 1, 1}, [&](simulated_hosts&& transport) {
    context<simulated_hosts> ctx(std::move(transport), tune, {});
    const auto rank = static_cast<std::size_t>(ctx.rank());
    std::vector<std::int32_t> x(1024);
    const sum op;
    for (const std::size_t count : {1, 256, 257, 1024}) {
      const std::uint64_t local_before = ctx.local().steps();
      const std::uint64_t rail_before = ctx.rail()->steps();
      const auto call = fingerprint::of(collective::all_reduce, count, dtype::int32, 1,
                                        algorithm::two_level, 0, 0);
      ctx.run_two_level(call, [&] {
        algorithms::two_level_all_reduce(ctx, kernel::reducer_in_parts_for<std::int32_t>(op),
                                         x.data(), detail::buffer_output(x.data(), 4), count);
      });
      local[rank].push_back(ctx.local().steps() - local_before);
      rail[rank].push_back(ctx.rail()->steps() - rail_before);
    }
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(local[rank] == std::vector<std::uint64_t>{2, 2, 4, 6});
    CHECK(rail[rank] == std::vector<std::uint64_t>{1, 1, 2, 4});
  }
}
