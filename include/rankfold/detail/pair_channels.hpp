// SPDX-License-Identifier: Apache-2.0
// Packets from one rank to another over shared memory: what send and recv are made of where ranks
// see each other's segments. The steps of the collectives are not touched.
//
// Invariant: packet n of a pair (from 1) is in line (n - 1) % packet_slots of the sender's segment,
// what does not fit there in the slot of its ring with the same index. The sender writes packet n
// only when the receiver has acknowledged packet n - packet_slots; the receiver reads it only when
// the line says n, and acknowledges it when it has copied everything out. Both count by themselves.
//
// Who writes: lines, slots and `ack` of a segment are its owner's alone; the bell is everybody's.
//
// Sleeping: who waits, for whatever peers, counts itself among the sleepers of its own bell, reads
// the bell, looks at its lines and acks once more, and sleeps on what it read. Who writes a word
// that a rank may wait for writes it, then looks for sleepers of that rank's bell, and if there are
// any raises the bell and wakes. All of these are seq_cst: one of the two sees the other.
//
// docs/memory-model.md has the proof; test/model/pairs.pml is the model.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/futex.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/kernel/copy.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// One message on its way, at one of its ends. What it points at stays until it is complete.
struct pair_transfer {
  enum class direction : std::uint8_t { send, receive };

  direction way = direction::send;
  bool begun = false;  // its first packet has been written, or checked
  int peer = 0;
  std::uint64_t fingerprint[2] = {0, 0};
  std::byte* data = nullptr;  // only read from where it is sent
  std::size_t bytes = 0;
  std::size_t moved = 0;
  std::uint64_t place = 0;  // among those of this pair and direction, from 0
  bool complete = false;
  bool has_deadline = false;
  std::chrono::steady_clock::time_point deadline{};
};

/// How far a transfer has come; `mismatch`: the message is another one than was asked for.
enum class pair_progress { pending, complete, mismatch };

/// One rank's ends of its channels to and from all ranks, itself included. One thread at a time,
/// but for `ring`.
class pair_channels {
 public:
  /// `segments` are those of all ranks, each of `bytes` bytes.
  pair_channels(int rank, const std::vector<std::byte*>& segments, std::size_t bytes,
                bool crosses_processes)
      : rank_(rank),
        crosses_processes_(crosses_processes),
        map_(segment_map::of(bytes, static_cast<int>(segments.size()))),
        slot_bytes_(map_.ring_bytes / packet_slots),
        channels_(segments.size()) {
    const int size = static_cast<int>(segments.size());
    std::byte* const own = segments[static_cast<std::size_t>(rank)];
    for (int r = 0; r < size; ++r) {
      std::byte* const theirs = segments[static_cast<std::size_t>(r)];
      channel& c = channels_[static_cast<std::size_t>(r)];
      c.bell = &bell_of(theirs);
      if (r == rank) continue;
      c.out = lines(own, r);
      c.out_ring = ring_of(own, rank, r);
      c.ack = &acks(theirs, size)[rank].word;
      c.in = lines(theirs, rank);
      c.in_ring = ring_of(theirs, r, rank);
      c.own_ack = &acks(own, size)[r].word;
    }
  }

  /// The place of a new transfer behind those of its pair and direction that are not complete.
  std::uint64_t next_place(const pair_transfer& t) noexcept {
    channel& c = of(t.peer);
    return t.way == pair_transfer::direction::send ? c.next_send++ : c.next_receive++;
  }

  /// Moves a transfer on as far as it goes without waiting. Not again once it is complete.
  pair_progress advance(pair_transfer& t) {
    channel& c = of(t.peer);
    const bool sends = t.way == pair_transfer::direction::send;
    std::uint64_t& serving = sends ? c.send : c.receive;
    if (t.place != serving) return pair_progress::pending;
    const pair_progress how = t.peer == rank_ ? (sends ? send_to_self(t) : receive_from_self(t))
                              : sends         ? send(t, c)
                                              : receive(t, c);
    if (how == pair_progress::complete) ++serving;
    return how;
  }

  /// What the message that is next from a peer says it is; after `mismatch`.
  std::pair<std::uint64_t, std::uint64_t> next_fingerprint(int peer) const noexcept {
    const channel& c = of(peer);
    if (peer == rank_) return {self_.front().fingerprint[0], self_.front().fingerprint[1]};
    const packet_line& line = c.in[c.received % packet_slots];
    return {line.fingerprint[0], line.fingerprint[1]};
  }

