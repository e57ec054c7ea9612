// SPDX-License-Identifier: Apache-2.0
// Receives that look for their message by its tag; and interruptions of who waits.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/async.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "rankfold/transport/self.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"

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

template <class F>
std::string thrown_text(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

/// Rank 0 sends with tags 3, 1, 2 and 1 again; rank 1 asks for 2, 1, 1 and, of any rank, 3.
template <class Queue>
std::string tagged_messages(Queue& queue, std::size_t count) {
  constexpr std::uint32_t tags[] = {3, 1, 2, 1};
  std::vector<std::vector<int>> data(4, std::vector<int>(count));
  std::vector<handle> handles;
  if (queue.rank() == 0) {
    for (std::size_t i = 0; i < 4; ++i) {
      std::iota(data[i].begin(), data[i].end(), static_cast<int>(i * 1000));
      handles.push_back(queue.send(std::span(data[i]), 1, {.tag = tags[i]}));
    }
    handles.push_back(queue.barrier());
    for (const handle& h : handles) h.wait();
    return "";
  }
  std::string problems;
  int from[4] = {9, 9, 9, 9};
  const handle barrier = queue.barrier();
  for (const std::size_t i : {2, 1, 3, 0}) {
    handles.push_back(queue.recv_tagged(data[i].data(), count, dtype::int32,
                                        i == 0 ? Queue::any_source : 0, {.tag = tags[i]},
                                        &from[i]));
    if (i == 2) handles.back().wait();  // messages 0 and 1 have come before
  }
  for (const handle& h : handles) h.wait();
  barrier.wait();
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<int> wanted(count);
    std::iota(wanted.begin(), wanted.end(), static_cast<int>(i * 1000));
    if (from[i] != 0) problems += "message " + std::to_string(i) + " has another source; ";
    if (data[i] != wanted) problems += "message " + std::to_string(i) + " has other data; ";
  }
  return problems;
}

}  // namespace

TEST_CASE("async: recv_tagged takes the message with its tag, whatever comes before", "[async]") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{200'000}}) {
    const auto over_memory = run_ranks(
        2,
        [&](auto& comm) {
          auto queue = comm.async();
          return tagged_messages(queue, count);
        },
        quick());
    CHECK(over_memory == std::vector<std::string>{"", ""});

    auto transports = testing::mailbox_transport::create(2, {.workspace_bytes = 65536});
    std::string problems = "not run";
    std::thread sender([&] {
      auto queue = communicator(std::move(transports[0]), {.timeout = 20s}).async();
      tagged_messages(queue, count);
    });
    {
      auto queue = communicator(std::move(transports[1]), {.timeout = 20s}).async();
      problems = tagged_messages(queue, count);
    }
    sender.join();
    CHECK(problems == "");
  }
}

TEST_CASE("async: recv_tagged of any rank says whom it is from", "[async]") {
  const auto results = run_ranks(
      3,
      [](auto& comm) {
        auto queue = comm.async();
        int value = 10 * queue.rank();
        if (queue.rank() != 0) {
          queue.send(std::span(&value, 1), 0, {.tag = 7}).wait();
          return 0;
        }
        int sum = 0;
        for (int i = 0; i < 2; ++i) {
          int from = 100;
          queue.recv_tagged(&value, 1, dtype::int32, queue.any_source, {.tag = 7}, &from).wait();
          sum += value == 10 * from ? value : 1000;
        }
        return sum;
      },
      quick());
  CHECK(results == std::vector<int>{30, 0, 0});
}

TEST_CASE("async: recv_tagged has a deadline", "[async]") {
  const auto begin = steady_clock::now();
  const auto texts = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        if (queue.rank() == 1) std::this_thread::sleep_for(150ms);  // whose deadline is later
        int value = 0;
        const int source = queue.rank() == 0 ? 1 : queue.any_source;
        return thrown_text([&] { queue.recv_tagged(&value, 1, dtype::int32, source).wait(); });
      },
      quick(300ms));
  CHECK(steady_clock::now() - begin >= 300ms);
  CHECK(steady_clock::now() - begin < 3s);
  INFO(texts[0] << "\n" << texts[1]);
  CHECK(contains(texts[0], "recv from rank 1 on rank 0 of 2"));
  CHECK(contains(texts[0], "rank 1 did not send it within 0.3 s"));
  CHECK(texts[1] == texts[0]);  // rank 1 hears of it before its own time is over
}

