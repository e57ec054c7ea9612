// SPDX-License-Identifier: Apache-2.0
// What an algorithm runs on: steps, flags, waiting, deadline, abort. One protocol for every
// collective.
//
// Protocol (docs/memory-model.md; model in test/model/steps.pml)
//
// Time is counted in steps. In every step every rank publishes one flag line, also when it has
// nothing to send. Rank r owns W = 32 lines, used in turn (step mod W); only r writes them, but for
// the mark (bit 0 of the word), which a rank that aborts may set anywhere. A line holds step·2 +
// mark, the fingerprint of the call, and up to 40 bytes of payload. The workspace is cut into two
// halves, used in turn, too: in step s a rank writes only into half s & 1 of its own segment; what
// is small into one of W slots, which lie in the halves and are used in turn as the lines are.
//
// The one rule: before a rank writes a line or a slot for step s, both last used in step s - W, it
// has seen every peer at step s - W/2 or later, and compared its calls up to there; before it
// writes more of the half, last used in step s - 2, it has seen every peer at s - 1; and a rank
// publishes step s only when it has read all that it needs of step s - 1. So nobody can still be
// reading what is written over, and who waits for nobody runs up to W/2 steps ahead.
//
// Sleeping: the sleeper adds itself to the owner's `sleepers`, looks at the word again, then sleeps
// on its low half; the publisher exchanges the word, then looks for sleepers. All four are seq_cst,
// so at least one of the two sees the other.
//
// Abort: the first failing rank writes the record in rank 0's segment (compare-and-swap), then
// marks all lines of every rank and wakes all sleepers. An owner that overwrites a mark gets it
// back from its own exchange and marks its lines again, so a mark is never lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/context_base.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/cpu_set.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/futex.hpp"
#include "rankfold/detail/pair_channels.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/spin_wait.hpp"
#include "rankfold/detail/symmetric_allocation.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// The state of one communicator on one rank. Algorithms use next_step, publish, wait and the
/// memory accessors; nothing else here is theirs.
///
/// Thread-safety: one call at a time; `abort` from any thread.
template <memory_transport Transport>
class context<Transport> : public detail::context_base<context<Transport>> {
  using base = detail::context_base<context>;
  friend base;

 public:
  context(Transport transport, const rankfold::tuning& tune, wait_options waiting)
      : base(transport.rank(), transport.size(), tune, std::move(waiting)),
        transport_(std::move(transport)),
        peers_(static_cast<std::size_t>(size_)),
        places_(static_cast<std::size_t>(size_)),
        pairs_(rank_, segments(), transport_.segment_size(), Transport::crosses_processes) {
    for (int r = 0; r < size_; ++r) {
      std::byte* segment = transport_.segment(r);
      peer_view& p = peers_[static_cast<std::size_t>(r)];
      p.lines = detail::flags_of(segment);
      p.workspace = segment + detail::workspace_offset;
    }
    half_bytes_ = detail::segment_map::of(transport_.segment_size(), size_).half_bytes;
    if (half_bytes_ == 0) {
      throw std::invalid_argument(
          "rankfold: the transport's segments have " + std::to_string(transport_.segment_size()) +
          " bytes, expected at least " + std::to_string(detail::segment_bytes(1, size_)));
    }
    max_slot_bytes_ = (std::min)(most_slot, std::bit_floor(half_bytes_ / lead));
    std::byte* own = transport_.segment(rank_);
    cpus_ = pair_cpus_ = detail::allowed_cpus();
    std::memcpy(&detail::cpus_of(own), &cpus_, sizeof cpus_);
    // Published with this rank's first step (the exchange in publish); peers read it after that.
    detail::header_of(own).tuning_hash = this->tuning_hash_;
    lines_ = detail::flags_of(own);
    sleepers_ = &detail::sleepers_of(own).count;
  }

  ~context() {
    if (generation_ != detail::fork_generation()) return;  // a forked child touches nothing shared
    detail::mark_left(transport_.segment(rank_));
    wake(rank_);  // a sleeper that just misses this looks again after its slice
  }

