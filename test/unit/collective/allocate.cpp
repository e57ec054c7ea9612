// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks address, and all_reduce of it.
#include "rankfold/collective/allocate.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/shm.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

constexpr std::size_t least = 1024;           // bytes from which on it matters where inputs lie
constexpr std::size_t least_in_place = 3072;  // where that is in place, on two ranks
constexpr std::size_t chunk_bytes = 2048;

communicator_options small(std::chrono::milliseconds timeout = 30s) {
  communicator_options options;
  options.timeout = timeout;
  options.tune.chunk_bytes = chunk_bytes;
  options.tune.one_shot_max_bytes = 8192;
  options.tune.symmetric_min_bytes = least;
  options.tune.symmetric_in_place_min_bytes = least_in_place;
  return options;
}
constexpr std::size_t workspace = 32768;

communicator<shm_transport> meet(int rank, int size, int ordinal = 0,
                                 std::chrono::milliseconds timeout = 30s) {
  // The parent's id, so that all children have the same.
  const std::string key = "allocate-" + std::to_string(::getppid()) + "-" + std::to_string(ordinal);
  return communicator(
      shm_transport::connect(key, rank, size, {.workspace_bytes = workspace, .timeout = 20s}),
      small(timeout));
}

enum class to {
  itself,
  itself_by_an_epilogue,
  ordinary_memory,
  the_same_allocation,
  symmetric_from_ordinary
};

/// Makes all_reduces of every size, of a buffer in which some ranks begin at one place and some at
/// another, and some have ordinary memory; overwrites the inputs at once. Returns how many gave
/// other bits than the oracle.
template <class Comm>
int wrong_calls(Comm& comm, std::uint64_t seed) {
  const int ranks = comm.size();
  const auto rank = static_cast<std::size_t>(comm.rank());
  constexpr std::size_t line = least / sizeof(float);
  constexpr std::size_t in_place = least_in_place / sizeof(float);
  constexpr std::size_t chunk = chunk_bytes / sizeof(float);
  constexpr std::size_t most = 9 * chunk + 7;
  auto buffer = comm.template allocate<float>(2 * most + 64);
  std::vector<float> ordinary(most);
  std::vector<float> out(most);
  int wrong = 0;
  for (const std::size_t count : {std::size_t{1}, line - 1, line, line + 1, chunk, chunk + 1,
                                  in_place - 1, in_place, 3 * chunk + 7, most}) {
    std::vector<std::vector<float>> in;
    for (int r = 0; r < ranks; ++r) in.push_back(values::hostile<float>(count, r, seed + count));
    const std::vector<float> wanted = reference::fold<float>(in, sum{});
    // Bit r: rank r has its input in symmetric memory.
    for (const unsigned who : {~0u, 0u, 1u, 2u, 5u}) {
      for (const to target : {to::itself, to::itself_by_an_epilogue, to::ordinary_memory,
                              to::the_same_allocation, to::symmetric_from_ordinary}) {
        // Ranks begin where they like, also in the middle of a line.
        const std::span<float> lies = buffer.span().subspan(3 * rank, count);
        const bool symmetric = (who >> rank & 1) != 0 && target != to::symmetric_from_ordinary;
        const std::span<float> from = symmetric ? lies : std::span(ordinary).first(count);
        const bool by_an_epilogue = target == to::itself_by_an_epilogue;
        const std::span<float> into = target == to::itself || by_an_epilogue ? from
                                      : target == to::ordinary_memory ? std::span(out).first(count)
                                      : target == to::symmetric_from_ordinary
                                          ? lies
                                          : buffer.span().subspan(most + 40, count);
        std::memcpy(from.data(), in[rank].data(), count * sizeof(float));
        if (by_an_epilogue) {
          comm.all_reduce(std::span<const float>(from), sum{},
                          [&](const float* block, std::size_t first, std::size_t n) {
                            std::memcpy(&into[first], block, n * sizeof(float));
                          });
        } else {
          comm.all_reduce(std::span<const float>(from), into);
        }
        wrong += std::memcmp(into.data(), wanted.data(), count * sizeof(float)) != 0;
        std::memset(from.data(), 0x7b, count * sizeof(float));
      }
    }
  }
  return wrong;
}

