// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/shm.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"

using namespace std::chrono_literals;
using rankfold::peer_state;
using rankfold::shm_options;
using rankfold::shm_transport;
using std::chrono::steady_clock;

namespace {

std::string fresh_key() {
  static int count = 0;
  return "shm test " + std::to_string(::getpid()) + " " + std::to_string(count++);
}

shm_options small(std::chrono::milliseconds timeout = 20s) {
  shm_options options;
  options.workspace_bytes = 8192;
  options.timeout = timeout;
  return options;
}

/// Waits, at most ten seconds, for all ranks to come here; each place once.
void rendezvous_in_memory(const shm_transport& transport, int place) {
  const auto word = [&transport, place](int rank) {
    return std::atomic_ref<int>(
        *reinterpret_cast<int*>(transport.segment(rank) + 20480 + 4 * place));
  };
  word(transport.rank()).store(1);
  for (int rank = 0; rank < transport.size(); ++rank) {
    const auto until = steady_clock::now() + 10s;
    while (word(rank).load() == 0) {
      if (steady_clock::now() > until) throw std::runtime_error("a rank did not come in memory");
      ::usleep(200);
    }
  }
}

bool becomes(const shm_transport& transport, int rank, peer_state state,
             std::chrono::milliseconds time = 1s) {
  const auto until = steady_clock::now() + time;
  while (transport.state(rank) != state) {
    if (steady_clock::now() > until) return false;
    ::usleep(500);
  }
  return true;
}

std::string name_of(peer_state state) {
  return state == peer_state::alive ? "alive" : state == peer_state::left ? "left" : "died";
}

/// The lines of /proc/self/maps, those that hold `part`.
int mappings(const char* part) {
  int count = 0;
  char line[1024];
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  while (std::fgets(line, sizeof line, maps) != nullptr)
    count += std::strstr(line, part) != nullptr;
  std::fclose(maps);
  return count;
}

/// Where this process's descriptors lead, but the one that reads them.
std::vector<std::string> descriptors() {
  std::vector<std::string> found;
  ::DIR* folder = ::opendir("/proc/self/fd");
  while (const ::dirent* entry = ::readdir(folder)) {
    char target[256] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof target - 1) > 0 &&
        std::atoi(entry->d_name) != ::dirfd(folder)) {
      found.emplace_back(target);
    }
  }
  ::closedir(folder);
  return found;
}

std::vector<std::string> listing(const char* path) {
  std::vector<std::string> found;
  if (::DIR* folder = ::opendir(path)) {
    while (const ::dirent* entry = ::readdir(folder)) found.emplace_back(entry->d_name);
    ::closedir(folder);
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_root() { return ::geteuid() == 0; }

}  // namespace

TEST_CASE("shm: ranks are processes that read each other's memory", "[transport][shm]") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(size, [&](int rank, const rank_voice&) -> std::string {
      const shm_transport transport = shm_transport::connect(key, rank, size, small());
      if (transport.rank() != rank || transport.size() != size) return "wrong place";
      if (transport.name() != "shm" || !transport.valid()) return "wrong name, or not valid";
      const auto pages = static_cast<std::size_t>(size == 1 ? 0 : size);  // for pairs
      if (transport.segment_size() != 20480 + 8192 + 4096 * pages) return "wrong size";
      for (int r = 0; r < size; ++r) {
        const std::byte* segment = transport.segment(r);
        if (reinterpret_cast<std::uintptr_t>(segment) % 4096 != 0) return "not aligned";
        const auto& header = rankfold::detail::header_of(transport.segment(r));
        if (header.rank != r || header.size != size) return "wrong header";
        // The second half: the first is written to as soon as a rank is through.
        if (std::any_of(segment + 20480 + 4096, segment + transport.segment_size(),
                        [](std::byte b) { return b != std::byte{0}; })) {
          return "not zeroed";
        }
      }
      rendezvous_in_memory(transport, 0);
      for (std::size_t i = 4096; i < 8192; ++i) {
        transport.segment(rank)[20480 + i] =
            static_cast<std::byte>(i * 7 + static_cast<unsigned>(rank));
      }
      rendezvous_in_memory(transport, 1);
      for (int r = 0; r < size; ++r) {
        for (std::size_t i = 4096; i < 8192; ++i) {
          if (transport.segment(r)[20480 + i] !=
              static_cast<std::byte>(i * 7 + static_cast<unsigned>(r))) {
            return "wrong data";
          }
        }
        if (transport.state(r) != peer_state::alive) return "not alive";
      }
      rendezvous_in_memory(transport, 2);
      return "right";
    });
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error);
      CHECK(outcome.text == "right");
    }
  }
}

