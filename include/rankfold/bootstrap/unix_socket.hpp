// SPDX-License-Identifier: Apache-2.0
// How the ranks of one host find each other and hand each other their memory: over a unix socket on
// which rank 0 listens. What they say is in detail/rendezvous_message.hpp.
//
// The name of the socket is @rankfold-<uid>-<hash of the key>-<suffix>, in the abstract namespace:
// it goes with the process. Anyone may take such a name first, so rank 0 goes on to the next of 16
// suffixes, and the others try all of them and stay with the one that knows their key. Nothing is
// sent to a process of another user, nor read from it.
//
// All ranks succeed together: rank 0 says "go" when every rank has mapped the memory of all others.
// Where one cannot, all are told why.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include <sys/stat.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/rendezvous_message.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// What a rank gives to the others.
struct shared_segment {
  detail::file_descriptor memory;
  detail::file_descriptor life;  // poll() reports something on it when the rank has ended
};

/// What a transport does while the ranks meet. An exception from either ends the start on all
/// ranks.
class rendezvous_participant {
 public:
  /// Makes this rank's segment. Called once, when all ranks have arrived; on rank 0 before any
  /// other.
  virtual shared_segment create() = 0;
  /// Takes over the segment of another rank. Called once for each.
  virtual void adopt(int rank, shared_segment segment) = 0;

 protected:
  ~rendezvous_participant() = default;
};

struct rendezvous_options {
  std::string key;  // the same on all ranks, and on no others: any bytes, up to 2048
  int rank = 0;
  int size = 1;
  std::uint64_t segment_bytes = 0;  // the same on all ranks
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// A path for the socket, for ranks in different network namespaces; empty: an abstract name. It
  /// is removed when the ranks have met, or failed to. One run at a time can use it.
  std::string socket_path;
  /// Called about ten times a second while this rank waits; what it throws ends the start.
  std::function<void()> interrupt;
};

namespace detail {

inline constexpr int rendezvous_suffixes = 16;

/// FNV-1a.
inline std::uint64_t key_hash(std::string_view key) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// "-00deadbeef001234-": the part of a socket's name that is the key's.
inline std::string key_name(std::string_view key) {
  std::string name = "-";
  for (int shift = 60; shift >= 0; shift -= 4) {
    name += "0123456789abcdef"[(key_hash(key) >> shift) & 15];
  }
  return name + "-";
}

inline std::string socket_name(::uid_t uid, std::string_view key, int suffix) {
  return "rankfold-" + std::to_string(uid) + key_name(key) + std::to_string(suffix);
}

/// "process 4711": the number is 0 where the process is in a pid namespace that this one cannot
/// see.
inline std::string process_text(int pid) {
  return pid > 0 ? "process " + std::to_string(pid) : "a process of another pid namespace";
}

/// Throws where this user's id means nothing: then it could not be told from another's.
inline void check_own_uid() {
  const auto overflow = read_small_file("/proc/sys/kernel/overflowuid");
  const std::uint64_t nobody = overflow ? leading_number(*overflow).value_or(65534) : 65534;
  if (::geteuid() != nobody) return;
  // In the first user namespace all ids are mapped, and nobody is a user like any other.
  const auto map = read_small_file("/proc/self/uid_map");
  unsigned long inside = 1;
  unsigned long outside = 1;
  unsigned long count = 0;
  if (!map || (std::sscanf(map->c_str(), "%lu %lu %lu", &inside, &outside, &count) == 3 &&
               inside == 0 && outside == 0 && count == 4294967295)) {
    return;
  }
  throw rendezvous_error("rankfold: this process runs as uid " + std::to_string(nobody) +
                         " in a user namespace of its own, which stands for every user that is not "
                         "mapped there: it cannot be told from others. Run it as a mapped uid");
}

/// What rank 0 and the others have in common.
class rendezvous_side {
 protected:
  using clock = std::chrono::steady_clock;
  using status = received_message::status;

  rendezvous_side(const rendezvous_options& options, rendezvous_participant& participant)
      : options_(options),
        participant_(participant),
        prefix_("rankfold: rank " + std::to_string(options.rank) + " of " +
                std::to_string(options.size) + " could not start: "),
        start_(clock::now()),
        deadline_(start_ + (std::min<std::chrono::milliseconds>)(options.timeout,
                                                                 std::chrono::hours(87600))) {}

  [[noreturn]] void fail(const std::string& reason) const {
    throw rendezvous_error(prefix_ + reason);
  }