  const Transport& transport() const noexcept { return transport_; }

  // --- for algorithms
  // -----------------------------------------------------------------------------

  /// Begins the next step, in which ranks use the first `bytes` bytes of their halves at most, the
  /// same number on all: after it, this rank's half and line of the step may be written. Steps that
  /// use nothing or little run ahead of ranks that are slow; see the head of this file.
  void next_step(std::size_t bytes = (std::numeric_limits<std::size_t>::max)()) {
    this->count_step();
    std::uint64_t least = step_ - (std::min)(step_, lead);
    if (bytes != 0) least = (std::max)(least, lay_out(bytes));
    awaited_bytes_ = bytes <= most_awaited ? bytes : 0;
    if (all_seen_ < least) [[unlikely]]
      catch_up(least);
  }

  /// In this step `peer` reads `bytes` bytes at `offset` of the own half. Between next_step and
  /// publish. Nothing to do where peers read memory; where they do not, this is what is sent.
  void give(int /*peer*/, std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {}

  /// The same for every peer.
  void give_all(std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {}

  /// Publishes this step with up to 40 bytes of payload: everything written to the own half before
  /// is visible to a peer that has waited for this rank.
  void publish(const void* payload = nullptr, std::size_t bytes = 0) {
    detail::flag_line& line = lines_[step_ % detail::flag_lines];
    // A rank that knows of an abort publishes no more. relaxed: only a short cut; the mark may as
    // well come a moment later, and is then found by the exchange.
    if ((std::atomic_ref(line.word).load(std::memory_order_relaxed) & 1) != 0) [[unlikely]]
      this->found_record();
    line.fingerprint[0] = print_.words[0];
    line.fingerprint[1] = print_.words[1];
    if (bytes != 0) std::memcpy(line.payload, payload, bytes);
    // seq_cst: release for `load` in wait and wait_slow; and ordered before the look at sleepers_,
    // which pairs with fetch_add(sleepers), load(word) in wait_slow.
    const std::uint64_t before =
        std::atomic_ref(line.word).exchange(step_ << 1, std::memory_order_seq_cst);
    if ((before & 1) != 0) [[unlikely]]
      this->found_record();
    if (std::atomic_ref(*sleepers_).load(std::memory_order_seq_cst) != 0) [[unlikely]] {
      detail::futex_wake(detail::low_half(&line.word), Transport::crosses_processes);
    }
  }

  /// Waits until `peer` has published this step, and checks that it made the same call.
  void wait(int peer) { see(peer, step_, /*for_all=*/false); }

  /// Waits for every rank.
  void wait_all() {
    for (int i = 1; i < size_; ++i) {
      const int peer = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
      see(peer, step_, /*for_all=*/true);
    }
    all_seen_ = step_;
  }

  /// A rank's half of the workspace in this step. The own one may be written between next_step and
  /// publish, a peer's read between wait and the next publish.
  std::byte* half(int peer) const noexcept {
    return peers_[static_cast<std::size_t>(peer)].workspace + used_offset_;
  }

  /// The own half of the next step. May be written as soon as wait_all has returned.
  std::byte* next_half() const noexcept {
    RANKFOLD_ASSERT(2, all_seen_ == step_, "next_half before wait_all");
    return peers_[static_cast<std::size_t>(rank_)].workspace + (~step_ & 1) * half_bytes_;
  }

  std::size_t half_bytes() const noexcept { return half_bytes_; }

  /// The payload that a rank published in this step.
  const std::byte* payload(int peer) const noexcept {
    return peers_[static_cast<std::size_t>(peer)].lines[step_ % detail::flag_lines].payload;
  }

  // --- for memory that the ranks allocate together, where the transport has it
  // -----------------------------------------------------------------------------

  detail::symmetric_allocations& symmetric() noexcept
    requires symmetric_transport<Transport>
  {
    return symmetric_;
  }

  /// Room for one pointer a rank: where their inputs lie in it, for a whole call.
  const std::byte** places() noexcept { return places_.data(); }

  // --- for what waits outside of the steps, in the middle of a call
  // -----------------------------------------------------------------------------

  /// Fails the call where it cannot be completed by all: throws what is recorded, and
  /// peer_lost_error for a peer that is gone.
  void check_peers() {
    if (this->recorded()) this->found_record();
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) check_state(r, transport_.state(r), this->where(step_));
    }
  }

