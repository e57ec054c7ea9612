// SPDX-License-Identifier: Apache-2.0
// What every context is, however its ranks reach each other: one call at a time, the fingerprints
// of the last steps, the deadline, the record of the first failure, and how a call fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/pair_channels.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

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
  /// Called again and again while a call waits: moves on other transfers of this rank, and returns
  /// whether there are any. While there are, the call sleeps for no longer than `nap` at a time.
  std::function<bool()> progress = {};
  /// Whether `progress` matters to what the ranks wait for, so that no time is spent spinning.
  bool progress_first = false;

  static constexpr std::chrono::nanoseconds nap{std::chrono::microseconds(200)};
};

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

/// What an error is as an abort record.
inline failure failure_of_current_exception() noexcept {
  try {
    throw;
  } catch (const timeout_error&) {
    return failure::timeout;
  } catch (const peer_lost_error&) {
    return failure::peer_lost;
  } catch (const mismatch_error&) {
    return failure::mismatch;
  } catch (const transport_error&) {
    return failure::transport;
  } catch (...) {
    return failure::aborted;
  }
}

/// The base of a context. `Derived` has
///
///     abort_record& the_record() const noexcept;   // where the first failure is written
///     void spread() noexcept;                      // tells all ranks that there is a record
///
/// and what send and recv need, below.
template <class Derived>
class context_base {
 public:
  using clock = std::chrono::steady_clock;

