// SPDX-License-Identifier: Apache-2.0
// What an algorithm runs on: steps, flags, waiting, deadline, abort. One protocol for every
// collective.
//
// Protocol (docs/memory-model.md; model in test/model/steps.pml)
//
// Time is counted in steps. In every step every rank publishes one flag line, also when it has
// nothing to send. Rank r owns two lines, used in turn (step & 1); only r writes them, but for the
// mark (bit 0 of the word), which a rank that aborts may set anywhere. A line holds step·2 + mark,
// the fingerprint of the call, and up to 40 bytes of payload. The workspace is cut into two halves,
// used in the same turn: in step s a rank writes only into half s & 1 of its own segment.
//
// The one rule: before a rank writes a line or a half for step s, both last used in step s - 2, it
// has seen every peer at step s - 1 or later; and a rank publishes step s only when it has read all
// that it needs of step s - 1. So nobody can still be reading what is written over.
//
// Sleeping: the sleeper adds itself to the owner's `sleepers`, looks at the word again, then sleeps
// on its low half; the publisher exchanges the word, then looks for sleepers. All four are seq_cst,
// so at least one of the two sees the other.
//
// Abort: the first failing rank writes the record in rank 0's segment (compare-and-swap), then
// marks both lines of every rank and wakes all sleepers. An owner that overwrites a mark gets it
// back from its own exchange and marks its lines again, so a mark is never lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/cpu_set.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/futex.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/spin_wait.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// What an abort record says went wrong; decides the type of the exception.
enum class failure : std::uint32_t { none, timeout, peer_lost, mismatch, transport, aborted };

[[noreturn]] inline void throw_failure(failure kind, const std::string& text) {
  switch (kind) {
    case failure::timeout:
      throw timeout_error(text);
    case failure::peer_lost:
      throw peer_lost_error(text);
    case failure::mismatch:
      throw mismatch_error(text);
    case failure::transport:
      throw transport_error(text);
    case failure::none:
    case failure::aborted:
      break;
  }
  throw aborted_error(text);
}

/// "rank 2", "ranks 1, 3 and 5".
inline std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

inline std::string seconds_text(std::chrono::nanoseconds time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  std::string text = std::to_string(ms / 1000);
  if (ms % 1000 != 0) text += '.' + std::to_string(1000 + ms % 1000).substr(1);
  return text + " s";
}

}  // namespace detail

/// How a context waits; local to a rank.
struct wait_options {
  /// A call that has not completed after this time throws timeout_error.
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// How long a rank stays awake before it sleeps, where every rank has a CPU of its own: a 32nd of
  /// it spinning, the rest offering the CPU to others.
  std::chrono::nanoseconds spin{std::chrono::microseconds(200)};
  /// Called about ten times a second while a call sleeps; what it throws ends the call and aborts
  /// the communicator. For Ctrl-C and the like.
  std::function<void()> interrupt = {};
};

/// The state of one communicator on one rank. Algorithms use next_step, publish, wait and the
/// memory accessors; nothing else here is theirs.
///
/// Thread-safety: one call at a time; `abort` from any thread.
template <memory_transport Transport>
class context {
 public:
  context(Transport transport, const tuning& tune, wait_options waiting)
      : transport_(std::move(transport)),
        tuning_(tune),
        waiting_(std::move(waiting)),
        rank_(transport_.rank()),
        size_(transport_.size()),
        generation_(detail::fork_generation()),
        peers_(static_cast<std::size_t>(size_)),
        inputs_(static_cast<std::size_t>(size_)) {
    for (int r = 0; r < size_; ++r) {
      std::byte* segment = transport_.segment(r);
      peer_view& p = peers_[static_cast<std::size_t>(r)];
      p.lines = detail::flags_of(segment);
      p.workspace = segment + detail::workspace_offset;
    }
    waiting_.spin = (std::min)(waiting_.spin, slice);
    set_timeout(waiting_.timeout);
    half_bytes_ = detail::round_down((transport_.segment_size() - detail::workspace_offset) / 2,
                                     detail::page);
    tuning_.inline_max_bytes = (std::min)(tuning_.inline_max_bytes, detail::inline_capacity);
    std::byte* own = transport_.segment(rank_);
    cpus_ = detail::allowed_cpus();
    std::memcpy(&detail::cpus_of(own), &cpus_, sizeof cpus_);
    // Published with this rank's first step (the exchange in publish); peers read it after that.
    detail::header_of(own).tuning_hash = tuning_.hash();
    lines_ = detail::flags_of(own);
    sleepers_ = &detail::sleepers_of(own).count;
  }

