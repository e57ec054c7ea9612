// SPDX-License-Identifier: Apache-2.0
// Calls that return before they are complete: a queue that owns a communicator, with a thread of
// its own.
//
// Collectives are carried out one after the other, in the order in which they were posted; sends
// and receives at once, side by side, also while a collective waits (wait_options::progress).
// Whoever has the *turn* does it: the queue's thread, or a thread that waits for a handle while
// nobody else is at it. So a call that is waited for at once costs no change of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>
#include <signal.h>

#include "rankfold/collective/send_recv.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

class async_core;

/// Something posted, as its handles see it.
struct async_task {
  explicit async_task(bool waits_for_turn) : in_order(waits_for_turn) {}
  virtual ~async_task() = default;

  const bool in_order;  // one of the calls that are carried out one after the other

  std::shared_ptr<async_core> core;
  std::atomic<bool> done{false};                                   // set under the core's mutex
  std::exception_ptr error;                                        // before `done`
  std::vector<std::function<void(std::exception_ptr)>> callbacks;  // under the core's mutex
};

/// What a queue is for handles, whatever its transport.
///
/// Invariant: `turn_` says that a thread is at the communicator; it is taken and given back under
/// `mutex_`, so that what one thread has done is seen by the next.
class async_core {
 public:
  async_core() : generation_(fork_generation()) {}
  async_core(const async_core&) = delete;
  async_core& operator=(const async_core&) = delete;
  virtual ~async_core() = default;

  void wait(const async_task& task) {
    if (is_done(task)) return;
    check_process();
    pace asking;
    std::unique_lock lock(mutex_);
    while (!is_done(task)) {
      if (!turn_ && may_carry_out(task)) {
        take_turn(lock, &task, &asking);
      } else {
        check_not_own_turn();
        if (!turn_) worker_.notify_one();
        rest(lock, std::chrono::steady_clock::now() + slice);
      }
      if (!is_done(task)) ask(lock, asking);
    }
  }

  /// For `most`; false when it is over. Leaves the work to others, unless it is sure to be done in
  /// that time.
  bool wait_for(const async_task& task, std::chrono::milliseconds most) {
    if (is_done(task)) return true;
    check_process();
    const auto until = std::chrono::steady_clock::now() + bounded_time(most);
    pace asking;
    std::unique_lock lock(mutex_);
    check_not_own_turn();
    if (!turn_ && ends_within(task, most)) {
      take_turn(lock, &task, &asking);
      if (is_done(task)) return true;
    }
    if (!turn_) worker_.notify_one();
    while (!is_done(task) && std::chrono::steady_clock::now() < until) {
      rest(lock, (std::min)(until, std::chrono::steady_clock::now() + slice));
      ask(lock, asking);
    }
    return is_done(task);
  }

  void then(async_task& task, std::function<void(std::exception_ptr)> callback) {
    if (!is_done(task)) {
      check_process();
      const std::lock_guard lock(mutex_);
      if (!is_done(task)) {
        task.callbacks.push_back(std::move(callback));
        return;
      }
    }
    callback(task.error);
  }

  /// acquire pairs with the release store in complete: the error, and all that the call wrote.
  static bool is_done(const async_task& task) noexcept {
    return task.done.load(std::memory_order_acquire);
  }

 protected:
  void check_process() const {
    if (generation_ == fork_generation()) return;
    throw error("rankfold: this queue was made before fork(); make a new one in the child");
  }

  bool forked() const noexcept { return generation_ != fork_generation(); }

  static constexpr std::chrono::milliseconds slice{100};

  /// When who waits is to ask for interruptions: a slice after it last did, or began.
  class pace {
   public:
    bool is_due() {
      const auto now = std::chrono::steady_clock::now();
      if (since_ == std::chrono::steady_clock::time_point{}) since_ = now;
      return now - since_ >= slice;
    }
    void begin_anew() { since_ = {}; }

   private:
    std::chrono::steady_clock::time_point since_{};  // none: not looked at yet
  };