TEST_CASE("shm: a killed rank is seen to have died within a second; a stopped one lives",
          "[transport][shm]") {
  for (const bool pidfd : {true, false}) {
    INFO((pidfd ? "pidfd" : "pipe"));
    const std::string key = fresh_key();
    forked_ranks ranks(2, [&](int rank, const rank_voice& voice) -> std::string {
      rankfold::detail::without_pidfd = !pidfd;
      const shm_transport transport = shm_transport::connect(key, rank, 2, small());
      voice.say("there");
      if (rank == 1) ::pause();
      if (becomes(transport, 1, peer_state::died, 300ms)) return "too early";
      voice.say("alive");
      return becomes(transport, 1, peer_state::died, 10s) ? "died" : "not seen";
    });
    REQUIRE(ranks.wait_for_line(1, "there"));
    ranks.kill(1, SIGSTOP);
    REQUIRE(ranks.wait_for_line(0, "alive"));
    ranks.kill(1, SIGKILL);
    const auto start = steady_clock::now();
    while (!ranks.ended(0) && steady_clock::now() - start < 5s) ::usleep(500);
    CHECK(steady_clock::now() - start < 1s);
    CHECK(ranks.join()[0].text == "died");
  }
}

TEST_CASE("shm: ranks in different pid and ipc namespaces meet, and see each other die",
          "[transport][shm]") {
  if (!is_root()) {
    LEAVE_OUT("needs root, to make namespaces");
  }
  const std::string key = fresh_key();
  forked_ranks ranks(2, [&](int rank, const rank_voice& voice) -> std::string {
    if (::unshare(CLONE_NEWPID | CLONE_NEWIPC) != 0) return "unshare";
    // The first child is process 1 of the new namespace, as in a container.
    const auto inner = [&](int, const rank_voice& inner_voice) -> std::string {
      if (::getpid() != 1) return "not in a namespace";
      const shm_transport transport = shm_transport::connect(key, rank, 2, small());
      rendezvous_in_memory(transport, 0);
      inner_voice.say("there");
      if (rank == 1) ::pause();
      if (transport.state(1) != peer_state::alive) return "too early";
      voice.say("alive");
      return becomes(transport, 1, peer_state::died, 10s) ? "died" : "not seen";
    };
    forked_ranks container(1, inner);
    container.wait_for_line(0, "there");
    if (rank == 1) {
      ::usleep(300'000);
      container.kill(0, SIGKILL);
    }
    return container.join()[0].text;
  });
  const auto outcomes = ranks.join();
  INFO(outcomes[0].error << " " << outcomes[1].error);
  CHECK(outcomes[0].text == "died");
}

TEST_CASE(
    "shm: who destroys its transport has left, also when it has ended since; who ends without "
    "has died",
    "[transport][shm]") {
  for (const bool pidfd : {true, false}) {
    INFO((pidfd ? "pidfd" : "pipe"));
    const std::string key = fresh_key();
    forked_ranks ranks(4, [&](int rank, const rank_voice& voice) -> std::string {
      rankfold::detail::without_pidfd = !pidfd;
      std::optional<shm_transport> transport(shm_transport::connect(key, rank, 4, small()));
      rendezvous_in_memory(*transport, 0);
      switch (rank) {
        case 1:  // leaves and lives
          transport.reset();
          voice.say("gone");
          ::pause();
          break;
        case 2:  // leaves and ends
          return "";
        case 3:  // ends in order, but not the transport
          ::_exit(0);
        default:
          break;
      }
      std::string states;
      becomes(*transport, 1, peer_state::left);
      becomes(*transport, 2, peer_state::left);
      becomes(*transport, 3, peer_state::died);
      ::usleep(50'000);
      for (int r = 0; r < 4; ++r) states += name_of(transport->state(r)) + " ";
      return states;
    });
    while (!ranks.ended(0)) ::usleep(1000);
    ranks.kill(1, SIGKILL);
    CHECK(ranks.join()[0].text == "alive left left died ");
  }
}

TEST_CASE("shm: a forked child's copy is inert, and a child that outlives its parent hides nothing",
          "[transport][shm]") {
  for (const bool pidfd : {true, false}) {
    INFO((pidfd ? "pidfd" : "pipe"));
    const std::string key = fresh_key();
    forked_ranks ranks(2, [&](int rank, const rank_voice& voice) -> std::string {
      rankfold::detail::without_pidfd = !pidfd;
      std::optional<shm_transport> transport(shm_transport::connect(key, rank, 2, small()));
      rendezvous_in_memory(*transport, 0);
      if (rank == 1) {
        const bool before = transport->valid();
        const auto child = fork_ranks(1, [&transport](int, const rank_voice&) {
          const std::string valid = transport->valid() ? "valid" : "not valid";
          transport.reset();
          return valid;
        });
        voice.say((before && transport->valid() ? "valid; child " : "not valid; child ") +
                  child[0].text + (child[0].signal != 0 ? " crashed" : ""));
        const ::pid_t survivor = ::fork();
        if (survivor == 0) {
          ::usleep(5'000'000);
          ::_exit(0);
        }
        voice.say(std::to_string(survivor));
        voice.say("ready");
        ::pause();
      }
      ::usleep(300'000);
      const std::string between = name_of(transport->state(1));
      voice.say("looked");
      return between + (becomes(*transport, 1, peer_state::died, 10s) ? " died" : " not seen");
    });
    REQUIRE(ranks.wait_for_line(1, "ready"));
    REQUIRE(ranks.wait_for_line(0, "looked"));
    ranks.kill(1, SIGKILL);
    const auto start = steady_clock::now();
    while (!ranks.ended(0) && steady_clock::now() - start < 4s) ::usleep(500);
    CHECK(steady_clock::now() - start < 1s);
    const std::vector<std::string> said = ranks.lines(1);
    ::kill(std::stoi(said[1]), SIGKILL);
    CHECK(said[0] == "valid; child not valid");
    CHECK(ranks.join()[0].text == "alive died");
  }
}

TEST_CASE("shm: nothing is open or mapped that is not needed, and nothing after the end",
          "[transport][shm]") {
  for (const bool pidfd : {true, false}) {
    INFO((pidfd ? "pidfd" : "pipe"));
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) -> std::string {
      rankfold::detail::without_pidfd = !pidfd;
      const auto cycle = [&] {
        const shm_transport transport = shm_transport::connect(key, rank, 3, small());
        rendezvous_in_memory(transport, 0);
      };
      for (int i = 0; i < 5; ++i) cycle();
      const auto shared = [](const std::vector<std::string>& targets) {
        return std::count_if(targets.begin(), targets.end(), [](const std::string& target) {
          return contains(target, "memfd") || contains(target, "socket");
        });
      };
      const std::size_t open = descriptors().size();
      const auto shared_before = shared(descriptors());
      const int mapped = mappings("");
      {
        const shm_transport transport = shm_transport::connect(key, rank, 3, small());
        rendezvous_in_memory(transport, 0);
        // The life of each peer, and where there is no pidfd, the own end of a pipe.
        const std::vector<std::string> now = descriptors();
        if (now.size() != open + (pidfd ? 2 : 3))
          return "descriptors: " + std::to_string(now.size() - open);
        if (shared(now) != shared_before) return "a segment or a socket is still open";
        if (mappings("memfd:rankfold") != 3)
          return "mappings: " + std::to_string(mappings("memfd:rankfold"));
      }
      for (int i = 0; i < 50; ++i) cycle();
      if (descriptors().size() != open)
        return "descriptors grew to " + std::to_string(descriptors().size());
      if (mappings("memfd") != 0) return "segments are still mapped";
      if (mappings("") > mapped + 10) return "mappings grew to " + std::to_string(mappings(""));
      return "right";
    });
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error);
      CHECK(outcome.text == "right");
    }
  }
}

