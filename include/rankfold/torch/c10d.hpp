// SPDX-License-Identifier: Apache-2.0
// The transport of ranks of a torch.distributed process group: across hosts
// without MPI, for programs that torchrun starts. The only header that needs
// torch's distributed headers. docs/transports.md says what gloo promises and
// what it does not.
//
// What gloo has for messages between two ranks is send, recv and a wait that
// cannot be asked "are you done?": isCompleted() is false until wait() has
// returned, and a wait that runs out of time closes all connections. So this
// header asks memory. Whatever is sent ends with a word that the receiver
// expects, behind the message on the same stream; when the word is there, a
// wait for what came before it returns at once, and it is gloo's wait that
// makes the message visible.
//
// All messages go in frames, the large ones in several. Their receives are
// posted ahead, in a ring, so that a frame is on its way when send() returns,
// whatever the receiver does. Frames carry how many of the receiver's frames
// have room again: a sender has as many on their way as the ring is long. So
// sizes are compared here: gloo would end the process.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/intrusive_ptr.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rankfold/assert.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/torch/store_meeting.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/transport/hierarchical.hpp"
#include "rankfold/transport/shm.hpp"

RANKFOLD_BEGIN_NAMESPACE

struct c10d_options {
  /// What a rank stages its data in, both halves together, for each rank of the
  /// group. The same on all ranks.
  std::size_t workspace_bytes = detail::default_workspace_bytes;
  /// How long the ranks may take to come together. Default: RANKFOLD_TIMEOUT,
  /// else 5 minutes.
  std::chrono::milliseconds timeout = default_timeout();
  /// Called about ten times a second while the ranks meet; what it throws ends
  /// the start.
  std::function<void()> interrupt = {};
  /// Ranks with the same text are taken to be on one host; empty: ranks whose
  /// kernel, network namespace and user are the same. Only hierarchical
  /// transports ask.
  std::string host = {};
};

namespace detail {

/// What every frame begins with; its payload and, unaligned, its mark once more
/// follow.
struct c10d_frame_head {
  std::uint64_t mark;
  std::uint64_t message_bytes;  // of the message that this is a part of
  std::uint32_t kind;
  std::uint32_t channel;
  std::uint32_t room;   // how many of the receiver's frames the sender has made
                        // room for again
  std::uint32_t bytes;  // of the payload
};
static_assert(sizeof(c10d_frame_head) == 32);

enum class c10d_frame_kind : std::uint32_t { hello = 1, data, room, notice, goodbye };

struct c10d_frame {
  static constexpr std::size_t most_bytes = 65536;
  c10d_frame_head head;
  std::byte rest[most_bytes + sizeof(std::uint64_t)];

  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(this); }
  std::size_t size() const noexcept {
    return sizeof head + (std::min)(most_bytes, std::size_t{head.bytes}) + sizeof head.mark;
  }

  /// Whose memory is taken as it is, but for the mark.
  static std::unique_ptr<c10d_frame> make() {
    auto made = std::make_unique_for_overwrite<c10d_frame>();
    made->head.mark = 0;
    return made;
  }
};

/// What a rank says about itself when all have connected.
struct c10d_hello {
  std::uint64_t magic;
  std::uint64_t host;
  std::uint64_t workspace_bytes;
};
inline constexpr std::uint64_t c10d_magic = 0x3164303163666B72;  // "rkfc10d1" in memory