std::size_t lines_with(const char* file, const std::string& text) {
  std::ifstream stream(file);
  std::size_t count = 0;
  for (std::string line; std::getline(stream, line);) count += contains(line, text) ? 1 : 0;
  return count;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

/// What a call threw, as "type: text".
template <class F>
std::string error_of(F&& f) {
  try {
    f();
    return "nothing";
  } catch (const peer_lost_error& e) {
    return std::string("peer_lost_error: ") + e.what();
  } catch (const mismatch_error& e) {
    return std::string("mismatch_error: ") + e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("all_reduce of symmetric and ordinary memory in any mix gives the oracle's bits",
          "[collective][allocate]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  for (const int ranks : {1, 2, 3, 4, 5}) {
    INFO(ranks << " ranks");
    const auto wrong =
        testing::run_ranks(ranks, [&](auto& comm) { return wrong_calls(comm, seed); },
                           {.communicator = small(), .threads = {.workspace_bytes = workspace}});
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("the same among processes", "[collective][allocate]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  for (const int ranks : {1, 2, 3, 5}) {
    INFO(ranks << " ranks");
    forked_ranks children(ranks, [&](int rank, const rank_voice&) {
      auto comm = meet(rank, ranks, ranks);
      return std::to_string(wrong_calls(comm, seed));
    });
    for (const rank_outcome& outcome : children.join()) {
      INFO(outcome.error << " " << outcome.text);
      CHECK(outcome.text == "0");
    }
  }
}

TEST_CASE("nobody's input is read after its call has returned", "[collective][allocate]") {
  // Rank 0 folds so slowly that the others could long have gone on. Two ranks read all of each
  // other's inputs, three a slice.
  for (const int ranks : {2, 3}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [ranks](auto& comm) {
          const auto slow = [rank = comm.rank()](std::int32_t a, std::int32_t b) {
            if (rank == 0) std::this_thread::sleep_for(5us);
            return a + b;
          };
          constexpr std::size_t count = 3 * chunk_bytes / sizeof(std::int32_t) + 5;
          auto buffer = comm.template allocate<std::int32_t>(count);
          std::vector<std::int32_t> out(count);
          int bad = 0;
          for (const bool in_place : {true, false, true}) {
            const auto into = in_place ? buffer.span() : std::span(out);
            std::iota(buffer.data(), buffer.data() + count, comm.rank());
            comm.all_reduce(buffer.span(), into, slow);
            std::vector<std::int32_t> wanted(count);
            for (std::size_t i = 0; i < count; ++i) {
              wanted[i] = ranks * static_cast<std::int32_t>(i) + ranks * (ranks - 1) / 2;
            }
            bad += std::memcmp(into.data(), wanted.data(), into.size_bytes()) != 0;
            std::memset(buffer.data(), 0x55, into.size_bytes());
          }
          return bad;
        },
        {.communicator = small(), .threads = {.workspace_bytes = workspace}});
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("buffers are zero, and are freed by each rank when it likes, in any order",
          "[collective][allocate]") {
  forked_ranks children(2, [](int rank, const rank_voice&) -> std::string {
    auto comm = std::optional(meet(rank, 2));
    const std::size_t descriptors = open_descriptors();
    auto kept = comm->allocate<double>(1000);
    for (const double x : kept.span()) {
      if (x != 0) return "not zero";
    }
    // Rank 1 frees at once what rank 0 goes on to use.
    auto mixed = std::optional(comm->allocate<double>(1000));
    std::vector<double> ordinary(1000, 2.0);
    if (rank == 1) mixed.reset();
    const std::span<double> x = rank == 0 ? mixed->span() : std::span(ordinary);
    for (double& v : x) v = rank + 1;
    comm->all_reduce(x);
    if (x[999] != 3) return "wrong sum of a buffer that one rank has freed";
    mixed.reset();
    comm->barrier();
    for (int i = 0; i < 100; ++i) {
      auto next = comm->allocate<float>(100000);
      next.span()[99999] = 1;
      comm->all_reduce(next.span());
      if (next.span()[99999] != 2 || next.span()[0] != 0) return "wrong sum";
    }
    comm->allocate<float>(1);  // lets the last but one go
    if (open_descriptors() != descriptors) return "descriptors are left";
    const std::size_t maps = lines_with("/proc/self/maps", "memfd:rankfold");
    // Two segments; two parts each of `kept` and of the last two.
    if (maps > 2 + 2 * 3) return std::to_string(maps) + " mappings are left";
    kept.span()[999] = 7;
    comm.reset();
    kept.span()[0] = 1;
    if (kept.span()[999] != 7) return "a buffer went with its communicator";
    kept = {};
    if (lines_with("/proc/self/maps", "memfd:rankfold") != 0) return "a mapping is left";
    return "as expected";
  });
  for (const rank_outcome& outcome : children.join()) {
    CHECK(outcome.error + outcome.text == "as expected");
  }
}

TEST_CASE("transports without shared memory give ordinary memory", "[collective][allocate]") {
  communicator alone(self_transport{});
  auto own = alone.allocate<float>(5000);
  own.span()[4999] = 3;
  alone.all_reduce(own.span());
  CHECK(own.span()[4999] == 3);
  CHECK(alone.allocate(3, dtype::bfloat16).size() == 6);
  CHECK(alone.allocate<float>(0).span().empty());

  auto transports = testing::mailbox_transport::create(2);
  std::vector<float> sums(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        communicator comm(std::move(transports[r]), small());
        auto x = comm.allocate<float>(5000);
        x.span()[4999] = static_cast<float>(r + 1);
        comm.all_reduce(x.span());
        sums[r] = x.span()[4999];
      });
    }
  }
  CHECK(sums == std::vector<float>{3, 3});
}

TEST_CASE(
    "ranks that allocate different sizes get mismatch_error; one that asks for too much is "
    "refused alone",
    "[collective][allocate]") {
  const auto errors = testing::run_ranks(
      2,
      [](auto& comm) {
        std::string text = error_of([&] { comm.template allocate<double>(std::size_t{1} << 60); });
        text += "; " + error_of([&] {
                  comm.template allocate<float>(static_cast<std::size_t>(10 + comm.rank()));
                });
        return text;
      },
      {.communicator = small()});
  for (const std::string& error : errors) {
    CHECK(contains(error, "allocate: 1152921504606846976 elements of 8 bytes; expected at most"));
    CHECK(contains(error, "; mismatch_error: allocate (call 1)"));
    CHECK(contains(error, "allocate of 10 × float32"));
    CHECK(contains(error, "allocate of 11 × float32"));
  }
}

TEST_CASE(
    "a rank that dies in an all_reduce of symmetric memory, or does not come to allocate, is "
    "lost to the others within a second, and nothing is left",
    "[collective][allocate]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 6; ++trial) {
    const bool allocating = trial % 2 == 1;
    const int victim = static_cast<int>(random() % 3);
    const auto delay = std::chrono::microseconds(random() % 20'000);
    INFO((allocating ? "allocate" : "all_reduce")
         << ", rank " << victim << " killed after " << delay.count() << " us");
    forked_ranks children(3, [&](int rank, const rank_voice& voice) {
      const std::size_t before = open_descriptors();
      std::string error;
      {
        auto comm = meet(rank, 3, 10 + trial);
        auto buffer = comm.allocate<float>(500'000);
        comm.barrier();
        voice.say("ready");
        if (allocating && rank == victim) ::pause();
        error = error_of([&] {
          if (allocating) buffer = comm.allocate<float>(500'000);
          for (;;) comm.all_reduce(buffer.span(), max{});
        });
      }
      if (open_descriptors() != before) error += " and descriptors are left";
      if (lines_with("/proc/self/maps", "memfd:rankfold") != 0) error += " and memory is left";
      return error;
    });
    for (int r = 0; r < 3; ++r) REQUIRE(children.wait_for_line(r, "ready"));
    std::this_thread::sleep_for(delay);
    children.kill(victim, SIGKILL);
    const auto begin = steady_clock::now();
    const auto& outcomes = children.join();
    CHECK(steady_clock::now() - begin < 1500ms);
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const std::string& text = outcomes[static_cast<std::size_t>(r)].text;
      INFO(text);
      CHECK(text.starts_with("peer_lost_error"));
      CHECK(text.ends_with("rank " + std::to_string(victim) + " died"));
    }
  }
}