TEST_CASE("shm: no object has a name, neither while ranks run nor after they are killed",
          "[transport][shm]") {
  const auto before = listing("/dev/shm");
  const std::string key = fresh_key();
  forked_ranks ranks(2, [&](int rank, const rank_voice& voice) {
    const shm_transport transport = shm_transport::connect(key, rank, 2, small());
    voice.say("there");
    ::pause();
  });
  REQUIRE(ranks.wait_for_line(0, "there"));
  REQUIRE(ranks.wait_for_line(1, "there"));
  CHECK(listing("/dev/shm") == before);
  ranks.kill(0, SIGKILL);
  ranks.kill(1, SIGKILL);
  ranks.join();
  CHECK(listing("/dev/shm") == before);
}

TEST_CASE("shm: /dev/shm may be full, tiny or missing", "[transport][shm]") {
  if (!is_root()) {
    LEAVE_OUT("needs root, to mount something over /dev/shm");
  }
  for (const bool missing : {false, true}) {
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) -> std::string {
      if (::unshare(CLONE_NEWNS) != 0) return "unshare";
      // What is mounted here must not show outside. In a chroot "/" may be no mount point.
      if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 &&
          ::mount(nullptr, "/dev", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
        return "not private";
      }
      if (missing) {
        while (::umount2("/dev/shm", MNT_DETACH) == 0) {
        }
        if (::mount("tmpfs", "/dev", "tmpfs", MS_RDONLY, nullptr) != 0) return "mount /dev";
      } else {
        if (::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k") != 0) return "mount";
        std::FILE* file = std::fopen("/dev/shm/full", "we");
        const std::vector<char> page(8192, 'x');
        std::fwrite(page.data(), 1, page.size(), file);
        std::fclose(file);
      }
      shm_options options = small();
      options.workspace_bytes = 16 << 20;
      const shm_transport transport = shm_transport::connect(key, rank, 2, options);
      std::memset(transport.segment(rank) + 20480 + 4096, 1,
                  transport.segment_size() - 20480 - 4096);
      rendezvous_in_memory(transport, 0);
      return transport.segment(1 - rank)[transport.segment_size() - 1] == std::byte{1} ? "right"
                                                                                       : "wrong";
    });
    if (outcomes[0].text == "not private") LEAVE_OUT("needs mounts that do not show outside");
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error);
      CHECK(outcome.text == "right");
    }
  }
}