  context(const context&) = delete;
  context& operator=(const context&) = delete;

  ~context() {
    if (generation_ != detail::fork_generation()) return;  // a forked child touches nothing shared
    detail::mark_left(transport_.segment(rank_));
    wake(rank_);  // a sleeper that just misses this looks again after its slice
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const rankfold::tuning& tuning() const noexcept { return tuning_; }
  const Transport& transport() const noexcept { return transport_; }
  std::chrono::milliseconds timeout() const noexcept { return waiting_.timeout; }
  /// For later calls; `milliseconds::max()` is as good as none.
  void set_timeout(std::chrono::milliseconds timeout) noexcept {
    constexpr std::chrono::hours decade{24 * 3650};  // far from overflow in nanoseconds
    waiting_.timeout = (std::min)(timeout, std::chrono::milliseconds(decade));
  }

  /// Runs one collective call: checks that the communicator is usable, runs `body`, and aborts the
  /// communicator if it throws.
  template <class Body>
  void run(const fingerprint& call, Body&& body) {
    const busy_guard guard(*this);
    enter(call);
    try {
      body();
    } catch (...) {
      give_up();
    }
  }

  // --- for algorithms
  // -----------------------------------------------------------------------------

  /// Begins the next step: after it, this rank's half and line of the step may be written.
  void next_step() {
    ++step_;
    made_[step_ & 1] = {print_, calls_};
    if (all_seen_ + 1 < step_) [[unlikely]]
      catch_up();
  }

  /// In this step `peer` reads `bytes` bytes at `offset` of the own half. Between next_step and
  /// publish. Nothing to do where peers read memory; where they do not, this is what is sent.
  void give(int /*peer*/, std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {}

  /// The same for every peer.
  void give_all(std::size_t /*offset*/, std::size_t /*bytes*/) noexcept {}

  /// Publishes this step with up to 40 bytes of payload: everything written to the own half before
  /// is visible to a peer that has waited for this rank.
  void publish(const void* payload = nullptr, std::size_t bytes = 0) {
    detail::flag_line& line = lines_[step_ & 1];
    // A rank that knows of an abort publishes no more. relaxed: only a short cut; the mark may as
    // well come a moment later, and is then found by the exchange.
    if ((std::atomic_ref(line.word).load(std::memory_order_relaxed) & 1) != 0) [[unlikely]]
      found_mark();
    line.fingerprint[0] = print_.words[0];
    line.fingerprint[1] = print_.words[1];
    if (bytes != 0) std::memcpy(line.payload, payload, bytes);
    // seq_cst: release for `load` in wait and wait_slow; and ordered before the look at sleepers_,
    // which pairs with fetch_add(sleepers), load(word) in wait_slow.
    const std::uint64_t before =
        std::atomic_ref(line.word).exchange(step_ << 1, std::memory_order_seq_cst);
    if ((before & 1) != 0) [[unlikely]]
      found_mark();
    if (std::atomic_ref(*sleepers_).load(std::memory_order_seq_cst) != 0) [[unlikely]] {
      detail::futex_wake(detail::low_half(&line.word), Transport::crosses_processes);
    }
  }

  /// Waits until `peer` has published this step, and checks that it made the same call.
  void wait(int peer) {
    if (!arrived(peer, step_)) wait_slow(peer, step_, /*for_all=*/false);
    check(peer, step_);
  }

  /// Waits for every rank.
  void wait_all() {
    for (int i = 1; i < size_; ++i) {
      const int peer = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
      if (!arrived(peer, step_)) wait_slow(peer, step_, /*for_all=*/true);
      check(peer, step_);
    }
    all_seen_ = step_;
  }

  /// A rank's half of the workspace in this step. The own one may be written between next_step and
  /// publish, a peer's read between wait and the next publish.
  std::byte* half(int peer) const noexcept {
    return peers_[static_cast<std::size_t>(peer)].workspace + (step_ & 1) * half_bytes_;
  }

  /// The own half of the next step. May be written as soon as wait_all has returned.
  std::byte* next_half() const noexcept {
    RANKFOLD_ASSERT(2, all_seen_ == step_, "next_half before wait_all");
    return peers_[static_cast<std::size_t>(rank_)].workspace + (~step_ & 1) * half_bytes_;
  }

  std::size_t half_bytes() const noexcept { return half_bytes_; }

  /// Fails the call on all ranks with mismatch_error: for what algorithms compare themselves.
  [[noreturn]] void mismatch(const std::string& text) {
    fail(detail::failure::mismatch, where(step_) + text);
  }

  /// How many steps this rank has begun: what an algorithm's cost is counted in.
  std::uint64_t steps() const noexcept { return step_; }

  /// The payload that a rank published in this step.
  const std::byte* payload(int peer) const noexcept {
    return peers_[static_cast<std::size_t>(peer)].lines[step_ & 1].payload;
  }

  /// Room for one pointer a rank, for folds.
  const void** inputs() noexcept { return inputs_.data(); }

  // --- for the communicator
  // -----------------------------------------------------------------------

  /// Gives the communicator up on all ranks. Every call that waits, and every later call, throws
  /// aborted_error with `reason`. Any thread; never blocks.
  void abort(std::string_view reason) noexcept {
    if (generation_ != detail::fork_generation()) return;
    try {
      record(detail::failure::aborted,
             "rank " + std::to_string(rank_) + " aborted: " + std::string(reason));
    } catch (...) {
      record(detail::failure::aborted, "aborted");
    }
    mark_all();
  }

 private:
  using clock = std::chrono::steady_clock;

  struct peer_view {
    detail::flag_line* lines = nullptr;
    std::byte* workspace = nullptr;
    std::uint64_t seen = 0;
  };

  struct made_call {
    fingerprint print;
    std::uint64_t number = 0;
  };

  /// Two threads in one communicator at the same time are an error of the caller.
  struct busy_guard {
    explicit busy_guard(context& c) : self(c) {
      // acquire pairs with the release below: the next thread sees this call's state.
      if (self.busy_.exchange(true, std::memory_order_acquire)) {
        throw std::logic_error(
            "rankfold: two threads call one communicator at the same time; use one communicator a "
            "thread, or a lock");
      }
    }
    ~busy_guard() { self.busy_.store(false, std::memory_order_release); }
    busy_guard(const busy_guard&) = delete;
    busy_guard& operator=(const busy_guard&) = delete;
    context& self;
  };

  void enter(const fingerprint& call) {
    if (failed_) [[unlikely]]
      throw aborted_error("communicator was given up; first error: " + cause_);
    if (generation_ != detail::fork_generation()) [[unlikely]] {
      throw error(
          "rankfold: this communicator was made before fork(); make a new one in the child");
    }
    print_ = call;
    ++calls_;
    has_deadline_ = false;
    // A short call reads the clock only when it has to wait: see wait_slow.
    if (call.count() >= long_call) start_deadline(clock::now());
  }

  /// Whether `peer` has published step `s`. Pairs with the exchange in publish.
  bool arrived(int peer, std::uint64_t s) const noexcept {
    return word_of(peer, s, std::memory_order_acquire) >> 1 == s;
  }

  std::uint64_t word_of(int peer, std::uint64_t s, std::memory_order order) const noexcept {
    return std::atomic_ref(peers_[static_cast<std::size_t>(peer)].lines[s & 1].word).load(order);
  }

  /// Compares the call that rank `r` published in step `s` with the own one.
  void check(int r, std::uint64_t s) {
    peer_view& p = peers_[static_cast<std::size_t>(r)];
    if (p.seen == 0) [[unlikely]]
      first_contact(r, s);
    const detail::flag_line& line = p.lines[s & 1];
    const fingerprint& own = made_[s & 1].print;
    if (line.fingerprint[0] != own.words[0] || line.fingerprint[1] != own.words[1]) [[unlikely]] {
      const fingerprint theirs{{line.fingerprint[0], line.fingerprint[1]}};
      fail(detail::failure::mismatch,
           where(s) + "ranks make different calls: rank " + std::to_string(rank_) + " asked for " +
               own.describe() + ", rank " + std::to_string(r) + " for " + theirs.describe());
    }
    p.seen = s;
  }

  /// Sees every peer at the step before this one: what a rooted collective left undone.
  void catch_up() {
    const std::uint64_t s = step_ - 1;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || peers_[static_cast<std::size_t>(r)].seen >= s) continue;
      if (!arrived(r, s)) wait_slow(r, s, /*for_all=*/true);
      check(r, s);
    }
    all_seen_ = s;
  }