inline std::uint64_t c10d_hash(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

inline std::uint64_t c10d_random() {
  std::uint8_t bytes[16];
  fill_random(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Equal for ranks that can meet by shm_transport: the kernel, the network
/// namespace, where the sockets for that are, the user. A rank that cannot tell
/// is alone on its host.
inline std::uint64_t c10d_host_mark() {
  const auto boot = read_small_file("/proc/sys/kernel/random/boot_id");
  struct stat network{};
  struct stat users{};
  if (!boot || ::stat("/proc/self/ns/net", &network) != 0 ||
      ::stat("/proc/self/ns/user", &users) != 0) {
    return c10d_random();
  }
  return c10d_hash(*boot + " " + std::to_string(network.st_ino) + " " +
                   std::to_string(users.st_ino) + " " + std::to_string(::geteuid()));
}

using c10d_work = c10::intrusive_ptr<::c10d::Work>;

/// Longer than anything that has arrived takes to be complete.
inline constexpr std::chrono::milliseconds c10d_settled = std::chrono::hours(1);

inline at::Tensor c10d_tensor(std::byte* data, std::size_t bytes) {
  return at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte));
}

/// The connections of one rank to the others of its group, and all that is on
/// its way there. Stays in its place when the transport is moved.
///
/// Thread-safety: any; a mutex.
class c10d_link {
 public:
  static constexpr int channels = 15;

  c10d_link(c10::intrusive_ptr<::c10d::Backend> backend, c10::intrusive_ptr<::c10d::Store> store,
            std::uint64_t session, int rank, int size, std::size_t workspace_bytes,
            std::uint64_t host)
      : backend_(std::move(backend)),
        store_(std::move(store)),
        session_(session),
        rank_(rank),
        workspace_bytes_(workspace_bytes),
        host_(host),
        hosts_(static_cast<std::size_t>(size), host),
        peers_(static_cast<std::size_t>(size)) {
    try {
      for (int r = 0; r < size; ++r) {
        if (r == rank_) continue;
        for (posted& p : at(r).ring) {
          p.frame = c10d_frame::make();
          post(r, p);
        }
      }
      const c10d_hello hello{c10d_magic, host, workspace_bytes};
      for (int r = 0; r < size; ++r) {
        if (r != rank_)
          send_frame(r, c10d_frame_kind::hello, 0, sizeof hello, &hello, sizeof hello);
      }
    } catch (...) {
      drop_everything();
      throw;
    }
  }
  c10d_link(const c10d_link&) = delete;
  c10d_link& operator=(const c10d_link&) = delete;
  ~c10d_link() { drop_everything(); }

  const c10::intrusive_ptr<::c10d::Backend>& backend() const noexcept { return backend_; }
  const c10::intrusive_ptr<::c10d::Store>& store() const noexcept { return store_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(peers_.size()); }
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  std::uint64_t host() const noexcept { return host_; }

  /// The hosts of all ranks; of use when all have been met.
  const std::vector<std::uint64_t>& hosts() const noexcept { return hosts_; }

  /// Who has not said hello yet.
  std::vector<int> not_met() {
    const std::lock_guard lock(mutex_);
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      look(r);
      if (!fault_.empty()) throw rendezvous_error(fault_);
      if (at(r).met) continue;
      if (at(r).broken) {
        throw rendezvous_error("rankfold: c10d_transport: rank " + std::to_string(rank_) + " of " +
                               std::to_string(size()) + " could not start: " + rank_text(r) +
                               " went away");
      }
      missing.push_back(r);
    }
    return missing;
  }

  /// The number of the message among all that are sent to that rank.
  std::uint64_t send(int r, int channel, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    peer& p = at(r);
    const std::uint64_t number = p.sends_complete + p.sends.size();
    p.sends.push_back({data, bytes, 0, channel, {}});
    move_sends(r);
    return number;
  }

  bool sent(int r, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    look(r);
    check_fault();
    return number < at(r).sends_complete;
  }

  /// Keeps what a send that nobody asks for any more sends from.
  void keep_sending(int r, std::uint64_t number, std::shared_ptr<const void> memory) {
    const std::lock_guard lock(mutex_);
    peer& p = at(r);
    if (number >= p.sends_complete) p.sends[number - p.sends_complete].memory = std::move(memory);
  }

  /// The number of the message among those of its channel.
  std::uint64_t receive(int r, int channel, std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    stream& s = at(r).streams[static_cast<std::size_t>(channel)];
    s.asked.push_back({data, bytes, 0});
    const std::uint64_t number = s.complete + s.asked.size() - 1;
    while (!s.asked.empty() && !s.early.empty()) {
      deliver(r, s, *s.early.front());
      keep(std::move(s.early.front()));
      s.early.pop_front();
    }
    return number;
  }

  bool received(int r, int channel, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    look(r);
    check_fault();
    return number < at(r).streams[static_cast<std::size_t>(channel)].complete;
  }

  /// What comes for this receive is dropped.
  void forget(int r, int channel, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    stream& s = at(r).streams[static_cast<std::size_t>(channel)];
    if (number >= s.complete) s.asked[number - s.complete].data = nullptr;
  }

  /// The last word of this rank; only the first one is sent.
  void say_last(c10d_frame_kind kind, const void* text, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_said_last_, true)) return;
    has_failed_ = kind == c10d_frame_kind::notice;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      try {
        send_frame(r, kind, 0, bytes, text, bytes);
      } catch (...) {
        // Best effort: who waits has a deadline.
      }
    }
  }

  /// Lets what is on its way reach the system, which sends it whatever becomes
  /// of this process: a closed connection drops what gloo still has. Waits for
  /// peers that do not receive for two seconds at most.
  void flush() noexcept {
    std::vector<c10d_work> last;
    {
      const std::lock_guard lock(mutex_);
      if (has_failed_) return;
      for (int r = 0; r < size(); ++r) {
        if (r == rank_) continue;
        look(r);
        const peer& p = at(r);
        if (p.left || p.broken || p.frames.empty() || p.frames.back().work == nullptr) continue;
        std::size_t bytes = 0;
        for (const sent_frame& f : p.frames) bytes += f.frame->size();
        // The buffer of a socket has room for so much.
        if (bytes > 4096) last.push_back(p.frames.back().work);
      }
    }
    if (last.empty()) return;
    try {
      std::mutex mutex;
      std::condition_variable over;
      bool is_over = false;
      std::thread waiter([&] {
        for (const c10d_work& work : last) {
          try {
            work->wait(c10d_settled);
          } catch (...) {
            // The peer has gone.
          }
        }
        const std::lock_guard lock(mutex);
        is_over = true;
        over.notify_all();
      });
      {
        std::unique_lock lock(mutex);
        if (!over.wait_for(lock, std::chrono::seconds(2), [&] { return is_over; })) {
          for (const c10d_work& work : last) work->abort();
        }
      }
      waiter.join();
    } catch (...) {
      // No thread, no waiting.
    }
  }

  std::size_t heard(std::span<std::byte> room) {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      look(r);
      const std::vector<std::byte>& notice = at(r).notice;
      if (notice.empty()) continue;
      const std::size_t bytes = (std::min)(room.size(), notice.size());
      std::memcpy(room.data(), notice.data(), bytes);
      return bytes;
    }
    return 0;
  }

  peer_state state(int r) {
    if (r == rank_) return peer_state::alive;
    const std::lock_guard lock(mutex_);
    probe(r);
    look(r);  // what came before the end counts
    if (at(r).left) return peer_state::left;
    return at(r).broken ? peer_state::died : peer_state::alive;
  }

 private:
  static constexpr std::size_t depth = 16;
  static constexpr int tag = 0;

  struct posted {
    std::unique_ptr<c10d_frame> frame;
    c10d_work work;
  };
  struct sent_frame {
    std::unique_ptr<c10d_frame> frame;
    c10d_work work;
  };
  struct outgoing {
    const std::byte* data;
    std::size_t bytes;
    std::size_t moved;
    int channel;
    std::shared_ptr<const void> memory;  // of one that nobody asks for any more
  };
  struct incoming {
    std::byte* data;  // null: nobody asks for it any more
    std::size_t bytes;
    std::size_t moved;
  };
  /// What comes from one peer on one channel.
  struct stream {
    std::deque<incoming> asked;
    std::deque<std::unique_ptr<c10d_frame>> early;  // frames of messages without a receive
    std::uint64_t complete = 0;
  };
  struct peer {
    std::array<posted, depth> ring;  // frame n is in n % depth
    std::uint64_t frames_taken = 0;
    std::uint64_t room_made = 0;  // of those taken, how many have been posted again
    std::uint64_t room_told = 0;  // as the peer knows
    std::uint64_t frames_sent = 0;
    std::uint64_t room_there = 0;   // what the peer has told
    std::deque<sent_frame> frames;  // sent, with no room made for them since
    std::deque<outgoing> sends;     // not yet in frames as a whole
    std::uint64_t sends_complete = 0;
    std::array<stream, channels> streams;
    std::vector<std::byte> notice;
    bool met = false;
    bool left = false;
    bool broken = false;
  };

  peer& at(int r) noexcept { return peers_[static_cast<std::size_t>(r)]; }
  static std::string rank_text(int r) { return "rank " + std::to_string(r); }

  /// Another one for each frame of a session: memory that has been a frame
  /// before becomes one again.
  std::uint64_t mark(int from, int to, std::uint64_t number) const noexcept {
    const std::uint64_t pair =
        static_cast<std::uint64_t>(from) * peers_.size() + static_cast<std::uint64_t>(to);
    return session_ ^ (((pair << 40) ^ (number + 1)) * 0x9e3779b97f4a7c15);  // odd: one to one
  }

  /// A word that gloo's thread may be writing: no more than a hint that a wait
  /// will not wait.
  static std::uint64_t peek(const std::byte* at) noexcept {
    std::byte bytes[sizeof(std::uint64_t)];
    for (std::size_t i = 0; i < sizeof bytes; ++i) {
      bytes[i] = *static_cast<const volatile std::byte*>(at + i);
    }
    return std::bit_cast<std::uint64_t>(bytes);
  }

  /// What gloo refuses ends the connection; `state` tells.
  template <class Body>
  void attempt(int r, Body&& body) {
    try {
      body();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      at(r).broken = true;
    }
  }

  void post(int r, posted& p) {
    attempt(r, [&] {
      std::vector<at::Tensor> tensors{c10d_tensor(p.frame->data(), sizeof(c10d_frame))};
      p.work = backend_->recv(tensors, r, tag);
    });
  }

  void keep(std::unique_ptr<c10d_frame> frame) {
    if (spare_.size() < 4 * depth) spare_.push_back(std::move(frame));
  }

  std::unique_ptr<c10d_frame> take_spare() {
    if (spare_.empty()) return c10d_frame::make();
    auto frame = std::move(spare_.back());
    spare_.pop_back();
    return frame;
  }

  void send_frame(int r, c10d_frame_kind kind, int channel, std::size_t message_bytes,
                  const void* payload, std::size_t bytes) {
    peer& p = at(r);
    if (p.broken) return;
    p.frames.push_back({take_spare(), {}});
    c10d_frame& frame = *p.frames.back().frame;
    frame.head = {mark(rank_, r, p.frames_sent++),         message_bytes,
                  static_cast<std::uint32_t>(kind),        static_cast<std::uint32_t>(channel),
                  static_cast<std::uint32_t>(p.room_made), static_cast<std::uint32_t>(bytes)};
    p.room_told = p.room_made;
    if (bytes != 0) std::memcpy(frame.rest, payload, bytes);
    std::memcpy(frame.rest + bytes, &frame.head.mark, sizeof frame.head.mark);
    attempt(r, [&] {
      std::vector<at::Tensor> tensors{c10d_tensor(frame.data(), frame.size())};
      p.frames.back().work = backend_->send(tensors, r, tag);
    });
  }

  /// Sends as much as there is room for.
  void move_sends(int r) {
    peer& p = at(r);
    while (!p.sends.empty() && !p.broken && p.frames_sent < p.room_there + depth) {
      outgoing& s = p.sends.front();
      const std::size_t part = (std::min)(s.bytes - s.moved, c10d_frame::most_bytes);
      send_frame(r, c10d_frame_kind::data, s.channel, s.bytes, s.data + s.moved, part);
      s.moved += part;
      if (s.moved < s.bytes) continue;
      p.sends.pop_front();
      ++p.sends_complete;
    }
  }

  /// Takes the frames that have come from a peer, and sends what there is room
  /// for then.
  void look(int r) {
    peer& p = at(r);
    bool news = false;
    while (take_next(r)) news = true;
    if (!news || p.broken) return;
    move_sends(r);
    // One that only receives must tell now and then.
    if (p.room_made - p.room_told >= depth / 2) {
      send_frame(r, c10d_frame_kind::room, 0, 0, nullptr, 0);
    }
  }

  bool take_next(int r) {
    peer& p = at(r);
    posted& next = p.ring[p.frames_taken % depth];
    if (next.work == nullptr) return false;
    const std::uint64_t expected = mark(r, rank_, p.frames_taken);
    const std::byte* const memory = next.frame->data();
    if (peek(memory) != expected) return false;
    // Until the frame is there as a whole, its size is a hint, too.
    const auto bytes = static_cast<std::size_t>(
        static_cast<const volatile std::uint32_t&>(next.frame->head.bytes));
    if (bytes > c10d_frame::most_bytes ||
        peek(memory + sizeof(c10d_frame_head) + bytes) != expected) {
      return false;
    }
    bool complete = false;
    attempt(r, [&] { complete = next.work->wait(c10d_settled); });
    if (!complete) return false;
    next.work.reset();
    ++p.frames_taken;
    take(r, next.frame);
    if (p.frames_taken - p.room_made >= depth / 4) make_room(r);
    return true;
  }

  void make_room(int r) {
    peer& p = at(r);
    while (!p.broken && p.room_made < p.frames_taken) {
      posted& free = p.ring[p.room_made % depth];
      if (free.frame == nullptr) free.frame = take_spare();
      post(r, free);
      ++p.room_made;
    }
  }

  void take(int r, std::unique_ptr<c10d_frame>& frame) {
    peer& p = at(r);
    const c10d_frame_head& head = frame->head;
    // 32 bits are enough: fewer than `depth` are new.
    const std::uint32_t more = head.room - static_cast<std::uint32_t>(p.room_there);
    for (std::uint32_t i = 0; i < more && !p.frames.empty(); ++i) {
      p.frames.front().work.reset();  // waits for gloo's thread where that is
                                      // not through yet
      keep(std::move(p.frames.front().frame));
      p.frames.pop_front();
      ++p.room_there;
    }
    switch (static_cast<c10d_frame_kind>(head.kind)) {
      case c10d_frame_kind::hello:
        greet(r, *frame);
        break;
      case c10d_frame_kind::data: {
        stream& s = p.streams[head.channel % channels];
        if (s.asked.empty()) {
          s.early.push_back(std::move(frame));
        } else {
          deliver(r, s, *frame);
        }
        break;
      }
      case c10d_frame_kind::room:
        break;
      case c10d_frame_kind::notice:
        p.notice.assign(frame->rest, frame->rest + head.bytes);
        break;
      case c10d_frame_kind::goodbye:
        p.left = true;
        break;
    }
  }

  void greet(int r, const c10d_frame& frame) {
    c10d_hello hello{};
    std::memcpy(&hello, frame.rest, (std::min)(sizeof hello, std::size_t{frame.head.bytes}));
    const std::string who = "rankfold: c10d_transport: rank " + std::to_string(rank_) + " of " +
                            std::to_string(size()) + " could not start: " + rank_text(r);
    if (hello.magic != c10d_magic) {
      fault_ = who + " has another version of rankfold";
    } else if (hello.workspace_bytes != workspace_bytes_) {
      fault_ = who + " has a workspace of " + bytes_text(hello.workspace_bytes) + ", expected " +
               bytes_text(workspace_bytes_) + ", as this rank has";
    }
    hosts_[static_cast<std::size_t>(r)] = hello.host;
    at(r).met = true;
  }

  void deliver(int r, stream& s, const c10d_frame& frame) {
    incoming& where = s.asked.front();
    const std::size_t bytes = frame.head.bytes;
    if (frame.head.message_bytes > where.bytes || bytes > frame.head.message_bytes - where.moved) {
      fault_ = "rankfold: a message of " + std::to_string(frame.head.message_bytes) +
               " bytes came from " + rank_text(r) + " where one of at most " +
               std::to_string(where.bytes) + " was expected";
      return;
    }
    if (bytes != 0 && where.data != nullptr) {
      std::memcpy(where.data + where.moved, frame.rest, bytes);
    }
    where.moved += bytes;
    if (where.moved < frame.head.message_bytes) return;
    s.asked.pop_front();
    ++s.complete;
  }

  /// For what is found out where nothing can be thrown.
  void check_fault() const {
    if (!fault_.empty()) throw transport_error(fault_);
  }

  /// Whether gloo has seen the connection end. It tells only who waits; a wait
  /// that has been aborted ends at once. The receive that was posted last: the
  /// one that a frame is just coming for gets no exception.
  void probe(int r) {
    peer& p = at(r);
    if (p.broken) return;
    const c10d_work& work = p.ring[(p.room_made + depth - 1) % depth].work;
    if (work == nullptr) return;
    attempt(r, [&] {
      work->abort();
      work->wait(c10d_settled);
    });
  }

  /// Ends all connections. gloo keeps them while a transfer is there.
  void drop_everything() noexcept {
    backend_.reset();
    for (peer& p : peers_) {
      for (posted& one : p.ring) one.work.reset();
      for (sent_frame& one : p.frames) one.work.reset();
    }
  }

  c10::intrusive_ptr<::c10d::Backend> backend_;
  c10::intrusive_ptr<::c10d::Store> store_;
  const std::uint64_t session_;
  const int rank_;
  const std::size_t workspace_bytes_;
  const std::uint64_t host_;
  std::mutex mutex_;
  std::vector<std::uint64_t> hosts_;
  std::vector<peer> peers_;
  std::vector<std::unique_ptr<c10d_frame>> spare_;
  std::string fault_;
  bool has_said_last_ = false;
  bool has_failed_ = false;
};

}  // namespace detail

