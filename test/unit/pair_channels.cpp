// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/pair_channels.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/transport/threads.hpp"
#include "support/catch.hpp"

using namespace rankfold::detail;
using direction = pair_transfer::direction;

namespace {

/// The channels of some ranks, all moved by this thread.
struct world {
  explicit world(int size, std::size_t workspace = 8192)
      : transports(rankfold::threads_transport::create(size, {.workspace_bytes = workspace})) {
    for (int r = 0; r < size; ++r) segments.push_back(transports[0].segment(r));
    for (int r = 0; r < size; ++r) {
      channels.emplace_back(r, segments, transports[0].segment_size(), false);
    }
  }

  pair_channels& at(int r) { return channels[static_cast<std::size_t>(r)]; }

  pair_transfer begin(direction way, int own, int peer, void* data, std::size_t bytes,
                      std::uint64_t print = 1) {
    pair_transfer t;
    t.way = way;
    t.peer = peer;
    t.fingerprint[0] = print;
    t.fingerprint[1] = bytes;
    t.data = static_cast<std::byte*>(data);
    t.bytes = bytes;
    t.place = at(own).next_place(t);
    return t;
  }

  std::vector<rankfold::threads_transport> transports;
  std::vector<std::byte*> segments;
  std::vector<pair_channels> channels;
};

}  // namespace

TEST_CASE("pair_channels: four packets are under way, no more, and they come in order",
          "[pair_channels]") {
  world w(3);
  int out[5] = {10, 11, 12, 13, 14};
  std::vector<pair_transfer> sends;
  for (int& x : out) sends.push_back(w.begin(direction::send, 0, 2, &x, sizeof x));
  CHECK(w.at(0).advance(sends[1]) == pair_progress::pending);  // not its turn
  for (std::size_t i = 0; i < 4; ++i) CHECK(w.at(0).advance(sends[i]) == pair_progress::complete);
  CHECK(w.at(0).advance(sends[4]) == pair_progress::pending);
  for (int& x : out) x = -1;  // what was sent is out of the sender's hands
  out[4] = 14;
  for (int i = 0; i < 5; ++i) {
    int in = 0;
    pair_transfer t = w.begin(direction::receive, 2, 0, &in, sizeof in);
    CHECK(w.at(2).advance(t) == pair_progress::complete);
    CHECK(in == 10 + i);
    if (i == 0) CHECK(w.at(0).advance(sends[4]) == pair_progress::complete);
  }
  int in = 0;
  pair_transfer more = w.begin(direction::receive, 2, 0, &in, sizeof in);
  CHECK(w.at(2).advance(more) == pair_progress::pending);
  // Nothing of it went anywhere else.
  pair_transfer other = w.begin(direction::receive, 1, 0, &in, sizeof in);
  CHECK(w.at(1).advance(other) == pair_progress::pending);
  CHECK(w.at(2).met(0));
  CHECK(w.at(0).met(2));
  CHECK_FALSE(w.at(1).met(0));
}

