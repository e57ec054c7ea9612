// SPDX-License-Identifier: Apache-2.0
// The rendezvous, with participants that share a page each. What others may send is written here by
// hand, byte by byte, so that the wire format is checked too.
#include "rankfold/bootstrap/unix_socket.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "rankfold/detail/process_life.hpp"
#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"

using namespace std::chrono_literals;
using rankfold::rendezvous_options;
using std::chrono::steady_clock;

namespace {

/// Shares a file with its rank in it, and reads the others'.
class plain_participant : public rankfold::rendezvous_participant {
 public:
  explicit plain_participant(int rank) : rank_(rank) {}

  rankfold::shared_segment create() override {
    if (before_create) before_create();
    rankfold::shared_segment made;
    made.memory = rankfold::detail::file_descriptor(::memfd_create("plain", MFD_CLOEXEC));
    const std::string text = "rank " + std::to_string(rank_);
    (void)!::write(made.memory.get(), text.data(), text.size());
    made.life = std::move(rankfold::detail::open_process_life().watched);
    return made;
  }
  void adopt(int rank, rankfold::shared_segment segment) override {
    if (before_adopt) before_adopt();
    char text[32] = {};
    (void)!::pread(segment.memory.get(), text, sizeof text - 1, 0);
    right +=
        text == "rank " + std::to_string(rank) && !rankfold::detail::has_ended(segment.life.get());
    ++adopted;
  }

  std::function<void()> before_create;
  std::function<void()> before_adopt;
  int adopted = 0;
  int right = 0;

 private:
  int rank_;
};

/// A key of this test alone: tests of two builds may run at a time.
std::string fresh_key() {
  static int count = 0;
  return "test " + std::to_string(::getpid()) + " " + std::to_string(count++);
}

std::string meet(const rendezvous_options& options) {
  plain_participant participant(options.rank);
  rankfold::unix_socket_rendezvous(options, participant);
  return std::to_string(participant.right) + " of " + std::to_string(participant.adopted);
}

rendezvous_options options_for(const std::string& key, int rank, int size,
                               std::chrono::milliseconds timeout = 20s) {
  rendezvous_options options;
  options.key = key;
  options.rank = rank;
  options.size = size;
  options.segment_bytes = 4096;
  options.timeout = timeout;
  return options;
}

// --- the wire, by hand

std::uint64_t fnv1a(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211U;
  }
  return hash;
}

::sockaddr_un address_of(const std::string& key, int suffix, unsigned uid, ::socklen_t& size) {
  char name[108];
  const int length = std::snprintf(name, sizeof name, "rankfold-%u-%016llx-%d", uid,
                                   static_cast<unsigned long long>(fnv1a(key)), suffix);
  ::sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name, static_cast<std::size_t>(length));
  size = static_cast<::socklen_t>(sizeof(::sa_family_t) + 1 + static_cast<std::size_t>(length));
  return address;
}

int bound_socket(const std::string& key, int suffix, int type = SOCK_SEQPACKET) {
  const int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  ::socklen_t size = 0;
  const ::sockaddr_un address = address_of(key, suffix, ::geteuid(), size);
  if (::bind(fd, reinterpret_cast<const ::sockaddr*>(&address), size) != 0) return -1;
  return fd;
}

/// A connection to the rank 0 of `uid`, once there is one.
int connected_socket(const std::string& key, unsigned uid = ::geteuid()) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ::socklen_t size = 0;
  const ::sockaddr_un address = address_of(key, 0, uid, size);
  for (int tries = 0; tries < 5000; ++tries) {
    if (::connect(fd, reinterpret_cast<const ::sockaddr*>(&address), size) == 0) return fd;
    ::usleep(1000);
  }
  return -1;
}

struct crafted_hello {
  std::uint32_t protocol = 1;
  std::uint32_t kind = 1;
  std::uint32_t version = 100;  // 0.1.0
  std::uint32_t abi = 0;
  std::uint32_t layout = rankfold::detail::layout_version;
  std::int32_t rank = 1;
  std::int32_t size = 2;
  std::uint64_t segment_bytes = 4096;

