// SPDX-License-Identifier: Apache-2.0
// What torch waits for: the Work of calls that were posted, its Future, and the errors of both.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rankfold/async.hpp"
#include "rankfold/detail/bounded_time.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"
#include "rankfold/torch/backend/lane.hpp"
#include "rankfold/torch/error_kind.hpp"
#include "rankfold/torch/store_meeting.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// Throws what is in flight again as torch knows it: DistBackendError for what depends on other
/// ranks or on the machine, RuntimeError for a wrong argument.
[[noreturn]] inline void throw_as_torch(const std::string& where) {
  std::string text;
  try {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const rankfold::error& e) {
    text = where + ": " + torch_ops::kind_of(e) + e.what();
    if (dynamic_cast<const timeout_error*>(&e) != nullptr) {
      text += ". Timed out by the timeout of this call or of its group";
    }
  } catch (const std::exception& e) {
    throw std::runtime_error(where + ": " + e.what());
  }
  C10_THROW_ERROR(DistBackendError, text);
}

/// A time as Python gives it, no longer than what is as good as for ever. What becomes of
/// timedelta.max on its way through pybind11's microseconds is a long time below zero.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) noexcept {
  constexpr std::chrono::milliseconds longest = detail::longest_time;
  return timeout < -longest ? longest : (std::min)(timeout, longest);
}

/// Threads that complete futures: what waits for a future may call and wait itself, so that neither
/// the queue's thread nor one that is busy with another future can do it. Ends idle threads. Where
/// the system gives no thread, the caller's does the task.
class future_threads {
 public:
  future_threads() = default;
  future_threads(const future_threads&) = delete;
  future_threads& operator=(const future_threads&) = delete;

  void post(std::function<void()> task) {
    std::unique_lock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    if (state_->idle >= state_->tasks.size()) {
      state_->changed.notify_all();
      return;
    }
    try {
      std::thread([state = state_] { state->work(); }).detach();
      ++state_->threads;
    } catch (const std::system_error&) {
      task = std::move(state_->tasks.back());
      state_->tasks.pop_back();
      lock.unlock();
      task();
    }
  }

  /// Waits until nothing is left to do, no longer than that; false where something is.
  bool drain(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_until(
        lock, until, [&] { return state_->tasks.empty() && state_->idle == state_->threads; });
  }

 private:
  // Shared with the threads, which may outlive the group by a moment.
  struct state {
    void work() {
      std::unique_lock lock(mutex);
      bool woken = true;
      while (woken) {
        while (!tasks.empty()) {
          std::function<void()> task = std::move(tasks.front());
          tasks.pop_front();
          lock.unlock();
          task();
          task = nullptr;
          lock.lock();
        }
        ++idle;
        changed.notify_all();
        woken = changed.wait_for(lock, std::chrono::seconds(1), [&] { return !tasks.empty(); });
        --idle;
      }
      --threads;
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    std::size_t idle = 0;
    std::size_t threads = 0;
  };

  std::shared_ptr<state> state_ = std::make_shared<state>();
};

/// What a Work needs of its group; outlives the group.
struct work_context {
  work_context(std::string name, int own_rank, int ranks)
      : group(std::move(name)), rank(own_rank), size(ranks) {}

  const std::string group;
  const int rank;
  const int size;
  std::weak_ptr<torch_backend::lane> lane;                       // set once, at the start
  std::atomic<c10d::ErrorType> error{c10d::ErrorType::SUCCESS};  // the first
  future_threads futures;

  /// How messages about an op begin.
  std::string where(std::string_view op) const {
    return "rankfold::" + std::string(op) + " (group \"" + group + "\", rank " +
           std::to_string(rank) + " of " + std::to_string(size) + ")";
  }

  /// Throws what is in flight as torch knows it.
  [[noreturn]] void fail(std::string_view op) const { throw_as_torch(where(op)); }

  /// Keeps in mind how a call ended that is over.
  void note(const std::exception_ptr& ended) noexcept {
    if (ended == nullptr) return;
    try {
      std::rethrow_exception(ended);
    } catch (const timeout_error&) {
      note(c10d::ErrorType::TIMEOUT);
    } catch (const peer_lost_error&) {
      note(c10d::ErrorType::REMOTE_ERROR);
    } catch (const rankfold::error&) {
      note(c10d::ErrorType::COMM_ERROR);
    } catch (...) {
      // A wrong argument, or what a tensor threw: the group is as it was, or its next call says
      // why.
    }
  }

