// SPDX-License-Identifier: Apache-2.0
#include "rankfold/epilogues.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/rms_norm_reference.hpp"
#include "support/values.hpp"

using namespace rankfold;

namespace {

template <class T>
std::byte* bytes_of(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

/// Equal bits.
template <class T>
bool same(std::vector<T> a, std::vector<T> b) {
  return a.size() == b.size() &&
         std::equal(bytes_of(a), bytes_of(a) + a.size() * sizeof(T), bytes_of(b));
}

/// What is wrong with epilogues on rows of `width`; nothing if all is right.
template <class T>
std::string wrong_rows(std::size_t rows, std::size_t width, algorithm how) {
  const std::size_t count = rows * width;
  const auto found = testing::run_ranks(
      3,
      [&](auto& comm) {
        std::vector<std::vector<T>> inputs;
        for (int r = 0; r < comm.size(); ++r) inputs.push_back(values::hostile<T>(count, r));
        std::vector<T>& x = inputs[static_cast<std::size_t>(comm.rank())];
        // Each rank has a residual of its own.
        const std::vector<T> residual = values::hostile<T>(count, 10 + comm.rank());
        // The unfused sequence, by the oracles.
        const std::vector<T> sum_of_two = reference::fold<T>(
            std::vector<std::vector<T>>{reference::fold<T>(inputs, sum{}), residual}, sum{});
        const call_options options{.algorithm = how};
        std::string wrong;

        std::vector<T> out(count);
        comm.all_reduce(std::span(x), sum{},
                        epilogues::add(std::span<const T>(residual), std::span(out)), options);
        if (!same(out, sum_of_two)) wrong += "add ";
        out = residual;
        comm.all_reduce(std::span(x), sum{}, epilogues::add(std::span(out)), options);
        if (!same(out, sum_of_two)) wrong += "add in place ";

        if constexpr (kernel::has_rms_norm_v<T>) {
          std::vector<T> weight = values::hostile<T>(width, 20);
          std::vector<T> summed = sum_of_two;
          std::vector<T> wanted(count);
          for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t begin = row * width * sizeof(T);
            reference::rms_norm<T>(bytes_of(summed) + begin, bytes_of(weight), 1e-5F,
                                   bytes_of(wanted) + begin, width);
          }
          std::vector<T> normed(count);
          out = residual;
          const std::span<T> to(normed);
          epilogues::add_rms_norm norm(std::span<T>(out), std::span<T>(weight), 1e-5F, to);
          for (int time = 0; time < 2; ++time) {  // one epilogue for several calls
            out = residual;
            std::fill(normed.begin(), normed.end(), T{});
            comm.all_reduce(std::span(x), sum{}, norm, options);
            if (!same(out, sum_of_two)) wrong += "residual ";
            if (!same(normed, wanted)) wrong += "norm ";
          }
          out = residual;
          comm.all_reduce(
              std::span(x), sum{},
              epilogues::add_rms_norm(std::span(out), std::span(weight), 1e-5F, std::span(x)),
              options);
          if (!same(out, sum_of_two) || !same(x, wanted)) wrong += "norm over the input";
        }
        return wrong;
      },
      {.communicator = {.tune = {.one_shot_max_bytes = 2048, .chunk_bytes = 1024}},
       .threads = {.workspace_bytes = 65536}});
  return found[0] + found[1] + found[2];
}

}  // namespace

TEST_CASE("epilogues give the bits of the unfused sequence, wherever rows are cut",
          "[collective][epilogue]") {
  for (const algorithm how : {algorithm::automatic, algorithm::one_shot, algorithm::two_shot}) {
    for (const auto& [rows, width] : {std::pair<std::size_t, std::size_t>{0, 8},
                                      {1, 1},
                                      {2, 3},
                                      {700, 1},
                                      {3, 999},
                                      {5, 512},
                                      {1, 5000}}) {
      INFO(rows << " rows of " << width << ", " << name_of(how));
      CHECK(wrong_rows<float>(rows, width, how) == "");
      CHECK(wrong_rows<bfloat16>(rows, width, how) == "");
      CHECK(wrong_rows<float16>(rows, width, how) == "");
      CHECK(wrong_rows<std::int32_t>(rows, width, how) == "");
    }
  }
}

TEST_CASE("epilogues refuse what does not fit, before anything is sent", "[collective][epilogue]") {
  const auto texts = testing::run_ranks(2, [](auto& comm) {
    std::vector<float> x(12, 1.0F);
    std::vector<float> r(12);
    std::vector<float> w(4);
    std::vector<float> y(12);
    std::vector<std::string> found;
    const auto refused = [&](auto&& call) {
      try {
        call();
        found.push_back("nothing");
      } catch (const std::invalid_argument& e) {
        found.push_back(e.what());
      }
    };
    const std::span<float> in(x);
    const std::span<float> residual(r);
    const std::span<float> weight(w);
    const std::span<float> out(y);
    refused([&] { comm.all_reduce(in, sum{}, epilogues::add(residual.first(11))); });
    refused([&] {
      comm.all_reduce(x.data(), 12, dtype::int32, reduction::sum, epilogues::add(residual));
    });
    refused([&] { epilogues::add(residual.first(8), residual.last(8)); });
    refused([&] { epilogues::add(residual.first(8), out); });
    refused([&] {
      comm.all_reduce(in.first(8), sum{}, epilogues::add(residual.first(8), in.last(8)));
    });
    refused([&] { epilogues::add_rms_norm(residual, weight.first(0), 0, out); });
    refused([&] { epilogues::add_rms_norm(residual, out.first(5), 0, in); });
    refused([&] { epilogues::add_rms_norm(residual, weight, 0, out.first(8)); });
    refused([&] { epilogues::add_rms_norm(residual, weight, 0, residual); });
    refused([&] { epilogues::add_rms_norm(residual, out.first(4), 0, out); });
    refused([&] {
      comm.all_reduce(in.first(8), sum{}, epilogues::add_rms_norm(residual, weight, 0, out));
    });
    refused([&] { comm.all_reduce(in, sum{}, epilogues::add_rms_norm(in, weight, 0, out)); });
    refused([&] {
      epilogues::add_rms_norm::of(r.data(), r.data(), w.data(), 4, 0, y.data(), 12, dtype::float64);
    });
    comm.all_reduce(in, sum{}, epilogues::add(residual));
    return found;
  });
  const std::string overlap = ": input and output overlap in part; they may be the same or apart";
  const std::vector<std::string> wanted{
      "epilogues::add: the all_reduce has 12 elements; expected 11",
      "epilogues::add: made for elements of type float32, the all_reduce is of int32",
      "epilogues::add" + overlap,
      "epilogues::add: out has 12 elements; expected 8",
      "epilogues::add" + overlap,
      "epilogues::add_rms_norm: residual has 12 elements; expected rows of the 0 elements of "
      "weight",
      "epilogues::add_rms_norm: residual has 12 elements; expected rows of the 5 elements of "
      "weight",
      "epilogues::add_rms_norm: out has 8 elements; expected 12",
      "epilogues::add_rms_norm: residual and out overlap; expected them apart",
      "epilogues::add_rms_norm: out and weight overlap; expected them apart",
      "epilogues::add_rms_norm: the all_reduce has 8 elements; expected 12",
      "epilogues::add_rms_norm: residual and the input overlap; expected them apart",
      "rms_norm: rows of float64; expected float32, bfloat16 or float16"};
  CHECK(texts == std::vector<std::vector<std::string>>{wanted, wanted});
}