  std::string bytes(const std::string& key) const {
    std::string out = "rnkfldrv";
    const auto put = [&out](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put(protocol);
    put(kind);
    put(version);
    put(abi);
    put(layout);
    put(rank);
    put(size);
    put(static_cast<std::uint32_t>(key.size()));
    put(segment_bytes);
    return out + key;
  }
};

struct heard {
  std::uint32_t kind = 0;  // 0: hung up or silent
  std::string body;
};
heard hear(int fd, int timeout_ms = 10'000) {
  ::pollfd polled = {fd, POLLIN, 0};
  if (::poll(&polled, 1, timeout_ms) <= 0) return {};
  char buffer[8192];
  const ::ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
  heard result;
  if (got < 16) return result;
  std::memcpy(&result.kind, buffer + 12, 4);
  result.body.assign(buffer + 16, static_cast<std::size_t>(got) - 16);
  return result;
}

constexpr std::uint32_t kind_welcome = 2;
constexpr std::uint32_t kind_other_key = 3;
constexpr std::uint32_t kind_refused = 4;
constexpr std::uint32_t kind_waiting = 5;

bool is_root() { return ::geteuid() == 0; }
bool become_nobody() { return ::setgid(65534) == 0 && ::setuid(65534) == 0; }

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// What is bound under this key, by anyone.
std::string bound_names(const std::string& key) {
  char hash[20];
  std::snprintf(hash, sizeof hash, "-%016llx-", static_cast<unsigned long long>(fnv1a(key)));
  std::string found;
  char line[512];
  std::FILE* file = std::fopen("/proc/net/unix", "re");
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
    if (contains(line, hash)) found += line;
  }
  if (file != nullptr) std::fclose(file);
  return found;
}

}  // namespace

TEST_CASE("the hash of a key is FNV-1a", "[bootstrap][unix_socket]") {
  // The function's published values.
  CHECK(rankfold::detail::key_hash("") == 0xcbf29ce484222325U);
  CHECK(rankfold::detail::key_hash("a") == 0xaf63dc4c8601ec8cU);
  CHECK(rankfold::detail::key_hash("foobar") == 0x85944171f73967e8U);
  CHECK(rankfold::detail::socket_name(7, "a", 3) == "rankfold-7-af63dc4c8601ec8c-3");
}

TEST_CASE("ranks meet, in whatever order they come, and leave no name",
          "[bootstrap][unix_socket]") {
  for (const int size : {2, 3, 4, 5, 8}) {
    for (const bool host_last : {false, true}) {
      const std::string key = fresh_key();
      const auto outcomes = fork_ranks(size, [&](int rank, const rank_voice&) {
        if ((rank == 0) == host_last) ::usleep(30'000);
        return meet(options_for(key, rank, size));
      });
      for (const rank_outcome& outcome : outcomes) {
        INFO(outcome.error << outcome.text);
        CHECK(outcome.text == std::to_string(size - 1) + " of " + std::to_string(size - 1));
      }
      CHECK(bound_names(key).empty());
    }
  }
}

TEST_CASE("the name is gone as soon as the ranks have met, while they live",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  forked_ranks ranks(2, [&](int rank, const rank_voice& voice) {
    meet(options_for(key, rank, 2));
    voice.say("met");
    ::pause();
  });
  REQUIRE(ranks.wait_for_line(0, "met"));
  REQUIRE(ranks.wait_for_line(1, "met"));
  CHECK(bound_names(key).empty());
}

TEST_CASE("ranks with different keys do not meet", "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    meet(options_for(key + (rank == 0 ? "" : "x"), rank, 2, 500ms));
  });
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(outcomes[0].error == "rendezvous_error");
  CHECK(contains(outcomes[0].text, "rank 1 of 2 did not arrive within 0.5 s"));
  CHECK(outcomes[1].error == "rendezvous_error");
  CHECK(contains(outcomes[1].text, "rank 1 of 2 could not start: no rank 0 answered within 0.5 s"));
  CHECK(contains(outcomes[1].text, "key \"" + key + "x\""));
  CHECK(contains(outcomes[1].text, "network namespace"));
}

TEST_CASE("a rank that never arrives is named to all who wait, in time",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto start = steady_clock::now();
  const auto outcomes = fork_ranks(4, [&](int rank, const rank_voice&) {
    if (rank != 2) meet(options_for(key, rank, 4, rank == 0 ? 600ms : 10s));
  });
  CHECK(seconds_since(start) < 3);
  for (const std::size_t rank : {0U, 1U, 3U}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].error == "rendezvous_error");
    CHECK(contains(outcomes[rank].text, "rank " + std::to_string(rank) + " of 4 could not start"));
    CHECK(contains(outcomes[rank].text, "rank 2 of 4 did not arrive within 0.6 s"));
  }
}