 private:
  void note(c10d::ErrorType kind) noexcept {
    auto none = c10d::ErrorType::SUCCESS;
    error.compare_exchange_strong(none, kind);
  }
};

/// One call, or several that are waited for together. It is complete when its future is, if
/// somebody has asked for that.
class work final : public c10d::Work {
 public:
  /// `title`, where not null, is recorded for the profiler, with `inputs`.
  work(std::shared_ptr<work_context> context, std::string_view op, c10d::OpType type,
       const char* title, const std::vector<at::Tensor>& inputs, std::uint64_t sequence,
       std::vector<handle> calls, std::vector<at::Tensor> results,
       std::shared_ptr<const int> source = nullptr)
      : c10d::Work(context->rank, type, title,
                   title == nullptr ? std::nullopt : std::optional(inputs)),
        context_(std::move(context)),
        op_(op),
        sequence_(sequence),
        calls_(std::move(calls)),
        results_(std::move(results)),
        source_(std::move(source)) {}

  /// To be called once, when it is held by a pointer.
  void start_recording() {
    if (recordFunctionEndCallback_) on_completion(0, &work::end_recording);
  }

  bool isCompleted() override {
    if (!calls_are_over()) return false;
    const std::lock_guard lock(mutex_);
    return future_ == nullptr || future_->completed();
  }

  bool isSuccess() const override { return exception() == nullptr; }

  std::exception_ptr exception() const override {
    for (const handle& call : calls_) {
      if (!call.test()) continue;
      std::exception_ptr found;
      call.then([&](const std::exception_ptr& error) { found = error; });
      if (found == nullptr) continue;
      try {
        try {
          std::rethrow_exception(found);
        } catch (...) {
          context_->fail(op_);
        }
      } catch (...) {
        return std::current_exception();
      }
    }
    return nullptr;
  }

  std::vector<at::Tensor> result() override {
    TORCH_CHECK(isCompleted(), context_->where(op_),
                ": result() of a call that is not complete; wait() first");
    return results_;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const auto begin = std::chrono::steady_clock::now();
      for (const handle& call : calls_) {
        if (timeout == kNoTimeout) {
          call.wait();
        } else {
          const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(
              std::chrono::steady_clock::now() - begin);
          call.wait((std::max)(bounded(timeout) - spent, std::chrono::milliseconds(0)));
        }
      }
    } catch (...) {
      settle();
      context_->fail(op_);
    }
    settle();
    return true;
  }

  void synchronize() override { wait(kNoTimeout); }
  void abort() override {
    if (const auto there = context_->lane.lock()) there->abort("Work.abort() was called");
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr) {
      future_ =
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      on_completion(0, &work::complete_future);
    }
    return future_;
  }

  int sourceRank() const override {
    TORCH_CHECK(source_ != nullptr, context_->where(op_), ": only a recv has a source rank");
    return *source_;
  }

  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  bool calls_are_over() const {
    return std::all_of(calls_.begin(), calls_.end(),
                       [](const handle& call) { return call.test(); });
  }

  /// What is so when a wait returns: nothing is recorded any more, and the future is complete. Its
  /// own thread does that, since callbacks may need a lock that this one has.
  void settle() {
    if (!calls_are_over()) return;
    end_recording();
    c10::intrusive_ptr<c10::ivalue::Future> there;
    {
      const std::lock_guard lock(mutex_);
      there = future_;
    }
    if (there) there->wait();
  }

  /// Calls `then` when all calls from number `first` on are complete: at once, or in a thread for
  /// that.
  void on_completion(std::size_t first, void (work::*then)()) {
    while (first < calls_.size() && calls_[first].test()) ++first;
    if (first == calls_.size()) return (this->*then)();
    auto self = c10::intrusive_ptr<work>::unsafe_reclaim_from_nonowning(this);
    calls_[first].then([self, first, then](const std::exception_ptr&) {
      self->context_->futures.post([self, first, then] { self->on_completion(first + 1, then); });
    });
  }

  void complete_future() {
    if (const std::exception_ptr error = exception()) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(results_));
    }
  }

  void end_recording() {
    std::function<void()> end;
    {
      const std::lock_guard lock(recording_);
      end.swap(recordFunctionEndCallback_);
    }
    if (end) end();
  }

  const std::shared_ptr<work_context> context_;
  const std::string op_;
  const std::uint64_t sequence_;
  const std::vector<handle> calls_;
  const std::vector<at::Tensor> results_;
  const std::shared_ptr<const int> source_;
  std::mutex recording_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