/// One rank of a torch.distributed process group whose CPU backend is gloo.
///
/// - All messages go over connections of its own, made by the group's gloo backend over the group's
///   store: torch's collectives are not disturbed, nor do their timeouts end anything here. The
///   group may be destroyed before the transport.
/// - No thread of torch waits for a peer: gloo's thread moves messages on, also outside of calls.
/// - A process that ends is seen as `died` at once, one that destroys its transport as `left`. A
///   host that cannot be reached any more, or a rank that is stopped, only a deadline ends.
/// - SIGPIPE must be ignored, as Python does: gloo writes to connections that peers have closed.
class c10d_transport {
  using link = detail::c10d_link;

 public:
  static constexpr int channels = link::channels;

  /// A transfer. One that is destroyed before it is done must have been given
  /// to `abandon`.
  class request {
   public:
    request() = default;
    request(request&&) noexcept = default;
    request& operator=(request&&) noexcept = default;

   private:
    friend class c10d_transport;
    enum class kind { none, send, receive };
    request(kind what, int peer, int channel, std::uint64_t number) noexcept
        : what_(what), peer_(peer), channel_(channel), number_(number) {}

    kind what_ = kind::none;
    int peer_ = 0;
    int channel_ = 0;
    std::uint64_t number_ = 0;
  };