  context_base(const context_base&) = delete;
  context_base& operator=(const context_base&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const rankfold::tuning& tuning() const noexcept { return tuning_; }
  /// For later calls. All ranks set the same between the same two calls: it is the tuning of
  /// creation that they have compared.
  void set_tuning(const rankfold::tuning& tune) noexcept {
    tuning_ = tune;
    tuning_.inline_max_bytes = (std::min)(tuning_.inline_max_bytes, inline_capacity);
  }
  std::chrono::milliseconds timeout() const noexcept { return waiting_.timeout; }
  /// For later calls; `milliseconds::max()` is as good as none.
  void set_timeout(std::chrono::milliseconds timeout) noexcept {
    waiting_.timeout = bounded_time(timeout);
  }

  /// While it lives, calls have `timeout` for all of them together, in the place of one each; sends
  /// and receives, which may outlast that, keep theirs.
  class limited_calls {
   public:
    limited_calls(context_base& context, std::chrono::milliseconds timeout)
        : limited_calls(context, timeout, clock::now() + bounded_time(timeout)) {}
    limited_calls(context_base& context, std::chrono::milliseconds timeout, clock::time_point until)
        : self_(context) {
      self_.limit_ = call_limit{bounded_time(timeout), until};
    }
    ~limited_calls() { self_.limit_.reset(); }
    limited_calls(const limited_calls&) = delete;
    limited_calls& operator=(const limited_calls&) = delete;

   private:
    context_base& self_;
  };

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

  const wait_options& waiting() const noexcept { return waiting_; }
  /// What calls move on while they wait; see wait_options. Between two calls.
  void set_progress(std::function<bool()> progress) { waiting_.progress = std::move(progress); }

  /// The same as a part of a call of `outer`, within its deadline.
  template <class Outer, class Body>
  void run_part(Outer& outer, const fingerprint& call, Body&& body) {
    const limited_calls only_here(*this, outer.timeout_of_call(), outer.deadline_of_call());
    run(call, std::forward<Body>(body));
  }

  /// How long this rank's call may take.
  std::chrono::milliseconds timeout_of_call() const noexcept {
    return limit_ ? limit_->timeout : waiting_.timeout;
  }

  /// When this rank's call must be complete.
  clock::time_point deadline_of_call() {
    start_deadline(clock::now());
    return deadline_;
  }

  // --- for send and recv: collective/send_recv.hpp says what a context offers them. `Derived` has
  // the transfers in `pairs_`, and `check_state(peer, state, where)`, which fails for a peer that
  // is gone.
  // -----------------------------------------------------------------------------

  auto begin_send(int peer, const fingerprint& print, const void* data, std::size_t bytes) {
    // Not written to where it is sent.
    return begin_transfer(pair_transfer::direction::send, peer, print, const_cast<void*>(data),
                          bytes);
  }

  auto begin_receive(int peer, const fingerprint& print, void* data, std::size_t bytes) {
    return begin_transfer(pair_transfer::direction::receive, peer, print, data, bytes);
  }

  template <std::derived_from<pair_transfer> Transfer>
  bool advance(Transfer& t) {
    if (t.complete) return true;
    const pair_progress how = derived().pairs_.advance(t);
    if (how == pair_progress::mismatch) [[unlikely]] {
      const auto [first, second] = derived().pairs_.next_fingerprint(t.peer);
      fail(failure::mismatch,
           where_of(t) + "ranks make different calls: " + rank_text(rank_) + " asked for " +
               fingerprint{{t.fingerprint[0], t.fingerprint[1]}}.describe() + ", " +
               rank_text(t.peer) + " for " + fingerprint{{first, second}}.describe());
    }
    return t.complete = how == pair_progress::complete;
  }

  template <std::derived_from<pair_transfer> Transfer>
  clock::time_point check(Transfer& t, clock::time_point now) {
    if (!t.has_deadline) {
      t.has_deadline = true;
      t.deadline = now + waiting_.timeout;
    }
    if (t.peer != rank_) {
      const peer_state state = derived().transport().state(t.peer);
      if (state != peer_state::alive) {
        // What it sent and took before it went counts, and what is before this one in the order.
        if (waiting_.progress) waiting_.progress();
        if (!advance(t)) derived().check_state(t.peer, state, where_of(t));
      }
    }
    if (now >= t.deadline && !advance(t)) {
      fail(failure::timeout,
           where_of(t) + rank_text(t.peer) +
               (t.way == pair_transfer::direction::send ? " did not receive it within "
                                                        : " did not send it within ") +
               duration_text(waiting_.timeout));
    }
    return t.deadline;
  }

  /// What the next message from a peer says it is, where one has come and no receive is to take it.
  std::optional<rankfold::fingerprint> incoming(int peer) {
    const auto found = derived().pairs_.incoming(peer);
    if (!found) return std::nullopt;
    return rankfold::fingerprint{{found->first, found->second}};
  }

  /// When a receive that is not begun must be complete.
  clock::time_point deadline_from_now() const noexcept { return clock::now() + waiting_.timeout; }

  bool is_gone(int peer) { return derived().transport().state(peer) != peer_state::alive; }

  /// Fails a receive that is not begun: for its deadline, or its peer, which is gone. Negative:
  /// any.
  [[noreturn]] void fail_receive(int peer) {
    const std::string text = where("recv from " + (peer < 0 ? "any rank" : rank_text(peer)));
    if (peer >= 0) derived().check_state(peer, derived().transport().state(peer), text);
    fail(failure::timeout, text + (peer < 0 ? "nobody" : rank_text(peer)) +
                               (peer < 0 ? " sent it within " : " did not send it within ") +
                               duration_text(waiting_.timeout));
  }

  /// Throws the first cause where the communicator was given up, by whichever rank.
  void check_given_up() {
    check_usable();
    if (recorded()) [[unlikely]]
      found_record();
  }

  bool has_own_message() const noexcept { return derived().pairs_.has_own_message(); }

  /// How many steps this rank has begun: what an algorithm's cost is counted in.
  std::uint64_t steps() const noexcept { return step_; }

  /// Room for one pointer a rank, for folds.
  const void** inputs() noexcept { return inputs_.data(); }

  /// Fails the call on all ranks with mismatch_error: for what algorithms compare themselves.
  [[noreturn]] void mismatch(const std::string& text) {
    fail(failure::mismatch, where(step_) + text);
  }

  /// Gives the communicator up on all ranks. Every call that waits, and every later call, throws
  /// aborted_error with `reason`. Any thread; never blocks.
  void abort(std::string_view reason) noexcept {
    if (generation_ != fork_generation()) return;
    try {
      record(failure::aborted, rank_text(rank_) + " aborted: " + std::string(reason));
    } catch (...) {
      record(failure::aborted, "aborted");
    }
    derived().spread();
  }

 protected:
  struct made_call {
    fingerprint print;
    std::uint64_t number = 0;
  };

  context_base(int rank, int size, const rankfold::tuning& tune, wait_options waiting)
      : waiting_(std::move(waiting)),
        rank_(rank),
        size_(size),
        generation_(fork_generation()),
        inputs_(static_cast<std::size_t>(size)) {
    set_tuning(tune);
    tuning_hash_ = tuning_.hash();
    waiting_.spin = (std::min)(waiting_.spin, slice);
    set_timeout(waiting_.timeout);
  }
  ~context_base() = default;

  /// Two threads in one communicator at the same time are an error of the caller.
  struct busy_guard {
    explicit busy_guard(context_base& c) : self(c) {
      // acquire pairs with the release below: the next thread sees this call's state.
      if (self.busy_.exchange(true, std::memory_order_acquire)) [[unlikely]]
        refuse();
    }
    ~busy_guard() { self.busy_.store(false, std::memory_order_release); }
    busy_guard(const busy_guard&) = delete;
    busy_guard& operator=(const busy_guard&) = delete;
    [[noreturn, gnu::cold]] static void refuse() {
      throw std::logic_error(
          "rankfold: two threads call one communicator at the same time; use one communicator a "
          "thread, or a lock");
    }
    context_base& self;
  };

  void enter(const fingerprint& call) {
    check_usable();
    print_ = call;
    ++calls_;
    has_deadline_ = false;
    // A short call reads the clock only when it has to wait: see wait_slow.
    if (call.count() >= long_call) start_deadline(clock::now());
  }

  void check_usable() const {
    if (failed_ || generation_ != fork_generation()) [[unlikely]]
      refuse();
  }

  [[noreturn, gnu::cold]] void refuse() const {
    if (failed_) throw aborted_error("communicator was given up; first error: " + cause_);
    throw error("rankfold: this communicator was made before fork(); make a new one in the child");
  }

  /// Begins step_ + 1 of the call.
  void count_step() {
    ++step_;
    made_[step_ % flag_lines] = {print_, calls_};
  }

  /// Compares the call that rank `r` published in step `s` with the own one.
  void compare(int r, std::uint64_t s, const std::uint64_t (&theirs)[2]) {
    const fingerprint& own = made_[s % flag_lines].print;
    if (theirs[0] != own.words[0] || theirs[1] != own.words[1]) [[unlikely]]
      fail_compare(r, s, {{theirs[0], theirs[1]}});
  }

  [[noreturn, gnu::cold]] void fail_compare(int r, std::uint64_t s, const fingerprint& theirs) {
    fail(failure::mismatch, where(s) + "ranks make different calls: " + rank_text(rank_) +
                                " asked for " + made_[s % flag_lines].print.describe() + ", " +
                                rank_text(r) + " for " + theirs.describe());
  }

  [[gnu::cold]] void compare_tuning(int r, std::uint64_t s, std::uint64_t theirs) {
    if (theirs == tuning_hash_) return;
    fail(failure::mismatch, where(s) + rank_text(r) + " has another tuning than " +
                                rank_text(rank_) +
                                "; pass the same communicator_options::tune on every rank");
  }

  /// The deadline counts from entry, in short calls from the first wait that is not short, which
  /// comes a few microseconds later.
  void start_deadline(clock::time_point now) {
    if (has_deadline_) return;
    has_deadline_ = true;
    deadline_ = limit_ ? limit_->until : now + waiting_.timeout;
  }

  /// "all_reduce (call 7) on rank 1 of 4 over shm: ", of the call that step `s` belongs to.
  std::string where(std::uint64_t s) const {
    const made_call& call = made_[s % flag_lines];
    return where(std::string(name_of(call.print.what())) + " (call " + std::to_string(call.number) +
                 ")");
  }

  std::string where(const std::string& what) const {
    return what + " on " + rank_text(rank_) + " of " + std::to_string(world_size()) + " over " +
           std::string(derived().transport().name()) + ": ";
  }

  /// The number of a rank for people: the one in the communicator that this context is a part of.
  int world_rank(int r) const {
    if constexpr (requires { derived().transport().world_rank(r); }) {
      return derived().transport().world_rank(r);
    } else {
      return r;
    }
  }
  int world_size() const {
    if constexpr (requires { derived().transport().world_size(); }) {
      return derived().transport().world_size();
    } else {
      return size_;
    }
  }
  std::string rank_text(int r) const { return "rank " + std::to_string(world_rank(r)); }
  std::string ranks_text(std::vector<int> ranks) const {
    for (int& r : ranks) r = world_rank(r);
    return detail::ranks_text(ranks);
  }

  bool recorded() const noexcept {
    // acquire pairs with the release store in `record`.
    return std::atomic_ref(derived().the_record().state).load(std::memory_order_acquire) != 0;
  }

  /// Writes the first cause; false if another rank was first.
  bool record(failure kind, std::string_view text) noexcept {
    abort_record& r = derived().the_record();
    std::uint32_t expected = 0;
    // acquire on failure: pairs with the release store below, of the rank that was first.
    if (!std::atomic_ref(r.state).compare_exchange_strong(expected, 1, std::memory_order_acq_rel,
                                                          std::memory_order_acquire)) {
      return false;
    }
    r.kind = static_cast<std::uint32_t>(kind);
    r.rank = world_rank(rank_);
    std::size_t length = (std::min)(text.size(), sizeof r.text);
    // Not in the middle of a character of UTF-8.
    while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;
    r.text_size = static_cast<std::uint32_t>(length);
    std::memcpy(r.text, text.data(), r.text_size);
    std::atomic_ref(r.state).store(
        2, std::memory_order_release);  // pairs with the load in recorded_cause
    return true;
  }

  /// What the abort record says. Waits a moment for a rank that is writing it.
  std::pair<failure, std::string> recorded_cause() const {
    abort_record& r = derived().the_record();
    const clock::time_point until = clock::now() + std::chrono::seconds(1);
    do {
      // acquire pairs with the release store in `record`.
      if (std::atomic_ref(r.state).load(std::memory_order_acquire) == 2) {
        return {static_cast<failure>(r.kind),
                std::string(r.text, (std::min)(std::size_t{r.text_size}, sizeof r.text))};
      }
      std::this_thread::yield();
    } while (clock::now() < until);
    return {failure::aborted, "another rank gave up and ended before it could say why"};
  }

  /// Throws what the abort record says. Tells all ranks before: an own publish may have overwritten
  /// a mark, and the rank that failed first may not have come to all of them.
  [[noreturn, gnu::cold]] void found_record() {
    derived().spread();
    const auto [kind, text] = recorded_cause();
    throw_first(kind, text);
  }

  [[noreturn, gnu::cold]] void fail(failure kind, const std::string& text) {
    if (!record(kind, text)) found_record();
    derived().spread();
    throw_first(kind, text);
  }

  [[noreturn]] void throw_first(failure kind, const std::string& text) {
    failed_ = true;
    cause_ = text;
    throw_failure(kind, text);
  }

  /// Handles whatever a call threw (a user's operator, the interrupt callback, the allocator, or
  /// one of the above); rethrows it.
  [[noreturn, gnu::cold]] void give_up() {
    if (!failed_) {
      failed_ = true;
      std::string_view text =
          "out of memory";  // all that is left to say where the text cannot be made
      try {
        cause_ = cause_of_current_exception();
        text = cause_;
      } catch (...) {
      }
      const bool first = record(failure_of_current_exception(), text);
      derived().spread();
      if (!first) {
        try {
          cause_ = recorded_cause().second;
        } catch (...) {
        }
      }
    }
    throw;
  }

  /// An error of the library says itself where it comes from.
  std::string cause_of_current_exception() const {
    try {
      throw;
    } catch (const error& e) {
      return e.what();
    } catch (...) {
      // A send or recv is no step of its own.
      const bool steps = print_.what() != collective::send_recv;
      return (steps ? where(step_) : where(std::string(name_of(print_.what())))) +
             text_of_current_exception();
    }
  }

  auto begin_transfer(pair_transfer::direction way, int peer, const fingerprint& print, void* data,
                      std::size_t bytes) {
    check_given_up();
    typename Derived::transfer t;
    t.way = way;
    t.peer = peer;
    t.fingerprint[0] = print.words[0];
    t.fingerprint[1] = print.words[1];
    t.data = static_cast<std::byte*>(data);
    t.bytes = bytes;
    t.place = derived().pairs_.next_place(t);
    return t;
  }

  /// "send to rank 2 (message 7) on rank 1 of 4 over shm: "; both ends count alike.
  std::string where_of(const pair_transfer& t) const {
    return where((t.way == pair_transfer::direction::send ? "send to " : "recv from ") +
                 rank_text(t.peer) + " (message " + std::to_string(t.place + 1) + ")");
  }

  /// A bound on calls, and what it was when it was set.
  struct call_limit {
    std::chrono::milliseconds timeout;
    clock::time_point until;
  };

  static constexpr std::chrono::nanoseconds slice{std::chrono::milliseconds(100)};
  static constexpr std::size_t long_call = 16384;  // elements

  rankfold::tuning tuning_;
  std::uint64_t tuning_hash_ = 0;
  wait_options waiting_;
  std::optional<call_limit> limit_;
  int rank_;
  int size_;
  unsigned generation_;

  // One call's state.
  std::atomic<bool> busy_{false};
  bool failed_ = false;
  bool has_deadline_ = false;
  std::uint64_t step_ = 0;
  std::uint64_t all_seen_ = 0;  // the highest step at which every peer has been seen
  std::uint64_t calls_ = 0;
  fingerprint print_;
  made_call made_[flag_lines];  // the calls of the last steps, for what is checked late
  clock::time_point deadline_{};
  std::string cause_;
  std::vector<const void*> inputs_;

 private:
  const Derived& derived() const noexcept { return static_cast<const Derived&>(*this); }
  Derived& derived() noexcept { return static_cast<Derived&>(*this); }
};

}  // namespace detail

/// The state of one communicator on one rank: specialised for memory transports in context.hpp, for
/// message transports in message_context.hpp.
template <class Transport>
class context;

RANKFOLD_END_NAMESPACE