  /// Carries out what is there until nothing is left; for who waits, until `until` is done or may
  /// no longer be waited for that way, or it is to ask for interruptions. With the lock and the
  /// turn; without the lock while it works.
  virtual void drive(std::unique_lock<std::mutex>& lock, const async_task* until, pace* asking) = 0;
  virtual bool has_work() const noexcept = 0;  // with the lock
  /// Whether a thread that waits for `task` alone may carry things out: for a transfer no calls, of
  /// which it does not know how long they take. With the lock.
  virtual bool may_carry_out(const async_task& task) const noexcept = 0;
  /// Whether `task` is next, and has no longer than this. With the lock.
  virtual bool ends_within(const async_task& task, std::chrono::milliseconds most) const = 0;
  virtual void give_up(std::string_view reason) noexcept = 0;
  /// The interrupt callback. Without the lock.
  virtual void interrupt() = 0;

  /// Waits for a change.
  void rest(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point until) {
    ++waiters_;
    changed_.wait_until(lock, until);
    --waiters_;
  }

  /// Asks for interruptions where that is due, however much changes meanwhile.
  void ask(std::unique_lock<std::mutex>& lock, pace& asking) {
    if (!asking.is_due()) return;
    asking.begin_anew();
    lock.unlock();
    try {
      interrupt();
    } catch (...) {  // as for who carries out: it ends the call
      give_up(text_of_current_exception());
      throw;
    }
    lock.lock();
  }

  void take_turn(std::unique_lock<std::mutex>& lock, const async_task* until = nullptr,
                 pace* asking = nullptr) {
    turn_ = true;
    owner_ = std::this_thread::get_id();
    drive(lock, until, asking);
    turn_ = false;
    owner_ = {};
    if (waiters_ > 0) changed_.notify_all();
    if (until != nullptr && (has_work() || stopping_)) worker_.notify_one();
  }

  /// Without the lock.
  void complete(async_task& task, const std::exception_ptr& error) {
    std::vector<std::function<void(std::exception_ptr)>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      task.error = error;
      // release pairs with the load in is_done.
      task.done.store(true, std::memory_order_release);
      callbacks.swap(task.callbacks);
      if (waiters_ > 0) changed_.notify_all();
    }
    for (const auto& callback : callbacks) {
      try {
        callback(error);
      } catch (...) {
        give_up_for_callback();
      }
    }
  }

  void give_up_for_callback() noexcept {
    try {
      give_up("a callback threw: " + text_of_current_exception());
    } catch (...) {
      give_up("a callback threw");
    }
  }

  void check_not_own_turn() const {
    if (!turn_ || owner_ != std::this_thread::get_id()) return;
    throw std::logic_error(
        "rankfold: a call or a callback of a queue waits for another call of the same queue, which "
        "cannot begin before it has returned");
  }

  /// The queue's thread. After work it looks for more by itself for a while, so that whoever posts
  /// needs not wake it; then it sleeps until it is woken.
  void work() {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = posts_;
    int naps = 0;
    for (;;) {
      if (!turn_ && has_work()) {
        take_turn(lock);
      } else if (stopping_ && !turn_) {
        return;
      } else if (naps < most_naps) {
        ++naps;
        worker_.wait_for(lock, nap);
      } else {
        asleep_ = true;
        worker_.wait(lock);
        asleep_ = false;
      }
      if (seen != posts_) {
        seen = posts_;
        naps = 0;
      }
    }
  }

  static constexpr std::chrono::microseconds nap{100};
  static constexpr int most_naps = 20;

  const unsigned generation_;
  std::mutex mutex_;
  std::condition_variable worker_;   // the queue's thread waits for work
  std::condition_variable changed_;  // waiters wait for a task, or for the turn
  bool turn_ = false;
  std::thread::id owner_;
  int waiters_ = 0;
  bool asleep_ = false;
  bool stopping_ = false;
  std::uint64_t posts_ = 0;
};

}  // namespace detail

/// A call that was posted to a queue. Copies stand for the same call; one that is dropped changes
/// nothing. Buffers of the call stay untouched until it is complete.
///
/// Thread-safety: any thread.
class handle {
 public:
  /// Stands for nothing; complete.
  handle() = default;

