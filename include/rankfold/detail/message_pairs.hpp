// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another over a message transport: what send and recv are made of there.
// A header goes first, with the data if they are few; else these follow in pieces,
// from and into memory of this rank, two of a transfer on their way at a time.
//
// Order: a transfer posts its first message when all before it, of its pair and direction, have
// posted their last. So the n-th receive meets the n-th send.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/pair_channels.hpp"
#include "rankfold/kernel/copy.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// What goes before a message's pieces.
struct pair_header {
  std::uint64_t magic;
  std::uint64_t fingerprint[2];
  std::uint64_t bytes;
  std::byte attached[992];
};
static_assert(sizeof(pair_header) == 1024);
inline constexpr std::uint64_t pair_header_magic = 0x3172646C6F666B72;  // "rkfoldr1" in memory

/// One rank's ends of its channels over messages; the twin of pair_channels.
template <class Transport>
class message_pairs {
  using request = typename Transport::request;

 public:
  static constexpr std::size_t piece_bytes = std::size_t{256} << 10;

  /// `headers` and `pieces` are channels of the transport.
  message_pairs(Transport& transport, int headers, int pieces)
      : transport_(transport),
        headers_(headers),
        pieces_(pieces),
        channels_(static_cast<std::size_t>(transport.size())) {}

  /// A transfer, and the messages that it has on their way.
  struct transfer : pair_transfer {
    struct memory {
      pair_header header;
      std::vector<std::byte> slots[2];
    };
    struct flight {
      std::shared_ptr<memory> room;
      std::deque<request> requests;  // in the order in which they were posted
    };
    std::shared_ptr<flight> under_way;
    std::size_t posted = 0;
    std::size_t pieces = 0;  // of the data that have been posted
    bool header_posted = false;
  };

  std::uint64_t next_place(const pair_transfer& t) noexcept {
    channel& c = of(t.peer);
    return t.way == pair_transfer::direction::send ? c.next_send++ : c.next_receive++;
  }

  /// Moves a transfer on as far as it goes without waiting. Not again once it is complete.
  pair_progress advance(transfer& t) {
    channel& c = of(t.peer);
    const bool sends = t.way == pair_transfer::direction::send;
    std::uint64_t& serving = sends ? c.send : c.receive;
    if (t.place != serving) return pair_progress::pending;
    if (!t.under_way) {
      t.under_way = sends || !c.ahead ? make_flight() : std::exchange(c.ahead, {});
      flights_.push_back(t.under_way);
    }
    const pair_progress how = sends ? send(t) : receive(t, c);
    if (how == pair_progress::complete) ++serving;
    return how;
  }

  /// Moves on what complete sends have left to be delivered; whether anything is.
  bool deliver() {
    for (std::size_t i = 0; i < flights_.size();) {
      auto& requests = flights_[i]->requests;
      // One that a transfer still looks after is not this function's.
      if (flights_[i].use_count() == 1) {
        while (!requests.empty() && transport_.done(requests.front())) requests.pop_front();
        if (requests.empty()) {
          flights_[i] = std::move(flights_.back());
          flights_.pop_back();
          continue;
        }
      }
      ++i;
    }
    return !flights_.empty();
  }

  /// Hands all that is under way to the transport.
  void abandon() noexcept {
    for (const auto& flight : flights_) abandon(*flight);
    flights_.clear();
    for (channel& c : channels_) {
      if (c.ahead) abandon(*std::exchange(c.ahead, {}));
    }
  }

