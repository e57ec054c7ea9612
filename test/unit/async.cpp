// SPDX-License-Identifier: Apache-2.0
#include "rankfold/async.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/shm.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"
#include "support/kernels.hpp"
#include "support/rank_threads.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::run_ranks;

namespace {

testing::run_options quick(std::chrono::milliseconds timeout = 20s) {
  testing::run_options options;
  options.communicator.timeout = timeout;
  options.threads.workspace_bytes = 16384;
  return options;
}

std::int64_t process_cpu() {
  ::timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

int value_of(int rank) { return 1000 + rank; }

/// Waits for `done` and no longer than a test may take.
template <class F>
bool soon(F&& done) {
  const auto until = steady_clock::now() + 10s;
  while (!done()) {
    if (steady_clock::now() > until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

std::string fresh_key() {
  static std::atomic<int> ordinal{0};
  return "async-" + std::to_string(::getpid()) + "-" + std::to_string(ordinal++);
}

}  // namespace

TEST_CASE("async: calls are carried out in the order posted, waited for or not", "[async]") {
  const auto good = run_ranks(
      3,
      [](auto& comm) {
        auto queue = comm.async();
        std::vector<int> x(1000, queue.rank());
        std::vector<int> y(1000);
        std::vector<int> gathered(3);
        const int own[1] = {queue.rank()};
        // y depends on the result of the call before.
        queue.all_reduce(std::span(x));
        const handle last = queue.all_reduce(std::span<const int>(x), std::span(y), max{});
        queue.all_gather(std::span(own), std::span(gathered), call_options{.tag = 3});
        queue.broadcast(std::span(x), 2);
        const handle end = queue.barrier();
        last.wait();
        const bool first = y[999] == 3;
        end.wait();
        end.wait();  // again
        return first && end.test() && gathered == std::vector<int>{0, 1, 2} && x[0] == 3;
      },
      quick());
  CHECK(good == std::vector<bool>{true, true, true});
}

TEST_CASE("async: every collective can be posted", "[async]") {
  const auto good = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        const int r = queue.rank();
        std::vector<int> ones(4, 1);
        std::vector<int> two(2);
        std::vector<int> four(4);
        std::vector<int> six(6);
        bool right = true;
        queue.reduce_scatter(std::span<const int>(ones), std::span(two)).wait();
        right = right && two == std::vector{2, 2};
        queue.reduce(std::span<const int>(ones), std::span(four), 1).wait();
        right = right && (r != 1 || four == std::vector(4, 2));
        queue.gather(std::span<const int>(two), std::span(four), 0).wait();
        right = right && (r != 0 || four == std::vector(4, 2));
        std::vector<int> three(3);
        std::vector<int> source{0, 1, 2, 3, 4, 5};
        queue.scatter(std::span<const int>(source), std::span(three), 0).wait();
        right = right && three == (r == 0 ? std::vector{0, 1, 2} : std::vector{3, 4, 5});
        queue.all_to_all(std::span<const int>(two), std::span(four).first(2)).wait();
        const std::vector<std::size_t> counts{2, 4};
        std::vector<int> own(counts[static_cast<std::size_t>(r)], r + 5);
        queue.all_gather(std::span<const int>(own), std::span(six), counts).wait();
        right = right && six == std::vector{5, 5, 6, 6, 6, 6};
        queue.all_reduce(ones.data(), ones.data(), std::size_t{4}, dtype::int32, reduction::sum)
            .wait();
        right = right && ones == std::vector(4, 2);
        int seen = 0;
        queue.run([&](auto& inner) { seen = inner.size(); }).wait();
        return right && seen == 2;
      },
      quick());
  CHECK(good == std::vector<bool>{true, true});
}

TEST_CASE("async: the communicator is the queue's until it is released", "[async]") {
  run_ranks(
      2,
      [](auto& comm) {
        const auto refuses = [](auto&& f) {
          try {
            f();
          } catch (const std::logic_error& e) {
            if (contains(e.what(), "rankfold: this ")) return;
          }
          throw std::runtime_error("was not refused");
        };
        auto queue = comm.async();
        refuses([&] { comm.barrier(); });
        refuses([&] { (void)comm.rank(); });
        refuses([&] { (void)comm.async(); });
        comm.abort();  // has nothing to abort
        queue.barrier();
        comm = queue.release();
        comm.barrier();
        refuses([&] { queue.barrier(); });
        refuses([&] { (void)queue.release(); });
        auto again = comm.async();
        auto moved = std::move(again);
        refuses([&] { again.barrier(); });
        moved.barrier().wait();
      },
      quick());
}

TEST_CASE("async: sends and receives posted in any order complete, beside collectives", "[async]") {
  // 40 seeds; each posts messages between all pairs, itself included, of sizes from none to
  // megabytes, and collectives in between, in another order on every rank.
  const std::uint64_t first = values::seed();
  for (std::uint64_t seed = first; seed < first + 40; ++seed) {
    INFO("seed " << seed);
    const int ranks = 2 + static_cast<int>(seed % 3);
    std::mt19937_64 shared(seed);
    struct message {
      int from, to;
      std::size_t bytes;
    };
    std::vector<message> messages;
    for (int i = 0; i < 30; ++i) {
      const auto any = [&] { return static_cast<int>(shared() % static_cast<unsigned>(ranks)); };
      const std::size_t sizes[] = {0, shared() % 50, shared() % 5000,
                                   shared() % 7 == 0 ? shared() % 3'000'000 : 17};
      messages.push_back({any(), any(), sizes[shared() % 4]});
    }
    const auto texts = run_ranks(
        ranks,
        [&](auto& comm) -> std::string {
          const int me = comm.rank();
          std::mt19937_64 random(seed * 64 + static_cast<unsigned>(me));
          auto queue = comm.async();
          // What this rank posts: of each pair and direction in order, all else shuffled.
          std::vector<std::vector<std::size_t>> lanes(static_cast<std::size_t>(2 * ranks + 1));
          for (std::size_t m = 0; m < messages.size(); ++m) {
            if (messages[m].from == me)
              lanes[static_cast<std::size_t>(messages[m].to)].push_back(2 * m);
            if (messages[m].to == me)
              lanes[static_cast<std::size_t>(ranks + messages[m].from)].push_back(2 * m + 1);
          }
          for (std::size_t c = 0; c < 10; ++c) lanes.back().push_back(1000 + c);
          std::vector<std::vector<std::uint8_t>> buffers(2 * messages.size());
          std::vector<std::vector<int>> sums(10, std::vector<int>(5000, me));
          std::vector<handle> handles;
          for (;;) {
            std::vector<std::size_t> open;
            for (std::size_t l = 0; l < lanes.size(); ++l) {
              if (!lanes[l].empty()) open.push_back(l);
            }
            if (open.empty()) break;
            auto& lane = lanes[open[random() % open.size()]];
            const std::size_t what = lane.front();
            lane.erase(lane.begin());
            if (what >= 1000) {
              handles.push_back(queue.all_reduce(std::span(sums[what - 1000])));
            } else {
              const std::size_t m = what / 2;
              buffers[what].assign(messages[m].bytes,
                                   what % 2 == 0 ? static_cast<std::uint8_t>(m + 1) : 0);
              handles.push_back(what % 2 == 0
                                    ? queue.send(std::span(buffers[what]), messages[m].to)
                                    : queue.recv(std::span(buffers[what]), messages[m].from));
            }
            if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
          }
          while (!handles.empty()) {  // in another order again
            const auto i = static_cast<std::ptrdiff_t>(random() % handles.size());
            handles[static_cast<std::size_t>(i)].wait();
            handles.erase(handles.begin() + i);
          }
          for (std::size_t m = 0; m < messages.size(); ++m) {
            if (messages[m].to != me) continue;
            for (const std::uint8_t b : buffers[2 * m + 1]) {
              if (b != m + 1) return "wrong message " + std::to_string(m);
            }
          }
          for (const auto& sum : sums) {
            for (const int x : sum) {
              if (x != ranks * (ranks - 1) / 2) return "wrong sum";
            }
          }
          return "good";
        },
        quick(30s));
    for (const std::string& text : texts) CHECK(text == "good");
  }
}

TEST_CASE("async: a transfer completes while a collective waits for a peer", "[async]") {
  const auto good = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        std::vector<int> out(300'000, value_of(queue.rank()));
        std::vector<int> in(300'000);
        if (queue.rank() == 0) {
          // The other rank calls the barrier only when it has the reply to what it sent.
          const handle barrier = queue.barrier();
          std::this_thread::sleep_for(30ms);  // the worker is asleep in it
          queue.recv(std::span(in), 1).wait();
          queue.send(std::span(out), 1).wait();
          barrier.wait();
        } else {
          queue.send(std::span(out), 0).wait();
          queue.recv(std::span(in), 0).wait();
          queue.barrier().wait();
        }
        return in == std::vector<int>(300'000, value_of(1 - queue.rank()));
      },
      quick());
  CHECK(good == std::vector<bool>{true, true});
}

TEST_CASE("async: who waits for a transfer does not carry out the collectives before it",
          "[async]") {
  // Rank 0 would wait in the all_reduce for rank 1, which calls it only when it has the reply.
  run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        int x[1] = {1};
        int y[1] = {1};
        if (queue.rank() == 0) {
          const handle sum = queue.all_reduce(std::span(x));
          queue.recv(std::span(y), 1).wait();
          queue.send(std::span(y), 1).wait();
          sum.wait();
        } else {
          queue.send(std::span(y), 0).wait();
          queue.recv(std::span(y), 0).wait();
          queue.all_reduce(std::span(x)).wait();
        }
      },
      quick(5s));
}

TEST_CASE("async: what is posted is done though nobody waits", "[async]") {
  const auto good = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        for (const auto pause : {0ms, 1ms, 30ms}) {  // the thread looks by itself, or must be woken
          std::this_thread::sleep_for(pause);
          int x[1] = {1};
          int y[1] = {};
          const handle sum = queue.all_reduce(std::span(x));
          const handle sent = queue.send(std::span(x), queue.rank());
          const handle got = queue.recv(std::span(y), queue.rank());
          if (!soon([&] { return sum.test() && sent.test() && got.test(); })) return false;
        }
        return true;
      },
      quick());
  CHECK(good == std::vector<bool>{true, true});
}