  /// Waits until the call is complete; throws what it has thrown. Carries the call out itself where
  /// the queue's thread has not begun.
  void wait() const {
    if (task_ == nullptr) return;
    task_->core->wait(*task_);
    if (task_->error) std::rethrow_exception(task_->error);
  }

  /// The same for `timeout` at most. Throws: `timeout_error`; the call goes on, and may be waited
  /// for again. Leaves the work to the queue's thread, unless the call is next and its own timeout
  /// is no longer.
  void wait(std::chrono::milliseconds timeout) const {
    if (task_ == nullptr) return;
    if (!task_->core->wait_for(*task_, timeout)) {
      throw timeout_error("rankfold: the call was not complete within " +
                          detail::duration_text(timeout) + "; it goes on");
    }
    if (task_->error) std::rethrow_exception(task_->error);
  }

  /// Whether the call is complete, or has failed.
  bool test() const noexcept { return task_ == nullptr || detail::async_core::is_done(*task_); }

  /// Calls `callback(error)` when the call is complete: a std::exception_ptr, null for none. In the
  /// thread that carries the queue out, and before whoever waits is told of later calls; at once,
  /// in this thread, where the call is complete already. It must neither throw (which gives up the
  /// communicator) nor wait for a call of the same queue.
  void then(std::function<void(std::exception_ptr)> callback) const {
    if (task_ == nullptr) return callback(nullptr);
    task_->core->then(*task_, std::move(callback));
  }

 private:
  template <class>
  friend class async_queue;
  explicit handle(std::shared_ptr<detail::async_task> task) : task_(std::move(task)) {}

  std::shared_ptr<detail::async_task> task_;
};

namespace detail {

/// How long something that was posted may take once it has begun.
struct call_time {
  enum class kind { of_communicator, own, unknown };  // unknown: several calls, or none
  kind what = kind::of_communicator;
  std::chrono::milliseconds own{0};
};

/// The queue itself; kept by the tasks that are not complete, too.
template <class Transport>
class async_engine final : public async_core {
 public:
  using comm_type = communicator<Transport>;
  using context_type = std::remove_reference_t<decltype(std::declval<comm_type&>().ctx())>;

  /// A call of the communicator.
  struct call : async_task {
    explicit call(call_time limit) : async_task(true), time(limit) {}
    virtual void run(comm_type& comm) = 0;
    const call_time time;
  };
  template <class F>
  struct call_of final : call {
    call_of(F f, call_time limit) : call(limit), function(std::move(f)) {}
    void run(comm_type& comm) override { function(comm); }
    F function;
  };

  /// A send or recv.
  struct transfer final : async_task {
    transfer() : async_task(false) {}
    bool sends = false;
    int peer = 0;
    fingerprint print;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::optional<typename context_type::transfer> state;

    // Of a receive that looks for its message.
    bool looks = false;
    int* from = nullptr;
    std::chrono::steady_clock::time_point deadline{};
    std::vector<std::byte> kept;  // the data of a message that nobody has asked for yet

    bool takes(int source, std::uint32_t tag) const noexcept {
      return (peer < 0 || peer == source) && print.tag() == tag;
    }
  };

  explicit async_engine(comm_type comm) : comm_(std::move(comm)), context_(&comm_.ctx()) {
    context_->set_progress([this] { return progress(); });
  }

