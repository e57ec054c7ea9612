// SPDX-License-Identifier: Apache-2.0
// The steps of context.hpp, over messages: so that every algorithm runs on both kinds of transport.
//
// In every step every rank sends every peer one packet: its flag line (fingerprint and payload) and
// what it `give`s this peer of its half; what is too large for a packet follows as messages of its
// own. A peer's lines and halves are mirrored in memory of this rank, where packets are
// unpacked: an algorithm reads them as if they were shared.
//
// The one rule of context.hpp holds here, too, and for the same reason. A rank receives the packet
// of step s only from its own step s on, so that step s - 2, whose mirror it overwrites, has been
// read. It sends step s only when its sends of step s - 2, from the same half, are complete, and
// when it has unpacked every peer's step s - 1: so that nobody is ever more than one step ahead,
// nothing has to be buffered without bound, and a rank that waits moves all transfers on, so that
// none waits for one that nobody receives.
//
// Failing: the first cause is announced to all peers by the transport; who waits listens.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/context_base.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/message_pairs.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// What a rank sends each peer in a step, up to the end of what is attached.
struct packet {
  static constexpr std::size_t max_regions = 4;
  static constexpr std::size_t header_bytes = 168;
  struct region {
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  std::uint64_t magic;
  std::uint64_t key;  // of the transport, if it has any
  std::uint64_t step;
  std::uint64_t fingerprint[2];
  std::uint64_t tuning_hash;
  std::uint64_t half_bytes;
  std::uint64_t regions;
  std::byte payload[inline_capacity];
  region region_of[max_regions];
  std::byte attached[48 * 1024];
};
static_assert(offsetof(packet, attached) == packet::header_bytes &&
              std::is_standard_layout_v<packet>);
inline constexpr std::uint64_t packet_magic = 0x3170646C6F666B72;  // "rkfoldp1" in memory

/// What is announced when a rank fails.
struct notice {
  std::uint64_t magic;
  std::uint32_t kind;
  std::int32_t rank;
  std::uint32_t text_size;
  std::uint32_t reserved;
  char text[1000];
};
static_assert(sizeof(notice) == max_notice);

}  // namespace detail

/// The state of one communicator on one rank of a message transport. Algorithms use next_step,
/// give, publish, wait and the memory accessors; nothing else here is theirs.
///
/// Thread-safety: one call at a time; `abort` from any thread.
template <message_transport Transport>
class context<Transport> : public detail::context_base<context<Transport>> {
  using base = detail::context_base<context>;
  friend base;

 public:
  context(Transport transport, const rankfold::tuning& tune, wait_options waiting)
      : base(transport.rank(), transport.size(), tune, std::move(waiting)),
        transport_(std::move(transport)),
        memory_(std::make_shared<buffers>(size_, workspace_bytes(transport_))),
        peers_(static_cast<std::size_t>(size_)),
        pairs_(transport_, pair_headers, pair_pieces),
        exceptions_(std::uncaught_exceptions()) {
    half_bytes_ = memory_->half_bytes;
  }

  ~context() {
    if (generation_ != detail::fork_generation()) return;
    try {
      if (!this->failed_ && !this->recorded()) leave();
    } catch (...) {
      // Whoever waits for this rank gets the error of its own deadline.
    }
    abandon_all();
  }

  const Transport& transport() const noexcept { return transport_; }
  Transport& transport() noexcept { return transport_; }

  // --- for algorithms
  // -----------------------------------------------------------------------------

  /// Begins the next step: after it, this rank's half and line of the step may be written. How much
  /// of the half is used makes no difference here.
  void next_step(std::size_t /*bytes*/ = 0) {
    this->count_step();
    if (this->recorded()) [[unlikely]]
      this->found_record();
    // What has failed before: a rank that comes late must not complete what the others gave up.
    listen_now_and_then(clock::now());
    if (all_seen_ + 1 < step_) [[unlikely]]
      catch_up();
    // The half and the packets of this step were last sent from in step_ - 2.
    wait_for_sends(sends_[step_ & 1], step_ - 1);
    for (link& p : peers_) p.regions = 0;
  }