TEST_CASE("async: a message has its own deadline, whatever call it is looked at in", "[async]") {
  // The call of 300 ms is under way when the messages are posted; what they are for comes later.
  const auto values = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        int sent = 5;
        int got[2] = {0, 0};
        if (queue.rank() == 1) {
          std::this_thread::sleep_for(150ms);
          queue.barrier().wait();
          std::this_thread::sleep_for(400ms);
          queue.send(std::span(&sent, 1), 0, {.tag = 1}).wait();
          queue.recv(std::span(&sent, 1), 0).wait();
          return 0;
        }
        const handle call = queue.run([](auto& inner) { inner.barrier(); }, 0, 300ms);
        std::this_thread::sleep_for(20ms);  // the queue's thread is in it
        const handle first = queue.recv_tagged(got, 1, dtype::int32, 1, {.tag = 1});
        const handle second = queue.send(std::span(got).subspan(1), 1);
        for (const handle& h : {call, first, second}) h.wait();
        return got[0];
      },
      quick());
  CHECK(values == std::vector<int>{5, 0});
}

TEST_CASE("async: a call has its own time, for all that it does", "[async]") {
  // Rank 0's call lasts until its own time is over, whatever the communicator's is.
  const auto texts = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        if (queue.rank() == 1) {
          for (int i = 0; i < 3; ++i) {
            std::this_thread::sleep_for(200ms);
            queue.barrier();
          }
          return std::string();
        }
        return thrown_text([&] {
          queue
              .run(
                  [](auto& inner) {
                    for (int i = 0; i < 3; ++i) inner.barrier();
                  },
                  0, 500ms)
              .wait();
        });
      },
      quick());
  INFO(texts[0]);
  CHECK(contains(texts[0], "barrier (call 3) on rank 0 of 2"));
  CHECK(contains(texts[0], "within 0.5 s"));
}

TEST_CASE("async: a wait with a time leaves what may last longer to the queue", "[async]") {
  for (const auto own : {0ms, 5000ms}) {  // none: the communicator's, for each of its calls
    const auto texts = run_ranks(
        2,
        [&](auto& comm) {
          auto queue = comm.async();
          if (queue.rank() == 1) {
            for (int i = 0; i < 2; ++i) {
              std::this_thread::sleep_for(450ms);
              queue.barrier().wait();
            }
            return std::string();
          }
          const handle both = queue.run(
              [](auto& inner) {
                inner.barrier();
                inner.barrier();
              },
              0, own);
          const auto begin = steady_clock::now();
          std::string text = thrown_text([&] { both.wait(650ms); });
          if (steady_clock::now() - begin < 650ms) text = "too early: " + text;
          both.wait();
          return text;
        },
        quick(600ms));
    CHECK(texts[0] == "rankfold: the call was not complete within 0.65 s; it goes on");
  }
}

TEST_CASE("async: cancel_tagged leaves what has come, and what comes", "[async]") {
  const auto texts = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        int x[3] = {1, 2, 3};
        if (queue.rank() == 1) {
          for (const std::uint32_t tag : {3u, 1u}) {
            queue.send(std::span(x).subspan(tag - 1, 1), 0, {.tag = tag}).wait();
          }
          queue.barrier().wait();
          queue.barrier().wait();
          queue.send(std::span(x).subspan(1, 1), 0, {.tag = 2}).wait();
          queue.all_reduce(std::span(x)).wait();
          return std::string();
        }
        int got[4] = {0, 0, 0, 0};
        const auto receive = [&](std::uint32_t tag, int* place) {
          return queue.recv_tagged(place, 1, dtype::int32, 1, {.tag = tag});
        };
        queue.barrier().wait();
        const handle late = receive(2, got);
        const handle here = receive(1, got + 1);  // behind one with tag 3, which is kept
        const handle cancelled = queue.cancel_tagged();
        std::string text = thrown_text([&] { late.wait(); });
        here.wait();
        cancelled.wait();
        queue.barrier().wait();
        const handle again = receive(2, got + 2);
        queue.all_reduce(std::span(x)).wait();
        again.wait();
        receive(3, got + 3).wait();
        for (const int value : got) text += " " + std::to_string(value);
        return text + " " + std::to_string(x[2]);
      },
      quick());
  CHECK(texts[0] ==
        "rankfold: the receive was cancelled before anything had come for it 0 1 2 3 6");
}