TEST_CASE("async: a wait with a time ends in time, and the call goes on", "[async]") {
  const auto texts = run_ranks(
      2,
      [](auto& comm) -> std::string {
        auto queue = comm.async();
        if (queue.rank() == 1) {
          std::this_thread::sleep_for(300ms);
          queue.barrier().wait(10s);
          return "";
        }
        const handle h = queue.barrier();
        const auto begin = steady_clock::now();
        try {
          h.wait(20ms);
          return "no error";
        } catch (const timeout_error& e) {
          if (steady_clock::now() - begin > 250ms) return "too late";
          h.wait();
          return e.what();
        }
      },
      quick());
  CHECK(contains(texts[0], "not complete within 0.02 s"));
}

TEST_CASE("async: callbacks run once, with the error or none, also of a complete call", "[async]") {
  communicator comm{self_transport{}};
  auto queue = comm.async();
  std::atomic<int> calls{0};
  std::atomic<bool> go{false};
  const handle slow = queue.run([&](auto&) {
    while (!go.load()) std::this_thread::sleep_for(1ms);
  });
  slow.then([&](const std::exception_ptr& e) { calls += e == nullptr ? 1 : 100; });
  slow.then([&](const std::exception_ptr& e) { calls += e == nullptr ? 10 : 100; });
  CHECK(calls == 0);
  go = true;
  slow.wait();
  REQUIRE(soon([&] { return calls == 11; }));
  slow.then([&](const std::exception_ptr&) { calls += 1000; });
  CHECK(calls == 1011);
  handle().then([&](const std::exception_ptr& e) { calls += e == nullptr ? 10000 : 0; });
  CHECK(calls == 11011);
  handle().wait();
  CHECK(handle().test());

  std::string text;
  int wrong[1] = {};
  queue.broadcast(std::span(wrong), 7).then([&](const std::exception_ptr& e) {
    try {
      std::rethrow_exception(e);
    } catch (const std::invalid_argument& what) {
      text = what.what();
    }
  });
  queue.barrier().wait();
  CHECK(contains(text, "root is 7"));
}