  // --- for send and recv: collective/send_recv.hpp says what a context offers them
  // -----------------------------------------------------------------------------

  using transfer = detail::pair_transfer;
  using base::check;

  template <class Done, class Look>
  void wait_transfers(Done&& done, Look&& look) {
    if (may_spin_ || meets()) {
      for (int i = 0; i < 256; ++i) {
        if (done()) return;
        detail::spin_pause();
      }
      const clock::time_point begin = clock::now();
      while (clock::now() - begin < waiting_.spin / 32) {
        for (int i = 0; i < 64; ++i) {
          if (done()) return;
          detail::spin_pause();
        }
      }
      while (clock::now() - begin < waiting_.spin) {
        std::this_thread::yield();
        if (done()) return;
        if (waiting_.progress) waiting_.progress();
      }
    }
    for (int i = 0; i < yields; ++i) {
      if (done()) return;
      std::this_thread::yield();
    }
    clock::time_point looked = clock::now();
    clock::time_point until = look(looked);
    while (!done()) {
      const bool busy = waiting_.progress && waiting_.progress();
      {
        detail::bell_sleep bell(pairs_.bell());
        if (done()) return;
        // After the bell was read: whoever fails records it, then rings.
        if (this->recorded()) this->found_record();
        bell.sleep((std::clamp)(std::chrono::nanoseconds(until - clock::now()),
                                std::chrono::nanoseconds(1000), busy ? waiting_.nap : slice),
                   Transport::crosses_processes);
      }
      const clock::time_point now = clock::now();
      if (now - looked < slice && now < until) continue;
      looked = now;
      until = look(now);
      if (waiting_.interrupt) waiting_.interrupt();
    }
  }