  /// What the next message from a peer says it is, where one has come and no receive is to take it.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> incoming(int peer) const noexcept {
    const channel& c = of(peer);
    if (c.receive != c.next_receive) return std::nullopt;
    if (peer == rank_) {
      if (self_.empty()) return std::nullopt;
    } else {
      // seq_cst: as in receive.
      const packet_line& line = c.in[c.received % packet_slots];
      if (std::atomic_ref(const_cast<std::uint64_t&>(line.word)).load(std::memory_order_seq_cst) !=
          c.received + 1) {
        return std::nullopt;
      }
    }
    return next_fingerprint(peer);
  }

  /// Whether a packet or an acknowledgement of this peer has ever been seen: then what it wrote
  /// before its first packet may be read, too.
  bool met(int peer) const noexcept { return of(peer).received != 0 || of(peer).acked != 0; }

  /// Whether this rank has sent itself something that it has not received.
  bool has_own_message() const noexcept { return !self_.empty(); }

  /// This rank's bell.
  bell_line& bell() const noexcept { return *of(rank_).bell; }

  /// Wakes a rank that sleeps on its bell, or makes it look once more if it is about to. Any
  /// thread.
  void ring(int rank) const noexcept {
    // seq_cst: after what the rank is to see, and pairs with the load in bell_sleep.
    std::atomic_ref(of(rank).bell->count).fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&of(rank).bell->count, crosses_processes_);
  }

 private:
  struct channel {
    // Towards the peer.
    packet_line* out = nullptr;
    std::byte* out_ring = nullptr;
    std::uint64_t* ack = nullptr;  // the peer's, of what this rank has sent
    std::uint64_t sent = 0;
    std::uint64_t acked = 0;  // the last that was read of it
    // From the peer.
    packet_line* in = nullptr;
    std::byte* in_ring = nullptr;
    std::uint64_t* own_ack = nullptr;
    std::uint64_t received = 0;

    bell_line* bell = nullptr;
    std::uint64_t next_send = 0, send = 0;  // places: the next to give away, the one at its turn
    std::uint64_t next_receive = 0, receive = 0;
  };

  struct own_message {
    std::uint64_t fingerprint[2];
    std::vector<std::byte> data;
  };

  channel& of(int rank) noexcept { return channels_[static_cast<std::size_t>(rank)]; }
  const channel& of(int rank) const noexcept { return channels_[static_cast<std::size_t>(rank)]; }

  packet_line* lines(std::byte* segment, int to) const noexcept {
    return reinterpret_cast<packet_line*>(segment + map_.pairs_offset) +
           static_cast<std::size_t>(to) * packet_slots;
  }
  packet_ack* acks(std::byte* segment, int size) const noexcept {
    return reinterpret_cast<packet_ack*>(lines(segment, size));
  }
  std::byte* ring_of(std::byte* segment, int owner, int to) const noexcept {
    return segment + map_.rings_offset +
           static_cast<std::size_t>(to < owner ? to : to - 1) * map_.ring_bytes;
  }

  /// After a store that this rank may wait for.
  void wake(const channel& c) const noexcept {
    // seq_cst pair: pairs with fetch_add(sleepers) in bell_sleep.
    if (std::atomic_ref(c.bell->sleepers).load(std::memory_order_seq_cst) == 0) [[likely]]
      return;
    // seq_cst: as in ring.
    std::atomic_ref(c.bell->count).fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&c.bell->count, crosses_processes_);
  }

  /// Whether the receiver has taken out the packet whose line and slot come next.
  bool may_send(channel& c) noexcept {
    if (c.sent - c.acked < packet_slots) return true;
    // seq_cst: release and order of the receiver's store in receive, whose reads of the slot come
    // before; and the look of a sleeper, which pairs with the load of sleepers in wake.
    c.acked = std::atomic_ref(*c.ack).load(std::memory_order_seq_cst);
    return c.sent - c.acked < packet_slots;
  }

  pair_progress send(pair_transfer& t, channel& c) noexcept {
    do {
      if (!may_send(c)) return pair_progress::pending;
      const std::size_t index = c.sent % packet_slots;
      packet_line& line = c.out[index];
      line.fingerprint[0] = t.fingerprint[0];
      line.fingerprint[1] = t.fingerprint[1];
      std::size_t now = t.bytes - t.moved;
      if (t.bytes <= inline_capacity) {
        if (now != 0) std::memcpy(line.payload, t.data, now);
      } else {
        now = now < slot_bytes_ ? now : slot_bytes_;
        kernel::copy(c.out_ring + index * slot_bytes_, t.data + t.moved, now);
      }
      t.moved += now;
      // seq_cst: release for the load in receive; and ordered before the look at sleepers in wake,
      // which pairs with fetch_add(sleepers), the load in receive, of one who goes to sleep.
      std::atomic_ref(line.word).store(++c.sent, std::memory_order_seq_cst);
      wake(c);
    } while (t.moved < t.bytes);
    return pair_progress::complete;
  }

  pair_progress receive(pair_transfer& t, channel& c) noexcept {
    do {
      const std::size_t index = c.received % packet_slots;
      packet_line& line = c.in[index];
      // seq_cst: acquire of the store in send; and the look of a sleeper, as in may_send.
      if (std::atomic_ref(line.word).load(std::memory_order_seq_cst) != c.received + 1) {
        return pair_progress::pending;
      }
      if (!t.begun &&
          (line.fingerprint[0] != t.fingerprint[0] || line.fingerprint[1] != t.fingerprint[1])) {
        return pair_progress::mismatch;
      }
      t.begun = true;
      std::size_t now = t.bytes - t.moved;
      if (t.bytes <= inline_capacity) {
        if (now != 0) std::memcpy(t.data, line.payload, now);
      } else {
        now = now < slot_bytes_ ? now : slot_bytes_;
        kernel::copy(t.data + t.moved, c.in_ring + index * slot_bytes_, now);
      }
      t.moved += now;
      // seq_cst: release of the reads above for may_send of the sender, who then writes over it;
      // and ordered before the look at sleepers in wake.
      std::atomic_ref(*c.own_ack).store(++c.received, std::memory_order_seq_cst);
      wake(c);
    } while (t.moved < t.bytes);
    return pair_progress::complete;
  }

  pair_progress send_to_self(const pair_transfer& t) {
    own_message& m = self_.emplace_back();
    m.fingerprint[0] = t.fingerprint[0];
    m.fingerprint[1] = t.fingerprint[1];
    if (t.bytes != 0) m.data.assign(t.data, t.data + t.bytes);
    return pair_progress::complete;
  }

  pair_progress receive_from_self(const pair_transfer& t) {
    if (self_.empty()) return pair_progress::pending;
    own_message& m = self_.front();
    if (m.fingerprint[0] != t.fingerprint[0] || m.fingerprint[1] != t.fingerprint[1]) {
      return pair_progress::mismatch;
    }
    kernel::copy(t.data, m.data.data(), t.bytes);
    self_.pop_front();
    return pair_progress::complete;
  }

  int rank_;
  bool crosses_processes_;
  segment_map map_;
  std::size_t slot_bytes_;
  std::vector<channel> channels_;
  std::deque<own_message> self_;
};

/// Sleeps on a bell. While it lives, whoever changes what its owner waits for rings.
class bell_sleep {
 public:
  explicit bell_sleep(bell_line& bell) noexcept : bell_(bell) {
    // seq_cst pair: pairs with the stores of words in send and receive, load(sleepers) in wake.
    std::atomic_ref(bell_.sleepers).fetch_add(1, std::memory_order_seq_cst);
    // seq_cst: before the looks that follow; pairs with fetch_add(count) in wake and ring.
    seen_ = std::atomic_ref(bell_.count).load(std::memory_order_seq_cst);
  }
  bell_sleep(const bell_sleep&) = delete;
  bell_sleep& operator=(const bell_sleep&) = delete;
  ~bell_sleep() {
    // seq_cst for simplicity: a count that may be too high for a moment, which costs a wake-up.
    std::atomic_ref(bell_.sleepers).fetch_sub(1, std::memory_order_seq_cst);
  }

  /// Unless the bell has been rung since. What is waited for has been looked at in between.
  void sleep(std::chrono::nanoseconds most, bool crosses_processes) noexcept {
    futex_wait(&bell_.count, seen_, most, crosses_processes);
  }

 private:
  bell_line& bell_;
  std::uint32_t seen_ = 0;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
