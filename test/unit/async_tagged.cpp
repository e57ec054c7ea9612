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
  const auto texts = run_ranks(
      2,
      [](auto& comm) {
        auto queue = comm.async();
        int value = 0;
        const int source = queue.rank() == 0 ? 1 : queue.any_source;
        return thrown_text([&] { queue.recv_tagged(&value, 1, dtype::int32, source).wait(); });
      },
      quick(300ms));
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(contains(text, "within 0.3 s"));
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