  void nudge() noexcept {
    pairs_.ring(rank_);
    // A call that is about to sleep and misses this looks again after long_nap.
    if (std::uint32_t* const word = sleeping_on_.load()) {
      detail::futex_wake(word, Transport::crosses_processes);
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  using base::all_seen_;
  using base::deadline_;
  using base::generation_;
  using base::made_;
  using base::print_;
  using base::rank_;
  using base::size_;
  using base::slice;
  using base::step_;
  using base::tuning_;
  using base::waiting_;

  struct peer_view {
    detail::flag_line* lines = nullptr;
    std::byte* workspace = nullptr;
    std::uint64_t seen = 0;
    bool met = false;  // its CPUs are in pair_cpus_
  };

  /// Whether `peer` has published step `s`. Pairs with the exchange in publish.
  bool arrived(int peer, std::uint64_t s) const noexcept {
    return word_of(peer, s, std::memory_order_acquire) >> 1 == s;
  }

  std::uint64_t word_of(int peer, std::uint64_t s, std::memory_order order) const noexcept {
    return std::atomic_ref(
               peers_[static_cast<std::size_t>(peer)].lines[s % detail::flag_lines].word)
        .load(order);
  }

  /// Waits until `r` has published step `s`, and compares its calls up to there with the own ones.
  void see(int r, std::uint64_t s, bool for_all) {
    peer_view& p = peers_[static_cast<std::size_t>(r)];
    while (p.seen < s) {
      if (!arrived(r, p.seen + 1)) wait_slow(r, p.seen + 1, for_all);
      check(r, p);
    }
  }

  /// Compares the next call of rank `r`, whose step has arrived, with the own one.
  void check(int r, peer_view& p) {
    if (p.seen == 0) [[unlikely]]
      first_contact(r, 1);
    this->compare(r, p.seen + 1, p.lines[(p.seen + 1) % detail::flag_lines].fingerprint);
    ++p.seen;
  }

  /// Sees every peer at step `least`, of the steps before this one: what rooted collectives left
  /// undone. Then at what has come beyond, and half of the lead at least, so as to do this rarely.
  [[gnu::noinline]] void catch_up(std::uint64_t least) {
    if (step_ > lead / 2) least = (std::max)(least, step_ - lead / 2);
    std::uint64_t all = step_ - 1;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      peer_view& p = peers_[static_cast<std::size_t>(r)];
      see(r, least, /*for_all=*/true);
      while (p.seen < step_ - 1 && arrived(r, p.seen + 1)) check(r, p);
      all = (std::min)(all, p.seen);
    }
    all_seen_ = all;
  }

  /// Finds the place for `bytes` bytes in the half of this step; returns the step at which every
  /// peer must have been seen before it is written.
  ///
  /// What is small lies in a slot: as many as there are lines, used in the same turn, half of them
  /// in each half of the workspace. Where the steps before had slots of another size, all must have
  /// read the last of them.
  std::uint64_t lay_out(std::size_t bytes) {
    const std::size_t slot =
        bytes <= max_slot_bytes_ ? (std::max)(least_slot, std::bit_ceil(bytes)) : half_bytes_;
    if (slot != slot_bytes_) {
      slot_bytes_ = slot;
      if (used_ != 0) settled_ = used_ + 1;
    }
    used_ = step_;
    used_offset_ = (step_ & 1) * half_bytes_;
    if (slot == half_bytes_) return step_ - 1;
    used_offset_ += step_ / 2 % lead * slot;
    return (std::min)(settled_, step_ - 1);
  }

  [[gnu::cold]] void first_contact(int r, std::uint64_t s) {
    std::byte* segment = transport_.segment(r);
    this->compare_tuning(r, s, detail::header_of(segment).tuning_hash);
    detail::cpu_mask theirs;
    std::memcpy(&theirs, &detail::cpus_of(segment), sizeof theirs);
    cpus_ |= theirs;
    if (++contacts_ == size_ - 1) {
      may_spin_ = (std::min)(cpus_.count(), detail::cpu_quota()) >= size_;
    }
  }

  // --- send and recv
  // -------------------------------------------------------------------------------

  std::vector<std::byte*> segments() const {
    std::vector<std::byte*> all;
    for (int r = 0; r < size_; ++r) all.push_back(transport_.segment(r));
    return all;
  }

  /// Whether packets alone have shown that every rank has a CPU of its own: before all ranks have
  /// met in a step, the CPUs of those that this rank has met may be enough.
  bool meets() {
    if (pairs_spin_ || contacts_ == size_ - 1) return pairs_spin_;
    bool more = false;
    for (int r = 0; r < size_; ++r) {
      peer_view& p = peers_[static_cast<std::size_t>(r)];
      if (r == rank_ || p.met || !pairs_.met(r)) continue;
      p.met = more = true;
      detail::cpu_mask theirs;
      std::memcpy(&theirs, &detail::cpus_of(transport_.segment(r)), sizeof theirs);
      pair_cpus_ |= theirs;
    }
    if (more && pair_cpus_.count() >= size_) pairs_spin_ = detail::cpu_quota() >= size_;
    return pairs_spin_;
  }

  // --- waiting
  // ------------------------------------------------------------------------------------

  [[gnu::noinline]] void wait_slow(int r, std::uint64_t s, bool for_all) {
    const bool moves = waiting_.progress_first;
    if (may_spin_) {
      for (int i = 0; i < (moves ? 16 : 256); ++i) {
        // So that a few lines of data come at the same time as the flag, not after it.
        for (std::size_t b = 0; b < awaited_bytes_; b += detail::cache_line) {
          detail::prefetch(half(r) + b);
        }
        if (arrived(r, s)) return;
        detail::spin_pause();
      }
    }
    const clock::time_point begin = clock::now();
    this->start_deadline(begin);
    if (begin >= deadline_) timed_out(r, s, for_all);
    if (may_spin_) {
      // First for this core alone; then the peer, or what keeps it from arriving, may need the CPU.
      while (!moves && !marked(r, s) && clock::now() - begin < waiting_.spin / 32) {
        for (int i = 0; i < 64; ++i) {
          if (arrived(r, s)) return;
          detail::spin_pause();
        }
      }
      while (!marked(r, s) && clock::now() - begin < waiting_.spin) {
        std::this_thread::yield();
        if (arrived(r, s)) return;
        if (waiting_.progress) waiting_.progress();
      }
    }
    for (int i = 0; i < yields && !marked(r, s); ++i) {
      std::this_thread::yield();
      if (arrived(r, s)) return;
    }
    sleep_until_arrived(r, s, for_all);
  }

  bool marked(int r, std::uint64_t s) const noexcept {
    return (word_of(r, s, std::memory_order_acquire) & 1) != 0;
  }

  void sleep_until_arrived(int r, std::uint64_t s, bool for_all) {
    std::uint64_t& word = peers_[static_cast<std::size_t>(r)].lines[s % detail::flag_lines].word;
    std::uint32_t& sleepers = detail::sleepers_of(transport_.segment(r)).count;
    clock::time_point looked = clock::now();
    // A call that moves on other things, too, may be nudged to look for new ones.
    const bool moves = static_cast<bool>(waiting_.progress);
    const sleeping_place place(*this, moves ? detail::low_half(&word) : nullptr);
    for (;;) {
      const bool busy = moves && waiting_.progress();
      // seq_cst pair: pairs with exchange(word), load(sleepers) in publish.
      std::atomic_ref(sleepers).fetch_add(1, std::memory_order_seq_cst);
      const std::uint64_t now = std::atomic_ref(word).load(std::memory_order_seq_cst);
      const bool sleeps = now >> 1 != s && (now & 1) == 0;
      if (sleeps) {
        const auto left = deadline_ - clock::now();
        detail::futex_wait(
            detail::low_half(&word), static_cast<std::uint32_t>(now),
            (std::clamp)(std::chrono::nanoseconds(left), std::chrono::nanoseconds(1000),
                         busy    ? waiting_.nap
                         : moves ? long_nap
                                 : slice),
            Transport::crosses_processes);
      }
      // seq_cst for simplicity: only a count.
      std::atomic_ref(sleepers).fetch_sub(1, std::memory_order_seq_cst);
      if (arrived(r, s)) return;
      if (marked(r, s) || this->recorded()) this->found_record();
      const clock::time_point now_looked = clock::now();
      if (!moves || now_looked - looked >= slice) {
        looked = now_looked;
        check_alive(r, s, for_all);
        if (waiting_.interrupt) waiting_.interrupt();
      }
      if (now_looked >= deadline_) timed_out(r, s, for_all);
    }
  }

  /// Says on which word a call sleeps, for nudge.
  struct sleeping_place {
    sleeping_place(context& c, std::uint32_t* word) : self(c) { self.sleeping_on_.store(word); }
    ~sleeping_place() { self.sleeping_on_.store(nullptr); }
    sleeping_place(const sleeping_place&) = delete;
    sleeping_place& operator=(const sleeping_place&) = delete;
    context& self;
  };

  /// The ranks of this wait that have not published step `s`.
  std::vector<int> missing(int r, std::uint64_t s, bool for_all) const {
    std::vector<int> ranks;
    for (int p = 0; p < size_; ++p) {
      if ((for_all ? p != rank_ : p == r) && !arrived(p, s)) ranks.push_back(p);
    }
    return ranks;
  }

  void check_alive(int r, std::uint64_t s, bool for_all) {
    for (const int p : missing(r, s, for_all)) {
      const peer_state state = transport_.state(p);
      if (state == peer_state::alive) continue;
      // What it published before it went counts: look again, after the state.
      if (arrived(p, s)) continue;
      check_state(p, state, this->where(s));
    }
  }

  void check_state(int r, peer_state state, const std::string& where) {
    if (state == peer_state::alive) return;
    this->fail(detail::failure::peer_lost,
               where + this->rank_text(r) +
                   (state == peer_state::left ? " left (it destroyed its communicator)" : " died"));
  }

  /// The first step up to `s` that some rank has not published. Who is furthest behind waits for
  /// nobody, and the others wait for it.
  std::uint64_t first_missing(std::uint64_t s) const {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      std::uint64_t next = peers_[static_cast<std::size_t>(r)].seen + 1;
      while (next < s && arrived(r, next)) ++next;
      s = (std::min)(s, next);
    }
    return s;
  }