TEST_CASE("shm: more memory than there is is an error with need and have, for all ranks",
          "[transport][shm]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) {
    shm_options options = small();
    options.workspace_bytes = std::size_t{1} << 40;
    shm_transport::connect(key, rank, 3, options);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    INFO(outcome.text);
    CHECK(outcome.error == (rank == 0 ? "transport_error" : "rendezvous_error"));
    CHECK(contains(outcome.text, "no memory for 3 segments of 1.0 TiB: need 3.0 TiB, have "));
    CHECK(contains(outcome.text, "workspace_bytes"));
  }
}

TEST_CASE("shm: limits of a process are errors, not signals", "[transport][shm]") {
  struct limit_case {
    decltype(RLIMIT_AS) resource;
    ::rlim_t value;
    const char* expected;
  };
  for (const limit_case& limited :
       {limit_case{RLIMIT_FSIZE, 1 << 20, "need 64.2 MiB, have 1.0 MiB, a limit set by ulimit -f"},
        limit_case{RLIMIT_AS, 0, "no address space for a segment of 64.2 MiB"}}) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (limited.resource == RLIMIT_AS) continue;  // the sanitizers need all of it
#endif
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
      if (rank == 1) {
        ::rlimit limit{};
        ::getrlimit(limited.resource, &limit);
        limit.rlim_cur = limited.value;
        if (limited.resource == RLIMIT_AS) {
          // What is mapped now, and 20 MiB.
          long pages = 0;
          std::FILE* file = std::fopen("/proc/self/statm", "re");
          (void)!std::fscanf(file, "%ld", &pages);
          std::fclose(file);
          limit.rlim_cur = static_cast<::rlim_t>(pages) * 4096 + (20 << 20);
        }
        ::setrlimit(limited.resource, &limit);
      }
      shm_options options = small();
      options.workspace_bytes = 64 << 20;
      shm_transport::connect(key, rank, 2, options);
    });
    INFO(outcomes[0].text << "\n" << outcomes[1].text);
    CHECK(outcomes[1].error == "transport_error");
    CHECK(contains(outcomes[1].text, limited.expected));
    CHECK(outcomes[0].error == "rendezvous_error");
    CHECK(contains(outcomes[0].text, "rank 1 failed: "));
    CHECK(contains(outcomes[0].text, limited.expected));
  }
}