TEST_CASE("async: a wrong argument leaves the queue as it was, an exception gives it up",
          "[async]") {
  const auto texts = run_ranks(
      2,
      [](auto& comm) -> std::string {
        auto queue = comm.async();
        int x[1] = {1};
        try {
          queue.broadcast(std::span(x), 9).wait();
          return "no error";
        } catch (const std::invalid_argument&) {
        }
        try {
          queue.send(std::span(x), 2);
          return "no error";
        } catch (const std::invalid_argument&) {
        }
        queue.barrier().wait();
        // A receive that nobody sends fails with the call that fails.
        const handle pending = queue.recv(std::span(x), 1 - queue.rank());
        std::string first = "nothing";
        if (queue.rank() == 0) {
          try {
            queue.run([](auto&) { throw std::runtime_error("my own"); }).wait();
          } catch (const std::runtime_error& e) {
            first = e.what();
          }
        }
        std::string second = "nothing";
        try {
          pending.wait();
        } catch (const std::runtime_error& e) {  // aborted_error on rank 1
          second = e.what();
        }
        try {
          queue.barrier().wait();
        } catch (const aborted_error& e) {
          return first + "|" + second + "|" + e.what();
        }
        return "the queue still works";
      },
      quick(30s));
  INFO(texts[0] << "\n" << texts[1]);
  CHECK(contains(texts[0], "my own|my own|"));
  CHECK(contains(texts[1], "nothing|"));
  for (const std::string& text : texts) {
    CHECK(contains(text.substr(text.rfind('|')), "rank 0 aborted: my own"));
  }
}