  /// What the next message from a peer says it is, where one has come and no receive is to take it.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> incoming(int peer) {
    channel& c = of(peer);
    if (c.receive != c.next_receive) return std::nullopt;
    if (peer == transport_.rank()) {
      if (c.own.empty()) return std::nullopt;
      std::memcpy(c.found, c.own.front().data(), sizeof c.found);
      return next_fingerprint(peer);
    }
    if (!c.ahead) {
      c.ahead = make_flight();
      post_header(*c.ahead, peer);
    }
    if (!transport_.done(c.ahead->requests.front())) return std::nullopt;
    const pair_header& header = c.ahead->room->header;
    return std::pair{header.fingerprint[0], header.fingerprint[1]};
  }

  std::pair<std::uint64_t, std::uint64_t> next_fingerprint(int peer) const noexcept {
    const channel& c = of(peer);
    return {c.found[0], c.found[1]};
  }

  /// Whether this rank has sent itself something that it has not received.
  bool has_own_message() const noexcept {
    const channel& own = of(transport_.rank());
    return own.send > own.receive;
  }

 private:
  struct channel {
    std::uint64_t next_send = 0, send = 0;  // places: the next to give away, the one at its turn
    std::uint64_t next_receive = 0, receive = 0;
    std::uint64_t found[2] = {0, 0};  // of the message that was another than asked for
    std::shared_ptr<typename transfer::flight> ahead;  // a header that `incoming` has asked for
    std::deque<std::vector<std::byte>> own;            // messages of this rank to itself
  };

  channel& of(int r) noexcept { return channels_[static_cast<std::size_t>(r)]; }
  const channel& of(int r) const noexcept { return channels_[static_cast<std::size_t>(r)]; }

  void abandon(typename transfer::flight& flight) noexcept {
    for (request& r : flight.requests) transport_.abandon(std::move(r), flight.room);
    flight.requests.clear();
  }

  static bool fits(const transfer& t) noexcept { return t.bytes <= sizeof(pair_header::attached); }

  void fill_header(const transfer& t, pair_header& out) const {
    out.magic = pair_header_magic;
    out.fingerprint[0] = t.fingerprint[0];
    out.fingerprint[1] = t.fingerprint[1];
    out.bytes = t.bytes;
  }

  /// Where piece `n` goes in this rank's memory.
  static std::byte* slot(transfer& t, std::size_t n) {
    std::vector<std::byte>& room = t.under_way->room->slots[n % 2];
    if (room.empty()) room.resize((std::min)(t.bytes, piece_bytes));
    return room.data();
  }

  static std::shared_ptr<typename transfer::flight> make_flight() {
    auto made = std::make_shared<typename transfer::flight>();
    made->room = std::make_shared<typename transfer::memory>();
    return made;
  }

  void post_header(typename transfer::flight& flight, int peer) {
    flight.requests.push_back(transport_.receive(
        peer, headers_, reinterpret_cast<std::byte*>(&flight.room->header), sizeof(pair_header)));
  }

  pair_progress send(transfer& t) {
    auto& requests = t.under_way->requests;
    pair_header& header = t.under_way->room->header;
    if (t.peer == transport_.rank()) return send_to_self(t);
    if (!t.header_posted) {
      fill_header(t, header);
      if (fits(t)) {
        kernel::copy(header.attached, t.data, t.bytes);
        t.posted = t.bytes;
      }
      requests.push_back(transport_.send(t.peer, headers_,
                                         reinterpret_cast<const std::byte*>(&header),
                                         sizeof header - sizeof header.attached + t.posted));
      t.header_posted = true;
    }
    while (t.posted < t.bytes) {
      if (t.pieces >= 2 && !slot_is_free(t)) return pair_progress::pending;
      const std::size_t now = (std::min)(piece_bytes, t.bytes - t.posted);
      std::byte* const to = slot(t, t.pieces);
      kernel::copy(to, t.data + t.posted, now);
      requests.push_back(transport_.send(t.peer, pieces_, to, now));
      t.posted += now;
      ++t.pieces;
    }
    t.under_way.reset();  // deliver() sees to the rest
    return pair_progress::complete;
  }

  /// Whether the slot of the next piece is free: all requests but the newest are done.
  bool slot_is_free(transfer& t) {
    auto& requests = t.under_way->requests;
    while (requests.size() > 1) {
      if (!transport_.done(requests.front())) return false;
      requests.pop_front();
    }
    return true;
  }

  pair_progress receive(transfer& t, channel& c) {
    auto& requests = t.under_way->requests;
    pair_header& header = t.under_way->room->header;
    if (t.peer == transport_.rank()) return receive_from_self(t, c);
    if (!t.header_posted) {
      if (requests.empty()) post_header(*t.under_way, t.peer);
      t.header_posted = true;
    }
    if (!t.begun) {
      if (!transport_.done(requests.front())) return pair_progress::pending;
      requests.pop_front();
      if (header.magic != pair_header_magic || header.fingerprint[0] != t.fingerprint[0] ||
          header.fingerprint[1] != t.fingerprint[1] || header.bytes != t.bytes) {
        c.found[0] = header.fingerprint[0];
        c.found[1] = header.fingerprint[1];
        return pair_progress::mismatch;
      }
      t.begun = true;
      if (fits(t)) {
        kernel::copy(t.data, header.attached, t.bytes);
        t.moved = t.posted = t.bytes;
      }
    }
    while (t.moved < t.bytes) {
      while (t.posted < t.bytes && requests.size() < 2) {
        const std::size_t now = (std::min)(piece_bytes, t.bytes - t.posted);
        requests.push_back(transport_.receive(t.peer, pieces_, slot(t, t.pieces), now));
        t.posted += now;
        ++t.pieces;
      }
      if (!transport_.done(requests.front())) return pair_progress::pending;
      requests.pop_front();
      const std::size_t now = (std::min)(piece_bytes, t.bytes - t.moved);
      kernel::copy(t.data + t.moved, slot(t, t.moved / piece_bytes), now);
      t.moved += now;
    }
    t.under_way.reset();
    return pair_progress::complete;
  }

  pair_progress send_to_self(transfer& t) {
    std::vector<std::byte>& m = of(t.peer).own.emplace_back(sizeof t.fingerprint + t.bytes);
    std::memcpy(m.data(), t.fingerprint, sizeof t.fingerprint);
    kernel::copy(m.data() + sizeof t.fingerprint, t.data, t.bytes);
    t.under_way.reset();
    return pair_progress::complete;
  }

  pair_progress receive_from_self(transfer& t, channel& c) {
    if (c.own.empty()) return pair_progress::pending;
    const std::vector<std::byte>& m = c.own.front();
    if (std::memcmp(m.data(), t.fingerprint, sizeof t.fingerprint) != 0) {
      std::memcpy(c.found, m.data(), sizeof c.found);
      return pair_progress::mismatch;
    }
    kernel::copy(t.data, m.data() + sizeof t.fingerprint, t.bytes);
    c.own.pop_front();
    t.under_way.reset();
    return pair_progress::complete;
  }

  Transport& transport_;
  int headers_;
  int pieces_;
  std::vector<channel> channels_;
  std::vector<std::shared_ptr<typename transfer::flight>> flights_;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