TEST_CASE("a rank whose own time is up first names who is missing by then",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) {
    if (rank == 2) ::usleep(300'000);  // not there yet when rank 1 is welcomed
    meet(options_for(key, rank, 4, rank == 1 ? 1500ms : 10s));
  });
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(contains(outcomes[1].text, "not complete within 1.5 s; not there: rank 3"));
  CHECK(contains(outcomes[0].text, "rank 0 of 4 could not start: the start was not complete"));
}

TEST_CASE("a second process of a rank is refused, and the run goes on without it",
          "[bootstrap][unix_socket]") {
  for (const int twice : {0, 1}) {
    const std::string key = fresh_key();
    forked_ranks first(2, [&](int rank, const rank_voice& voice) {
      auto options = options_for(key, rank, 3);
      options.interrupt = [&voice, said = false]() mutable {
        if (!std::exchange(said, true)) voice.say("waits");
      };
      return meet(options);
    });
    for (const int rank : {0, 1}) REQUIRE(first.wait_for_line(rank, "waits"));
    ::usleep(100'000);
    forked_ranks second(1,
                        [&](int, const rank_voice&) { return meet(options_for(key, twice, 3)); });
    const rank_outcome refused = second.join()[0];
    INFO(refused.text);
    CHECK(refused.error == "rendezvous_error");
    CHECK(contains(refused.text, "rank " + std::to_string(twice) + " is taken by process " +
                                     std::to_string(first.pid(twice))));
    CHECK(contains(refused.text,
                   "process " + std::to_string(second.pid(0)) + " claims it a second time"));
    const auto last =
        fork_ranks(1, [&](int, const rank_voice&) { return meet(options_for(key, 2, 3)); });
    CHECK(last[0].text == "2 of 2");
    for (const rank_outcome& outcome : first.join()) {
      INFO(outcome.text);
      CHECK(outcome.text == "2 of 2");
    }
  }
}

TEST_CASE("two ranks 0 at the same moment: one is told, whoever it is",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes =
      fork_ranks(2, [&](int, const rank_voice&) { return meet(options_for(key, 0, 2, 1500ms)); });
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(
      (contains(outcomes[0].text, "a second time") != contains(outcomes[1].text, "a second time")));
}

TEST_CASE("another version of the library is refused, and all are told",
          "[bootstrap][unix_socket]") {
  struct variant {
    const char* expected;
    std::function<void(crafted_hello&)> change;
  };
  const std::vector<variant> variants = {
      {"runs rankfold 0.2.0 (ABI", [](crafted_hello& h) { h.version = 200; }},
      {"(ABI 7, layout", [](crafted_hello& h) { h.abi = 7; }},
      {"layout 99, protocol", [](crafted_hello& h) { h.layout = 99; }},
      {"protocol 2)", [](crafted_hello& h) { h.protocol = 2; }},
      {"says that there are 5 ranks, rank 0 says 3", [](crafted_hello& h) { h.size = 5; }},
      {"workspace_bytes must be the same", [](crafted_hello& h) { h.segment_bytes = 8192; }},
  };
  for (const variant& v : variants) {
    const std::string key = fresh_key();
    const auto start = steady_clock::now();
    const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) -> std::string {
      if (rank < 2) return meet(options_for(key, rank, 3));
      ::usleep(100'000);
      const int fd = connected_socket(key);
      crafted_hello hello;
      hello.rank = 2;
      hello.size = 3;
      v.change(hello);
      const std::string bytes = hello.bytes(key);
      ::send(fd, bytes.data(), bytes.size(), 0);
      const heard answer = hear(fd);
      return std::to_string(answer.kind) + " " + answer.body;
    });
    CHECK(seconds_since(start) < 5);
    INFO(outcomes[0].text << "\n" << outcomes[1].text << "\n" << outcomes[2].text);
    CHECK(contains(outcomes[2].text, std::to_string(kind_refused) + " rank 2 (process "));
    CHECK(contains(outcomes[2].text, v.expected));
    for (const std::size_t rank : {0U, 1U}) {
      CHECK(outcomes[rank].error == "rendezvous_error");
      CHECK(contains(outcomes[rank].text, v.expected));
    }
  }
}

