// SPDX-License-Identifier: Apache-2.0
// Every element type with every operator and algorithm, to the bit; test/conformance has every
// transport.
#include "rankfold/collective/all_reduce.hpp"

#include <cfenv>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

#if defined(__x86_64__)
#  include <immintrin.h>
#endif

using namespace rankfold;

namespace {

constexpr std::size_t chunk_bytes = 512;

testing::run_options small() {
  return {.communicator = {.tune = {.one_shot_max_bytes = 1024, .chunk_bytes = chunk_bytes}},
          .threads = {.workspace_bytes = 32768}};
}

/// What the oracle knows of a pair of types; the code under test is given it at run time.
struct oracle {
  std::size_t element_size;
  void (*fill)(std::byte* to, std::size_t count, int rank, std::uint64_t seed);
  void (*fold)(const std::byte* const* in, int n, std::byte* out, std::size_t count);
};

/// How many of the runs of all sizes and algorithms on `ranks` ranks gave other bits than the
/// oracle.
int wrong_runs(int ranks, dtype type, reduction op, const oracle& pair, std::uint64_t seed) {
  const auto wrong = testing::run_ranks(
      ranks,
      [&](auto& comm) {
        int bad = 0;
        const std::size_t chunk = chunk_bytes / pair.element_size;
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(ranks) + 1, chunk - 1, chunk,
              chunk + 1, 3 * chunk + 7}) {
          const std::size_t bytes = count * pair.element_size;
          std::vector<std::vector<std::byte>> in;
          std::vector<const std::byte*> pointers;
          for (int r = 0; r < ranks; ++r) {
            in.emplace_back(bytes + 1);
            pair.fill(in.back().data(), count, r, seed + count);
            pointers.push_back(in.back().data());
          }
          std::vector<std::byte> wanted(bytes + 1);
          pair.fold(pointers.data(), ranks, wanted.data(), count);
          const std::byte* own = in[static_cast<std::size_t>(comm.rank())].data();
          for (const algorithm how :
               {algorithm::automatic, algorithm::one_shot, algorithm::two_shot}) {
            std::vector<std::byte> out(bytes + 1);
            comm.all_reduce(own, out.data(), count, type, op, {.algorithm = how});
            bad += out != wanted;
            std::memcpy(out.data(), own, bytes);
            comm.all_reduce(out.data(), out.data(), count, type, op, {.algorithm = how});
            bad += out != wanted;
          }
        }
        return bad;
      },
      small());
  int all = 0;
  for (const int bad : wrong) all += bad;
  return all;
}

constexpr dtype all_types[] = {
    dtype::float32, dtype::float64, dtype::bfloat16, dtype::float16,       dtype::int8,
    dtype::int16,   dtype::int32,   dtype::int64,    dtype::uint8,         dtype::uint16,
    dtype::uint32,  dtype::uint64,  dtype::boolean,  dtype::float8_e4m3fn, dtype::float8_e5m2};
constexpr reduction all_operators[] = {
    reduction::sum,         reduction::prod,      reduction::min,    reduction::max,
    reduction::avg,         reduction::bit_and,   reduction::bit_or, reduction::bit_xor,
    reduction::logical_and, reduction::logical_or};

}  // namespace

TEST_CASE("all_reduce gives the oracle's bits for every type, operator, algorithm and size",
          "[collective][all_reduce]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  int pairs = 0;
  for (const dtype type : all_types) {
    for (const reduction op : all_operators) {
      const bool has_meaning = visit(op, [&]<class Op>(Op) {
        return visit(type, [&]<class T>() {
          if constexpr (supports_v<Op, T>) {
            const oracle pair{
                sizeof(T), values::fill_hostile<T>,
                [](const std::byte* const* in, int n, std::byte* out, std::size_t count) {
                  reference::fold<T>(Op{}, in, n, out, count);
                }};
            for (const int ranks : {1, 2, 3, 4, 5, 8}) {
              INFO(name_of(type) << " by " << name_of(op) << " on " << ranks << " ranks");
              CHECK(wrong_runs(ranks, type, op, pair, seed) == 0);
            }
            return true;
          } else {
            return false;
          }
        });
      });
      pairs += has_meaning;
    }
  }
  // 4 floating types × 5, 8 integer types × 9, bool × 7.
  CHECK(pairs == 6 * 5 + 8 * 9 + 7);
}