  /// What another rank is told of an exception of this one.
  std::string reason_of(const std::exception& e) const {
    const std::string text = e.what();
    if (text.compare(0, prefix_.size(), prefix_) == 0) return text.substr(prefix_.size());
    return "rank " + std::to_string(options_.rank) + " failed: " + inner_text(text);
  }

  bool expired() const { return clock::now() >= deadline_; }

  /// Waits for any of `polled`, for `slice` at most; then lets the caller interrupt.
  void wait(std::vector<::pollfd>& polled, std::chrono::milliseconds slice) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock::now());
    const auto time = (std::max)(std::chrono::milliseconds(0), (std::min)(left, slice));
    if (::poll(polled.data(), polled.size(), static_cast<int>(time.count())) < 0) {
      if (errno != EINTR && errno != EAGAIN) throw_errno("poll", errno);
      for (::pollfd& p : polled) p.revents = 0;
    }
    if (options_.interrupt && clock::now() - interrupted_ >= std::chrono::milliseconds(100)) {
      interrupted_ = clock::now();
      interrupting_ = true;
      options_.interrupt();
      interrupting_ = false;
    }
  }

  message_socket::send_result say_hello(const message_socket& socket) const {
    hello_message hello;
    hello.rank = options_.rank;
    hello.size = options_.size;
    hello.segment_bytes = options_.segment_bytes;
    hello.key_bytes = static_cast<std::uint32_t>(options_.key.size());
    return socket.send(message_kind::hello, bytes_of(hello) + options_.key);
  }

  /// Sends where the receiver may have to make room first. False where it has hung up.
  template <class WhileWaiting>
  bool deliver(const message_socket& socket, message_kind kind, std::string_view body,
               std::span<const int> descriptors, WhileWaiting while_waiting) {
    for (;;) {
      const auto result = socket.send(kind, body, descriptors);
      if (result != message_socket::send_result::full) {
        return result == message_socket::send_result::sent;
      }
      if (expired()) {
        fail("a message could not be sent within " + duration_text(options_.timeout));
      }
      std::vector<::pollfd> nothing;
      wait(nothing, std::chrono::milliseconds(1));
      while_waiting();
    }
  }

  const rendezvous_options& options_;
  rendezvous_participant& participant_;
  const std::string prefix_;
  const clock::time_point start_;
  clock::time_point deadline_;
  clock::time_point interrupted_ = start_;
  bool interrupting_ = false;  // still, when that threw
};

/// A connection attempt to a name that may be taken by anyone.
struct rendezvous_attempt {
  int suffix = 0;
  message_socket socket;
  std::chrono::steady_clock::time_point retry_at{};
  int pid = 0;
  int tries = 0;
  bool asked = false;
};

/// What is known of names that lead nowhere; for messages.
struct rendezvous_sightings {
  bool foreign = false;
  ::uid_t foreign_uid = 0;
  bool other_key = false;
  int error = 0;
};

/// Connects to a listener of this user. Returns 0 or an errno: EPERM where it is another user's.
inline int connect_attempt(rendezvous_attempt& attempt, const socket_address& address,
                           rendezvous_sightings& seen) {
  message_socket socket = message_socket::unconnected();
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    const int code = errno;
    // Nobody listens, or its queue is full; else something other than a rank has the name.
    if (code != ECONNREFUSED && code != ENOENT && code != EAGAIN) seen.error = code;
    return code;
  }
  const auto credentials = peer_credentials(socket.get());
  if (!credentials) return EPERM;
  if (credentials->uid != ::geteuid()) {
    seen.foreign = true;
    seen.foreign_uid = credentials->uid;
    return EPERM;
  }
  attempt.socket = std::move(socket);
  attempt.pid = credentials->pid;
  return 0;
}

/// The part of rank 0.
class rendezvous_host : rendezvous_side {
 public:
  rendezvous_host(const rendezvous_options& options, rendezvous_participant& participant)
      : rendezvous_side(options, participant), peers_(static_cast<std::size_t>(options.size)) {}
  rendezvous_host(const rendezvous_host&) = delete;
  rendezvous_host& operator=(const rendezvous_host&) = delete;
  ~rendezvous_host() { stop_listening(); }