  void first_contact(int r, std::uint64_t s) {
    std::byte* segment = transport_.segment(r);
    const detail::segment_header& header = detail::header_of(segment);
    if (header.tuning_hash != tuning_.hash()) {
      fail(detail::failure::mismatch,
           where(s) + "rank " + std::to_string(r) + " has another tuning than rank " +
               std::to_string(rank_) + "; pass the same communicator_options::tune on every rank");
    }
    detail::cpu_mask theirs;
    std::memcpy(&theirs, &detail::cpus_of(segment), sizeof theirs);
    cpus_ |= theirs;
    if (++contacts_ == size_ - 1) {
      may_spin_ = (std::min)(cpus_.count(), detail::cpu_quota()) >= size_;
    }
  }

  // --- waiting
  // ------------------------------------------------------------------------------------

  void wait_slow(int r, std::uint64_t s, bool for_all) {
    if (may_spin_) {
      for (int i = 0; i < 256; ++i) {
        if (arrived(r, s)) return;
        detail::spin_pause();
      }
    }
    const clock::time_point begin = clock::now();
    start_deadline(begin);
    if (begin >= deadline_) timed_out(r, s, for_all);
    if (may_spin_) {
      // First for this core alone; then the peer, or what keeps it from arriving, may need the CPU.
      while (!marked(r, s) && clock::now() - begin < waiting_.spin / 32) {
        for (int i = 0; i < 64; ++i) {
          if (arrived(r, s)) return;
          detail::spin_pause();
        }
      }
      while (!marked(r, s) && clock::now() - begin < waiting_.spin) {
        std::this_thread::yield();
        if (arrived(r, s)) return;
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
    std::uint64_t& word = peers_[static_cast<std::size_t>(r)].lines[s & 1].word;
    std::uint32_t& sleepers = detail::sleepers_of(transport_.segment(r)).count;
    for (;;) {
      // seq_cst pair: pairs with exchange(word), load(sleepers) in publish.
      std::atomic_ref(sleepers).fetch_add(1, std::memory_order_seq_cst);
      const std::uint64_t now = std::atomic_ref(word).load(std::memory_order_seq_cst);
      const bool sleeps = now >> 1 != s && (now & 1) == 0;
      if (sleeps) {
        const auto left = deadline_ - clock::now();
        detail::futex_wait(
            detail::low_half(&word), static_cast<std::uint32_t>(now),
            (std::clamp)(std::chrono::nanoseconds(left), std::chrono::nanoseconds(1000), slice),
            Transport::crosses_processes);
      }
      // seq_cst for simplicity: only a count.
      std::atomic_ref(sleepers).fetch_sub(1, std::memory_order_seq_cst);
      if (arrived(r, s)) return;
      if (marked(r, s) || recorded()) found_mark();
      check_alive(r, s, for_all);
      if (waiting_.interrupt) waiting_.interrupt();
      if (clock::now() >= deadline_) timed_out(r, s, for_all);
    }
  }

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
      fail(detail::failure::peer_lost,
           where(s) + "rank " + std::to_string(p) +
               (state == peer_state::left ? " left (it destroyed its communicator)" : " died"));
    }
  }