TEST_CASE("a hello by hand is welcomed, so that the refusals mean something",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) -> std::string {
    if (rank == 0) return meet(options_for(key, 0, 3, 800ms));
    const int fd = connected_socket(key);
    const std::string bytes = [&key] {
      crafted_hello hello;
      hello.size = 3;
      return hello.bytes(key);
    }();
    ::send(fd, bytes.data(), bytes.size(), 0);
    const heard answer = hear(fd);
    heard last = hear(fd);
    while (last.kind == kind_waiting) last = hear(fd);
    return std::to_string(answer.kind) + " " + answer.body + "; " + last.body;
  });
  INFO(outcomes[1].text);
  CHECK(contains(outcomes[1].text, std::to_string(kind_welcome) + " rank 2; rank 2 of 3 did not"));
  CHECK(contains(outcomes[0].text, "rank 2 of 3 did not arrive"));
}

TEST_CASE("a hello with another key or another rank's number is answered, and harms nobody",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int process, const rank_voice&) -> std::string {
    if (process < 2) {
      if (process == 1) ::usleep(500'000);
      return meet(options_for(key, process, 2));
    }
    std::string kinds;
    const auto ask = [&](const std::string& bytes) {
      const int fd = connected_socket(key);
      ::send(fd, bytes.data(), bytes.size(), 0);
      kinds += std::to_string(hear(fd).kind) + " ";
      ::close(fd);
    };
    crafted_hello hello;
    ask(hello.bytes(key + "x"));
    hello.rank = 2;
    ask(hello.bytes(key));
    hello.rank = -1;
    ask(hello.bytes(key));
    return kinds;
  });
  CHECK(outcomes[0].text == "1 of 1");
  CHECK(outcomes[1].text == "1 of 1");
  CHECK(outcomes[2].text == std::to_string(kind_other_key) + " " + std::to_string(kind_refused) +
                                " " + std::to_string(kind_refused) + " ");
}

TEST_CASE("strangers that send nothing, or anything, do not hold the start up",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto start = steady_clock::now();
  forked_ranks ranks(3, [&](int process, const rank_voice& voice) -> std::string {
    if (process < 2) {
      if (process == 1) ::usleep(700'000);
      return meet(options_for(key, process, 2));
    }
    const std::string whole = crafted_hello().bytes(key);
    std::vector<int> open;
    const auto send = [&](const std::string& bytes) {
      open.push_back(connected_socket(key));
      ::send(open.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    };
    for (int i = 0; i < 20; ++i) open.push_back(connected_socket(key));  // nothing
    send("");
    send("x");
    send("GET / HTTP/1.0\r\n\r\n");
    send(std::string(100'000, '\0'));
    for (const std::size_t size : {8U, 15U, 16U, 20U, 47U, 48U}) send(whole.substr(0, size));
    send(whole + "x");
    send("RNKFLDRV" + whole.substr(8));
    crafted_hello other;
    other.kind = 10;
    send(other.bytes(key));
    // With descriptors that nobody asked for.
    open.push_back(connected_socket(key));
    char control[CMSG_SPACE(sizeof(int))] = {};
    std::string text = "with a descriptor";
    ::iovec part = {text.data(), text.size()};
    ::msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), open.data(), sizeof(int));
    ::sendmsg(open.back(), &message, MSG_NOSIGNAL);
    voice.say("sent");
    ::pause();  // stays, so that its connections do
    return "";
  });
  while (!ranks.ended(0) || !ranks.ended(1)) ::usleep(1000);
  CHECK(seconds_since(start) < 6);
  CHECK(ranks.lines(2).size() == 1);
  ranks.kill(2, SIGKILL);
  const auto outcomes = ranks.join();
  for (const std::size_t rank : {0U, 1U}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].text == "1 of 1");
  }
}

