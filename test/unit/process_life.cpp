// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/process_life.hpp"

#include <chrono>
#include <string>

#include <signal.h>
#include <unistd.h>

#include <sys/socket.h>

#include "support/catch.hpp"
#include "support/fork_ranks.hpp"

namespace detail = rankfold::detail;

namespace {

/// Hands a descriptor from a child to this process; the oracle for what a peer sees.
void give(int socket, int fd) {
  char byte = 0;
  ::iovec part = {&byte, 1};
  alignas(::cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  ::msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ::cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ::sendmsg(socket, &message, 0);
}

int take(int socket) {
  char byte = 0;
  ::iovec part = {&byte, 1};
  alignas(::cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  ::msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) < 0) return -1;
  int fd = -1;
  if (CMSG_FIRSTHDR(&message) != nullptr) {
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  }
  return fd;
}

bool ends_within_a_second(int watched) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!detail::has_ended(watched)) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::usleep(1000);
  }
  return true;
}

}  // namespace

TEST_CASE("a process that ends is seen to, whatever children it has", "[detail][process_life]") {
  for (const bool pidfd : {true, false}) {
    INFO((pidfd ? "pidfd" : "pipe"));
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    forked_ranks ranks(1, [&ends, pidfd](int, const rank_voice& voice) {
      detail::without_pidfd = !pidfd;
      const detail::process_life life = detail::open_process_life();
      const bool pipe = static_cast<bool>(life.held);
      give(ends[1], life.watched.get());
      const ::pid_t child = ::fork();
      if (child == 0) {
        ::usleep(5'000'000);  // outlives its parent, and holds what it holds
        ::_exit(0);
      }
      voice.say(std::to_string(child));
      voice.say(pipe ? "pipe" : "pidfd");
      ::pause();
    });
    const detail::file_descriptor watched(take(ends[0]));
    REQUIRE(watched);
    REQUIRE(ranks.wait_for_line(0, pidfd ? "pidfd" : "pipe"));
    ::usleep(20'000);
    CHECK_FALSE(detail::has_ended(watched.get()));
    ranks.kill(0, SIGKILL);
    CHECK(ends_within_a_second(watched.get()));
    REQUIRE(ranks.lines(0).size() == 2);
    ::kill(std::stoi(ranks.lines(0)[0]), SIGKILL);
    CHECK(ranks.join()[0].signal == SIGKILL);
    ::close(ends[0]);
    ::close(ends[1]);
  }
}
