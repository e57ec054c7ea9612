// SPDX-License-Identifier: Apache-2.0
// all_reduce through an epilogue: on every algorithm it gets the bits of the plain call, each
// element once and in order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "rankfold/collective/all_reduce.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/simulated_hosts.hpp"
#include "support/values.hpp"

using namespace rankfold;

namespace {

constexpr std::size_t chunk_bytes = 1024;
constexpr algorithm flat[] = {algorithm::automatic, algorithm::inline_line, algorithm::one_shot,
                              algorithm::two_shot};

testing::run_options small() {
  return {.communicator = {.tune = {.one_shot_max_bytes = 2048, .chunk_bytes = chunk_bytes}},
          .threads = {.workspace_bytes = 65536}};
}

/// What an epilogue was given, and where: of another size than the element.
template <class T>
struct seen {
  T x;
  std::size_t index;
  int rank;
};

template <class T>
bool same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// The first thing that is wrong with calls of `count` elements by `how`; nothing if all is right.
template <class T, class Op, class Comm>
std::string wrong_call(Comm& comm, std::size_t count, algorithm how, std::uint64_t seed) {
  std::vector<std::vector<T>> inputs;
  for (int r = 0; r < comm.size(); ++r) inputs.push_back(values::hostile<T>(count, r, seed));
  const std::vector<T> wanted = reference::fold<T>(inputs, Op{});
  const std::vector<T>& in = inputs[static_cast<std::size_t>(comm.rank())];
  const call_options options{.algorithm = how};

  std::vector<seen<T>> out(count, {T{}, count, -1});
  comm.all_reduce(
      std::span<const T>(in), std::span(out), Op{},
      [rank = comm.rank()](const T& x, std::size_t i) { return seen<T>{x, i, rank}; }, options);
  for (std::size_t i = 0; i < count; ++i) {
    if (!same(out[i].x, wanted[i])) return "bits of element " + std::to_string(i);
    if (out[i].index != i || out[i].rank != comm.rank()) return "place " + std::to_string(i);
  }

  // In place, reading at the same index what was there before: chooses between the two.
  std::vector<T> data = in;
  comm.all_reduce(
      std::span(data), Op{},
      [&](const T& x, std::size_t i) {
        return (i + static_cast<std::size_t>(comm.rank())) % 3 == 0 ? data[i] : x;
      },
      options);
  for (std::size_t i = 0; i < count; ++i) {
    const bool kept = (i + static_cast<std::size_t>(comm.rank())) % 3 == 0;
    if (!same(data[i], kept ? in[i] : wanted[i])) return "in place, element " + std::to_string(i);
  }

  // In blocks, which write into the input up to where they end.
  std::size_t end = 0;
  std::string order;
  data = in;
  comm.all_reduce(
      std::span<const T>(data), Op{},
      [&](const T* block, std::size_t first, std::size_t some) {
        if (first != end || some == 0 || some * sizeof(T) > 8192) order = "order of blocks";
        if (reinterpret_cast<std::uintptr_t>(block) % alignof(T) != 0) order = "alignment";
        std::copy(block, block + some, data.data() + first);
        end = first + some;
      },
      options);
  if (end != count) return "elements that were left out";
  for (std::size_t i = 0; i < count; ++i) {
    if (!same(data[i], wanted[i])) return "in blocks, element " + std::to_string(i);
  }
  return order;
}

/// The same for sizes around the edges, on every rank.
template <class T, class Op>
std::string wrong_calls(int ranks, std::uint64_t seed) {
  const auto found = testing::run_ranks(
      ranks,
      [&](auto& comm) {
        const std::size_t chunk = chunk_bytes / sizeof(T);
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, 40 / sizeof(T), static_cast<std::size_t>(ranks) + 1,
              chunk - 1, chunk, chunk + 1, 3 * chunk + 7}) {
          for (const algorithm how : flat) {
            if (how == algorithm::inline_line && count * sizeof(T) > 40) continue;
            const std::string wrong = wrong_call<T, Op>(comm, count, how, seed + count);
            if (!wrong.empty()) {
              return wrong + " of " + std::to_string(count) + " by " + std::string(name_of(how)) +
                     " on rank " + std::to_string(comm.rank());
            }
          }
        }
        return std::string();
      },
      small());
  return *std::max_element(found.begin(), found.end());
}

}  // namespace

TEST_CASE("an epilogue gets the bits of the plain call, each element once and in order",
          "[collective][all_reduce][epilogue]") {
  const std::uint64_t seed = values::seed();
  for (const int ranks : {1, 2, 3, 4, 5}) {
    INFO("seed " << seed << ", " << ranks << " ranks");
    CHECK(wrong_calls<float, sum>(ranks, seed) == "");
    CHECK(wrong_calls<bfloat16, avg>(ranks, seed) == "");
    CHECK(wrong_calls<double, rankfold::max>(ranks, seed) == "");
    CHECK(wrong_calls<std::int8_t, prod>(ranks, seed) == "");
  }
}

