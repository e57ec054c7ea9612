// SPDX-License-Identifier: Apache-2.0
// Communicators between processes: ranks that are killed in any phase of a call, that stop, that
// leave; several communicators in one process.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "rankfold/communicator.hpp"
#include "rankfold/transport/shm.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"
#include "support/kernels.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

std::string fresh_key() {
  static int ordinal = 0;
  return "processes-" + std::to_string(::getpid()) + "-" + std::to_string(ordinal++);
}

communicator<shm_transport> meet(const std::string& key, int rank, int size) {
  communicator_options options;
  options.timeout = 30s;
  options.tune.chunk_bytes = 4096;
  options.tune.one_shot_max_bytes = 16384;
  return communicator(
      shm_transport::connect(key, rank, size, {.workspace_bytes = 65536, .timeout = 20s}),
      std::move(options));
}

}  // namespace

TEST_CASE(
    "a rank that is killed in any phase of a call ends the others' within a second, and is named",
    "[communicator][processes]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  struct phase {
    const char* name;
    std::size_t count;  // of floats in each all_reduce
    algorithm how;
  };
  for (const phase& p : {phase{"inline", 4, algorithm::inline_line},
                         phase{"one-shot, several chunks", 4000, algorithm::one_shot},
                         phase{"two-shot, many chunks", 2'000'000, algorithm::two_shot}}) {
    for (int trial = 0; trial < 4; ++trial) {
      const int ranks = trial % 2 == 0 ? 2 : 3;
      const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
      const auto delay = std::chrono::microseconds(random() % 20'000);
      INFO(p.name << ", rank " << victim << " of " << ranks << " killed after " << delay.count()
                  << " us");
      const std::string key = fresh_key();
      forked_ranks children(ranks, [&](int rank, const rank_voice& voice) -> std::string {
        auto comm = meet(key, rank, ranks);
        std::vector<float> x(p.count, 1.0f);
        comm.barrier();
        voice.say("ready");
        std::string first;
        try {
          for (;;) comm.all_reduce(std::span(x), max{}, {.algorithm = p.how});
        } catch (const peer_lost_error& e) {
          first = e.what();
        }
        try {
          comm.barrier();
          return "a call after the error worked";
        } catch (const aborted_error& e) {
          if (!contains(e.what(), first))
            return std::string("another cause: ") + e.what() + " / " + first;
        }
        return first;
      });
      for (int r = 0; r < ranks; ++r) REQUIRE(children.wait_for_line(r, "ready"));
      std::this_thread::sleep_for(delay);
      children.kill(victim, SIGKILL);
      const auto begin = steady_clock::now();
      const auto outcomes = children.join();
      CHECK(steady_clock::now() - begin < 1500ms);
      const std::string named = "rank " + std::to_string(victim) + " died";
      for (int r = 0; r < ranks; ++r) {
        if (r == victim) continue;
        const rank_outcome& outcome = outcomes[static_cast<std::size_t>(r)];
        INFO(outcome.error << " " << outcome.text);
        CHECK(contains(outcome.text, named));
      }
    }
  }
}

TEST_CASE("a rank that stops is missed at the deadline, not before, and is named",
          "[communicator][processes]") {
  const std::string key = fresh_key();
  forked_ranks children(3, [&](int rank, const rank_voice& voice) {
    communicator_options options;
    options.timeout = 1500ms;
    auto comm =
        communicator(shm_transport::connect(key, rank, 3, {.workspace_bytes = 65536}), options);
    comm.barrier();
    voice.say("ready");
    for (;;) comm.barrier();
  });
  for (int r = 0; r < 3; ++r) REQUIRE(children.wait_for_line(r, "ready"));
  children.kill(1, SIGSTOP);
  const auto begin = steady_clock::now();
  while (!(children.ended(0) && children.ended(2)) && steady_clock::now() - begin < 20s)
    ::usleep(1000);
  const auto took = steady_clock::now() - begin;
  CHECK(took > 1300ms);
  CHECK(took < 5s);
  children.kill(1, SIGKILL);
  const auto outcomes = children.join();
  for (const int r : {0, 2}) {
    const rank_outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    CHECK(outcome.error == "timeout_error");
    INFO(outcome.text);
    CHECK(contains(outcome.text, "rank 1 did not arrive within 1.5 s"));
  }
}

TEST_CASE("a process that ends without destroying its communicator is missed like one that died",
          "[communicator][processes]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    auto comm = meet(key, rank, 2);
    comm.barrier();
    if (rank == 1) ::_exit(0);
    comm.barrier();
  });
  CHECK(outcomes[0].error == "peer_lost_error");
  INFO(outcomes[0].text);
  CHECK(contains(outcomes[0].text, "rank 1 died"));
}

TEST_CASE("a rank that leaves is said to have left", "[communicator][processes]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) {
    auto comm = meet(key, rank, 3);
    comm.barrier();
    if (rank == 2) return;
    comm.barrier();
  });
  for (const std::size_t r : {0u, 1u}) {
    INFO(outcomes[r].text);
    CHECK(outcomes[r].error == "peer_lost_error");
    CHECK(contains(outcomes[r].text, "rank 2 left (it destroyed its communicator)"));
  }
}

TEST_CASE("processes that make different calls each learn who asked what",
          "[communicator][processes]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    auto comm = meet(key, rank, 2);
    std::vector<double> x(rank == 0 ? 100 : 101);
    comm.all_reduce(std::span(x));
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK(outcome.error == "mismatch_error");
    CHECK(contains(outcome.text, "all_reduce of 100 × float64 by sum"));
    CHECK(contains(outcome.text, "all_reduce of 101 × float64 by sum"));
  }
}

TEST_CASE("several communicators of one process do not touch each other",
          "[communicator][processes]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) -> std::string {
    auto all = meet(key + "a", rank, 3);
    auto again = meet(key + "b", rank, 3);
    std::vector<int> x{1};
    std::vector<int> y(5000, 2);
    for (int i = 0; i < 50; ++i) {
      all.all_reduce(std::span(x), max{});
      again.all_reduce(std::span(y), max{});
    }
    again.barrier();
    if (rank == 0) again.abort("only this one");
    try {
      again.barrier();
      return "abort did not end the call";
    } catch (const aborted_error&) {
    }
    x[0] = rank;
    all.all_reduce(std::span(x));
    return std::to_string(x[0]) + " " + std::to_string(y[4999]);
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.error);
    CHECK(outcome.text == "3 2");
  }
}

TEST_CASE("threads of a process use one communicator in turns, and one each at the same time",
          "[communicator][processes]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) -> std::string {
    auto shared = meet(key + "shared", rank, 2);
    std::vector<int> x{1};
    for (int i = 0; i < 5; ++i) std::thread([&] { shared.all_reduce(std::span(x)); }).join();
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        auto own = meet(key + std::to_string(t), rank, 2);
        std::vector<int> y(1000, t);
        for (int i = 0; i < 200; ++i) own.all_reduce(std::span(y), max{});
        right += y[999] == t;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::to_string(x[0]) + " " + std::to_string(right);
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.error);
    CHECK(outcome.text == "32 3");
  }
}