TEST_CASE("names taken by others are passed over, whatever these do", "[bootstrap][unix_socket]") {
  struct squatter {
    const char* what;
    int type;
    bool listens;
    std::string answer;  // "": none; "hang up"
  };
  const std::vector<squatter> squatters = {
      {"does not listen", SOCK_SEQPACKET, false, ""},
      {"never accepts", SOCK_SEQPACKET, true, ""},
      {"is another kind of socket", SOCK_STREAM, true, ""},
      {"hangs up", SOCK_SEQPACKET, true, "hang up"},
      {"answers garbage", SOCK_SEQPACKET, true, "what?"},
      {"answers something long", SOCK_SEQPACKET, true, std::string(20'000, 'x')},
  };
  for (const squatter& s : squatters) {
    const std::string key = fresh_key();
    std::vector<int> taken;
    for (int suffix = 0; suffix < 2; ++suffix) {
      taken.push_back(bound_socket(key, suffix, s.type));
      REQUIRE(taken.back() >= 0);
      if (s.listens) ::listen(taken.back(), 1);
    }
    const auto start = steady_clock::now();
    forked_ranks ranks(3, [&](int process, const rank_voice&) -> std::string {
      if (process < 2) return meet(options_for(key, process, 2));
      if (s.answer.empty()) return "";
      for (;;) {
        ::pollfd polled[2] = {{taken[0], POLLIN, 0}, {taken[1], POLLIN, 0}};
        ::poll(polled, 2, -1);
        for (const ::pollfd& p : polled) {
          if (p.revents == 0) continue;
          const int fd = ::accept(p.fd, nullptr, nullptr);
          if (s.answer != "hang up") ::send(fd, s.answer.data(), s.answer.size(), MSG_NOSIGNAL);
          ::usleep(1000);
          ::close(fd);
        }
      }
    });
    while (!ranks.ended(0) || !ranks.ended(1)) ::usleep(1000);
    ranks.kill(2, SIGKILL);
    const auto outcomes = ranks.join();
    for (const int fd : taken) ::close(fd);
    INFO("a squatter that " << s.what << ": " << outcomes[0].text << "\n" << outcomes[1].text);
    CHECK(outcomes[0].text == "1 of 1");
    CHECK(outcomes[1].text == "1 of 1");
    CHECK(seconds_since(start) < 8);
  }
}

TEST_CASE("when all names are taken rank 0 says so", "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  std::vector<int> taken;
  for (int suffix = 0; suffix < 16; ++suffix) taken.push_back(bound_socket(key, suffix));
  const auto outcomes =
      fork_ranks(1, [&](int, const rank_voice&) { return meet(options_for(key, 0, 2)); });
  for (const int fd : taken) ::close(fd);
  INFO(outcomes[0].text);
  CHECK(outcomes[0].error == "rendezvous_error");
  CHECK(contains(outcomes[0].text, "all 16 names from @rankfold-"));
}

TEST_CASE("the others learn within a second that rank 0 died while they waited for it",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  forked_ranks ranks(3, [&](int rank, const rank_voice& voice) {
    auto options = options_for(key, rank, 4);
    // Said once it waits for rank 3 with the others there.
    options.interrupt = [&voice, said = false]() mutable {
      if (!std::exchange(said, true)) voice.say("waits");
    };
    meet(options);
  });
  for (const int rank : {0, 1, 2}) REQUIRE(ranks.wait_for_line(rank, "waits"));
  ::usleep(200'000);
  ranks.kill(0, SIGKILL);
  const auto start = steady_clock::now();
  const auto outcomes = ranks.join();
  CHECK(seconds_since(start) < 1);
  for (const std::size_t rank : {1U, 2U}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].error == "rendezvous_error");
    CHECK(contains(outcomes[rank].text, "rank 0 (process " + std::to_string(ranks.pid(0)) +
                                            ") died or went away during the start"));
  }
  CHECK(bound_names(key).empty());
}

TEST_CASE("a child of rank 0 that outlives it does not keep the others waiting",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  forked_ranks ranks(2, [&](int rank, const rank_voice& voice) {
    auto options = options_for(key, rank, 3);
    options.interrupt = [&voice, rank, calls = 0]() mutable {
      if (++calls != 3) return;
      if (rank == 0) {
        const ::pid_t child = ::fork();
        if (child == 0) {
          ::usleep(5'000'000);
          ::_exit(0);
        }
        voice.say(std::to_string(child));
      }
      voice.say("waits");
    };
    meet(options);
  });
  REQUIRE(ranks.wait_for_line(0, "waits"));
  REQUIRE(ranks.wait_for_line(1, "waits"));
  ranks.kill(0, SIGKILL);
  const auto start = steady_clock::now();
  while (!ranks.ended(1) && seconds_since(start) < 3) ::usleep(1000);
  CHECK(seconds_since(start) < 1);
  while (!bound_names(key).empty() && seconds_since(start) < 3) ::usleep(1000);
  CHECK(seconds_since(start) < 1);
  ::kill(std::stoi(ranks.lines(0)[0]), SIGKILL);
}

TEST_CASE("all learn within a second that a rank died during the start, also those yet to come",
          "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  forked_ranks ranks(4, [&](int rank, const rank_voice& voice) {
    if (rank == 3) {
      // Comes when the run has just failed.
      while (bound_names(key + " go").empty()) ::usleep(1000);
    }
    auto options = options_for(key, rank, 4);
    options.interrupt = [&voice, said = false]() mutable {
      if (!std::exchange(said, true)) voice.say("waits");
    };
    meet(options);
  });
  for (const int rank : {0, 1, 2}) REQUIRE(ranks.wait_for_line(rank, "waits"));
  ::usleep(200'000);
  ranks.kill(2, SIGKILL);
  const auto start = steady_clock::now();
  ::usleep(100'000);
  const int go = bound_socket(key + " go", 0);
  const auto outcomes = ranks.join();
  ::close(go);
  CHECK(seconds_since(start) < 3);
  for (const std::size_t rank : {0U, 1U, 3U}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].error == "rendezvous_error");
    CHECK(contains(outcomes[rank].text, "rank 2 (process " + std::to_string(ranks.pid(2)) +
                                            ") died or went away during the start"));
  }
}