  void run() {
    try {
      listen();
      // Connections, then two descriptors of each rank, then those of strangers.
      check_open_file_limit(3 * peers_.size() + 16, "a world of " + std::to_string(options_.size) +
                                                        " ranks, in its rank 0,");
      complete();
      own_ = participant_.create();
      begin(phase::creating);
      broadcast(message_kind::create);
      complete();
      begin(phase::mapping);
      distribute();
      for (int rank = 1; rank < options_.size; ++rank) {
        participant_.adopt(rank, std::move(peer(rank).segment));
      }
      complete();
      // From here on a newcomer must not find the way to this run.
      stop_listening();
      broadcast(message_kind::go);
    } catch (const std::exception& e) {
      tell_all(reason_of(e));
      throw;
    } catch (...) {
      tell_all("rank 0 was interrupted");
      throw;
    }
  }

 private:
  enum class phase { arriving, creating, mapping };

  struct peer_entry {
    message_socket socket;
    int pid = 0;
    bool answered = false;
    bool told = false;
    shared_segment segment;
  };
  struct stranger {
    message_socket socket;
    clock::time_point until;
  };

  peer_entry& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // --- the socket

  void listen() {
    if (!options_.socket_path.empty()) {
      listen_at_path();
    } else {
      for (int suffix = 0; suffix < rendezvous_suffixes && !listener_; ++suffix) {
        const std::string name = socket_name(::geteuid(), options_.key, suffix);
        message_socket socket = message_socket::unconnected();
        const socket_address address = socket_address::abstract(name);
        if (::bind(socket.get(), address.get(), address.size) == 0) {
          listener_ = std::move(socket);
        } else if (errno == EADDRINUSE) {
          // Perhaps a second rank 0 of this run: asked below, while the ranks arrive.
          twins_.emplace_back().suffix = suffix;
        } else {
          throw_errno("the name @" + name + " cannot be bound", errno);
        }
      }
      if (!listener_) {
        fail("all " + std::to_string(rendezvous_suffixes) + " names from @" +
             socket_name(::geteuid(), options_.key, 0) + " on are taken by other processes");
      }
    }
    // Whoever has a lower name gets time to answer before the others can find this process: a
    // second rank 0 must not draw the ranks of the first away.
    const clock::time_point until = clock::now() + std::chrono::milliseconds(500);
    while (clock::now() < until && !expired()) {
      std::vector<::pollfd> polled;
      bool unsure = false;
      for (rendezvous_attempt& twin : twins_) {
        look_for_twin(twin);
        if (twin.socket) polled.push_back({twin.socket.get(), POLLIN, 0});
        unsure = unsure || twin.socket || twin.tries < 3;
      }
      if (!unsure) break;
      wait(polled, std::chrono::milliseconds(20));
    }
    if (::listen(listener_.get(), (std::max)(options_.size, 64)) != 0) throw_errno("listen", errno);
  }

  /// Connects to the name of a twin, now and then, and asks it who it is.
  void look_for_twin(rendezvous_attempt& twin) {
    if (!twin.socket && clock::now() >= twin.retry_at) {
      ++twin.tries;
      const std::string name = socket_name(::geteuid(), options_.key, twin.suffix);
      if (connect_attempt(twin, socket_address::abstract(name), seen_) != 0) {
        twin.retry_at = clock::now() + twin_pause(twin);
      }
    }
    if (twin.socket) ask_twin(twin);
  }

  /// A process that has just taken its name listens in a moment; one that does not, hardly ever.
  static std::chrono::milliseconds twin_pause(const rendezvous_attempt& twin) {
    return std::chrono::milliseconds(twin.tries < 3 ? 20 : 200);
  }

  void listen_at_path() {
    const socket_address address = socket_address::path(options_.socket_path);
    int refusals = 0;
    rendezvous_attempt twin;
    for (;;) {
      message_socket socket = message_socket::unconnected();
      if (::bind(socket.get(), address.get(), address.size) == 0) {
        listener_ = std::move(socket);
        struct ::stat entry{};
        path_bound_ = ::lstat(options_.socket_path.c_str(), &entry) == 0;
        path_inode_ = entry.st_ino;
        path_device_ = entry.st_dev;
        return;
      }
      if (errno != EADDRINUSE) {
        throw_errno("the socket " + options_.socket_path + " cannot be made", errno);
      }
      struct ::stat entry{};
      if (::lstat(options_.socket_path.c_str(), &entry) == 0 && !S_ISSOCK(entry.st_mode)) {
        fail(options_.socket_path + " is there and is not a socket, expected a path that is free");
      }
      // Another run's, or one that a killed process left: nobody listens there, now nor in a
      // moment.
      const int code = twin.socket ? 0 : connect_attempt(twin, address, seen_);
      if (code == 0) ask_twin(twin);
      refusals = code == ECONNREFUSED ? refusals + 1 : 0;
      if (refusals == 3) {
        ::unlink(options_.socket_path.c_str());
        refusals = 0;
      }
      if (expired()) {
        fail(options_.socket_path +
             " is used by another process, expected a path of this run's own");
      }
      std::vector<::pollfd> polled;
      if (twin.socket) polled.push_back({twin.socket.get(), POLLIN, 0});
      wait(polled, std::chrono::milliseconds(20));
    }
  }