  /// All ranks of the process group of that name, such as `dist.group.WORLD.group_name`.
  ///
  /// Collective: all ranks of the group; where one group gets several transports, in the same order
  ///             on all of them, and one at a time.
  /// Throws:     `rendezvous_error` where they do not all come in time, naming them;
  ///             `transport_error` where torch refuses something;
  ///             `std::invalid_argument` for a group that is not known here or has no gloo backend.
  static c10d_transport from(const std::string& group_name, c10d_options options = {}) {
    c10::intrusive_ptr<::c10d::ProcessGroup> group;
    try {
      group = ::c10d::resolve_process_group(group_name);
    } catch (const std::exception&) {
      throw std::invalid_argument(
          "rankfold: c10d_transport::from: there is no process group \"" + group_name +
          "\" in this process; torch.distributed.init_process_group makes the default one, whose "
          "name is torch.distributed.group.WORLD.group_name");
    }
    return from(group, std::move(options));
  }

  static c10d_transport from(const c10::intrusive_ptr<::c10d::ProcessGroup>& group,
                             c10d_options options = {}) {
    const int rank = group->getRank();
    const int size = group->getSize();
    detail::check_rank(rank, size);
    (void)detail::checked_segment_bytes(options.workspace_bytes, 1);
    c10::intrusive_ptr<::c10d::Backend> backend;
    std::string found = "none";
    try {
      backend = group->getBackend(c10::DeviceType::CPU);
      found = backend->getBackendName();
    } catch (const std::exception&) {
      backend.reset();
    }
    if (backend == nullptr || found != "gloo") {
      throw std::invalid_argument(
          "rankfold: c10d_transport::from: the process group's backend for the CPU is " + found +
          ", expected gloo: init_process_group(\"gloo\") or \"cpu:gloo,cuda:nccl\"");
    }
    const std::uint64_t host =
        options.host.empty() ? detail::c10d_host_mark() : detail::c10d_hash(options.host);
    return meet(std::move(backend), group->getStore(), "rankfold/c10d", rank, size,
                options.workspace_bytes, host, options.timeout, options.interrupt);
  }