  void start() {
    // Signals are for the program's own threads.
    ::sigset_t all;
    ::sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { work(); });
    } catch (...) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  /// Waits for all that was posted, and ends the thread.
  void stop() {
    check_process();
    {
      const std::lock_guard lock(mutex_);
      check_not_own_turn();
      stopping_ = true;
      worker_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  comm_type take_back() {
    context_->set_progress({});
    return std::move(comm_);
  }

  using async_core::check_process;
  using async_core::forked;

  /// In a call; which fails, and all that is under way with it, where the communicator was given
  /// up.
  void cancel_looking() {
    context_->check_given_up();
    advance_all();  // what has come is taken
    const auto cancelled = std::make_exception_ptr(
        aborted_error("rankfold: the receive was cancelled before anything had come for it"));
    const std::vector<std::shared_ptr<transfer>> looking = std::exchange(looking_, {});
    for (const std::shared_ptr<transfer>& t : looking) finish(t, cancelled);
  }

  const comm_type& comm() const noexcept { return comm_; }

  void post(const std::shared_ptr<call>& task, std::size_t bytes) {
    check_process();
    const std::lock_guard lock(mutex_);
    calls_.push_back(task);
    // relaxed: orders nothing; whoever sees it looks under the mutex, and is nudged below.
    new_calls_.store(true, std::memory_order_relaxed);
    posted(bytes);
  }

  void post(const std::shared_ptr<transfer>& task) {
    check_process();
    const std::lock_guard lock(mutex_);
    transfers_.push_back(task);
    new_transfers_.store(true, std::memory_order_relaxed);  // as above
    posted(task->bytes);
  }

  void give_up(std::string_view reason) noexcept override { context_->abort(reason); }
  void interrupt() override {
    if (const auto& ask = context_->waiting().interrupt) ask();
  }

 private:
  /// From this size on a call is worth waking the queue's thread at once.
  static constexpr std::size_t large = 65536;

  void posted(std::size_t bytes) {
    ++posts_;
    if (turn_) {
      context_->nudge();
    } else if (asleep_ || bytes >= large) {
      worker_.notify_one();
    }
  }

  bool has_work() const noexcept override {
    return !calls_.empty() || !transfers_.empty() || under_way();
  }

  /// Of whoever has the turn.
  bool under_way() const noexcept { return !in_flight_.empty() || !looking_.empty(); }

  bool may_carry_out(const async_task& task) const noexcept override {
    return task.in_order || calls_.empty();
  }

  bool ends_within(const async_task& task, std::chrono::milliseconds most) const override {
    if (!task.in_order) return calls_.empty() && most >= comm_.timeout();
    if (calls_.empty() || calls_.front().get() != &task) return false;
    const call_time& time = calls_.front()->time;
    if (time.what == call_time::kind::unknown) return false;
    return most >= (time.what == call_time::kind::own ? time.own : comm_.timeout());
  }

  void drive(std::unique_lock<std::mutex>& lock, const async_task* until, pace* asking) override {
    while (until == nullptr || (!is_done(*until) && may_carry_out(*until))) {
      if (!calls_.empty()) {
        std::shared_ptr<call> next = std::move(calls_.front());
        calls_.pop_front();
        lock.unlock();
        carry_out(*next);
        next.reset();  // what it holds may need locks of its owner's to go
        lock.lock();
      } else if (!transfers_.empty() || under_way()) {
        lock.unlock();
        drive_transfers();
        lock.lock();
      } else {
        return;
      }
      if (asking != nullptr && !is_done(*until) && asking->is_due()) return;
    }
  }

  void carry_out(call& task) {
    std::exception_ptr error;
    try {
      advance_all();  // what was posted before is under way
      std::optional<typename context_type::limited_calls> limit;
      if (task.time.what == call_time::kind::own) limit.emplace(*context_, task.time.own);
      task.run(comm_);
    } catch (const std::invalid_argument&) {
      error = std::current_exception();  // nothing was sent
    } catch (...) {
      error = std::current_exception();
      fail_all(error);
    }
    complete(task, error);
  }

  /// Until one is complete, none is left, or there is something new to do.
  void drive_transfers() {
    using clock = std::chrono::steady_clock;
    try {
      only_transfers_ = true;
      const std::uint64_t before = completed_;
      context_->wait_transfers(
          [&] {
            return !advance_all() || completed_ != before ||
                   new_calls_.exchange(false, std::memory_order_relaxed);  // see post
          },
          [&](clock::time_point now) { return check_all(now); });
      only_transfers_ = false;
    } catch (...) {
      only_transfers_ = false;
      fail_all(std::current_exception());
    }
  }

  /// What a call of the communicator does while it waits.
  bool progress() {
    if (only_transfers_) return false;  // they are what is waited for
    if (advancing_) return true;
    bool more = false;
    try {
      more = advance_all();
      const auto now = std::chrono::steady_clock::now();
      if (more && now - checked_ >= std::chrono::milliseconds(100)) check_all(now);
    } catch (...) {
      fail_all(std::current_exception());
      throw;  // ends the call, too
    }
    return more;
  }

  /// Begins what was posted, moves all on, completes what is complete; whether any is left.
  bool advance_all() {
    if (new_transfers_.load(std::memory_order_relaxed)) begin_posted();  // see post
    do {
      for (std::size_t i = 0; i < in_flight_.size();) {
        if (!context_->advance(*in_flight_[i]->state)) {
          ++i;
          continue;
        }
        const std::shared_ptr<transfer> done = std::move(in_flight_[i]);
        in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
        finish(done, nullptr);
      }
    } while (!looking_.empty() && find_messages());
    return under_way();
  }

  void finish(const std::shared_ptr<transfer>& done, const std::exception_ptr& error) {
    ++completed_;
    complete(*done, error);
  }

  /// Gives receives that look for a message what has come, and lets messages that nobody looks for
  /// come out of the way; whether that began or completed anything.
  bool find_messages() {
    bool found = false;
    for (std::size_t i = 0; i < looking_.size();) {
      if (!take_early(looking_[i])) {
        ++i;
        continue;
      }
      looking_.erase(looking_.begin() + static_cast<std::ptrdiff_t>(i));
      found = true;
    }
    for (int peer = 0; peer < comm_.size(); ++peer) {
      const auto looks_there = [&](const auto& t) { return t->peer < 0 || t->peer == peer; };
      if (std::none_of(looking_.begin(), looking_.end(), looks_there)) continue;
      const std::optional<fingerprint> print = context_->incoming(peer);
      if (!print) continue;
      const auto place = std::find_if(looking_.begin(), looking_.end(),
                                      [&](const auto& t) { return t->takes(peer, print->tag()); });
      std::shared_ptr<transfer> t;
      if (place != looking_.end()) {
        t = *place;
        looking_.erase(place);
      } else {
        t = std::make_shared<transfer>();
        t->print = *print;
        const std::size_t element = print->type() == dtype::user ? 1 : size_of(print->type());
        t->kept.resize(print->count() * element);
        t->data = t->kept.data();
        t->bytes = t->kept.size();
        early_.push_back(t);
      }
      t->peer = peer;
      if (t->from != nullptr) *t->from = peer;
      in_flight_.push_back(t);  // where it fails if the next line throws
      t->state.emplace(context_->begin_receive(peer, t->print, t->data, t->bytes));
      found = true;
    }
    return found;
  }

  /// Completes a receive with a message that came before anybody asked for it.
  bool take_early(const std::shared_ptr<transfer>& t) {
    const auto place = std::find_if(early_.begin(), early_.end(), [&](const auto& e) {
      return t->takes(e->peer, e->print.tag());
    });
    if (place == early_.end() || !is_done(**place)) return false;
    const std::shared_ptr<transfer> message = *place;
    early_.erase(place);
    if (message->print != t->print) {
      context_->mismatch("recv from rank " + std::to_string(message->peer) +
                         ": ranks make different calls: this rank asked for " +
                         t->print.describe() + ", the other for " + message->print.describe());
    }
    if (t->bytes != 0) std::memcpy(t->data, message->data, t->bytes);
    if (t->from != nullptr) *t->from = message->peer;
    finish(t, nullptr);
    return true;
  }

  void begin_posted() {
    std::vector<std::shared_ptr<transfer>> posted;
    {
      const std::lock_guard lock(mutex_);
      posted.swap(transfers_);
      new_transfers_.store(false, std::memory_order_relaxed);  // see post
    }
    for (const std::shared_ptr<transfer>& t : posted) {
      if (t->looks) {
        t->deadline = context_->deadline_from_now();
        looking_.push_back(t);
        continue;
      }
      try {
        t->state.emplace(t->sends ? context_->begin_send(t->peer, t->print, t->data, t->bytes)
                                  : context_->begin_receive(t->peer, t->print, t->data, t->bytes));
        in_flight_.push_back(t);
      } catch (...) {
        finish(t, std::current_exception());
      }
    }
  }

  /// Fails where a deadline has passed or a peer is gone; the next deadline.
  std::chrono::steady_clock::time_point check_all(std::chrono::steady_clock::time_point now) {
    checked_ = now;
    advancing_ = true;
    auto next = (std::chrono::steady_clock::time_point::max)();
    try {
      for (const std::shared_ptr<transfer>& t : in_flight_) {
        next = (std::min)(next, context_->check(*t->state, now));
      }
      for (const std::shared_ptr<transfer>& t : looking_) next = (std::min)(next, t->deadline);
      check_looking(now);
    } catch (...) {
      advancing_ = false;
      throw;
    }
    advancing_ = false;
    return next;
  }

  /// Fails where the deadline of a receive that looks for its message has passed, or its peer is
  /// gone and has sent it nothing.
  void check_looking(std::chrono::steady_clock::time_point now) {
    const auto hopeless = [&](const auto& t) {
      return now >= t->deadline || (t->peer >= 0 && context_->is_gone(t->peer));
    };
    if (std::none_of(looking_.begin(), looking_.end(), hopeless)) return;
    advance_all();  // what was sent before counts
    const auto lost = std::find_if(looking_.begin(), looking_.end(), hopeless);
    if (lost != looking_.end()) context_->fail_receive((*lost)->peer);
  }

  /// Nothing that is under way can be completed any more.
  void fail_all(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      give_up(e.what());  // where that is not yet so
    } catch (...) {
      give_up("an exception of unknown type");
    }
    std::vector<std::shared_ptr<transfer>> failed;
    failed.swap(in_flight_);
    failed.insert(failed.end(), looking_.begin(), looking_.end());
    looking_.clear();
    early_.clear();
    for (const std::shared_ptr<transfer>& t : failed) finish(t, error);
  }

  comm_type comm_;
  context_type* context_;
  std::thread thread_;

  // Under the mutex.
  std::deque<std::shared_ptr<call>> calls_;
  std::vector<std::shared_ptr<transfer>> transfers_;  // posted, not begun
  std::atomic<bool> new_calls_{false};
  std::atomic<bool> new_transfers_{false};

  // Of whoever has the turn.
  std::vector<std::shared_ptr<transfer>> in_flight_;
  std::vector<std::shared_ptr<transfer>> looking_;  // receives that look for their message
  std::vector<std::shared_ptr<transfer>> early_;    // messages that nobody has asked for yet
  std::uint64_t completed_ = 0;
  bool only_transfers_ = false;
  bool advancing_ = false;
  std::chrono::steady_clock::time_point checked_{};
};

/// How large a call is, as far as its arguments tell.
template <class A>
std::size_t bytes_hint(const A& argument) {
  if constexpr (requires { argument.size_bytes(); }) {
    return argument.size_bytes();
  } else if constexpr (std::same_as<A, std::size_t>) {
    return argument;  // of elements
  } else {
    return 0;
  }
}

}  // namespace detail