  void stop_listening() noexcept {
    if (!listener_) return;
    if (path_bound_) {
      struct ::stat entry{};
      if (::lstat(options_.socket_path.c_str(), &entry) == 0 && entry.st_ino == path_inode_ &&
          entry.st_dev == path_device_) {
        ::unlink(options_.socket_path.c_str());
      }
    }
    listener_ = message_socket();
  }

  /// Says hello to whoever has the name of a rank 0; throws where that is one of this same run.
  void ask_twin(rendezvous_attempt& twin) {
    if (!std::exchange(twin.asked, true)) say_hello(twin.socket);
    received_message answer = twin.socket.receive();
    if (answer.what == status::nothing) return;
    if (answer.what == status::message && answer.kind == message_kind::refused) {
      linger_ = {};
      fail(answer.body);
    }
    twin.socket = {};
    twin.asked = false;
    twin.retry_at = clock::now() + twin_pause(twin);
  }

  // --- the ranks

  void begin(phase now) {
    phase_ = now;
    for (peer_entry& p : peers_) p.answered = false;
  }

  /// Hears the ranks until each has done what the phase asks of it.
  void complete() {
    while (waited_for() > 0) {
      if (expired()) {
        static constexpr const char* what[] = {"did not arrive", "did not make a segment",
                                               "did not map the segments"};
        const std::string late = ranks_text(missing()) + " of " + std::to_string(options_.size) +
                                 " " + what[static_cast<int>(phase_)] + " within " +
                                 duration_text(options_.timeout);
        linger_ = {};
        fail(late + notes());
      }
      step();
    }
  }