TEST_CASE("an epilogue's blocks fit in the first cache, whatever a chunk is",
          "[collective][all_reduce][epilogue]") {
  const auto found = testing::run_ranks(3, [](auto& comm) {
    std::string wrong;  // chunks and a vector of many blocks
    for (const algorithm how : {algorithm::one_shot, algorithm::two_shot}) {
      wrong += wrong_call<float, sum>(comm, 300'000, how, 1);
    }
    return wrong;
  });
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("an epilogue over several hosts gets the same", "[collective][all_reduce][epilogue]") {
  const std::vector<int> layouts[] = {{0, 0, 1, 1},       {0, 1, 0, 1, 1},    {0, 0, 0},
                                      {0, 1, 2, 0, 1, 2}, {0, 1, 1, 2, 2, 2}, {0, 1}};
  for (const std::size_t whole : {std::size_t{0}, std::size_t{65536}}) {
    for (const auto& marks : layouts) {
      std::vector<std::string> found(marks.size());
      run_on_hosts(marks,
                   {.tune = {.one_shot_max_bytes = 2048,
                             .chunk_bytes = chunk_bytes,
                             .whole_rail_max_bytes = whole}},
                   [&](auto& comm) {
                     for (const std::size_t count : {0, 1, 255, 1000, 3000, 5001}) {
                       auto& text = found[static_cast<std::size_t>(comm.rank())];
                       text += wrong_call<bfloat16, sum>(comm, count, algorithm::automatic, count);
                       text += wrong_call<double, sum>(comm, count, algorithm::automatic, count);
                     }
                   });
      INFO(marks.size() << " ranks, whole up to " << whole);
      CHECK(found == std::vector<std::string>(marks.size()));
    }
  }
}

TEST_CASE("an epilogue is each rank's own: its peers may pass another one, or none",
          "[collective][all_reduce][epilogue]") {
  for (const algorithm how : {algorithm::one_shot, algorithm::two_shot}) {
    const auto wrong = testing::run_ranks(
        3,
        [how](auto& comm) {
          std::vector<float> x(3000, 1.0F);
          std::vector<double> out(3000);
          const auto scale = static_cast<float>(comm.rank());
          if (comm.rank() == 0) {
            comm.all_reduce(std::span(x), sum{}, {.algorithm = how});
            out.assign(x.begin(), x.end());
          } else {
            comm.all_reduce(std::span<const float>(x), std::span(out), sum{},
                            [scale](float y, std::size_t) { return double{y * scale}; },
                            {.algorithm = how});
          }
          return std::count(out.begin(), out.end(), comm.rank() == 0 ? 3.0 : 3.0 * comm.rank());
        },
        small());
    CHECK(wrong == std::vector<std::ptrdiff_t>{3000, 3000, 3000});
  }
}

TEST_CASE("what an epilogue throws ends the call of its rank and hangs no peer",
          "[collective][all_reduce][epilogue]") {
  // The first block, one in the middle, and the last, after which nobody waits any more.
  for (const std::size_t fatal : {std::size_t{0}, std::size_t{2000}, std::size_t{2999}}) {
    for (const algorithm how : {algorithm::one_shot, algorithm::two_shot}) {
      const auto ends = testing::run_ranks(
          3,
          [&](auto& comm) {
            std::vector<float> x(3000, 1.0F);
            const auto call = [&](bool fails) {
              comm.all_reduce(std::span(x), sum{},
                              [&](float y, std::size_t i) {
                                if (fails && i == fatal) throw std::domain_error("mine");
                                return y;
                              },
                              {.algorithm = how});
            };
            std::string text;
            for (int round = 0; round < 2; ++round) {
              try {
                call(comm.rank() == 1 && round == 0);
                text += "completed ";
              } catch (const std::domain_error&) {
                text += "domain_error ";
              } catch (const aborted_error& e) {
                text +=
                    std::string(e.what()).find("mine") != std::string::npos ? "aborted " : e.what();
              }
            }
            return text;
          },
          {.communicator = {.timeout = std::chrono::seconds(60),
                            .tune = small().communicator.tune}});
      INFO("at " << fatal << " by " << name_of(how));
      CHECK(ends[1] == "domain_error aborted ");
      for (const int peer : {0, 2}) {
        const std::string& end = ends[static_cast<std::size_t>(peer)];
        const bool expected = end == "completed aborted " || end == "aborted aborted ";
        CHECK((expected ? "" : end) == "");
      }
    }
  }
}

TEST_CASE("an output that does not fit an epilogue is refused before anything is sent",
          "[collective][all_reduce][epilogue]") {
  const auto texts = testing::run_ranks(2, [](auto& comm) {
    std::vector<float> x(10);
    std::vector<double> y(9);
    const auto widen = [](float a, std::size_t) { return double{a}; };
    const auto copy = [](float a, std::size_t) { return a; };
    const auto text_of = [](auto&& call) {
      try {
        call();
      } catch (const std::invalid_argument& e) {
        return std::string(e.what());
      }
      return std::string("nothing");
    };
    struct checked {
      void check(dtype type, const void*, std::size_t count) const {
        throw std::invalid_argument(std::string(name_of(type)) + " " + std::to_string(count));
      }
      void operator()(const void*, std::size_t, std::size_t) const {}
    };
    std::vector<std::string> found{
        text_of([&] { comm.all_reduce(std::span<const float>(x), std::span(y), sum{}, widen); }),
        text_of([&] {
          const std::span<float> all(x);
          comm.all_reduce(all.first(8), all.last(8), sum{}, copy);
        }),
        text_of([&] { comm.all_reduce(std::span(x), sum{}, checked{}); }),
        text_of([&] { comm.all_reduce(x.data(), 9, dtype::float32, reduction::sum, checked{}); })};
    comm.all_reduce(std::span(x), sum{}, copy);  // works as before
    return found;
  });
  const std::vector<std::string> wanted{
      "all_reduce: out has 9 elements; expected 10",
      "all_reduce: input and output overlap in part; they may be the same or apart", "float32 10",
      "float32 9"};
  CHECK(texts == std::vector<std::vector<std::string>>{wanted, wanted});
}