TEST_CASE("what a rank cannot do is told to all others, with its words",
          "[bootstrap][unix_socket]") {
  for (const int failing : {0, 1, 2}) {
    for (const bool creating : {true, false}) {
      const std::string key = fresh_key();
      const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) {
        plain_participant participant(rank);
        if (rank == failing) {
          (creating ? participant.before_create : participant.before_adopt) = [] {
            throw rankfold::transport_error("rankfold: no memory here");
          };
        }
        rankfold::unix_socket_rendezvous(options_for(key, rank, 3), participant);
      });
      for (int rank = 0; rank < 3; ++rank) {
        const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        INFO("rank " << failing << " fails: " << outcome.text);
        if (rank == failing) {
          CHECK(outcome.error == "transport_error");
          CHECK(outcome.text == "rankfold: no memory here");
        } else {
          CHECK(outcome.error == "rendezvous_error");
          CHECK(contains(outcome.text,
                         "rank " + std::to_string(failing) + " failed: no memory here"));
        }
      }
    }
  }
}

TEST_CASE("an interrupt ends the start on all ranks", "[bootstrap][unix_socket]") {
  for (const int interrupted : {0, 1}) {
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
      auto options = options_for(key, rank, 3);
      if (rank == interrupted) {
        options.interrupt = [calls = 0]() mutable {
          if (++calls == 4) throw std::domain_error("control C");
        };
      }
      meet(options);
    });
    const auto& own = outcomes[static_cast<std::size_t>(interrupted)];
    const auto& other = outcomes[static_cast<std::size_t>(1 - interrupted)];
    INFO(own.text << "\n" << other.text);
    CHECK(own.text == "control C");
    CHECK(other.error == "rendezvous_error");
    CHECK(contains(other.text, "rank " + std::to_string(interrupted) + " failed: control C"));
  }
}

TEST_CASE("a process of another user is never let in", "[bootstrap][unix_socket]") {
  if (!is_root()) {
    LEAVE_OUT("needs root");
  }
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int process, const rank_voice&) -> std::string {
    if (process == 0) return meet(options_for(key, 0, 2, 1500ms));
    if (!become_nobody()) return "still root";
    // One that follows the rules, and one that calls rank 0 by its name with a hello by hand.
    if (process == 1) return meet(options_for(key, 1, 2, 800ms));
    const int fd = connected_socket(key, 0);
    const std::string bytes = crafted_hello().bytes(key);
    ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char buffer[100];
    const ::ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    return got <= 0 ? "hung up" : "answered";
  });
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(outcomes[0].error == "rendezvous_error");
  CHECK(contains(outcomes[0].text, "rank 1 of 2 did not arrive"));
  CHECK(contains(outcomes[0].text, "a process of uid 65534 was refused, expected uid 0"));
  CHECK(outcomes[1].error == "rendezvous_error");
  CHECK(contains(outcomes[1].text, "uid 0 has a rank 0 with this key"));
  CHECK(outcomes[2].text == "hung up");
}