  std::size_t waited_for() const {
    return static_cast<std::size_t>(std::count_if(peers_.begin() + 1, peers_.end(),
                                                  [](const peer_entry& p) { return !p.answered; }));
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!peers_[static_cast<std::size_t>(rank)].answered) ranks.push_back(rank);
    }
    return ranks;
  }

  std::string notes() const {
    std::string text = refusals_;
    if (seen_.foreign) {
      text += "; a process of uid " + std::to_string(seen_.foreign_uid) +
              " was refused, expected uid " + std::to_string(::geteuid());
    }
    return text;
  }

  void step() {
    std::vector<::pollfd> polled;
    polled.push_back({listener_.get(), POLLIN, 0});
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!peer(rank).socket) continue;
      ranks.push_back(rank);
      polled.push_back({peer(rank).socket.get(), POLLIN, 0});
    }
    const std::size_t first_stranger = polled.size();
    for (const stranger& s : strangers_) polled.push_back({s.socket.get(), POLLIN, 0});
    for (const rendezvous_attempt& twin : twins_) {
      if (twin.socket) polled.push_back({twin.socket.get(), POLLIN, 0});
    }
    wait(polled, std::chrono::milliseconds(100));

    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (polled[1 + i].revents != 0) hear(ranks[i]);
    }
    for (std::size_t i = strangers_.size(); i-- > 0;) {
      if (polled[first_stranger + i].revents != 0) {
        meet(strangers_[i]);
      } else if (clock::now() < strangers_[i].until) {
        continue;
      }
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[0].revents != 0) accept();
    for (rendezvous_attempt& twin : twins_) look_for_twin(twin);
    if (phase_ == phase::arriving) tell_missing();
  }

  void accept() {
    // Not without end: others may connect as fast as they are let go.
    for (int count = 0; count < 64; ++count) {
      message_socket socket(private_descriptor::opened_by([this] {
        return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      }));
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN) return;
        throw_errno("a rank that connects cannot be accepted", errno);
      }
      const auto credentials = peer_credentials(socket.get());
      if (credentials && credentials->uid == ::geteuid()) {
        strangers_.push_back({std::move(socket), clock::now() + std::chrono::seconds(2)});
      } else if (credentials) {
        seen_.foreign = true;
        seen_.foreign_uid = credentials->uid;
      }
    }
  }

  /// Hears the first message of a process of this user, which may be anything.
  void meet(stranger& who) {
    received_message first = who.socket.receive();
    if (first.what != status::message || first.kind != message_kind::hello) return;
    std::string_view body = first.body;
    const auto hello = take<hello_message>(body);
    if (!hello || hello->key_bytes != body.size()) return;
    if (body != options_.key) {
      who.socket.send(message_kind::other_key);
      return;
    }
    const auto credentials = peer_credentials(who.socket.get());
    const int pid = credentials ? credentials->pid : 0;
    const std::string name = "rank " + std::to_string(hello->rank) + " (" + process_text(pid) + ")";

    // What keeps the run from starting at all: told to the others too.
    std::string wrong;
    if (first.protocol != rendezvous_protocol || hello->version != RANKFOLD_VERSION ||
        hello->abi != RANKFOLD_DETAIL_ABI || hello->layout != layout_version) {
      wrong = name + " runs rankfold " + version_text(*hello, first.protocol) + ", rank 0 runs " +
              version_text(hello_message{}, rendezvous_protocol);
    } else if (hello->size != options_.size) {
      wrong = name + " says that there are " + std::to_string(hello->size) +
              " ranks, rank 0 says " + std::to_string(options_.size);
    } else if (hello->segment_bytes != options_.segment_bytes) {
      wrong = name + " has segments of " + std::to_string(hello->segment_bytes) +
              " bytes, rank 0 of " + std::to_string(options_.segment_bytes) +
              ": workspace_bytes must be the same on all ranks";
    }
    const bool known = hello->rank > 0 && hello->rank < options_.size;
    if (!wrong.empty()) {
      who.socket.send(message_kind::refused, wrong);
      if (known && !peer(hello->rank).socket) peer(hello->rank).told = true;
      fail(wrong);
    }

    // What concerns the newcomer alone.
    if (failed_) {
      who.socket.send(message_kind::refused, *failed_);
      if (known) peer(hello->rank).told = true;
    } else if (hello->rank < 0 || hello->rank >= options_.size) {
      who.socket.send(message_kind::refused, "there is no rank " + std::to_string(hello->rank) +
                                                 " among " + std::to_string(options_.size));
    } else if (hello->rank == 0 || peer(hello->rank).socket) {
      const std::string taken =
          "rank " + std::to_string(hello->rank) + " is taken by " +
          process_text(hello->rank == 0 ? static_cast<int>(::getpid()) : peer(hello->rank).pid);
      who.socket.send(message_kind::refused,
                      taken + ", " + process_text(pid) + " claims it a second time");
      if (refusals_.size() < 1000)
        refusals_ += "; " + taken + ", " + process_text(pid) + " was refused";
    } else {
      peer_entry& newcomer = peer(hello->rank);
      newcomer.socket = std::move(who.socket);
      newcomer.pid = pid;
      newcomer.answered = true;
      newcomer.socket.send(message_kind::welcome, ranks_text(missing()));
    }
  }

  static std::string version_text(const hello_message& hello, std::uint32_t protocol) {
    return std::to_string(hello.version / 10000) + "." + std::to_string(hello.version / 100 % 100) +
           "." + std::to_string(hello.version % 100) + " (ABI " + std::to_string(hello.abi) +
           ", layout " + std::to_string(hello.layout) + ", protocol " + std::to_string(protocol) +
           ")";
  }

  void hear(int rank) {
    peer_entry& speaker = peer(rank);
    received_message message = speaker.socket.receive();
    if (message.what == status::nothing) return;
    const std::string name =
        "rank " + std::to_string(rank) + " (" + process_text(speaker.pid) + ")";
    if (message.what == status::closed) {
      speaker.socket = {};
      speaker.answered = false;
      speaker.told = true;
      fail(name + " died or went away during the start" +
           (phase_ == phase::arriving ? ", " + ranks_text(missing()) + " not there" : ""));
    }
    if (message.what == status::message && message.kind == message_kind::failed) {
      speaker.told = true;
      fail(message.body);
    }
    if (message.lost_descriptors) {
      throw transport_error("rankfold: the descriptors of " + name +
                            " cannot be taken: this process may have " + open_file_limit_text() +
                            " open files, raise that with ulimit -n");
    }
    const bool segment = phase_ == phase::creating && message.kind == message_kind::segment &&
                         message.descriptors.size() == 2;
    const bool ready = phase_ == phase::mapping && message.kind == message_kind::ready;
    if (message.what == status::garbage || !(segment || ready) || speaker.answered) {
      fail(name + " sent message " + std::to_string(static_cast<std::uint32_t>(message.kind)) +
           ", expected " + (phase_ == phase::creating ? "its segment" : "nothing"));
    }
    if (segment) {
      speaker.segment.memory = std::move(message.descriptors[0]);
      speaker.segment.life = std::move(message.descriptors[1]);
    }
    speaker.answered = true;
  }

  void tell_missing() {
    const std::size_t count = waited_for();
    if (count == 0 || count == last_missing_) return;
    if (clock::now() - told_missing_ < std::chrono::milliseconds(250)) return;
    told_missing_ = clock::now();
    last_missing_ = count;
    const std::string text = ranks_text(missing());
    for (const peer_entry& p : peers_) {
      if (p.socket) p.socket.send(message_kind::waiting, text);  // one lost does no harm
    }
  }

  void broadcast(message_kind kind) {
    for (int rank = 1; rank < options_.size; ++rank) {
      // A rank that hung up is noticed when it is heard, with its last words.
      deliver(peer(rank).socket, kind, {}, {}, [] {});
    }
  }

  void distribute() {
    constexpr int most = static_cast<int>(max_message_descriptors / 2);
    for (int first = 0; first < options_.size; first += most) {
      for (int to = 1; to < options_.size; ++to) {
        std::string ranks;
        std::vector<int> descriptors;
        for (int of = first; of < (std::min)(first + most, options_.size); ++of) {
          if (of == to) continue;
          const shared_segment& segment = of == 0 ? own_ : peer(of).segment;
          ranks += bytes_of(static_cast<std::int32_t>(of));
          descriptors.push_back(segment.memory.get());
          descriptors.push_back(segment.life.get());
        }
        if (descriptors.empty()) continue;
        deliver(peer(to).socket, message_kind::table, ranks, descriptors, [this] {
          for (int rank = 1; rank < options_.size; ++rank) hear(rank);
        });
      }
    }
  }

  /// Tells every rank why this run does not start; those that have yet to arrive, for a short
  /// while.
  void tell_all(const std::string& reason) noexcept {
    try {
      failed_ = reason.substr(0, max_message_bytes / 2);
      for (peer_entry& p : peers_) {
        if (!p.socket) continue;
        if (!p.told) p.socket.send(message_kind::failed, *failed_);
        p.told = true;
      }
      const clock::time_point until =
          clock::now() + (interrupting_ ? std::chrono::milliseconds(0) : linger_);
      peers_[0].told = true;
      while (
          listener_ && clock::now() < until &&
          std::any_of(peers_.begin(), peers_.end(), [](const peer_entry& p) { return !p.told; })) {
        std::vector<::pollfd> polled = {{listener_.get(), POLLIN, 0}};
        for (const stranger& s : strangers_) polled.push_back({s.socket.get(), POLLIN, 0});
        ::poll(polled.data(), polled.size(), 20);
        for (std::size_t i = strangers_.size(); i-- > 0;) {
          if (polled[1 + i].revents == 0) continue;
          try {
            meet(strangers_[i]);
          } catch (const rendezvous_error&) {
            // One more that does not fit; it has been told.
          }
          strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (polled[0].revents != 0) accept();
      }
    } catch (...) {
      // The first cause is on its way to the caller.
    }
  }

  std::vector<peer_entry> peers_;  // by rank; the first is not used
  std::vector<stranger> strangers_;
  std::vector<rendezvous_attempt> twins_;
  rendezvous_sightings seen_;
  message_socket listener_;
  shared_segment own_;
  phase phase_ = phase::arriving;
  std::string refusals_;
  std::optional<std::string> failed_;
  std::chrono::milliseconds linger_{1000};
  std::size_t last_missing_ = 0;
  clock::time_point told_missing_ = start_;
  bool path_bound_ = false;
  ::ino_t path_inode_ = 0;
  ::dev_t path_device_ = 0;
};