  /// Fails unless all that were waited for have arrived in the last moment. Names those whom the
  /// wait is for in the end.
  void timed_out(int r, std::uint64_t s, bool for_all) {
    const std::uint64_t first = first_missing(s);
    const std::vector<int> ranks = missing(r, first, for_all || first < s);
    if (ranks.empty()) return;
    this->fail(detail::failure::timeout, this->where(first) + this->ranks_text(ranks) +
                                             " did not arrive within " +
                                             detail::duration_text(this->timeout_of_call()));
  }

  // --- failing
  // ------------------------------------------------------------------------------------

  detail::abort_record& the_record() const noexcept {
    return detail::abort_of(transport_.segment(0));
  }

  /// Marks all lines of every rank and wakes whoever sleeps on them.
  void spread() noexcept {
    for (int r = 0; r < size_; ++r) mark(r);
  }

  void mark(int r) noexcept {
    for (std::size_t i = 0; i < detail::flag_lines; ++i) {
      std::uint64_t& word = peers_[static_cast<std::size_t>(r)].lines[i].word;
      // seq_cst: a sleeper has either read the mark, or sleeps on a word that has changed.
      std::atomic_ref(word).fetch_or(1, std::memory_order_seq_cst);
    }
    pairs_.ring(r);
    wake(r);
  }