TEST_CASE("pair_channels: a large message goes through the ring piece by piece, both ways at once",
          "[pair_channels]") {
  for (const std::size_t bytes : {std::size_t{41}, std::size_t{1024}, std::size_t{1025},
                                  std::size_t{4096}, std::size_t{4097}, std::size_t{50'003}}) {
    INFO(bytes << " bytes");
    world w(2);  // slots of 1 KiB
    std::vector<std::vector<unsigned char>> out(2, std::vector<unsigned char>(bytes));
    std::vector<std::vector<unsigned char>> in = out;
    for (std::size_t i = 0; i < bytes; ++i) {
      out[0][i] = static_cast<unsigned char>(i * 7 + i / 251);
      out[1][i] = static_cast<unsigned char>(i * 13 + i / 241 + 1);
    }
    std::vector<pair_transfer> transfers;
    std::vector<int> owners;
    for (const int r : {0, 1}) {
      const auto i = static_cast<std::size_t>(r);
      transfers.push_back(w.begin(direction::send, r, 1 - r, out[i].data(), bytes));
      transfers.push_back(w.begin(direction::receive, r, 1 - r, in[i].data(), bytes));
      owners.insert(owners.end(), {r, r});
    }
    std::vector<bool> done(4);
    int rounds = 0;
    for (std::size_t left = 4; left > 0; ++rounds) {
      for (std::size_t i = 0; i < 4; ++i) {
        if (done[i]) continue;
        done[i] = w.at(owners[i]).advance(transfers[i]) == pair_progress::complete;
        if (done[i]) --left;
      }
      REQUIRE(rounds < 1000);
    }
    CHECK(rounds >= static_cast<int>(bytes / 4096));
    CHECK(in[0] == out[1]);
    CHECK(in[1] == out[0]);
  }
}

TEST_CASE("pair_channels: a message that was not asked for is told, and stays where it is",
          "[pair_channels]") {
  world w(2);
  int x = 5;
  pair_transfer out = w.begin(direction::send, 0, 1, &x, sizeof x, 8);
  REQUIRE(w.at(0).advance(out) == pair_progress::complete);
  int in = 0;
  pair_transfer other = w.begin(direction::receive, 1, 0, &in, sizeof in, 9);
  CHECK(w.at(1).advance(other) == pair_progress::mismatch);
  CHECK(w.at(1).next_fingerprint(0) == std::pair(std::uint64_t{8}, std::uint64_t{sizeof x}));
  CHECK(in == 0);
}

TEST_CASE("pair_channels: a rank's own messages are kept", "[pair_channels]") {
  world w(1);
  int x = 5;
  int in = 0;
  pair_transfer receive = w.begin(direction::receive, 0, 0, &in, sizeof in);
  CHECK(w.at(0).advance(receive) == pair_progress::pending);
  CHECK_FALSE(w.at(0).has_own_message());
  for (x = 1; x < 10; ++x) {
    pair_transfer send = w.begin(direction::send, 0, 0, &x, sizeof x);
    REQUIRE(w.at(0).advance(send) == pair_progress::complete);
  }
  CHECK(w.at(0).has_own_message());
  REQUIRE(w.at(0).advance(receive) == pair_progress::complete);
  CHECK(in == 1);
  pair_transfer wrong = w.begin(direction::receive, 0, 0, &in, 1);
  CHECK(w.at(0).advance(wrong) == pair_progress::mismatch);
  CHECK(w.at(0).next_fingerprint(0).second == sizeof x);
}

TEST_CASE("pair_channels: whoever sleeps on the bell is woken by a packet, an ack, and ring",
          "[pair_channels]") {
  using namespace std::chrono_literals;
  const auto sleeps = [](world& w, int owner, auto&& done) {
    const auto begin = std::chrono::steady_clock::now();
    while (!done()) {
      bell_sleep bell(w.at(owner).bell());
      if (done()) break;
      bell.sleep(10s, false);  // much longer than the test may take
    }
    return std::chrono::steady_clock::now() - begin;
  };
  world w(2);
  int out[5] = {};
  int in[5] = {};
  std::vector<pair_transfer> sends;
  std::vector<pair_transfer> receives;
  for (std::size_t i = 0; i < 5; ++i) {
    sends.push_back(w.begin(direction::send, 0, 1, &out[i], sizeof(int)));
    receives.push_back(w.begin(direction::receive, 1, 0, &in[i], sizeof(int)));
  }
  std::chrono::nanoseconds slept_receiver{};
  std::chrono::nanoseconds slept_sender{};
  {
    std::jthread receiver([&] {
      for (pair_transfer& t : receives) {
        slept_receiver +=
            sleeps(w, 1, [&] { return w.at(1).advance(t) == pair_progress::complete; });
        std::this_thread::sleep_for(20ms);
      }
    });
    std::this_thread::sleep_for(50ms);
    for (pair_transfer& t : sends) {
      slept_sender += sleeps(w, 0, [&] { return w.at(0).advance(t) == pair_progress::complete; });
    }
  }
  CHECK(slept_receiver < 5s);
  CHECK(slept_sender < 5s);

  std::atomic<bool> told{false};
  std::jthread sleeper([&] { slept_sender = sleeps(w, 0, [&] { return told.load(); }); });
  std::this_thread::sleep_for(50ms);
  told = true;
  w.at(1).ring(0);
  sleeper.join();
  CHECK(slept_sender < 5s);
  CHECK(w.at(0).bell().sleepers == 0);
}