/// The part of every other rank.
class rendezvous_peer : rendezvous_side {
 public:
  rendezvous_peer(const rendezvous_options& options, rendezvous_participant& participant)
      : rendezvous_side(options, participant) {}

  void run() {
    // The names that are tried, one message of descriptors, and the life of every other rank.
    const auto size = static_cast<std::size_t>(options_.size);
    find();
    // Rank 0 knows best who is missing: where its time and this rank's end together, it speaks
    // first.
    deadline_ += (std::min)(options_.timeout / 4, std::chrono::milliseconds(200));
    try {
      check_open_file_limit((std::min)(2 * size, max_message_descriptors) + size + 16,
                            "a world of " + std::to_string(options_.size) + " ranks");
      talk();
    } catch (const std::exception& e) {
      if (!over_) host_.send(message_kind::failed, reason_of(e).substr(0, max_message_bytes / 2));
      throw;
    } catch (...) {
      host_.send(message_kind::failed,
                 "rank " + std::to_string(options_.rank) + " was interrupted");
      throw;
    }
  }

 private:
  void find() {
    const bool path = !options_.socket_path.empty();
    std::vector<rendezvous_attempt> attempts;
    for (int suffix = 0; suffix < (path ? 1 : rendezvous_suffixes); ++suffix) {
      attempts.emplace_back().suffix = suffix;
    }
    auto pause = std::chrono::milliseconds(1);
    while (!expired()) {
      for (rendezvous_attempt& attempt : attempts) {
        if (attempt.socket || clock::now() < attempt.retry_at) continue;
        if (connect_attempt(attempt,
                            path ? socket_address::path(options_.socket_path)
                                 : socket_address::abstract(
                                       socket_name(::geteuid(), options_.key, attempt.suffix)),
                            seen_) == 0 &&
            say_hello(attempt.socket) == message_socket::send_result::closed) {
          attempt.socket = {};
        }
      }
      std::vector<::pollfd> polled;
      for (const rendezvous_attempt& attempt : attempts) {
        if (attempt.socket) polled.push_back({attempt.socket.get(), POLLIN, 0});
      }
      wait(polled, pause);
      // Soon seen at first, and no burden to the machine when rank 0 takes minutes to come.
      const auto waited = std::chrono::floor<std::chrono::milliseconds>(clock::now() - start_);
      pause = std::clamp(waited / 32, std::chrono::milliseconds(1), std::chrono::milliseconds(50));
      for (rendezvous_attempt& attempt : attempts) {
        if (!attempt.socket) continue;
        received_message answer = attempt.socket.receive();
        if (answer.what == status::nothing) continue;
        if (answer.what == status::message) {
          switch (answer.kind) {
            case message_kind::welcome:
              host_ = std::move(attempt.socket);
              host_pid_ = attempt.pid;
              missing_ = answer.body;
              return;
            case message_kind::refused:
              fail("refused by rank 0 (" + process_text(attempt.pid) + "): " + answer.body);
            case message_kind::other_key:
              seen_.other_key = true;
              break;
            default:
              break;
          }
        }
        // Not the one, or one that has just ended: looked at again, but not at once.
        attempt.socket = {};
        attempt.retry_at = clock::now() + std::chrono::milliseconds(20);
      }
    }
    fail("no rank 0 answered within " + duration_text(options_.timeout) + " at " +
         (path ? options_.socket_path : "@" + socket_name(::geteuid(), options_.key, 0)) +
         " (key \"" + options_.key + "\"): expected a process with rank 0, the same key and uid " +
         std::to_string(::geteuid()) + hints());
  }

