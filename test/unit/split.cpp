// SPDX-License-Identifier: Apache-2.0
#include "rankfold/split.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/shm.hpp"
#include "rankfold/transport/threads.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::run_ranks;

namespace {

/// What a rank of a group sees: its place, and the parent's ranks of all members in group order.
struct seen_group {
  int rank = -1;
  std::vector<int> parents;
  friend bool operator==(const seen_group&, const seen_group&) = default;
};

template <class Comm>
seen_group look(Comm& group, int parent_rank) {
  seen_group seen;
  seen.rank = group.rank();
  seen.parents.resize(static_cast<std::size_t>(group.size()));
  const int own[1] = {parent_rank};
  group.all_gather(std::span<const int>(own), std::span(seen.parents));
  return seen;
}

/// The same worked out by hand: for each rank, whoever has its color, picked lowest key first.
seen_group expected_group(const std::vector<int>& colors, const std::vector<int>& keys, int own) {
  seen_group expected;
  std::vector<bool> taken(colors.size());
  for (;;) {
    int best = -1;
    for (std::size_t r = 0; r < colors.size(); ++r) {
      if (taken[r] || colors[r] != colors[static_cast<std::size_t>(own)]) continue;
      if (best < 0 || keys[r] < keys[static_cast<std::size_t>(best)]) best = static_cast<int>(r);
    }
    if (best < 0) return expected;
    taken[static_cast<std::size_t>(best)] = true;
    if (best == own) expected.rank = static_cast<int>(expected.parents.size());
    expected.parents.push_back(best);
  }
}

testing::run_options quick(std::chrono::milliseconds timeout = 20s) {
  testing::run_options options;
  options.communicator.timeout = timeout;
  options.threads.workspace_bytes = 16384;
  return options;
}

std::string fresh_key() {
  static std::atomic<int> ordinal{0};
  return "split-" + std::to_string(::getpid()) + "-" + std::to_string(ordinal++);
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("split: ranks of a color form a group, in the order of their keys", "[split]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    std::vector<int> colors;
    std::vector<int> keys;
    for (int r = 0; r < ranks; ++r) {
      colors.push_back(static_cast<int>(random() % 3));
      keys.push_back(static_cast<int>(random() % 5) - 2);
    }
    const auto seen = run_ranks(
        ranks,
        [&](auto& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          auto group = comm.split(colors[r], keys[r]);
          return look(group, comm.rank());
        },
        quick());
    for (int r = 0; r < ranks; ++r) {
      INFO("rank " << r << " of " << ranks);
      CHECK(seen[static_cast<std::size_t>(r)] == expected_group(colors, keys, r));
    }
  }
}

TEST_CASE("split: a rank with a negative color gets no group, and the others are not held up",
          "[split]") {
  const auto sizes = run_ranks(
      3,
      [](auto& comm) {
        auto group = comm.split_or_none(comm.rank() == 1 ? undefined : 7);
        auto other = comm.split_or_none(-5);
        return std::pair(group ? group->size() : 0, other.has_value());
      },
      quick());
  CHECK(sizes == std::vector<std::pair<int, bool>>{{2, false}, {0, false}, {2, false}});

  // split itself always makes a group: a negative color is the caller's error, before anything is
  // sent.
  run_ranks(
      2,
      [](auto& comm) {
        try {
          comm.split(undefined);
          throw std::runtime_error("split made a group of no color");
        } catch (const std::invalid_argument&) {
        }
        comm.barrier();
      },
      quick());
}

TEST_CASE("split: groups and the parent are used side by side, in any order", "[split]") {
  const auto sums = run_ranks(
      4,
      [](auto& comm) {
        auto rows = comm.split(comm.rank() / 2);
        auto columns = comm.split(comm.rank() % 2);
        int total = 0;
        for (int i = 0; i < 50; ++i) {
          int a[1] = {comm.rank()};
          int b[1] = {comm.rank()};
          int c[1] = {comm.rank()};
          // The rows take another order than the columns' members would: no step is shared.
          if (comm.rank() < 2) {
            rows.all_reduce(std::span(a));
            columns.all_reduce(std::span(b));
          } else {
            rows.all_reduce(std::span(a));
            comm.rank() == 2 ? std::this_thread::yield() : void();
            columns.all_reduce(std::span(b));
          }
          comm.all_reduce(std::span(c));
          total += a[0] * 10000 + b[0] * 100 + c[0];
        }
        return total;
      },
      quick());
  CHECK(sums == std::vector<int>{50 * (10000 + 200 + 6), 50 * (10000 + 400 + 6),
                                 50 * (50000 + 200 + 6), 50 * (50000 + 400 + 6)});
}

TEST_CASE("split: a group outlives its parent, and an abort does not cross", "[split]") {
  const auto texts = run_ranks(
      2,
      [](auto& comm) -> std::string {
        std::optional group(comm.split(0));
        comm.barrier();
        comm.abort("the parent is given up");
        auto child_of_child = group->split(0);
        group->barrier();
        group->abort("the child is given up");
        try {
          group->barrier();
        } catch (const error&) {
        }
        group.reset();  // before its own child
        child_of_child.barrier();
        try {
          comm.barrier();
        } catch (const aborted_error& e) {
          return e.what();
        }
        return "the parent still works";
      },
      quick());
  for (const std::string& text : texts) CHECK(contains(text, "the parent is given up"));

  // The parent's transport and communicator are gone: the group has its own.
  auto transports = threads_transport::create(2);
  std::vector<int> sums(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        std::optional<communicator<threads_transport>> group;
        {
          communicator comm(std::move(transports[r]));
          group.emplace(comm.split(0));
        }
        int x[1] = {static_cast<int>(r) + 1};
        group->all_reduce(std::span(x));
        sums[r] = x[0];
      });
    }
  }
  CHECK(sums == std::vector<int>{3, 3});
}

