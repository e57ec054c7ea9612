// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/reduce.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

using namespace rankfold;

namespace {

testing::run_options small() {
  return {.communicator = {.tune = {.one_shot_max_bytes = 512, .chunk_bytes = 256}},
          .threads = {.workspace_bytes = 16384}};
}

template <class T, class Op>
int wrong_results(auto& comm, const std::vector<std::vector<T>>& in, const std::vector<T>& wanted,
                  const Op& op) {
  int bad = 0;
  const std::vector<T>& own = in[static_cast<std::size_t>(comm.rank())];
  const std::size_t bytes = own.size() * sizeof(T);
  const auto same = [&](const std::vector<T>& a, const std::vector<T>& b) {
    return bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0;
  };
  for (int root = 0; root < comm.size(); ++root) {
    const bool is_root = comm.rank() == root;
    for (const algorithm how : {algorithm::automatic, algorithm::one_shot, algorithm::two_shot}) {
      const call_options options{.algorithm = how};
      std::vector<T> out(is_root ? own.size() : 0);
      comm.reduce(std::span<const T>(own), std::span(out), root, op, options);
      bad += is_root && !same(out, wanted);
      std::vector<T> data = own;
      comm.reduce(std::span(data), root, op, options);
      bad += !same(data, is_root ? wanted : own);  // others keep what they have
    }
  }
  return bad;
}

}  // namespace

TEMPLATE_TEST_CASE("reduce gives any root the oracle's bits", "[collective][reduce]", float, double,
                   bfloat16, float16, std::int8_t, std::uint64_t) {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const std::size_t count : {0u, 1u, 5u, 31u, 32u, 33u, 64u, 65u, 500u}) {
      INFO(ranks << " ranks, " << count << " elements");
      std::vector<std::vector<TestType>> in;
      for (int r = 0; r < ranks; ++r) in.push_back(values::hostile<TestType>(count, r, seed));
      const auto by_sum = reference::fold<TestType>(in, sum{});
      const auto by_min = reference::fold<TestType>(in, rankfold::min{});
      const auto wrong = testing::run_ranks(
          ranks,
          [&](auto& comm) {
            return wrong_results(comm, in, by_sum, sum{}) +
                   wrong_results(comm, in, by_min, rankfold::min{});
          },
          small());
      CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
  }
}

TEST_CASE("reduce by run-time types takes every pair that has a meaning", "[collective][reduce]") {
  const auto wrong = testing::run_ranks(
      3,
      [](auto& comm) {
        int bad = 0;
        for (const dtype type : {dtype::float32, dtype::float16, dtype::int32, dtype::boolean}) {
          for (const reduction op : {reduction::max, reduction::avg, reduction::bit_xor}) {
            const std::size_t bytes = 100 * rankfold::size_of(type);
            std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(bytes));
            std::vector<const std::byte*> pointers;
            for (int r = 0; r < 3; ++r) {
              values::fill_hostile(type, in[static_cast<std::size_t>(r)].data(), 100, r);
              pointers.push_back(in[static_cast<std::size_t>(r)].data());
            }
            std::vector<std::byte> wanted(bytes);
            std::vector<std::byte> out(bytes);
            const void* own = pointers[static_cast<std::size_t>(comm.rank())];
            bool has_meaning = true;
            try {
              reference::fold(type, op, pointers.data(), 3, wanted.data(), 100);
            } catch (const std::invalid_argument&) {
              has_meaning = false;
            }
            try {
              comm.reduce(own, comm.rank() == 2 ? out.data() : nullptr, 100, type, 2, op);
              bad += !has_meaning || (comm.rank() == 2 && out != wanted);
            } catch (const std::invalid_argument&) {
              bad += has_meaning;
            }
          }
        }
        return bad;
      },
      small());
  CHECK(wrong == std::vector<int>{0, 0, 0});
}

namespace {

struct text {  // concatenation: associative, in order only
  char letters[12];
  int length;
};
struct append {
  text operator()(text a, const text& b) const {
    for (int i = 0; i < b.length; ++i) a.letters[a.length++] = b.letters[i];
    return a;
  }
};

}  // namespace

TEST_CASE("reduce folds a user's type in rank order, each element once", "[collective][reduce]") {
  const auto wrong = testing::run_ranks(
      5,
      [](auto& comm) {
        int bad = 0;
        for (int root = 0; root < 5; ++root) {
          for (const algorithm how : {algorithm::one_shot, algorithm::two_shot}) {
            std::vector<text> x(77);
            for (text& t : x) t = {{static_cast<char>('a' + comm.rank())}, 1};
            comm.reduce(std::span(x), root, append{}, {.algorithm = how});
            for (const text& t : x) {
              if (comm.rank() == root) {
                bad += t.length != 5 || std::memcmp(t.letters, "abcde", 5) != 0;
              } else {
                bad += t.length != 1;
              }
            }
          }
        }
        return bad;
      },
      small());
  CHECK(wrong == std::vector<int>(5, 0));
}

TEST_CASE("only the root of a reduce waits", "[collective][reduce]") {
  using namespace std::chrono_literals;
  const auto seconds = testing::run_ranks(2, [](auto& comm) {
    comm.barrier();
    if (comm.rank() == 0) std::this_thread::sleep_for(200ms);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int> x(50);
    comm.reduce(std::span(x), 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  CHECK(seconds[1] < 0.1);
}

TEST_CASE("reduce refuses wrong arguments before anything is sent", "[collective][reduce]") {
  const auto refused = testing::run_ranks(2, [](auto& comm) {
    int n = 0;
    const auto refuses = [&](auto&& call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        ++n;
      }
    };
    std::vector<float> x(4);
    std::vector<float> y(3);
    refuses([&] { comm.reduce(std::span(x), 2); });
    refuses([&] { comm.reduce(std::span(x), -1); });
    refuses([&] { comm.reduce(std::span(x), std::span(y), comm.rank()); });
    refuses([&] { comm.reduce(std::span(x).first(3), std::span(x).last(3), comm.rank()); });
    refuses([&] { comm.reduce(std::span(x), 0, sum{}, {.algorithm = algorithm(9)}); });
    comm.barrier();
    return n;
  });
  CHECK(refused == std::vector<int>{5, 5});
}