  std::string hints() const {
    std::string text = options_.socket_path.empty()
                           ? ", on this host and in the same network namespace (containers have "
                             "their own: give all ranks a socket_path that they share)"
                           : "";
    if (seen_.foreign) {
      text += "; a process of uid " + std::to_string(seen_.foreign_uid) +
              (seen_.foreign_uid == 65534 ? " (perhaps of another user namespace)" : "") +
              " listens there";
    }
    if (seen_.other_key) text += "; one with another key listens there";
    if (seen_.error != 0) text += "; connecting failed: " + errno_text(seen_.error);
    for (const ::uid_t uid : other_uids()) {
      text += "; uid " + std::to_string(uid) + " has a rank 0 with this key";
    }
    return text;
  }

  /// The users who listen under this key's hash.
  std::vector<::uid_t> other_uids() const {
    std::vector<::uid_t> found;
    const std::string text = read_small_file("/proc/net/unix").value_or("");
    const std::string key = key_name(options_.key);
    const std::string before = "@rankfold-";
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
      const std::size_t start = text.rfind(before, at);
      if (start == std::string::npos) continue;
      const std::string_view uid =
          std::string_view(text).substr(start + before.size(), at - start - before.size());
      const auto value = leading_number(uid);
      if (!value || uid != std::to_string(*value)) continue;
      const auto user = static_cast<::uid_t>(*value);
      if (user != ::geteuid() && std::find(found.begin(), found.end(), user) == found.end()) {
        found.push_back(user);
      }
    }
    return found;
  }

  void talk() {
    int adopted = 0;
    bool created = false;
    bool ready = false;
    for (;;) {
      if (expired()) {
        fail("the start was not complete within " + duration_text(options_.timeout) +
             (created ? "" : "; not there: " + missing_));
      }
      std::vector<::pollfd> polled = {{host_.get(), POLLIN, 0}};
      wait(polled, std::chrono::milliseconds(100));
      received_message message = host_.receive();
      if (message.what == status::nothing) continue;
      if (message.what != status::message) {
        over_ = true;
        fail("rank 0 (" + process_text(host_pid_) + ") died or went away during the start" +
             (created ? "" : ", when these were not there: " + missing_));
      }
      if (message.lost_descriptors) {
        throw transport_error(
            "rankfold: the descriptors of other ranks cannot be taken: this "
            "process may have " +
            open_file_limit_text() + " open files, raise that with ulimit -n");
      }
      switch (message.kind) {
        case message_kind::waiting:
          missing_ = message.body;
          continue;
        case message_kind::failed:
          over_ = true;
          fail(message.body);
        case message_kind::create: {
          if (std::exchange(created, true)) break;
          const shared_segment own = participant_.create();
          const int descriptors[2] = {own.memory.get(), own.life.get()};
          deliver(host_, message_kind::segment, {}, descriptors, [] {});
          continue;
        }
        case message_kind::table: {
          std::string_view ranks = message.body;
          if (!created || ranks.size() * 2 != message.descriptors.size() * sizeof(std::int32_t)) {
            break;
          }
          for (std::size_t i = 0; i + 1 < message.descriptors.size(); i += 2) {
            participant_.adopt(
                take<std::int32_t>(ranks).value_or(-1),
                {std::move(message.descriptors[i]), std::move(message.descriptors[i + 1])});
            ++adopted;
          }
          if (adopted == options_.size - 1 && !std::exchange(ready, true)) {
            deliver(host_, message_kind::ready, {}, {}, [] {});
          }
          continue;
        }
        case message_kind::go:
          if (ready) return;
          break;
        default:
          break;
      }
      fail("rank 0 sent message " + std::to_string(static_cast<std::uint32_t>(message.kind)) +
           ", which was not expected");
    }
  }

  rendezvous_sightings seen_;
  message_socket host_;
  int host_pid_ = 0;
  std::string missing_;
  bool over_ = false;  // rank 0 knows
};

}  // namespace detail