TEST_CASE("shm: a cgroup's limit is an error before the kernel kills", "[transport][shm]") {
  // One of its own, where this process may make it.
  const std::string name = "/rankfold-test-" + std::to_string(::getpid());
  std::string folder;
  std::string limit_file;
  for (const auto& [root, file] :
       {std::pair<std::string, std::string>{"/sys/fs/cgroup", "memory.max"},
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}}) {
    if (::mkdir((root + name).c_str(), 0755) != 0) continue;
    if (::access((root + name + "/" + file).c_str(), W_OK) == 0) {
      folder = root + name;
      limit_file = folder + "/" + file;
      break;
    }
    ::rmdir((root + name).c_str());
  }
  if (folder.empty()) {
    LEAVE_OUT("needs the right to make a cgroup");
  }
  const auto write = [](const std::string& path, const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "we");
    const bool opened = file != nullptr && std::fputs(text.c_str(), file) >= 0;
    return file != nullptr && std::fclose(file) == 0 && opened;
  };
  REQUIRE(write(limit_file, "67108864"));
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    if (!write(folder + "/cgroup.procs", std::to_string(::getpid())))
      throw std::runtime_error("join");
    shm_options options = small();
    options.workspace_bytes = 40 << 20;  // one would fit, two do not
    shm_transport::connect(key, rank, 2, options);
  });
  ::rmdir(folder.c_str());
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK(outcome.signal == 0);
    CHECK(contains(outcome.text, "need 80.5 MiB, have "));
    CHECK(contains(outcome.text, name));
  }
}