  /// The transport of a group of this one's ranks; see splittable_transport.
  /// Has connections of its own, made as those of this one were.
  c10d_transport child(std::span<const int> members, int rank, std::string_view key,
                       const child_options& options = {}) const {
    const int size = static_cast<int>(members.size());
    detail::check_rank(rank, size);
    return meet(link_->backend(), link_->store(), "rankfold/c10d/" + std::string(key), rank, size,
                link_->workspace_bytes(), link_->host(), options.timeout, options.interrupt);
  }

  c10d_transport(c10d_transport&&) noexcept = default;
  c10d_transport& operator=(c10d_transport&& other) noexcept {
    c10d_transport taken(std::move(other));
    std::swap(link_, taken.link_);
    std::swap(generation_, taken.generation_);
    return *this;
  }
  ~c10d_transport() {
    if (link_ == nullptr) return;
    if (generation_ != detail::fork_generation()) {
      (void)link_.release();  // the parent's, with threads that this process
                              // does not have
      return;
    }
    link_->say_last(detail::c10d_frame_kind::goodbye, nullptr, 0);
    link_->flush();
  }

  int rank() const noexcept { return link_->rank(); }
  int size() const noexcept { return link_->size(); }
  std::string_view name() const noexcept { return "c10d"; }
  std::size_t workspace_bytes() const noexcept { return link_->workspace_bytes(); }
  peer_state state(int rank) const noexcept {
    try {
      return link_->state(rank);
    } catch (...) {
      return peer_state::alive;  // its next transfer has the error
    }
  }