/// Brings the ranks of a run on this host together: each makes its segment and gets those of all
/// others. Returns on a rank only when every rank has them all.
///
/// Collective: every rank calls it, with the same key, size and segment_bytes; rank 0 listens.
/// Throws:     `rendezvous_error` where a rank does not arrive in time, does not fit, dies or
///             fails: on all ranks, with the ranks and the reason; what `participant` or
///             `interrupt` throws; `transport_error` where the system refuses something;
///             `std::invalid_argument`.
inline void unix_socket_rendezvous(const rendezvous_options& options,
                                   rendezvous_participant& participant) {
  detail::check_rank(options.rank, options.size);
  if (options.timeout <= std::chrono::milliseconds(0)) {
    throw std::invalid_argument("rankfold: timeout is " + std::to_string(options.timeout.count()) +
                                " ms, expected above 0");
  }
  if (options.key.empty() || options.key.size() > detail::max_key_bytes) {
    throw std::invalid_argument("rankfold: the key has " + std::to_string(options.key.size()) +
                                " bytes, expected 1 to " + std::to_string(detail::max_key_bytes));
  }
  if (options.socket_path.size() > detail::socket_address::max_path_bytes) {
    throw std::invalid_argument(
        "rankfold: socket_path has " + std::to_string(options.socket_path.size()) +
        " bytes, expected up to " + std::to_string(detail::socket_address::max_path_bytes));
  }
  detail::check_own_uid();
  if (options.rank == 0) {
    detail::rendezvous_host(options, participant).run();
  } else {
    detail::rendezvous_peer(options, participant).run();
  }
}

RANKFOLD_END_NAMESPACE