TEST_CASE("shm: memory that its owner could cut short, or of another shape, is refused",
          "[transport][shm]") {
  // A rank 1 that does not keep to the rules.
  class liar : public rankfold::rendezvous_participant {
   public:
    explicit liar(int what) : what_(what) {}
    rankfold::shared_segment create() override {
      const ::off_t size = 20480 + 8192 + 8192;
      rankfold::shared_segment made;
      made.memory = rankfold::detail::file_descriptor(
          what_ == 4 ? ::open("/dev/null", O_RDWR | O_CLOEXEC)
                     : ::memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      (void)!::ftruncate(made.memory.get(), what_ == 1 ? size / 2 : size);
      void* address = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                             MAP_SHARED, made.memory.get(), 0);
      if (address != MAP_FAILED && what_ != 3) {
        rankfold::detail::init_segment(static_cast<std::byte*>(address), what_ == 5 ? 0 : 1, 2);
      }
      const int seals = F_SEAL_GROW | F_SEAL_SEAL | (what_ == 2 ? 0 : F_SEAL_SHRINK);
      ::fcntl(made.memory.get(), F_ADD_SEALS, seals);
      made.life = std::move(rankfold::detail::open_process_life().watched);
      return made;
    }
    void adopt(int, rankfold::shared_segment) override {}

   private:
    int what_;
  };
  const char* const expected[] = {"",
                                  "has 18432 bytes, expected 36864",
                                  "has seals ",
                                  "says rank 0 of 0, layout 0, expected rank 1 of 2",
                                  "has 0 bytes",
                                  "says rank 0 of 2, layout "};
  for (int what = 0; what < 6; ++what) {
    const std::string key = fresh_key();
    const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
      if (rank == 0) {
        shm_transport::connect(key, 0, 2, small());
      } else {
        liar participant(what);
        rankfold::unix_socket_rendezvous({.key = key,
                                          .rank = 1,
                                          .size = 2,
                                          .segment_bytes = 36864,
                                          .timeout = 20s,
                                          .socket_path = {},
                                          .interrupt = {}},
                                         participant);
      }
    });
    INFO(what << ": " << outcomes[0].text << "\n" << outcomes[1].text);
    if (what == 0) {
      CHECK(outcomes[0].returned);
      CHECK(outcomes[1].returned);
      continue;
    }
    CHECK(outcomes[0].error == "rendezvous_error");
    CHECK(contains(outcomes[0].text, expected[what]));
    CHECK(outcomes[1].error == "rendezvous_error");
    CHECK(contains(outcomes[1].text, expected[what]));
  }
}

TEST_CASE("shm: different options are an error on all ranks", "[transport][shm]") {
  const std::string key = fresh_key();
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) {
    shm_options options = small();
    options.workspace_bytes = rank == 0 ? 8192 : 16384;
    shm_transport::connect(key, rank, 2, options);
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK(outcome.error == "rendezvous_error");
    CHECK(contains(outcome.text, "has segments of 45056 bytes, rank 0 of 36864"));
  }
}

TEST_CASE("shm: arguments out of range are errors", "[transport][shm]") {
  CHECK_THROWS_AS(shm_transport::connect("key", 2, 2), std::invalid_argument);
  CHECK_THROWS_AS(shm_transport::connect("key", -1, 2), std::invalid_argument);
  CHECK_THROWS_AS(shm_transport::connect("key", 0, 0), std::invalid_argument);
  CHECK_THROWS_AS(shm_transport::connect("", 0, 2), std::invalid_argument);
  shm_options options = small();
  options.workspace_bytes = 0;
  CHECK_THROWS_AS(shm_transport::connect("key", 0, 2, options), std::invalid_argument);
}

TEST_CASE("shm: one rank needs no peers, can be moved, and leaves what it is assigned over",
          "[transport][shm]") {
  shm_transport first = shm_transport::connect("", 0, 1, small());
  CHECK(first.valid());
  CHECK(first.size() == 1);
  CHECK(first.state(0) == peer_state::alive);
  std::byte* const memory = first.segment(0);
  shm_transport second(std::move(first));
  CHECK(second.segment(0) == memory);
  CHECK(second.valid());
  CHECK_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): what it says then
  second = shm_transport::connect("", 0, 1, small());
  CHECK(second.segment(0) != memory);
  CHECK(mappings("memfd:rankfold") == 1);
}

TEST_CASE("shm: from_environment meets as the launcher says, each communicator by itself",
          "[transport][shm]") {
  const std::string port = std::to_string(1024 + ::getpid() % 60000);
  const auto outcomes = fork_ranks(3, [&](int rank, const rank_voice&) -> std::string {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "3", 1);
    ::setenv("LOCAL_WORLD_SIZE", "3", 1);
    ::setenv("MASTER_ADDR", "rankfold-test", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    const shm_transport first = shm_transport::from_environment(small());
    const shm_transport second = shm_transport::from_environment(small());
    shm_options labelled = small();
    labelled.label = "other";
    const shm_transport third = shm_transport::from_environment(labelled);
    if (first.rank() != rank || first.size() != 3) return "wrong place";
    first.segment(rank)[24576] = std::byte{1};
    second.segment(rank)[24576] = std::byte{2};
    third.segment(rank)[24576] = std::byte{3};
    rendezvous_in_memory(second, 0);
    std::string found;
    for (int r = 0; r < 3; ++r) {
      for (const shm_transport* t : {&first, &second, &third}) {
        found += static_cast<char>('0' + static_cast<int>(t->segment(r)[24576]));
      }
    }
    rendezvous_in_memory(second, 1);
    return found;
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.error << " " << outcome.text);
    CHECK(outcome.text == "123123123");
  }
}