TEST_CASE("async: cancel_tagged ends all that is under way of a queue that was given up",
          "[async]") {
  const auto good = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        std::vector<int> x(100'000);
        if (queue.rank() == 1) {
          queue.barrier().wait();
          return true;
        }
        const handle send = queue.send(std::span(x), 1);
        const handle receive = queue.recv_tagged(x.data(), 1, dtype::int32, 1);
        const handle self = queue.recv(std::span(x), 0);
        queue.barrier().wait();
        queue.abort("over");
        const std::string text = thrown_text([&] { queue.cancel_tagged().wait(); });
        return contains(text, "over") && send.test() && receive.test() && self.test();
      },
      quick());
  CHECK(good == std::vector<bool>{true, true});
}

TEST_CASE("async: the interrupt callback is asked however many calls come and go", "[async]") {
  const auto main = std::this_thread::get_id();
  for (const bool carries_out : {true, false}) {  // who waits, or the queue's thread
    std::atomic<bool> asked{false};
    communicator_options options;
    options.interrupt = [&] {
      if (std::this_thread::get_id() == main) asked = true;
    };
    communicator comm(self_transport{}, options);
    auto queue = comm.async();
    std::atomic<bool> begun{false};
    const auto small = [&](auto&) {
      begun = true;
      if (!asked) std::this_thread::sleep_for(1ms);
    };
    handle last;
    for (int i = 0; i < 3000; ++i) last = queue.run(small);
    if (!carries_out) {
      while (!begun) std::this_thread::yield();
    }
    last.wait();
    CHECK(asked);
  }
}

TEST_CASE("async: recv_tagged takes what was sent by a rank that has left, and no more",
          "[async]") {
  std::atomic<bool> left{false};
  const auto texts = run_ranks(
      2,
      [&](auto& comm) -> std::string {
        int value = 5;
        if (comm.rank() == 1) {
          {
            auto queue = std::move(comm).async();
            queue.send(std::span(&value, 1), 0, {.tag = 1}).wait();
          }
          left = true;
          return "";
        }
        auto queue = comm.async();
        while (!left) std::this_thread::sleep_for(1ms);
        value = 0;
        queue.recv_tagged(&value, 1, dtype::int32, 1, {.tag = 1}).wait();
        return std::to_string(value) + thrown_text([&] {
                 queue.recv_tagged(&value, 1, dtype::int32, 1, {.tag = 1}).wait();
               });
      },
      quick());
  INFO(texts[0]);
  CHECK(texts[0].starts_with("5"));
  CHECK(contains(texts[0], "rank 1 left"));
}

TEST_CASE("async: recv_tagged compares all but the tag, also of a message that came early",
          "[async]") {
  for (const bool early : {false, true}) {
    const auto texts = run_ranks(
        2,
        [&](auto& comm) {
          auto queue = comm.async();
          std::int64_t value = 5;
          int other = 0;
          return thrown_text([&] {
            if (queue.rank() == 1) {
              queue.send(std::span(&value, 1), 0, {.tag = 1}).wait();
              if (early) queue.send(std::span(&value, 1), 0, {.tag = 2}).wait();
              queue.barrier().wait();
            } else {
              if (early) queue.recv_tagged(&value, 1, dtype::int64, 1, {.tag = 2}).wait();
              queue.recv_tagged(&other, 1, dtype::int32, 1, {.tag = 1}).wait();
            }
          });
        },
        quick());
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(contains(text, "1 × int32"));
      CHECK(contains(text, "1 × int64"));
    }
  }
}

TEST_CASE("async: the interrupt callback is asked while another thread carries out", "[async]") {
  const auto main = std::this_thread::get_id();
  std::atomic<bool> stop{false};
  communicator_options options;
  options.interrupt = [&] {
    if (std::this_thread::get_id() == main) throw std::runtime_error("interrupted");
  };
  communicator comm(self_transport{}, options);
  auto queue = comm.async();
  std::atomic<bool> begun{false};
  const handle slow = queue.run([&](auto&) {
    begun = true;
    while (!stop) std::this_thread::sleep_for(1ms);
  });
  while (!begun) std::this_thread::sleep_for(1ms);  // the queue's own thread has it
  CHECK(thrown_text([&] { slow.wait(); }) == "interrupted");
  CHECK(thrown_text([&] { slow.wait(10s); }) == "interrupted");
  stop = true;
  const std::string after = thrown_text([&] { queue.barrier().wait(); });
  INFO(after);
  CHECK(contains(after, "aborted: interrupted"));
}