  /// In this step `peer` reads `bytes` bytes at `offset` of the own half. Between next_step and
  /// publish.
  void give(int peer, std::size_t offset, std::size_t bytes) {
    if (bytes == 0 || peer == rank_) return;
    RANKFOLD_ASSERT(1, offset + bytes <= half_bytes_, "gives more than the half");
    auto& p = peers_[static_cast<std::size_t>(peer)];
    RANKFOLD_ASSERT(1, p.regions < detail::packet::max_regions, "gives too many pieces");
    p.region_of[p.regions++] = {offset, bytes};
  }

  /// The same for every peer.
  void give_all(std::size_t offset, std::size_t bytes) {
    for (int r = 0; r < size_; ++r) give(r, offset, bytes);
  }

  /// Publishes this step with up to 40 bytes of payload.
  void publish(const void* payload = nullptr, std::size_t bytes = 0) {
    for (int i = 1; i < size_; ++i) {
      const int r = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
      post(r, payload, bytes);
    }
  }

  /// Waits until `peer` has published this step, and checks that it made the same call.
  void wait(int peer) {
    wait_for([&] { return arrived(peer, step_); }, step_, "", [&] { return std::vector{peer}; });
  }

  /// Waits for every rank.
  void wait_all() {
    see_all(step_);
    all_seen_ = step_;
  }

  /// A rank's half of the workspace in this step. The own one may be written between next_step and
  /// publish, a peer's read between wait and the next publish.
  std::byte* half(int peer) const noexcept { return memory_->half(peer, step_ & 1); }

  /// The own half of the next step. May be written as soon as wait_all has returned.
  std::byte* next_half() {
    RANKFOLD_ASSERT(2, all_seen_ == step_, "next_half before wait_all");
    wait_for_sends(sends_[~step_ & 1], step_);
    return memory_->half(rank_, ~step_ & 1);
  }

  std::size_t half_bytes() const noexcept { return half_bytes_; }

  /// The payload that a rank published in this step.
  const std::byte* payload(int peer) const noexcept {
    return peers_[static_cast<std::size_t>(peer)].payload[step_ & 1];
  }

  // --- for what waits outside of the steps, in the middle of a call
  // -----------------------------------------------------------------------------