TEST_CASE("shm: labels tell communicators apart that threads make in no fixed order",
          "[transport][shm]") {
  const std::string port = std::to_string(1024 + ::getpid() % 60000);
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) -> std::string {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "rankfold-labels", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    std::string found[2];
    const auto make = [&](int which) {
      shm_options options = small();
      options.label = which == 0 ? "first" : "second";
      const shm_transport transport = shm_transport::from_environment(options);
      transport.segment(rank)[24576] = static_cast<std::byte>('0' + which);
      rendezvous_in_memory(transport, 0);
      found[which] = static_cast<char>(transport.segment(1 - rank)[24576]);
      rendezvous_in_memory(transport, 1);
    };
    {
      // Rank 0 begins with the first, rank 1 with the second.
      const std::jthread one([&] { make(rank); });
      ::usleep(100'000);
      const std::jthread two([&] { make(1 - rank); });
    }
    return found[0] + found[1];
  });
  for (const rank_outcome& outcome : outcomes) {
    INFO(outcome.error << " " << outcome.text);
    CHECK(outcome.text == "01");
  }
}

TEST_CASE("shm: the number of a communicator is part of its key", "[transport][shm]") {
  const auto outcomes = fork_ranks(1, [&](int, const rank_voice&) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("MASTER_ADDR", "nobody", 1);
    ::setenv("MASTER_PORT", "1", 1);
    shm_transport::from_environment(small());
    shm_transport::from_environment(small());
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    shm_transport::from_environment(small(100ms));
  });
  INFO(outcomes[0].text);
  CHECK(contains(outcomes[0].text, "communicator=2\")"));
}

TEST_CASE("shm: from_environment can be tried again, by some ranks more often than by others",
          "[transport][shm]") {
  const std::string port = std::to_string(1024 + ::getpid() % 60000);
  const auto outcomes = fork_ranks(2, [&](int rank, const rank_voice&) -> std::string {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "rankfold-again", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    if (rank == 1) ::usleep(700'000);
    std::string failures;
    for (int tries = 0; tries < 100; ++tries) {
      try {
        shm_transport::from_environment(small(tries == 0 ? 200ms : 5s));
        return rank == 0 ? failures : "met";
      } catch (const rankfold::rendezvous_error&) {
        failures += "failed ";
      }
    }
    return failures;
  });
  CHECK(outcomes[0].text == "failed ");
  CHECK(outcomes[1].text == "met");
}

TEST_CASE("shm: from_environment takes its time from RANKFOLD_TIMEOUT", "[transport][shm]") {
  const auto start = steady_clock::now();
  const auto outcomes = fork_ranks(2, [&](int process, const rank_voice&) {
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "nobody", 1);
    ::setenv("MASTER_PORT", "1", 1);
    ::setenv("RANKFOLD_TIMEOUT", process == 0 ? "0.3" : "soon", 1);
    shm_transport::from_environment();
  });
  CHECK(steady_clock::now() - start < 3s);
  INFO(outcomes[0].text << "\n" << outcomes[1].text);
  CHECK(outcomes[0].error == "rendezvous_error");
  CHECK(contains(outcomes[0].text, "no rank 0 answered within 0.3 s"));
  CHECK(outcomes[1].error == "invalid_argument");
  CHECK(contains(outcomes[1].text, "RANKFOLD_TIMEOUT is \"soon\""));
}