  /// Fails unless all that were waited for have arrived in the last moment.
  void timed_out(int r, std::uint64_t s, bool for_all) {
    const std::vector<int> ranks = missing(r, s, for_all);
    if (ranks.empty()) return;
    fail(detail::failure::timeout, where(s) + detail::list_ranks(ranks) +
                                       " did not arrive within " +
                                       detail::seconds_text(waiting_.timeout));
  }

  /// The deadline counts from entry, in short calls from the first wait that is not short, which
  /// comes a few microseconds later.
  void start_deadline(clock::time_point now) {
    if (has_deadline_) return;
    has_deadline_ = true;
    deadline_ = now + waiting_.timeout;
  }

  // --- failing
  // ------------------------------------------------------------------------------------

  /// "all_reduce (call 7) on rank 1 of 4 over shm: ", of the call that step `s` belongs to.
  std::string where(std::uint64_t s) const {
    const made_call& call = made_[s & 1];
    return std::string(name_of(call.print.what())) + " (call " + std::to_string(call.number) +
           ") on rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " over " +
           std::string(transport_.name()) + ": ";
  }

  std::uint32_t& record_state() const noexcept {
    return detail::abort_of(transport_.segment(0)).state;
  }

  bool recorded() const noexcept {
    // acquire pairs with the release store in `record`.
    return std::atomic_ref(record_state()).load(std::memory_order_acquire) != 0;
  }

  /// Writes the first cause; false if another rank was first.
  bool record(detail::failure kind, std::string_view text) noexcept {
    detail::abort_record& r = detail::abort_of(transport_.segment(0));
    std::uint32_t expected = 0;
    // acquire on failure: pairs with the release store below, of the rank that was first.
    if (!std::atomic_ref(r.state).compare_exchange_strong(expected, 1, std::memory_order_acq_rel,
                                                          std::memory_order_acquire)) {
      return false;
    }
    r.kind = static_cast<std::uint32_t>(kind);
    r.rank = rank_;
    std::size_t length = (std::min)(text.size(), sizeof r.text);
    // Not in the middle of a character of UTF-8.
    while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;
    r.text_size = static_cast<std::uint32_t>(length);
    std::memcpy(r.text, text.data(), r.text_size);
    std::atomic_ref(r.state).store(
        2, std::memory_order_release);  // pairs with the load in read_record
    return true;
  }

