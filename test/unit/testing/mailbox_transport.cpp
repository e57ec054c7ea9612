// SPDX-License-Identifier: Apache-2.0
#include "rankfold/testing/mailbox_transport.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace rankfold;
using testing::mailbox_transport;

namespace {

std::vector<std::byte> bytes_of(int value, std::size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

}  // namespace

TEST_CASE("a large message waits for its receiver, a small one does not", "[mailbox]") {
  auto ranks = mailbox_transport::create(2, {.eager_bytes = 100});
  const auto small = bytes_of(1, 100);
  const auto large = bytes_of(2, 101);
  auto first = ranks[0].send(1, 3, small.data(), small.size());
  auto second = ranks[0].send(1, 3, large.data(), large.size());
  CHECK(ranks[0].done(first));
  CHECK_FALSE(ranks[0].done(second));
  auto in = bytes_of(0, 100);
  auto in_large = bytes_of(0, 101);
  auto receive_first = ranks[1].receive(0, 3, in.data(), in.size());
  auto receive_second = ranks[1].receive(0, 3, in_large.data(), in_large.size());
  // In the order in which they were posted, whichever is asked for first.
  CHECK(ranks[1].done(receive_second));
  CHECK(ranks[1].done(receive_first));
  CHECK(in == small);
  CHECK(in_large == large);
  CHECK(ranks[0].done(second));
}

TEST_CASE("channels and pairs are apart", "[mailbox]") {
  auto ranks = mailbox_transport::create(3);
  const auto a = bytes_of(1, 8);
  const auto b = bytes_of(2, 8);
  CHECK(ranks[0].done(
      *std::make_unique<mailbox_transport::request>(ranks[0].send(2, 1, a.data(), 8))));
  auto in = bytes_of(0, 8);
  auto other_channel = ranks[2].receive(0, 2, in.data(), 8);
  auto other_rank = ranks[2].receive(1, 1, in.data(), 8);
  CHECK_FALSE(ranks[2].done(other_channel));
  CHECK_FALSE(ranks[2].done(other_rank));
  (void)ranks[1].send(2, 1, b.data(), 8);
  CHECK(ranks[2].done(other_rank));
  CHECK(in == b);
}

TEST_CASE("a message may be smaller than its receive, not larger", "[mailbox]") {
  auto ranks = mailbox_transport::create(2);
  const auto a = bytes_of(1, 8);
  (void)ranks[0].send(1, 0, a.data(), 8);
  (void)ranks[0].send(1, 0, a.data(), 8);
  auto in = bytes_of(0, 9);
  auto larger = ranks[1].receive(0, 0, in.data(), 9);
  CHECK(ranks[1].done(larger));
  auto wanted = a;
  wanted.push_back(std::byte{0});
  CHECK(in == wanted);
  auto smaller = ranks[1].receive(0, 0, in.data(), 7);
  CHECK_THROWS_AS(ranks[1].done(smaller), transport_error);
}

TEST_CASE("an abandoned send keeps its memory until it is received", "[mailbox]") {
  auto ranks = mailbox_transport::create(2, {.eager_bytes = 0});
  auto memory = std::make_shared<std::vector<std::byte>>(bytes_of(7, 50));
  const std::weak_ptr<const void> watched = memory;
  auto request = ranks[0].send(1, 0, memory->data(), memory->size());
  ranks[0].abandon(std::move(request), std::move(memory));
  CHECK_FALSE(watched.expired());
  auto in = bytes_of(0, 50);
  auto receive = ranks[1].receive(0, 0, in.data(), 50);
  CHECK(ranks[1].done(receive));
  CHECK(in == bytes_of(7, 50));
  CHECK(watched.expired());
}

TEST_CASE("notices reach all but their sender, once, and states tell who left", "[mailbox]") {
  auto ranks = mailbox_transport::create(3);
  const auto notice = bytes_of(9, 20);
  ranks[1].announce(notice);
  std::vector<std::byte> room(max_notice);
  CHECK(ranks[1].heard(room) == 0);
  CHECK(ranks[0].heard(room) == 20);
  CHECK(ranks[0].heard(room) == 0);
  CHECK(ranks[2].heard(room) == 20);
  CHECK(ranks[0].state(2) == peer_state::alive);
  {
    const mailbox_transport gone = std::move(ranks[2]);
  }
  CHECK(ranks[0].state(2) == peer_state::left);
}

TEST_CASE("children have an office of their own", "[mailbox]") {
  auto ranks = mailbox_transport::create(3);
  const std::vector<int> members{2, 0};
  auto first = ranks[2].child(members, 0, "key");
  auto second = ranks[0].child(members, 1, "key");
  const auto a = bytes_of(1, 8);
  (void)first.send(1, 0, a.data(), 8);
  auto in = bytes_of(0, 8);
  auto at_parent = ranks[0].receive(2, 0, in.data(), 8);
  auto at_child = second.receive(0, 0, in.data(), 8);
  CHECK_FALSE(ranks[0].done(at_parent));
  CHECK(second.done(at_child));
}