#if defined(__x86_64__)
TEST_CASE("the caller's rounding mode and flush-to-zero change no bit, and are given back",
          "[collective][all_reduce]") {
  const auto wrong = testing::run_ranks(2, [](auto& comm) {
    const float tiny = 1e-42f;  // a denormal; with flush-to-zero the sum would be 0
    const float third = 1.0f / 3.0f;
    std::vector<float> x(100, comm.rank() == 0 ? tiny : third * tiny);
    std::vector<float> y(100, comm.rank() == 0 ? 1.0f : 0x1.000001p-24f);
    std::vector<float> wanted_x(100);
    std::vector<float> wanted_y(100);
    comm.all_reduce(std::span<const float>(x), std::span(wanted_x));
    comm.all_reduce(std::span<const float>(y), std::span(wanted_y));
    const unsigned before = _mm_getcsr();
    const unsigned strange = before | 0x8040 | 0x6000;  // FTZ, DAZ, toward zero
    _mm_setcsr(strange);
    comm.all_reduce(std::span(x));
    comm.all_reduce(std::span(y));
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    return int((after & ~0x3fu) != (strange & ~0x3fu)) +
           int(std::memcmp(x.data(), wanted_x.data(), 400) != 0) +
           int(std::memcmp(y.data(), wanted_y.data(), 400) != 0) + int(wanted_x[0] == 0);
  });
  CHECK(wrong == std::vector<int>{0, 0});
}
#endif

namespace {

struct numbered {  // an operator with an id of its own, for whatever type
  static constexpr std::uint32_t id = 77;
  template <class T>
  T operator()(const T& a, const T&) const {
    return a;
  }
};

template <std::size_t Bytes>
struct blob {
  char bytes[Bytes];
};

}  // namespace

TEST_CASE("user types of different sizes are a mismatch, also under one operator id",
          "[collective][all_reduce]") {
  CHECK_THROWS_AS(testing::run_ranks(2,
                                     [](auto& comm) {
                                       std::vector<blob<8>> x(10);
                                       std::vector<blob<12>> y(10);
                                       if (comm.rank() == 0) {
                                         comm.all_reduce(std::span(x), numbered{});
                                       } else {
                                         comm.all_reduce(std::span(y), numbered{});
                                       }
                                     }),
                  mismatch_error);
}

TEST_CASE("bytes outside an unaligned output stay as they are", "[collective][all_reduce]") {
  const auto wrong = testing::run_ranks(
      3,
      [](auto& comm) {
        int bad = 0;
        for (std::size_t offset = 0; offset < 64; offset += 3) {
          std::vector<std::byte> buffer(4096, std::byte{0xA5});
          std::byte* data = buffer.data() + offset;
          for (std::size_t i = 0; i < 500; ++i) {
            const float value = static_cast<float>(comm.rank() + 1);
            std::memcpy(data + 4 * i, &value, 4);
          }
          comm.all_reduce(data, data, 500, dtype::float32, reduction::sum);
          for (std::size_t i = 0; i < buffer.size(); ++i) {
            if (i < offset || i >= offset + 2000) bad += buffer[i] != std::byte{0xA5};
          }
          for (std::size_t i = 0; i < 500; ++i) {
            float value = 0;
            std::memcpy(&value, data + 4 * i, 4);
            bad += value != 6;
          }
        }
        return bad;
      },
      small());
  CHECK(wrong == std::vector<int>{0, 0, 0});
}