/// A communicator whose calls return at once: communicator::async() makes it. Each member posts the
/// call of the same name and arguments, and returns its handle. All buffers, of counts, too, stay
/// until the call is complete, the ones that it reads unchanged.
///
/// Order:   collectives and `run` are carried out one after the other, in the order posted: the
///          same on all ranks. A send or recv is carried out independently of them, and of those to
///          and from other ranks; those of a pair of ranks and a direction in the order posted.
/// Errors:  what a call throws, its handle's wait throws. After an error that gives up the
///          communicator all that is under way fails with it, and later calls with aborted_error.
///          A wrong argument (std::invalid_argument) leaves the queue as it was.
/// Options: as the last argument, call_options{.tag = 3}.
/// Thread-safety: any thread, at the same time; but for release, the destructor and moves. The
///          interrupt callback runs in the thread that carries out, with all signals blocked where
///          it is the queue's own, and in those that wait for it.
template <class Transport>
class async_queue {
  using engine_type = detail::async_engine<Transport>;
  using comm_type = communicator<Transport>;

 public:
  /// Takes the communicator over; communicator::async() is shorter.
  explicit async_queue(comm_type&& comm) {
    engine_ = std::make_shared<engine_type>(std::move(comm));
    try {
      engine_->start();
    } catch (...) {
      comm = engine_->take_back();
      throw;
    }
  }

