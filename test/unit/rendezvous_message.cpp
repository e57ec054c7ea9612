// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/rendezvous_message.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>

#include "support/catch.hpp"

namespace detail = rankfold::detail;
using detail::message_kind;
using detail::message_socket;
using status = detail::received_message::status;

namespace {

struct socket_pair {
  socket_pair() {
    int ends[2] = {-1, -1};
    one = message_socket(detail::private_descriptor::opened_by([&ends] {
      return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0 ? ends[0] : -1;
    }));
    two = message_socket(detail::private_descriptor::opened_by([&ends] { return ends[1]; }));
  }
  message_socket one;
  message_socket two;
};

bool same_file(int a, int b) {
  struct ::stat first{};
  struct ::stat second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

}  // namespace

TEST_CASE("a message comes whole, with its kind and its descriptors",
          "[detail][rendezvous_message]") {
  const socket_pair pair;
  CHECK(pair.two.receive().what == status::nothing);
  const std::vector<int> given = {pair.one.get(), pair.two.get()};
  CHECK(pair.one.send(message_kind::segment, "text", given) == message_socket::send_result::sent);
  CHECK(pair.one.send(message_kind::go) == message_socket::send_result::sent);
  auto first = pair.two.receive();
  CHECK(first.what == status::message);
  CHECK(first.kind == message_kind::segment);
  CHECK(first.protocol == 1);
  CHECK(first.body == "text");
  CHECK_FALSE(first.lost_descriptors);
  REQUIRE(first.descriptors.size() == 2);
  CHECK(same_file(first.descriptors[0].get(), pair.one.get()));
  CHECK(same_file(first.descriptors[1].get(), pair.two.get()));
  CHECK((::fcntl(first.descriptors[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  const auto second = pair.two.receive();
  CHECK(second.kind == message_kind::go);
  CHECK(second.body.empty());
  CHECK(second.descriptors.empty());
}

TEST_CASE("as many descriptors as a message may have come through",
          "[detail][rendezvous_message]") {
  const socket_pair pair;
  const std::vector<int> given(detail::max_message_descriptors, pair.one.get());
  CHECK(pair.one.send(message_kind::table, "", given) == message_socket::send_result::sent);
  CHECK(pair.two.receive().descriptors.size() == detail::max_message_descriptors);
}

TEST_CASE("the prefix is magic, protocol and kind", "[detail][rendezvous_message]") {
  const socket_pair pair;
  pair.one.send(message_kind::refused, "no");
  char bytes[64];
  REQUIRE(::recv(pair.two.get(), bytes, sizeof bytes, 0) == 18);
  CHECK(std::memcmp(bytes, "rnkfldrv", 8) == 0);
  std::uint32_t words[2];
  std::memcpy(words, bytes + 8, 8);
  CHECK(words[0] == 1);
  CHECK(words[1] == 4);
  CHECK(std::memcmp(bytes + 16, "no", 2) == 0);
}

TEST_CASE("what is no message is garbage", "[detail][rendezvous_message]") {
  const socket_pair pair;
  const auto received = [&pair](const std::string& bytes) {
    ::send(pair.one.get(), bytes.data(), bytes.size(), 0);
    return pair.two.receive().what;
  };
  CHECK(received("x") == status::garbage);
  CHECK(received("rnkfldrv1234567") == status::garbage);
  CHECK(received("rnkfldrv12345678") == status::message);
  CHECK(received("rnkfldrx12345678") == status::garbage);
  CHECK(received("rnkfldrv" + std::string(8184, 'x')) == status::message);
  CHECK(received("rnkfldrv" + std::string(8185, 'x')) == status::garbage);  // cut off
}

TEST_CASE("a hang-up is told after the last words, also when it cut off others",
          "[detail][rendezvous_message]") {
  socket_pair pair;
  pair.two.send(message_kind::hello, "never read");
  pair.one.send(message_kind::failed, "last words");
  pair.one = message_socket();
  const auto last = pair.two.receive();
  CHECK(last.what == status::message);
  CHECK(last.body == "last words");
  CHECK(pair.two.receive().what == status::closed);
  CHECK(pair.two.send(message_kind::hello) == message_socket::send_result::closed);
}

TEST_CASE("a receiver that does not keep up is full, not an error",
          "[detail][rendezvous_message]") {
  const socket_pair pair;
  int sent = 0;
  while (sent < 100'000 && pair.one.send(message_kind::waiting, std::string(4000, 'x')) ==
                               message_socket::send_result::sent) {
    ++sent;
  }
  CHECK(sent > 0);
  CHECK(sent < 100'000);
  CHECK(pair.one.send(message_kind::waiting, std::string(4000, 'x')) ==
        message_socket::send_result::full);
  while (pair.two.receive().what == status::message) --sent;
  CHECK(sent == 0);
  CHECK(pair.one.send(message_kind::go) == message_socket::send_result::sent);
}

TEST_CASE("values are taken from bytes as far as there are enough",
          "[detail][rendezvous_message]") {
  const std::string bytes = detail::bytes_of(std::uint32_t{7}) + detail::bytes_of(std::uint64_t{8});
  std::string_view rest = bytes;
  CHECK(detail::take<std::uint32_t>(rest) == 7U);
  CHECK_FALSE(detail::take<detail::hello_message>(rest).has_value());
  CHECK(detail::take<std::uint64_t>(rest) == 8U);
  CHECK_FALSE(detail::take<char>(rest).has_value());
}