TEST_CASE("a listener of another user is passed over, and is sent nothing",
          "[bootstrap][unix_socket]") {
  if (!is_root()) {
    LEAVE_OUT("needs root");
  }
  const std::string key = fresh_key();
  forked_ranks ranks(3, [&](int process, const rank_voice& voice) -> std::string {
    if (process < 2) {
      // Not before the name is taken.
      while (bound_names(key).empty()) ::usleep(1000);
      ::usleep(20'000);
      return meet(options_for(key, process, 2));
    }
    const ::uid_t root = ::geteuid();
    if (!become_nobody()) return "still root";
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ::socklen_t size = 0;
    const ::sockaddr_un address = address_of(key, 0, root, size);
    ::bind(fd, reinterpret_cast<const ::sockaddr*>(&address), size);
    ::listen(fd, 64);
    voice.say("listens");
    int visits = 0;
    long bytes = 0;
    ::pollfd polled = {fd, POLLIN, 0};
    while (::poll(&polled, 1, 700) > 0) {
      const int visitor = ::accept(fd, nullptr, nullptr);
      ++visits;
      char buffer[100];
      const ::ssize_t got = ::recv(visitor, buffer, sizeof buffer, 0);
      if (got > 0) bytes += got;
      ::close(visitor);
    }
    return (visits > 0 ? "visited, " : "not visited, ") + std::to_string(bytes) + " bytes";
  });
  const auto outcomes = ranks.join();
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(outcomes[0].text == "1 of 1");
  CHECK(outcomes[1].text == "1 of 1");
  CHECK(outcomes[2].text == "visited, 0 bytes");
}

TEST_CASE("a uid that is not mapped is an error that says so", "[bootstrap][unix_socket]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(1, [&](int, const rank_voice&) -> std::string {
    if (::unshare(CLONE_NEWUSER) != 0) return "not allowed";
    return meet(options_for(key, 0, 2, 500ms));
  });
  if (outcomes[0].text == "not allowed") {
    LEAVE_OUT("needs the right to make a user namespace");
  }
  INFO(outcomes[0].text);
  CHECK(outcomes[0].error == "rendezvous_error");
  CHECK(contains(outcomes[0].text, "user namespace"));
}

TEST_CASE("ranks meet at a path, also from different network namespaces, and remove it",
          "[bootstrap][unix_socket]") {
  char folder[] = "/tmp/rankfold-test-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/socket";
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) {
    if (is_root() && ::unshare(CLONE_NEWNET) != 0) throw std::runtime_error("unshare");
    auto options = options_for(key, rank, 3);
    options.socket_path = path;
    return meet(options);
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK(outcome.text == "2 of 2");
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
  CHECK(::rmdir(folder) == 0);
}

TEST_CASE("without a path another network namespace is an error that says so",
          "[bootstrap][unix_socket]") {
  if (!is_root()) {
    LEAVE_OUT("needs root");
  }
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    if (rank == 1) ::unshare(CLONE_NEWNET);
    return meet(options_for(key, rank, 2, 600ms));
  });
  INFO(outcomes[1].text);
  CHECK(outcomes[1].error == "rendezvous_error");
  CHECK(contains(outcomes[1].text, "same network namespace"));
  CHECK(contains(outcomes[1].text, "socket_path"));
}