  /// Fails the call where it cannot be completed by all: throws what is recorded or announced, and
  /// peer_lost_error for a peer that is gone.
  void check_peers() {
    progress();
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) check_state(r, transport_.state(r), this->where(step_));
    }
  }

  // --- for send and recv: collective/send_recv.hpp says what a context offers them
  // -----------------------------------------------------------------------------

  using transfer = typename detail::message_pairs<Transport>::transfer;
  using base::advance;

  template <class Done, class Look>
  void wait_transfers(Done&& done, Look&& look) {
    const clock::time_point begin = clock::now();
    clock::time_point looked = begin;
    clock::time_point until = look(begin);
    while (!done()) {
      progress();
      if (waiting_.progress) waiting_.progress();
      const clock::time_point now = clock::now();
      if (now - looked >= slice || now >= until) {
        looked = now;
        until = look(now);
        if (waiting_.interrupt) waiting_.interrupt();
      }
      rest(now - begin);
    }
  }

  /// Nothing to do: who waits for messages looks again and again.
  void nudge() noexcept {}

  // --- for what is composed of contexts
  // -----------------------------------------------------------------------------

  /// Will not wait for anybody any more: what it is a part of has failed.
  void forsake() noexcept { this->failed_ = true; }

  /// Moves all transfers on, without blocking. Throws what a peer has announced.
  void progress() {
    if (this->recorded()) this->found_record();
    move_on();
    listen_now_and_then(clock::now());
  }

  /// Whether anything is under way that moves on only while this rank asks.
  bool has_transfers() { return !all_done(sends_[0]) || !all_done(sends_[1]) || pairs_.deliver(); }

 private:
  using clock = std::chrono::steady_clock;
  using request = typename Transport::request;
  using base::all_seen_;
  using base::deadline_;
  using base::generation_;
  using base::print_;
  using base::rank_;
  using base::size_;
  using base::slice;
  using base::step_;
  using base::waiting_;

  static constexpr std::size_t eager_part = 48 * 1024;
  static constexpr std::size_t most_parts = 6;
  static constexpr int packets = 0;  // channels
  static constexpr int pieces = 1;
  static constexpr int pair_headers = 2;
  static constexpr int pair_pieces = 3;

  /// All memory that messages are sent from and received in; outlives the context where transfers
  /// do.
  struct buffers {
    buffers(int size, std::size_t workspace)
        : half_bytes(detail::round_down(workspace / 2, detail::page)),
          packet_area(detail::round_up(3 * sizeof(detail::packet), detail::page)),
          stride(2 * half_bytes + packet_area),
          memory(detail::mapping::anonymous(stride * static_cast<std::size_t>(size))) {}

    std::byte* of(int rank) const noexcept {
      return memory.data() + static_cast<std::size_t>(rank) * stride;
    }
    std::byte* half(int rank, std::size_t parity) const noexcept {
      return of(rank) + packet_area + parity * half_bytes;
    }
    /// What is sent to a peer: one for each of two steps.
    detail::packet& outgoing(int rank, std::size_t parity) const noexcept {
      return reinterpret_cast<detail::packet*>(of(rank))[parity];
    }
    detail::packet& incoming(int rank) const noexcept {
      return reinterpret_cast<detail::packet*>(of(rank))[2];
    }

    std::size_t half_bytes;
    std::size_t packet_area;
    std::size_t stride;
    detail::mapping memory;
  };

  /// A send that is under way.
  struct pending {
    request what;
    int peer;
  };

  struct link {
    std::byte payload[2][detail::inline_capacity] = {};
    std::uint64_t complete = 0;  // the highest step that was received as a whole
    enum { idle, packet_posted, pieces_posted } stage = idle;
    std::vector<request> receives;
    std::size_t regions = 0;  // to be sent to it in this step
    detail::packet::region region_of[detail::packet::max_regions] = {};
  };

  static std::size_t workspace_bytes(const Transport& transport) {
    if constexpr (requires { transport.workspace_bytes(); }) {
      return (std::max)(transport.workspace_bytes(), 2 * detail::page);
    } else {
      return detail::default_workspace_bytes;
    }
  }

  std::uint64_t context_key() const {
    if constexpr (requires { transport_.context_key(); }) {
      return transport_.context_key();
    } else {
      return 0;
    }
  }

  bool arrived(int r, std::uint64_t s) const noexcept {
    return peers_[static_cast<std::size_t>(r)].complete >= s;
  }

  void see_all(std::uint64_t s) {
    wait_for(
        [&] {
          for (int r = 0; r < size_; ++r) {
            if (r != rank_ && !arrived(r, s)) return false;
          }
          return true;
        },
        s, "",
        [&] {
          std::vector<int> missing;
          for (int r = 0; r < size_; ++r) {
            if (r != rank_ && !arrived(r, s)) missing.push_back(r);
          }
          return missing;
        });
  }

  /// Sees every peer at the step before this one: what a rooted collective left undone.
  void catch_up() {
    see_all(step_ - 1);
    all_seen_ = step_ - 1;
  }

  // --- sending
  // ------------------------------------------------------------------------------------

  void post(int r, const void* payload, std::size_t bytes) {
    const link& p = peers_[static_cast<std::size_t>(r)];
    detail::packet& out = memory_->outgoing(r, step_ & 1);
    out.magic = detail::packet_magic;
    out.key = context_key();
    out.step = step_;
    out.fingerprint[0] = print_.words[0];
    out.fingerprint[1] = print_.words[1];
    out.tuning_hash = this->tuning_hash_;
    out.half_bytes = half_bytes_;
    out.regions = p.regions;
    if (bytes != 0) std::memcpy(out.payload, payload, bytes);
    std::copy_n(p.region_of, p.regions, out.region_of);
    const std::byte* const own = memory_->half(rank_, step_ & 1);
    const std::size_t attached =
        for_attached(out, [&](std::size_t offset, std::size_t size, std::byte* at) {
          std::memcpy(at, own + offset, size);
        });
    std::vector<pending>& sends = sends_[step_ & 1];
    sends.reserve(sends.size() + 1 + p.regions * most_parts);  // a request must not get lost
    sends.push_back({transport_.send(r, packets, reinterpret_cast<const std::byte*>(&out),
                                     detail::packet::header_bytes + attached),
                     r});
    for_pieces(out, [&](std::size_t offset, std::size_t size) {
      sends.push_back({transport_.send(r, pieces, own + offset, size), r});
    });
  }

  /// How much of what is given goes with the packet itself: of little, as much as fits.
  static std::size_t attached_bytes(const detail::packet& p) {
    std::size_t total = 0;
    for (std::size_t i = 0; i < p.regions; ++i) total += p.region_of[i].bytes;
    return total <= most_parts * eager_part ? (std::min)(total, sizeof p.attached) : 0;
  }

  /// f(offset in the half, bytes, place in the packet) for what goes with the packet, which is so
  /// many bytes.
  template <class Packet, class F>
  static std::size_t for_attached(Packet& p, F&& f) {
    const std::size_t all = attached_bytes(p);
    std::size_t done = 0;
    for (std::size_t i = 0; done < all; ++i) {
      const std::size_t now = (std::min)(std::size_t{p.region_of[i].bytes}, all - done);
      f(p.region_of[i].offset, now, p.attached + done);
      done += now;
    }
    return all;
  }

  /// f(offset in the half, bytes) for the messages that the rest goes in.
  template <class F>
  static void for_pieces(const detail::packet& p, F&& f) {
    std::size_t attached = attached_bytes(p);
    for (std::size_t i = 0; i < p.regions; ++i) {
      const std::size_t gone = (std::min)(attached, std::size_t{p.region_of[i].bytes});
      attached -= gone;
      for_parts({p.region_of[i].offset + gone, p.region_of[i].bytes - gone}, f);
    }
  }

  /// The messages that a region goes in. What is not much goes in several that need not wait for
  /// their receiver (MPI sends so much at once over TCP), what is much in one.
  template <class F>
  static void for_parts(const detail::packet::region& region, F&& f) {
    const std::size_t part = region.bytes <= most_parts * eager_part ? eager_part : region.bytes;
    for (std::size_t begin = 0; begin < region.bytes; begin += part) {
      f(region.offset + begin, (std::min)(part, region.bytes - begin));
    }
  }

  bool all_done(std::vector<pending>& sends) {
    while (!sends.empty()) {
      if (!transport_.done(sends.back().what)) return false;
      sends.pop_back();
    }
    return true;
  }

  /// Until the memory that these were sent from is free again.
  void wait_for_sends(std::vector<pending>& sends, std::uint64_t s) {
    wait_for([&] { return all_done(sends); }, s, "what was sent has not been received by ",
             [&] { return receivers(sends); });
  }

  static std::vector<int> receivers(const std::vector<pending>& sends) {
    std::vector<int> ranks;
    for (const pending& s : sends) ranks.push_back(s.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  // --- receiving
  // ----------------------------------------------------------------------------------

  /// Moves what is to be received on: of each peer the next step, up to the one of this rank.
  void move_on() {
    pairs_.deliver();
    for (int i = 1; i < size_; ++i) {
      const int r = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
      link& p = peers_[static_cast<std::size_t>(r)];
      while (p.complete < step_ && advance(r, p)) {
      }
    }
  }

  /// One stage of one peer's next step; whether it was passed.
  bool advance(int r, link& p) {
    detail::packet& in = memory_->incoming(r);
    switch (p.stage) {
      case link::idle:
        p.receives.reserve(detail::packet::max_regions * most_parts);
        p.receives.push_back(
            transport_.receive(r, packets, reinterpret_cast<std::byte*>(&in), sizeof in));
        p.stage = link::packet_posted;
        return true;
      case link::packet_posted:
        if (!transport_.done(p.receives.back())) return false;
        p.receives.clear();
        unpack(r, p, in);
        return true;
      case link::pieces_posted:
        while (!p.receives.empty()) {
          if (!transport_.done(p.receives.back())) return false;
          p.receives.pop_back();
        }
        finish(p, in);
        return true;
    }
    return false;
  }

  void unpack(int r, link& p, const detail::packet& in) {
    const std::uint64_t s = p.complete + 1;
    if (in.key != context_key()) {
      this->fail(detail::failure::transport,
                 this->where(step_) + "a packet of " + this->rank_text(r) +
                     " is one of another group: two groups got the same tags; split once more");
    }
    if (in.magic != detail::packet_magic) {
      this->fail(detail::failure::transport,
                 this->where(step_) + this->rank_text(r) +
                     " sent what is no packet of this version of rankfold");
    }
    this->compare_tuning(r, s, in.tuning_hash);
    this->compare(r, s, in.fingerprint);  // before anything that it sent is used
    if (in.half_bytes != half_bytes_) {
      this->fail(detail::failure::mismatch,
                 this->where(step_) + this->rank_text(r) + " has a workspace of " +
                     detail::bytes_text(2 * in.half_bytes) + ", " + this->rank_text(rank_) +
                     " one of " + detail::bytes_text(2 * half_bytes_));
    }
    bool fits = in.step == s && in.regions <= detail::packet::max_regions;
    for (std::size_t i = 0; fits && i < in.regions; ++i) {
      const detail::packet::region& piece = in.region_of[i];
      fits = piece.offset <= half_bytes_ && piece.bytes <= half_bytes_ - piece.offset;
    }
    if (!fits) {
      this->fail(detail::failure::transport,
                 this->where(step_) + "the packet of " + this->rank_text(r) +
                     " does not make sense: step " + std::to_string(in.step) + ", expected " +
                     std::to_string(s));
    }
    std::byte* const half = memory_->half(r, s & 1);
    for_pieces(in, [&](std::size_t offset, std::size_t size) {
      p.receives.push_back(transport_.receive(r, pieces, half + offset, size));
    });
    for_attached(in, [&](std::size_t offset, std::size_t size, const std::byte* at) {
      std::memcpy(half + offset, at, size);
    });
    if (p.receives.empty()) return finish(p, in);
    // From the back, where the first to come is wanted.
    std::reverse(p.receives.begin(), p.receives.end());
    p.stage = link::pieces_posted;
  }

  void finish(link& p, const detail::packet& in) {
    ++p.complete;
    std::memcpy(p.payload[p.complete & 1], in.payload, sizeof in.payload);
    p.stage = link::idle;
  }

  // --- waiting
  // ------------------------------------------------------------------------------------

  /// Waits until `ready()`; `who()` tells who is missing, of a step `s`.
  template <class Ready, class Who>
  void wait_for(Ready&& ready, std::uint64_t s, const char* what, Who&& who) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return;  // first: to look for a message takes a microsecond
      move_on();
    }
    const clock::time_point begin = clock::now();
    this->start_deadline(begin);
    clock::time_point looked = begin;
    for (;;) {
      move_on();
      if (ready()) return;
      if (this->recorded()) this->found_record();
      const clock::time_point now = clock::now();
      listen_now_and_then(now);
      if (now >= deadline_) {
        this->fail(detail::failure::timeout,
                   this->where(s) + (*what != 0 ? what : "") + this->ranks_text(who()) +
                       (*what != 0 ? " within " : " did not arrive within ") +
                       detail::duration_text(this->timeout_of_call()));
      }
      if (now - looked >= slice) {
        looked = now;
        for (const int r : who()) check_alive(r, s, ready);
        if (waiting_.interrupt) waiting_.interrupt();
      }
      if (waiting_.progress) waiting_.progress();
      rest(now - begin);
    }
  }

  /// Between two looks, after a wait of `waited`. Messages move on only while somebody asks: this
  /// is how late a rank may notice.
  static void rest(clock::duration waited) {
    if (waited < patience) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(waited < long_patience ? nap : long_nap);
    }
  }

  template <class Ready>
  void check_alive(int r, std::uint64_t s, Ready&& ready) {
    const peer_state state = transport_.state(r);
    if (state == peer_state::alive) return;
    move_on();  // what it sent before it went counts
    if (ready() || arrived(r, s)) return;
    check_state(r, state, this->where(s));
  }

  void check_state(int r, peer_state state, const std::string& where) {
    if (state == peer_state::alive) return;
    this->fail(detail::failure::peer_lost,
               where + this->rank_text(r) +
                   (state == peer_state::left ? " left (it destroyed its communicator)" : " died"));
  }

  // --- failing
  // ------------------------------------------------------------------------------------

  detail::abort_record& the_record() const noexcept { return record_; }

  /// Announces the record, if it is this rank's own.
  void spread() noexcept {
    // seq_cst: only a once-flag.
    if (announced_.exchange(true)) return;
    const auto [kind, text] = this->recorded_cause();
    detail::notice out{};
    out.magic = detail::packet_magic;
    out.kind = static_cast<std::uint32_t>(kind);
    out.rank = this->world_rank(rank_);
    out.text_size = static_cast<std::uint32_t>((std::min)(text.size(), sizeof out.text));
    std::memcpy(out.text, text.data(), out.text_size);
    transport_.announce(std::as_bytes(std::span(&out, 1)));
  }

  /// Throws what a peer has announced, if any has.
  void listen() {
    detail::notice in{};
    if (transport_.heard(std::as_writable_bytes(std::span(&in, 1))) < sizeof in ||
        in.magic != detail::packet_magic) {
      return;
    }
    announced_ = true;  // everybody has heard it
    this->record(static_cast<detail::failure>(in.kind),
                 {in.text, (std::min)(std::size_t{in.text_size}, sizeof in.text)});
    this->found_record();
  }

  /// Notices are rare, and to look for one costs as much as to look for a message.
  void listen_now_and_then(clock::time_point now) {
    if (now < listen_again_) return;
    listen_again_ = now + between_looks;
    listen();
  }

  /// In order: waits until all has been sent and received that was begun, so that nothing is lost
  /// and no peer waits for this rank in a call that it has made.
  void leave() {
    if (std::uncaught_exceptions() > exceptions_) {
      // The program is on its way out of something else: do not keep it, but tell.
      this->record(detail::failure::peer_lost,
                   this->rank_text(rank_) +
                       " left (it destroyed its communicator while an exception was thrown)");
      spread();
      return;
    }
    waiting_.interrupt = {};
    this->has_deadline_ = false;
    see_all(step_);
    for (std::vector<pending>& sends : sends_) wait_for_sends(sends, step_);
    wait_for([&] { return !pairs_.deliver(); }, step_,
             "a message that was sent has not been received", [] { return std::vector<int>(); });
  }

  /// Hands what is not complete to the transport.
  void abandon_all() noexcept {
    pairs_.abandon();
    for (std::vector<pending>& sends : sends_) {
      for (pending& s : sends) transport_.abandon(std::move(s.what), memory_);
      sends.clear();
    }
    for (link& p : peers_) {
      for (request& r : p.receives) transport_.abandon(std::move(r), memory_);
      p.receives.clear();
    }
  }

  static constexpr std::chrono::microseconds between_looks{1000};
  static constexpr std::chrono::microseconds nap{50};
  static constexpr std::chrono::milliseconds long_nap{1};
  static constexpr std::chrono::milliseconds patience{2};
  static constexpr std::chrono::milliseconds long_patience{200};

  Transport transport_;
  std::shared_ptr<buffers> memory_;
  std::size_t half_bytes_ = 0;
  std::vector<link> peers_;
  std::vector<pending> sends_[2];
  detail::message_pairs<Transport> pairs_;
  std::atomic<bool> announced_{false};
  mutable detail::abort_record record_{};
  clock::time_point listen_again_{};
  int exceptions_;  // under way when this was made
};

RANKFOLD_END_NAMESPACE
