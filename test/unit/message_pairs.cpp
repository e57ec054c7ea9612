// SPDX-License-Identifier: Apache-2.0
// send and recv over messages: order, many at a time, sizes around every edge.
#include "rankfold/detail/message_pairs.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/rank_threads.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using testing::mailbox_transport;

namespace {

constexpr std::size_t piece = detail::message_pairs<mailbox_transport>::piece_bytes;
constexpr std::size_t attached = sizeof(detail::pair_header::attached);

std::vector<std::uint8_t> message(int from, int to, std::size_t number, std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  std::iota(data.begin(), data.end(), static_cast<std::uint8_t>(from * 100 + to * 10 + number));
  return data;
}

template <class F>
void run_mailboxes(int ranks, std::size_t eager, std::chrono::milliseconds timeout, F&& f) {
  auto transports =
      mailbox_transport::create(ranks, {.workspace_bytes = 16384, .eager_bytes = eager});
  run_rank_threads(ranks, [&](int r) {
    communicator<mailbox_transport> comm(std::move(transports[static_cast<std::size_t>(r)]),
                                         {.timeout = timeout});
    f(comm);
  });
}

}  // namespace

TEST_CASE("messages of all sizes go round, between collectives", "[message_pairs]") {
  for (const std::size_t eager : {std::size_t{0}, std::size_t{1} << 30}) {
    std::vector<int> wrong(3, 0);
    run_mailboxes(3, eager, 60s, [&](auto& comm) {
      const int next = (comm.rank() + 1) % 3;
      const int before = (comm.rank() + 2) % 3;
      std::size_t number = 0;
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, attached, attached + 1, piece,
                                      piece + 1, 2 * piece, 3 * piece + 7}) {
        const auto out = message(comm.rank(), next, number, bytes);
        std::vector<std::uint8_t> in(bytes);
        if (comm.rank() == 0) comm.recv(std::span(in), before);
        comm.send(std::span(out), next);
        if (comm.rank() != 0) comm.recv(std::span(in), before);
        wrong[static_cast<std::size_t>(comm.rank())] +=
            in != message(before, comm.rank(), number, bytes);
        std::int32_t one = 1;
        comm.all_reduce(std::span(&one, 1));
        wrong[static_cast<std::size_t>(comm.rank())] += one != 3;
        ++number;
      }
    });
    CHECK(wrong == std::vector<int>{0, 0, 0});
  }
}

TEST_CASE("transfers of many pairs, moved on in any order, keep the order of each pair",
          "[message_pairs]") {
  for (const unsigned seed : {1u, 2u, 3u}) {
    INFO("seed " << seed);
    constexpr int ranks = 3;
    constexpr std::size_t messages = 6;
    std::vector<int> wrong(ranks, 0);
    auto transports = mailbox_transport::create(
        ranks, {.workspace_bytes = 16384, .eager_bytes = seed == 1 ? 0u : 4096u});
    run_rank_threads(ranks, [&](int rank) {
      context<mailbox_transport> ctx(std::move(transports[static_cast<std::size_t>(rank)]), {},
                                     {.timeout = 60s});
      std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
      struct transfer {
        typename context<mailbox_transport>::transfer what;
        std::vector<std::uint8_t> data;
        std::vector<std::uint8_t> wanted;
      };
      std::vector<transfer> all;
      const fingerprint print =
          fingerprint::of(collective::send_recv, 1, dtype::uint8, 0, algorithm::automatic, 0, 0);
      for (std::size_t number = 0; number < messages; ++number) {
        const std::size_t bytes = number * number * 20000 * seed;  // alike on both sides
        for (int peer = 0; peer < ranks; ++peer) {
          all.push_back({{}, message(rank, peer, number, bytes), {}});
          all.back().what = ctx.begin_send(peer, print, all.back().data.data(), bytes);
          all.push_back({{}, std::vector<std::uint8_t>(bytes), message(peer, rank, number, bytes)});
          all.back().what = ctx.begin_receive(peer, print, all.back().data.data(), bytes);
        }
      }
      std::vector<std::size_t> left(all.size());
      std::iota(left.begin(), left.end(), std::size_t{0});
      ctx.wait_transfers(
          [&] {
            std::shuffle(left.begin(), left.end(), random);
            std::erase_if(left, [&](std::size_t i) { return ctx.advance(all[i].what); });
            return left.empty();
          },
          [](auto now) { return now + 1s; });
      for (const transfer& t : all) {
        if (t.what.way == detail::pair_transfer::direction::receive) {
          wrong[static_cast<std::size_t>(rank)] += t.data != t.wanted;
        }
      }
    });
    CHECK(wrong == std::vector<int>(ranks, 0));
  }
}

TEST_CASE("a message of another type is an error on both sides", "[message_pairs]") {
  std::vector<std::string> said(2);
  run_mailboxes(2, 0, 10s, [&](auto& comm) {
    try {
      std::vector<float> x(3);
      std::vector<std::int32_t> y(3);
      if (comm.rank() == 0) {
        comm.send(std::span<const float>(x), 1);
      } else {
        comm.recv(std::span(y), 0);
      }
      comm.barrier();
    } catch (const mismatch_error& e) {
      said[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  for (const std::string& text : said) {
    CHECK(contains(text, "3 × int32"));
    CHECK(contains(text, "3 × float32"));
  }
}

TEST_CASE("a message that does not come is an error at the deadline", "[message_pairs]") {
  std::string said;
  const auto begin = std::chrono::steady_clock::now();
  run_mailboxes(2, 0, 200ms, [&](auto& comm) {
    if (comm.rank() == 1) return;
    std::vector<float> x(3);
    try {
      comm.recv(std::span(x), 1);
    } catch (const error& e) {
      said = e.what();
    }
  });
  CHECK((contains(said, "rank 1 left") || contains(said, "rank 1 did not send it within 0.2 s")));
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}