TEST_CASE("split: a group has its parent's options, or others", "[split]") {
  testing::run_options options = quick(17s);
  options.communicator.tune.chunk_bytes = 4096;
  const auto kept = run_ranks(
      2,
      [](auto& comm) {
        auto same = comm.split(0);
        communicator_options own;
        own.timeout = 3s;
        auto other = comm.split(0, 0, own);
        return same.timeout() == 17s && same.tuning() == comm.tuning() && other.timeout() == 3s &&
               other.tuning() == tuning{} &&
               same.transport().segment_size() == comm.transport().segment_size();
      },
      options);
  CHECK(kept == std::vector<bool>{true, true});
}

TEST_CASE("split: ranks of which one calls something else get mismatch_error", "[split]") {
  std::mutex mutex;
  std::vector<std::string> texts;
  CHECK_THROWS_AS(run_ranks(
                      3,
                      [&](auto& comm) {
                        try {
                          if (comm.rank() == 2) {
                            comm.barrier();
                          } else {
                            comm.split(0);
                          }
                        } catch (const error& e) {
                          const std::lock_guard lock(mutex);
                          texts.emplace_back(e.what());
                          throw;
                        }
                        comm.barrier();
                      },
                      quick()),
                  mismatch_error);
  REQUIRE_FALSE(texts.empty());
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(contains(text, "split"));
    CHECK(contains(text, "barrier"));
  }
}

TEST_CASE("split: a rank that does not come is named by all at the deadline", "[split]") {
  std::vector<std::string> texts(3);
  const auto begin = steady_clock::now();
  run_ranks(
      3,
      [&](auto& comm) {
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(1200ms);
          return;
        }
        try {
          comm.split(comm.rank());
        } catch (const timeout_error& e) {
          texts[static_cast<std::size_t>(comm.rank())] = e.what();
        }
      },
      quick(300ms));
  CHECK(steady_clock::now() - begin < 5s);
  CHECK(contains(texts[0], "rank 1 did not arrive"));
  CHECK(contains(texts[2], "rank 1 did not arrive"));
}

namespace {

/// A transport whose groups cannot be made on one rank, as when memory runs out.
class failing_transport : public threads_transport {
 public:
  failing_transport(threads_transport base, int culprit)
      : threads_transport(std::move(base)), culprit_(culprit) {}
  failing_transport child(std::span<const int> members, int rank, std::string_view key,
                          const child_options& options) const {
    if (members[static_cast<std::size_t>(rank)] == culprit_) {
      throw transport_error("rankfold: no memory for a segment");
    }
    return {threads_transport::child(members, rank, key, options), -1};
  }

 private:
  int culprit_;
};

}  // namespace

TEST_CASE("split: where one rank cannot join, all ranks throw at once, in other groups, too",
          "[split]") {
  auto transports = threads_transport::create(4);
  std::vector<std::string> texts(4);
  const auto begin = steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 4; ++r) {
      threads.emplace_back([&, r] {
        communicator_options options;
        options.timeout = 30s;
        communicator comm(failing_transport(std::move(transports[static_cast<std::size_t>(r)]), 2),
                          options);
        try {
          comm.split(r % 2);
        } catch (const transport_error& e) {
          texts[static_cast<std::size_t>(r)] = e.what();
        } catch (const error& e) {
          texts[static_cast<std::size_t>(r)] = std::string("another error: ") + e.what();
        }
      });
    }
  }
  CHECK(steady_clock::now() - begin < 5s);
  for (const std::string& text : texts) CHECK(contains(text, "no memory for a segment"));
}