  /// Marks both lines of every rank and wakes whoever sleeps on them.
  void mark_all() noexcept {
    for (int r = 0; r < size_; ++r) mark(r);
  }

  void mark(int r) noexcept {
    for (int i = 0; i < 2; ++i) {
      std::uint64_t& word = peers_[static_cast<std::size_t>(r)].lines[i].word;
      // seq_cst: a sleeper has either read the mark, or sleeps on a word that has changed.
      std::atomic_ref(word).fetch_or(1, std::memory_order_seq_cst);
    }
    wake(r);
  }

  void wake(int r) noexcept {
    for (int i = 0; i < 2; ++i) {
      detail::futex_wake(detail::low_half(&peers_[static_cast<std::size_t>(r)].lines[i].word),
                         Transport::crosses_processes);
    }
  }

  /// What the abort record says. Waits a moment for a rank that is writing it.
  std::pair<detail::failure, std::string> recorded_cause() const {
    const detail::abort_record& r = detail::abort_of(transport_.segment(0));
    const clock::time_point until = clock::now() + std::chrono::seconds(1);
    do {
      // acquire pairs with the release store in `record`.
      if (std::atomic_ref(record_state()).load(std::memory_order_acquire) == 2) {
        return {static_cast<detail::failure>(r.kind),
                std::string(r.text, (std::min)(std::size_t{r.text_size}, sizeof r.text))};
      }
      std::this_thread::yield();
    } while (clock::now() < until);
    return {detail::failure::aborted, "another rank gave up and ended before it could say why"};
  }

  /// Throws what the abort record says. Marks every line again before: an own publish may have
  /// overwritten a mark, and the rank that failed first may not have come to all of them.
  [[noreturn]] void found_mark() {
    mark_all();
    const auto [kind, text] = recorded_cause();
    throw_first(kind, text);
  }

  [[noreturn]] void fail(detail::failure kind, const std::string& text) {
    if (!record(kind, text)) found_mark();
    mark_all();
    throw_first(kind, text);
  }

  [[noreturn]] void throw_first(detail::failure kind, const std::string& text) {
    failed_ = true;
    cause_ = text;
    detail::throw_failure(kind, text);
  }

  /// Handles whatever a call threw (a user's operator, the interrupt callback, the allocator, or
  /// one of the above); rethrows it.
  [[noreturn]] void give_up() {
    if (!failed_) {
      failed_ = true;
      std::string_view text =
          "out of memory";  // all that is left to say where the text cannot be made
      try {
        cause_ = where(step_) + text_of_current_exception();
        text = cause_;
      } catch (...) {
      }
      const bool first = record(detail::failure::aborted, text);
      mark_all();
      if (!first) {
        try {
          cause_ = recorded_cause().second;
        } catch (...) {
        }
      }
    }
    throw;
  }

  static std::string text_of_current_exception() {
    try {
      throw;
    } catch (const std::exception& e) {
      return e.what();
    } catch (...) {
      return "an exception of unknown type";
    }
  }

  static constexpr std::chrono::nanoseconds slice{std::chrono::milliseconds(100)};
  static constexpr int yields = 1;
  static constexpr std::size_t long_call = 16384;  // elements

  Transport transport_;
  rankfold::tuning tuning_;
  wait_options waiting_;
  int rank_;
  int size_;
  unsigned generation_;
  std::size_t half_bytes_ = 0;

  // One call's state.
  std::atomic<bool> busy_{false};
  bool failed_ = false;
  bool has_deadline_ = false;
  bool may_spin_ = false;
  std::uint64_t step_ = 0;
  std::uint64_t all_seen_ = 0;  // the highest step at which every peer has been seen
  std::uint64_t calls_ = 0;
  fingerprint print_;
  made_call made_[2];  // the calls of the last two steps, for what catch_up checks
  detail::flag_line* lines_ = nullptr;
  std::uint32_t* sleepers_ = nullptr;
  std::vector<peer_view> peers_;
  std::vector<const void*> inputs_;

  clock::time_point deadline_{};
  std::string cause_;
  detail::cpu_mask cpus_;
  int contacts_ = 0;
};

RANKFOLD_END_NAMESPACE