  /// A number a rank, equal for ranks that say that they are on one host; see
  /// c10d_options::host.
  std::vector<int> hosts() const {
    const std::vector<std::uint64_t>& known = link_->hosts();
    std::vector<int> marks;
    for (const std::uint64_t host : known) {
      marks.push_back(
          static_cast<int>(std::find(known.begin(), known.end(), host) - known.begin()));
    }
    return marks;
  }

  request send(int peer, int channel, const std::byte* data, std::size_t bytes) {
    check(peer, channel);
    return {request::kind::send, peer, channel, link_->send(peer, channel, data, bytes)};
  }

  request receive(int peer, int channel, std::byte* data, std::size_t bytes) {
    check(peer, channel);
    return {request::kind::receive, peer, channel, link_->receive(peer, channel, data, bytes)};
  }

  bool done(request& r) {
    const bool is_done =
        r.what_ == request::kind::none ||
        (r.what_ == request::kind::send ? link_->sent(r.peer_, r.number_)
                                        : link_->received(r.peer_, r.channel_, r.number_));
    if (is_done) r = request();
    return is_done;
  }

  void abandon(request&& r, std::shared_ptr<const void> memory) noexcept {
    const request taken = std::exchange(r, request());
    if (taken.what_ == request::kind::send) {
      link_->keep_sending(taken.peer_, taken.number_, std::move(memory));
    } else if (taken.what_ == request::kind::receive) {
      link_->forget(taken.peer_, taken.channel_, taken.number_);
    }
  }