TEST_CASE(
    "a path is removed on failure, taken over from a process that was killed, and never from "
    "anything else",
    "[bootstrap][unix_socket]") {
  char folder[] = "/tmp/rankfold-test-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/socket";
  const std::string key = fresh_key();
  const auto start_with = [&](int size, std::chrono::milliseconds timeout) {
    return fork_ranks(2, [&](int rank, const rank_voice&) {
      auto options = options_for(key, rank, size, timeout);
      options.socket_path = path;
      return meet(options);
    });
  };

  const auto alone = start_with(3, 400ms);
  INFO(alone[0].text);
  CHECK(alone[0].error == "rendezvous_error");
  CHECK(contains(alone[0].text, "rank 2"));  // whose time is up first is open
  CHECK(::access(path.c_str(), F_OK) != 0);

  // A socket that nobody listens on.
  const int dead = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ::sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  REQUIRE(::bind(dead, reinterpret_cast<const ::sockaddr*>(&address), sizeof address) == 0);
  ::close(dead);
  const auto after = start_with(2, 20s);
  INFO(after[0].text);
  CHECK(after[0].text == "1 of 1");
  CHECK(after[1].text == "1 of 1");

  // One of another run, that is in use.
  const int used = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(used, reinterpret_cast<const ::sockaddr*>(&address), sizeof address) == 0);
  ::listen(used, 1);
  std::vector<int> queue;
  for (const bool full : {false, true}) {
    for (int fd = 0; full && fd >= 0;) {
      fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      queue.push_back(fd);
      if (::connect(fd, reinterpret_cast<const ::sockaddr*>(&address), sizeof address) != 0) break;
    }
    const auto in_use = start_with(2, 500ms);
    INFO((full ? "its queue is full: " : "it never answers: ") << in_use[0].text);
    CHECK(contains(in_use[0].text, "is used by another process"));
    CHECK(::access(path.c_str(), F_OK) == 0);
  }
  for (const int fd : queue) ::close(fd);
  ::close(used);
  ::unlink(path.c_str());

  // Somebody's file.
  std::FILE* file = std::fopen(path.c_str(), "we");
  REQUIRE(file != nullptr);
  std::fputs("precious", file);
  std::fclose(file);
  const auto precious = start_with(2, 500ms);
  INFO(precious[0].text);
  CHECK(contains(precious[0].text, "is there and is not a socket"));
  struct ::stat status{};
  CHECK(::stat(path.c_str(), &status) == 0);
  CHECK(status.st_size == 8);
  ::unlink(path.c_str());

  const auto no_folder = fork_ranks(1, [&](int, const rank_voice&) {
    auto options = options_for(key, 0, 2);
    options.socket_path = path + "/missing/socket";
    return meet(options);
  });
  INFO(no_folder[0].text);
  CHECK(no_folder[0].error == "transport_error");
  CHECK(contains(no_folder[0].text, "/missing/socket cannot be made"));
  CHECK(::rmdir(folder) == 0);
}

TEST_CASE("descriptors of many ranks come through where few may be under way",
          "[bootstrap][unix_socket]") {
  // 64 ranks hand 2 x 64 x 63 descriptors on; a user without privilege may have 300 under way.
  const std::string key = fresh_key();
  constexpr int size = 64;
  const auto outcomes = fork_ranks(size, [&](int rank, const rank_voice&) {
    ::rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 300;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    if (is_root()) become_nobody();
    return meet(options_for(key, rank, size, 50s));
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK(outcome.text == "63 of 63");
  }
}

TEST_CASE("too few open files are an error on that rank, and all are told",
          "[bootstrap][unix_socket]") {
  for (const int poor : {0, 2}) {
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(4, [&](int rank, const rank_voice&) {
      ::rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 24;
      if (rank == poor) ::setrlimit(RLIMIT_NOFILE, &limit);
      return meet(options_for(key, rank, 4));
    });
    for (int rank = 0; rank < 4; ++rank) {
      const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      INFO(outcome.text);
      CHECK(outcome.error == (rank == poor ? "transport_error" : "rendezvous_error"));
      CHECK(contains(outcome.text, "more open files"));
      CHECK(contains(outcome.text, "of 24 allowed"));
    }
  }
}

TEST_CASE("arguments out of range are errors before anything is opened",
          "[bootstrap][unix_socket]") {
  plain_participant participant(0);
  const auto error =
      [&participant](const std::function<void(rendezvous_options&)>& change) -> std::string {
    rendezvous_options options = options_for("key", 0, 2);
    change(options);
    try {
      rankfold::unix_socket_rendezvous(options, participant);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  CHECK(contains(error([](rendezvous_options& o) { o.rank = 2; }), "rank is 2, expected 0 to 1"));
  CHECK(contains(error([](rendezvous_options& o) { o.size = 5000; }), "world size is 5000"));
  CHECK(contains(error([](rendezvous_options& o) { o.key = ""; }), "the key has 0 bytes"));
  CHECK(contains(error([](rendezvous_options& o) { o.key = std::string(3000, 'k'); }),
                 "the key has 3000 bytes, expected 1 to 2048"));
  CHECK(contains(error([](rendezvous_options& o) { o.timeout = 0ms; }), "timeout is 0 ms"));
  CHECK(contains(error([](rendezvous_options& o) { o.socket_path = std::string(108, 'p'); }),
                 "socket_path has 108 bytes, expected up to 107"));
}