TEST_CASE("split: threads that meet wait no longer than they may, and leave no trace", "[split]") {
  auto transports = threads_transport::create(2);
  const int members[] = {0, 1};
  const auto fails = [&](const child_options& options) -> std::string {
    try {
      transports[0].child(members, 0, "the key", options);
    } catch (const rendezvous_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(contains(fails({.timeout = 50ms}), "rank 1 did not come"));
  // Nothing of it is left: the same key works.
  std::optional<threads_transport> other;
  std::jthread second([&] { other.emplace(transports[1].child(members, 1, "the key", {})); });
  const threads_transport first = transports[0].child(members, 0, "the key", {});
  second.join();
  CHECK(first.size() == 2);
  CHECK(first.segment(1) == other->segment(1));
  CHECK(first.segment(0) != transports[0].segment(0));
  // What the callback throws is passed on, and told to the others.
  struct stop {};
  CHECK_THROWS_AS(transports[0].child(members, 0, "the key", {.interrupt = [] { throw stop(); }}),
                  stop);
  CHECK_THROWS_AS(transports[0].child(members, 2, "the key", {}), std::invalid_argument);
}

TEST_CASE("split: one rank alone is a group", "[split]") {
  communicator comm{self_transport{}};
  auto group = comm.split(3);
  int x[1] = {5};
  group.all_reduce(std::span(x));
  CHECK(group.size() == 1);
  CHECK(x[0] == 5);
}

// --- processes

TEST_CASE("split: processes form groups at a socket's path, too, and leave nothing behind",
          "[split][processes]") {
  for (const bool at_path : {false, true}) {
    const std::string key = fresh_key();
    const std::string path = at_path ? "/tmp/" + key : "";
    const auto outcomes = fork_ranks(4, [&](int rank, const rank_voice&) -> std::string {
      communicator comm(shm_transport::connect(
          key, rank, 4, {.workspace_bytes = 65536, .timeout = 20s, .socket_path = path}));
      const std::size_t before = open_descriptors();
      {
        auto rows = comm.split(rank / 2, -rank);
        auto columns = comm.split_or_none(rank == 3 ? undefined : 0);
        const seen_group row = look(rows, rank);
        if (row.parents != std::vector<int>{rank / 2 * 2 + 1, rank / 2 * 2}) return "wrong row";
        if (row.rank != 1 - rank % 2) return "wrong place";
        if (rank < 3 && look(*columns, rank).parents != std::vector<int>{0, 1, 2}) {
          return "wrong column";
        }
        if (rows.transport().segment_size() != detail::segment_bytes(65536, 2))
          return "other workspace";
      }
      comm.barrier();
      if (open_descriptors() != before) return "descriptors are left";
      return "good";
    });
    for (const rank_outcome& o : outcomes) {
      INFO(o.error << ": " << o.text);
      CHECK(o.text == "good");
    }
    CHECK(::access((path + "-").c_str(), F_OK) != 0);
  }
}

TEST_CASE("split: where processes met at a path, a group meets beside it", "[split][processes]") {
  const std::string key = fresh_key();
  const std::string path = "/tmp/" + key;
  const std::string digits = "0123456789abcdef0123456789abcdef";
  const shm_transport parent =
      shm_transport::connect(key, 0, 1, {.workspace_bytes = 8192, .socket_path = path});
  const int members[] = {0, 1};
  bool seen = false;
  CHECK_THROWS_AS(
      parent.child(
          members, 0, digits,
          {.timeout = 500ms,
           .interrupt = [&] { seen |= ::access((path + "-" + digits).c_str(), F_OK) == 0; }}),
      rendezvous_error);
  CHECK(seen);
  CHECK(::access((path + "-" + digits).c_str(), F_OK) != 0);

  // What has no room for the whole key takes a part of it; what has none for any says so.
  const auto tries = [&](std::size_t length) -> std::string {
    const std::string name = "/tmp/" + std::string(length - 5, 'x');
    const shm_transport long_one =
        shm_transport::connect(key, 0, 1, {.workspace_bytes = 8192, .socket_path = name});
    try {
      long_one.child(members, 0, digits, {.timeout = 50ms});
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  };
  CHECK(contains(tries(98), "rank 1"));
  CHECK(contains(tries(99), "socket_path is too long"));
}

TEST_CASE("split: a process that dies at any moment of it is named within seconds",
          "[split][processes]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 8; ++trial) {
    const std::string key = fresh_key();
    const auto delay = std::chrono::microseconds(random() % 3000);
    forked_ranks children(3, [&](int rank, const rank_voice& voice) -> std::string {
      communicator_options options;
      options.timeout = 40s;
      communicator comm(
          shm_transport::connect(key, rank, 3, {.workspace_bytes = 65536, .timeout = 20s}),
          options);
      comm.barrier();
      voice.say("ready");
      try {
        for (;;) comm.split(0);
      } catch (const peer_lost_error& e) {
        return e.what();
      } catch (const rendezvous_error& e) {
        return e.what();
      } catch (const aborted_error& e) {
        return e.what();
      }
    });
    for (int r = 0; r < 3; ++r) REQUIRE(children.wait_for_line(r, "ready"));
    std::this_thread::sleep_for(delay);
    const auto begin = steady_clock::now();
    children.kill(1, SIGKILL);
    const auto outcomes = children.join();
    CHECK(steady_clock::now() - begin < 5s);
    for (const int r : {0, 2}) {
      const rank_outcome& o = outcomes[static_cast<std::size_t>(r)];
      INFO("after " << delay.count() << " us, rank " << r << ": " << o.error << ": " << o.text);
      CHECK(o.returned);
      CHECK(contains(o.text, "rank 1"));
    }
  }
}