  async_queue(async_queue&&) = default;
  async_queue& operator=(async_queue&& other) noexcept {
    async_queue taken(std::move(other));
    std::swap(engine_, taken.engine_);
    return *this;
  }

  /// Waits for all that was posted: each call has its deadline. In a child after fork() nothing.
  ~async_queue() {
    if (engine_ == nullptr) return;
    if (engine_->forked()) {
      // The thread is the parent's, and it may have held the mutex.
      new std::shared_ptr<engine_type>(std::move(engine_));
      return;
    }
    engine_->stop();
    const comm_type ended = engine_->take_back();  // now, also where handles keep the engine
  }

  /// Waits for all that was posted, and gives the communicator back. The queue is of no more use.
  comm_type release() {
    engine().stop();
    comm_type comm = engine_->take_back();
    engine_.reset();
    return comm;
  }

  int rank() const { return engine().comm().rank(); }
  int size() const { return engine().comm().size(); }
  std::chrono::milliseconds timeout() const { return engine().comm().timeout(); }

  /// Posts `f(communicator&)`: several calls in one, or anything else that needs the communicator.
  /// An exception other than std::invalid_argument gives the communicator up.
  /// `bytes` says how large it is, if known: a large call wakes the queue's thread at once.
  /// `timeout` is how long the collectives in it may take together, from its beginning; not
  /// positive: the communicator's timeout, for each. Sends and receives beside it keep theirs.
  template <class F>
    requires std::invocable<F&, comm_type&>
  handle run(F f, std::size_t bytes = 0, std::chrono::milliseconds timeout = {}) {
    using kind = detail::call_time::kind;
    return post(std::move(f), bytes,
                timeout.count() > 0 ? detail::call_time{kind::own, timeout}
                                    : detail::call_time{kind::unknown});
  }

