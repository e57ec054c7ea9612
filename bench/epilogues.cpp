// SPDX-License-Identifier: Apache-2.0
// all_reduce with an epilogue against all_reduce and then the same kernels, on two ranks that are
// threads: a residual added, and RMSNorm behind it. Prints a table:
//
//   build/bench/bench/bench_epilogues      after sh bench/run.sh has built it
//
// Rounds are interleaved; microseconds a call are medians, and so are the ratios within rounds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rankfold/testing/run_ranks.hpp"

namespace {

using namespace rankfold;
using clock = std::chrono::steady_clock;
using comm = communicator<threads_transport>;

constexpr int rounds = 9;
enum { add_after, add_inside, norm_after, norm_inside, ways };

template <class T>
struct layer {
  layer(std::size_t rows, std::size_t width)
      : x(rows * width, T(0.0F)),
        residual(rows * width, T(1.0F)),
        out(rows * width),
        weight(width, T(1.0F)) {}

  void call(comm& c, int way) {
    const std::span<T> all(x);
    const std::span<T> sum_of(residual);
    const std::span<T> normed(out);
    const std::span<T> weights(weight);
    epilogues::add add(sum_of);
    epilogues::add_rms_norm norm(sum_of, weights, 1e-5F, normed);
    switch (way) {
      case add_inside:
        return c.all_reduce(all, sum{}, add);
      case norm_inside:
        return c.all_reduce(all, sum{}, norm);
      default:
        c.all_reduce(all);
        add(x.data(), 0, x.size());
        if (way == norm_after) {
          const auto row = kernel::rms_norm_for(dtype_of_v<T>);
          for (std::size_t i = 0; i < x.size(); i += weight.size()) {
            row(residual.data() + i, weight.data(), 1e-5F, out.data() + i, weight.size());
          }
        }
    }
  }

  std::vector<T> x, residual, out, weight;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <class T>
void measure(comm& c, std::size_t rows, std::size_t width) {
  layer<T> data(rows, width);
  const std::size_t bytes = rows * width * sizeof(T);
  const int calls =
      static_cast<int>(std::clamp(std::size_t{16} << 20, bytes, bytes * 1000) / bytes);
  std::array<std::vector<double>, ways> times;
  for (int round = 0; round <= rounds; ++round) {
    for (int turn = 0; turn < ways; ++turn) {
      const int way = (turn + round) % ways;
      c.barrier();
      const auto begin = clock::now();
      for (int i = 0; i < calls; ++i) data.call(c, way);
      const std::chrono::duration<double, std::micro> time = clock::now() - begin;
      if (round != 0) times[static_cast<std::size_t>(way)].push_back(time.count() / calls);
    }
  }
  if (c.rank() != 0) return;
  std::printf("| %s | %zu × %zu |", std::string(name_of(dtype_of_v<T>)).c_str(), rows, width);
  for (const std::size_t after : {std::size_t{add_after}, std::size_t{norm_after}}) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < times[after].size(); ++i) {
      ratios.push_back(times[after][i] / times[after + 1][i]);
    }
    std::printf(" %.1f | %.1f | %.2f |", median(times[after]), median(times[after + 1]),
                median(ratios));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::printf(
      "| | rows × hidden | add, after | inside | times faster | add and norm, after | inside | "
      "times faster |\n"
      "|---|---|---|---|---|---|---|---|\n");
  testing::run_ranks(2, [](comm& c) {
    for (const std::size_t rows : {1, 4, 16, 512, 2048}) {
      for (const std::size_t width : {2048, 4096, 8192}) {
        measure<bfloat16>(c, rows, width);
        measure<float>(c, rows, width);
      }
    }
  });
}