TEST_CASE("async: ends of a message that differ are a mismatch in both queues", "[async]") {
  const auto texts = run_ranks(
      2,
      [](auto& comm) -> std::string {
        auto queue = comm.async();
        std::vector<int> x(100'000);
        try {
          queue.rank() == 0 ? queue.send(std::span(x), 1).wait()
                            : queue.recv(std::span(x), 0, {.tag = 5}).wait();
          queue.barrier().wait();
        } catch (const mismatch_error& e) {
          return e.what();
        }
        return "no error";
      },
      quick());
  for (const std::string& text : texts) CHECK(contains(text, "tag 5"));
}

TEST_CASE("async: abort from any thread ends what waits", "[async]") {
  const auto begin = steady_clock::now();
  const auto texts = run_ranks(
      2,
      [](auto& comm) -> std::string {
        auto queue = comm.async();
        int x[1] = {};
        const handle receive = queue.recv(std::span(x), 1 - queue.rank());
        const handle barrier = queue.rank() == 0 ? queue.barrier() : handle();
        std::jthread other;
        if (queue.rank() == 1) {
          other = std::jthread([&] {
            std::this_thread::sleep_for(50ms);
            queue.abort("from a thread");
          });
        }
        std::string text;
        for (const handle& h : {receive, barrier}) {
          try {
            h.wait();
            text += "none;";
          } catch (const aborted_error& e) {
            text += e.what();
          }
        }
        return text;
      },
      quick(30s));
  CHECK(steady_clock::now() - begin < 5s);
  for (const std::string& text : texts) CHECK(contains(text, "from a thread"));
  CHECK_FALSE(contains(texts[0], "none"));
}

TEST_CASE("async: a transfer has its deadline, alone and beside a collective", "[async]") {
  for (const bool beside : {false, true}) {
    const auto begin = steady_clock::now();
    const auto texts = run_ranks(
        2,
        [&](auto& comm) -> std::string {
          auto queue = comm.async();
          int x[1] = {};
          std::string text;
          if (queue.rank() == 0) {
            const handle h = queue.recv(std::span(x), 1);
            // The barrier has a deadline of its own, which is later.
            if (beside) std::this_thread::sleep_for(400ms);
            const handle b = beside ? queue.barrier() : handle();
            try {
              h.wait();
            } catch (const timeout_error& e) {
              text = e.what();
            }
          } else {
            std::this_thread::sleep_for(1500ms);
          }
          return text;
        },
        quick(600ms));
    INFO(texts[0]);
    CHECK(contains(texts[0], "recv from rank 1"));
    CHECK(contains(texts[0], "within 0.6 s"));
    CHECK(steady_clock::now() - begin < 5s);
  }
}

TEST_CASE("async: transfers and calls over messages, which move on only while somebody asks",
          "[async]") {
  auto transports = testing::mailbox_transport::create(2, {.workspace_bytes = 65536});
  std::vector<std::string> texts(2);
  run_rank_threads(2, [&](int r) {
    communicator comm(std::move(transports[static_cast<std::size_t>(r)]));
    auto queue = comm.async();
    std::vector<int> out(300'000, value_of(r));
    std::vector<int> in(300'000);
    int x[1] = {1};
    if (r == 0) {
      const handle sum = queue.all_reduce(std::span(x));
      std::this_thread::sleep_for(20ms);
      queue.recv(std::span(in), 1).wait();
      queue.send(std::span(out), 1).wait();
      sum.wait();
    } else {
      queue.send(std::span(out), 0).wait();
      queue.recv(std::span(in), 0).wait();
      queue.all_reduce(std::span(x)).wait();
    }
    texts[static_cast<std::size_t>(r)] =
        in == std::vector<int>(300'000, value_of(1 - r)) && x[0] == 2 ? "good" : "wrong";
  });
  CHECK(texts == std::vector<std::string>{"good", "good"});
}

TEST_CASE("async: the destructor waits for what was posted", "[async]") {
  const auto sums = run_ranks(
      2,
      [](auto& comm) {
        std::vector<int> x(50'000, 1);
        std::vector<int> y(50'000);
        handle kept;
        {
          auto queue = comm.async();
          if (queue.rank() == 0) std::this_thread::sleep_for(50ms);
          queue.all_reduce(std::span(x));
          queue.send(std::span(x), 1 - queue.rank());
          kept = queue.recv(std::span(y), 1 - queue.rank());
        }
        return kept.test() ? x[49'999] + (y[49'999] > 0 ? 0 : 100) : -1;
      },
      quick());
  CHECK(sums == std::vector<int>{2, 2});
}

TEST_CASE("async: a queue that is gone has left, though handles are kept", "[async]") {
  const auto begin = steady_clock::now();
  std::atomic<bool> noticed{false};
  const auto texts = run_ranks(
      2,
      [&](auto& comm) -> std::string {
        std::optional queue(comm.async());
        const handle kept = queue->barrier();
        kept.wait();
        if (queue->rank() == 1) {
          queue.reset();
          for (int i = 0; i < 5000 && !noticed; ++i) std::this_thread::sleep_for(1ms);
          return "";
        }
        std::string text = "no error";
        try {
          queue->barrier().wait();
        } catch (const peer_lost_error& e) {
          text = e.what();
        }
        noticed = true;
        return text;
      },
      quick(30s));
  CHECK(contains(texts[0], "rank 1 left"));
  CHECK(steady_clock::now() - begin < 3s);
}

TEST_CASE("async: waiting from within the queue for itself is refused, not a deadlock", "[async]") {
  communicator comm{self_transport{}};
  auto queue = comm.async();
  std::string text;
  handle later;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  const handle first = queue.run([&](auto&) {
    const std::lock_guard guard(mutex);
    try {
      later.wait();
    } catch (const std::logic_error& e) {
      text = e.what();
    }
  });
  later = queue.barrier();
  lock.unlock();
  first.wait();
  later.wait();
  CHECK(contains(text, "cannot begin before"));
}

TEST_CASE("async: many threads post and wait", "[async]") {
  const auto sums = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        std::vector<int> out(4 * 200);
        std::vector<int> in(4 * 200);
        std::iota(out.begin(), out.end(), 0);
        {
          std::vector<std::jthread> threads;
          for (std::size_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
              // To itself and from itself, whoever is first: order between threads does not matter.
              for (std::size_t i = 0; i < 200; ++i) {
                const handle s = queue.send(std::span(out).subspan(t * 200 + i, 1), queue.rank());
                const handle r = queue.recv(std::span(in).subspan(t * 200 + i, 1), queue.rank());
                if (i % 3 == 0) r.wait();
                s.wait();
                r.wait();
              }
            });
          }
        }
        queue.barrier().wait();
        return std::accumulate(in.begin(), in.end(), 0);
      },
      quick());
  CHECK(sums == std::vector<int>{800 * 799 / 2, 800 * 799 / 2});
}

TEST_CASE("async: an idle queue sleeps, and so does one that waits", "[async]") {
  communicator comm{self_transport{}};
  auto queue = comm.async();
  queue.barrier().wait();
  std::int64_t before = process_cpu();
  std::this_thread::sleep_for(400ms);
  CHECK(process_cpu() - before < 40'000'000);

  before = process_cpu();
  run_ranks(
      2,
      [](auto& ranks) {
        auto inner = ranks.async();
        int x[1] = {};
        const handle h = inner.rank() == 0 ? inner.recv(std::span(x), 1) : handle();
        if (inner.rank() == 1) {
          std::this_thread::sleep_for(400ms);
          inner.send(std::span(x), 0).wait();
        }
        h.wait();
      },
      quick());
  CHECK(process_cpu() - before < 60'000'000);
}

TEST_CASE("async: a child after fork can neither post nor wait, and ends", "[async][processes]") {
  auto outcomes = fork_ranks(1, [](int, const rank_voice&) -> std::string {
    communicator comm{self_transport{}};
    auto queue = comm.async();
    std::atomic<bool> go{false};
    const handle slow = queue.run([&](auto&) {
      while (!go.load()) std::this_thread::sleep_for(1ms);
    });
    std::this_thread::sleep_for(20ms);
    const auto inner = fork_ranks(1, [&](int, const rank_voice&) -> std::string {
      auto taken = std::move(queue);
      std::string text;
      try {
        taken.barrier();
      } catch (const error& e) {
        text = e.what();
      }
      try {
        slow.wait();
      } catch (const error& e) {
        text += e.what();
      }
      return text;  // the destructor of the queue runs
    });
    go = true;
    slow.wait();
    queue.barrier().wait();
    return inner[0].error + inner[0].text;
  });
  CHECK(outcomes[0].returned);
  const std::string& text = outcomes[0].text;
  INFO(text);
  CHECK(text.find("before fork()") != text.rfind("before fork()"));
}

TEST_CASE("async: a process that dies ends the other's calls, whatever they are",
          "[async][processes]") {
  const std::uint64_t seed = values::seed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 6; ++trial) {
    const std::string key = fresh_key();
    const auto delay = std::chrono::microseconds(random() % 20'000);
    forked_ranks children(2, [&](int rank, const rank_voice& voice) -> std::string {
      communicator_options options;
      options.timeout = 40s;
      communicator comm(
          shm_transport::connect(key, rank, 2, {.workspace_bytes = 65536, .timeout = 20s}),
          options);
      auto queue = comm.async();
      voice.say("ready");
      std::vector<int> x(200'000);
      std::vector<int> y(200'000);
      std::vector<int> z(200'000);
      try {
        for (;;) {
          const handle a = queue.send(std::span(x), 1 - rank);
          const handle b = queue.all_reduce(std::span(z));
          const handle c = queue.recv(std::span(y), 1 - rank);
          for (const handle& h : {c, a, b}) h.wait();
        }
      } catch (const peer_lost_error& e) {
        return e.what();
      } catch (const aborted_error& e) {
        return e.what();
      }
    });
    for (int r = 0; r < 2; ++r) REQUIRE(children.wait_for_line(r, "ready"));
    std::this_thread::sleep_for(delay);
    const auto begin = steady_clock::now();
    children.kill(1, SIGKILL);
    const auto outcomes = children.join();
    CHECK(steady_clock::now() - begin < 3s);
    INFO(outcomes[0].error << ": " << outcomes[0].text);
    CHECK(contains(outcomes[0].text, "rank 1 died"));
  }
}