  void wake(int r) noexcept {
    for (std::size_t i = 0; i < detail::flag_lines; ++i) {
      detail::futex_wake(detail::low_half(&peers_[static_cast<std::size_t>(r)].lines[i].word),
                         Transport::crosses_processes);
    }
  }

  static constexpr std::uint64_t lead = detail::max_lead;
  static constexpr std::size_t least_slot = 2 * detail::cache_line;
  static constexpr std::size_t most_slot = std::size_t{8} << 10;
  static constexpr int yields = 1;
  static constexpr std::size_t most_awaited = 512;  // more than that prefetching does not speed up
  static constexpr std::chrono::milliseconds long_nap{5};

  Transport transport_;
  std::size_t half_bytes_ = 0;
  std::size_t max_slot_bytes_ = 0;
  std::size_t slot_bytes_ = 0;     // of the last step that used the half; half_bytes_: all of it
  std::size_t used_offset_ = 0;    // where in the workspace
  std::uint64_t used_ = 0;         // that step
  std::uint64_t settled_ = 0;      // the step at which what lies under the slots has been read
  std::size_t awaited_bytes_ = 0;  // of a half in this step, where they are few
  bool may_spin_ = false;
  detail::flag_line* lines_ = nullptr;
  std::uint32_t* sleepers_ = nullptr;
  std::vector<peer_view> peers_;
  std::vector<const std::byte*> places_;
  detail::symmetric_allocations symmetric_;
  detail::cpu_mask cpus_;
  int contacts_ = 0;
  detail::pair_channels pairs_;
  detail::cpu_mask pair_cpus_;
  bool pairs_spin_ = false;
  std::atomic<std::uint32_t*> sleeping_on_{nullptr};
};

RANKFOLD_END_NAMESPACE