  void announce(std::span<const std::byte> notice) noexcept {
    RANKFOLD_ASSERT(1, notice.size() <= max_notice, "the notice is too long");
    link_->say_last(detail::c10d_frame_kind::notice, notice.data(), notice.size());
  }

  std::size_t heard(std::span<std::byte> notice) { return link_->heard(notice); }

 private:
  explicit c10d_transport(std::unique_ptr<link> made) : link_(std::move(made)) {}

  static c10d_transport meet(c10::intrusive_ptr<::c10d::Backend> parent,
                             c10::intrusive_ptr<::c10d::Store> store, std::string prefix, int rank,
                             int size, std::size_t workspace_bytes, std::uint64_t host,
                             std::chrono::milliseconds timeout,
                             const std::function<void()>& interrupt) {
    timeout = detail::bounded_time(timeout);
    const auto begin = std::chrono::steady_clock::now();
    const auto connected = std::make_shared<c10::intrusive_ptr<::c10d::Backend>>();
    const auto meeting = std::make_shared<detail::store_meeting>(
        detail::store_meeting::place{"c10d_transport", store, std::move(prefix), rank, size,
                                     timeout},
        "-", [parent, connected, rank, size](detail::store_meeting& met) {
          // Not split(): it writes to the options, which all groups made from this one share.
          const auto place =
              c10::make_intrusive<::c10d::PrefixStore>("gloo-" + met.session(), met.store());
          *connected = parent->merge(place, parent->getBackendOptions(), rank, size);
        });
    detail::store_meeting::run(meeting, interrupt);
    auto made = std::make_unique<link>(std::move(*connected), std::move(store),
                                       std::stoull(meeting->session().substr(0, 16), nullptr, 16),
                                       rank, size, workspace_bytes, host);
    auto asked = begin;
    for (;;) {
      const std::vector<int> missing = made->not_met();
      if (missing.empty()) return c10d_transport(std::move(made));
      const auto now = std::chrono::steady_clock::now();
      if (now - begin >= timeout) {
        throw rendezvous_error("rankfold: c10d_transport: rank " + std::to_string(rank) + " of " +
                               std::to_string(size) +
                               " could not start: " + detail::ranks_text(missing) +
                               " said nothing within " + detail::duration_text(timeout));
      }
      if (interrupt && now - asked >= std::chrono::milliseconds(100)) {
        asked = now;
        interrupt();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void check([[maybe_unused]] int peer, [[maybe_unused]] int channel) const {
    RANKFOLD_ASSERT(1, peer >= 0 && peer < size() && peer != rank(), "no such peer");
    RANKFOLD_ASSERT(1, channel >= 0 && channel < channels, "no such channel");
  }

  std::unique_ptr<link> link_;
  unsigned generation_ = detail::fork_generation();
};
static_assert(message_transport<c10d_transport> && splittable_transport<c10d_transport>);

/// Shared memory inside of a host, a torch.distributed process group between
/// hosts.
using c10d_hierarchical_transport = hierarchical_transport<shm_transport, c10d_transport>;

/// All ranks of the process group (its name, or itself), on whatever hosts they are. See
/// c10d_transport::from; ranks that say that they are on one host must meet by shm_transport, or
/// this throws on all of that host (and the others see at their first call that these have left).
template <class Group>
c10d_hierarchical_transport c10d_hierarchical(const Group& group,
                                              const c10d_options& options = {}) {
  c10d_transport all = c10d_transport::from(group, options);
  const std::vector<int> hosts = all.hosts();
  const int own = all.rank();
  const auto connect = [&](std::string_view key, int rank, int size) {
    try {
      return shm_transport::connect(key, rank, size,
                                    {.workspace_bytes = options.workspace_bytes,
                                     .timeout = options.timeout,
                                     .interrupt = options.interrupt});
    } catch (const rendezvous_error& e) {
      throw rendezvous_error(
          "rankfold: c10d_hierarchical: " +
          detail::ranks_text(host_layout::of(hosts).neighbours(own)) +
          " say that they are on one host, but cannot meet there: " + detail::inner_text(e.what()) +
          "; where they are not on one host, give each host a name in "
          "c10d_options::host");
    }
  };
  return c10d_hierarchical_transport::compose(
      std::move(all), hosts, connect, {.timeout = options.timeout, .interrupt = options.interrupt});
}

RANKFOLD_END_NAMESPACE