  /// Sends when it can; `data` may be changed when the handle is complete.
  template <class T, std::size_t N>
    requires element<std::remove_const_t<T>>
  handle send(std::span<T, N> data, int destination, const call_options& options = {}) {
    using type = std::remove_const_t<T>;
    return send_bytes(data.data(), sizeof(type), data.size(), dtype_of_v<type>, destination,
                      options);
  }
  handle send(const void* data, std::size_t count, dtype type, int destination,
              const call_options& options = {}) {
    return send_bytes(data, size_of(type), count, type, destination, options);
  }

  template <element T, std::size_t N>
  handle recv(std::span<T, N> data, int source, const call_options& options = {}) {
    return recv_bytes(data.data(), sizeof(T), data.size(), dtype_of_v<T>, source, options);
  }
  handle recv(void* data, std::size_t count, dtype type, int source,
              const call_options& options = {}) {
    return recv_bytes(data, size_of(type), count, type, source, options);
  }

  /// Receives the first message of `source`, or of any rank, that was sent with the tag of
  /// `options`; messages with other tags that come before it are kept until they are asked for.
  /// `*from`, which stays until the call is complete, gets the rank that it came from. For the
  /// ranks of one `source` either recv or recv_tagged is used, never both at the same time.
  handle recv_tagged(void* data, std::size_t count, dtype type, int source = any_source,
                     const call_options& options = {}, int* from = nullptr) {
    const int checked = source == any_source ? rank() : source;
    collectives::check_message("recv_tagged", "source", checked, size(), count, options);
    return post_transfer(false, data, size_of(type), count, type, source, options, true, from);
  }
  static constexpr int any_source = -1;

  /// Fails, after the calls that were posted before, every recv_tagged that nothing has come for;
  /// of a communicator that was given up everything, before its handle is complete.
  handle cancel_tagged() {
    engine_type& engine = this->engine();
    return post([&engine](comm_type&) { engine.cancel_looking(); }, 0);
  }

  // Arch keeps functions of translation units with different -m flags apart; it is not passed.

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.barrier(args...); }
  handle barrier(Args... args) {
    return post([=](comm_type& comm) mutable { comm.barrier(args...); }, 0);
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.all_reduce(args...); }
  handle all_reduce(Args... args) {
    return post([=](comm_type& comm) mutable { comm.all_reduce(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.reduce(args...); }
  handle reduce(Args... args) {
    return post([=](comm_type& comm) mutable { comm.reduce(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.reduce_scatter(args...); }
  handle reduce_scatter(Args... args) {
    return post([=](comm_type& comm) mutable { comm.reduce_scatter(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.all_gather(args...); }
  handle all_gather(Args... args) {
    return post([=](comm_type& comm) mutable { comm.all_gather(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.gather(args...); }
  handle gather(Args... args) {
    return post([=](comm_type& comm) mutable { comm.gather(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.scatter(args...); }
  handle scatter(Args... args) {
    return post([=](comm_type& comm) mutable { comm.scatter(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.broadcast(args...); }
  handle broadcast(Args... args) {
    return post([=](comm_type& comm) mutable { comm.broadcast(args...); }, largest(args...));
  }

  template <class Arch = simd::native, class... Args>
    requires requires(comm_type& comm, Args&... args) { comm.all_to_all(args...); }
  handle all_to_all(Args... args) {
    return post([=](comm_type& comm) mutable { comm.all_to_all(args...); }, largest(args...));
  }

  /// As communicator::abort. Any thread, at any time.
  void abort(std::string_view reason = "abort() was called") noexcept {
    if (engine_ != nullptr) engine_->give_up(reason);
  }

 private:
  engine_type& engine() const {
    if (engine_ == nullptr) {
      throw std::logic_error(
          "rankfold: this queue was moved from, or has given its communicator back by release()");
    }
    return *engine_;
  }

  template <class... Args>
  static std::size_t largest(const Args&... args) {
    std::size_t most = 0;
    ((most = (std::max)(most, detail::bytes_hint(args))), ...);
    return most;
  }

  template <class F>
  handle post(F f, std::size_t bytes, detail::call_time time = {}) {
    engine_type& engine = this->engine();
    auto task = std::make_shared<typename engine_type::template call_of<F>>(std::move(f), time);
    task->core = engine_;
    engine.post(std::shared_ptr<typename engine_type::call>(task), bytes);
    return handle(std::move(task));
  }

  handle send_bytes(const void* data, std::size_t element_size, std::size_t count, dtype type,
                    int destination, const call_options& options) {
    collectives::check_message("send", "destination", destination, size(), count, options);
    // Not written to where it is sent.
    return post_transfer(true, const_cast<void*>(data), element_size, count, type, destination,
                         options);
  }

  handle recv_bytes(void* data, std::size_t element_size, std::size_t count, dtype type, int source,
                    const call_options& options) {
    collectives::check_message("recv", "source", source, size(), count, options);
    return post_transfer(false, data, element_size, count, type, source, options);
  }

  handle post_transfer(bool sends, void* data, std::size_t element_size, std::size_t count,
                       dtype type, int peer, const call_options& options, bool looks = false,
                       int* from = nullptr) {
    engine_type& engine = this->engine();
    auto task = std::make_shared<typename engine_type::transfer>();
    task->core = engine_;
    task->sends = sends;
    task->peer = peer;
    task->print = collectives::fingerprint_of_message(type, element_size, count, options);
    task->data = data;
    task->bytes = count * element_size;
    task->looks = looks;
    task->from = from;
    engine.post(task);
    return handle(std::move(task));
  }

  std::shared_ptr<engine_type> engine_;
};

RANKFOLD_END_NAMESPACE
