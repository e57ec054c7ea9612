// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that ops name by a text, "" for the default one.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "rankfold/communicator.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/error.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/error_kind.hpp"
#include "rankfold/torch/python.hpp"
#include "rankfold/transport/shm.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

using communicator_type = communicator<shm_transport>;

/// What `init` is given.
struct join_options {
  std::optional<int> rank;
  std::optional<int> size;
  std::string_view key;
  std::optional<std::chrono::milliseconds> timeout;
};

/// The arguments of `init` as options. `where()` begins the message if they are wrong.
template <class Where>
join_options parse_join_options(std::int64_t rank, std::int64_t size, std::string_view key,
                                double timeout, Where&& where) {
  join_options options;
  options.key = key;
  if (rank != -1 || size != -1) {
    constexpr std::int64_t most = (std::numeric_limits<int>::max)();
    if (size < 1 || size > most) {
      refuse(where(), ": rank is ", rank, " and size is ", size,
             ", expected size 1 or more (or neither of them, for what the launcher's "
             "environment says)");
    }
    if (rank < 0 || rank >= size) {
      refuse(where(), ": rank is ", rank, " and size is ", size, ", expected rank 0 to ", size - 1);
    }
    if (size != 1 && key.empty()) {
      refuse(where(),
             ": rank and size are given and key is not, expected a text that is the same on all "
             "ranks of this group and on no others");
    }
    options.rank = static_cast<int>(rank);
    options.size = static_cast<int>(size);
  } else if (!key.empty()) {
    refuse(where(), ": key is given, and rank and size are not, expected all three or none");
  }
  if (timeout != 0) {
    if (!(timeout >= 0.001 && timeout <= 1e9)) {
      refuse(where(), ": timeout is ", timeout,
             ", expected seconds from 0.001 to 1000000000, or 0 for the default");
    }
    options.timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(timeout * 1000)));
  }
  return options;
}

/// Who this process is in a group.
struct place {
  int rank;
  int size;
};

/// One group, as this process sees it. Lives until the process ends, joined or not: other threads
/// may be in it at any time, the end of the process included, and peers see from the end of the
/// process that a rank is gone.
class group {
 public:
  group(std::string_view library, std::string_view name) : library_(library), name_(name) {}
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() { delete session_.load(); }  // only of one that nobody knows: see `groups`

  const std::string& name() const noexcept { return name_; }

  /// Calls `body(communicator_type&)`, which makes one collective. Calls by several threads take
  /// turns.
  template <class Body>
  void run(std::string_view op, Body&& body) {
    session& s = *session_.load(std::memory_order_acquire);
    if (s.generation != detail::fork_generation()) [[unlikely]]
      forked(op);
    const turn mine(*this, s, op);
    if (!s.communicator) [[unlikely]]
      not_joined(op);
    try {
      body(*s.communicator);
    } catch (...) {
      translate(op, s);
    }
  }

  void join(const join_options& options) {
    session& s = own_session();
    const turn mine(*this, s, "init");
    if (s.communicator) {
      if (!s.failed) {
        refuse(where("init"), ": is already initialised; call finalize(", call_argument(),
               ") first");
      }
      leave(s);
    }
    try {
      std::unique_ptr<communicator_type> made = make(options);
      s.rank = made->rank();
      s.size = made->size();
      s.timeout = made->timeout();
      const std::lock_guard lock(s.life);
      s.communicator = std::move(made);
      s.failed = false;
    } catch (...) {
      translate("init", s);
    }
  }

  /// Nothing happens when it is not joined.
  void leave() {
    session& s = own_session();
    const turn mine(*this, s, "finalize");
    leave(s);
  }

  /// From any thread, while another one is in a call.
  void abort(std::string_view reason) {
    session& s = own_session();
    const std::lock_guard lock(s.life);
    if (!s.communicator) not_joined("abort");
    s.failed = true;
    s.communicator->abort(reason);
  }

  /// Throws if it is not joined; `why` is what the message adds.
  place here(std::string_view op, std::string_view why = {}) {
    const session& s = *session_.load(std::memory_order_acquire);
    if (s.generation != detail::fork_generation()) [[unlikely]]
      forked(op);
    const place found{s.rank, s.size};
    // Both at once are not read: another thread may be making the group anew.
    if (found.rank < 0 || found.rank >= found.size) [[unlikely]]
      not_joined(op, why);
    return found;
  }
  int rank() { return here("rank").rank; }
  int size() { return here("size").size; }

  /// How messages begin: `ns::op (group "name", rank 0 of 2)`.
  std::string where(std::string_view op) const {
    std::string text = library_ + "::" + std::string(op) + " (" + title();
    const session& s = *session_.load(std::memory_order_acquire);
    if (const int size = s.size; size > 0) {
      text += ", rank " + std::to_string(s.rank) + " of " + std::to_string(size);
    }
    return text + ")";
  }

 private:
  /// Membership, and who uses it. After a fork the child gets a new one: locks of the old one may
  /// be held by threads that the child does not have.
  struct session {
    const unsigned generation = detail::fork_generation();
    std::timed_mutex turn;
    std::atomic<std::thread::id> owner{};  // of `turn`
    std::mutex life;                       // held, with `turn`, to change `communicator`
    std::unique_ptr<communicator_type> communicator;
    std::atomic<int> rank{-1};
    std::atomic<int> size{0};
    std::atomic<bool> failed{false};
    std::atomic<std::chrono::milliseconds> timeout{std::chrono::minutes(5)};
  };

  /// Holds the session while one thread calls.
  class turn {
   public:
    turn(const group& g, session& s, std::string_view op) : session_(s) {
      if (!s.turn.try_lock()) [[unlikely]]
        wait(g, s, op);
      // relaxed: only compared with the own id, which nobody else stores.
      s.owner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      session_.owner.store(std::thread::id(), std::memory_order_relaxed);
      session_.turn.unlock();
    }

   private:
    static void wait(const group& g, session& s, std::string_view op) {
      if (s.owner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
        refuse(g.where(op), ": was called by a signal handler, within a call of the same group");
      }
      const std::chrono::milliseconds timeout = s.timeout;
      const auto until = std::chrono::steady_clock::now() + timeout;
      while (!s.turn.try_lock_for(std::chrono::milliseconds(100))) {
        check_signals();
        if (std::chrono::steady_clock::now() >= until) {
          refuse(g.where(op), ": another thread of this rank has been in a call for ",
                 timeout.count(), " ms");
        }
      }
    }

    session& session_;
  };

  session& own_session() {
    session* s = session_.load(std::memory_order_acquire);
    if (s->generation != detail::fork_generation()) {
      // In a forked child, whose copy of the parent's session is left as it is.
      auto fresh = std::make_unique<session>();
      if (session_.compare_exchange_strong(s, fresh.get())) s = fresh.release();
    }
    return *s;
  }

  std::unique_ptr<communicator_type> make(const join_options& options) const {
    shm_options meeting;
    communicator_options waiting;
    if (options.timeout) meeting.timeout = waiting.timeout = *options.timeout;
    meeting.interrupt = waiting.interrupt = check_signals;
    if (!options.rank) {
      meeting.label = library_ + "/" + name_;
      return std::make_unique<communicator_type>(
          shm_transport::from_environment(std::move(meeting)), std::move(waiting));
    }
    return std::make_unique<communicator_type>(
        shm_transport::connect(options.key, *options.rank, *options.size, std::move(meeting)),
        std::move(waiting));
  }

  static void leave(session& s) {
    const std::lock_guard lock(s.life);
    s.communicator.reset();
    s.rank = -1;
    s.size = 0;
  }

  std::string title() const { return name_.empty() ? "default group" : "group \"" + name_ + "\""; }
  std::string call_argument() const { return name_.empty() ? "" : "\"" + name_ + "\""; }

  [[noreturn]] void not_joined(std::string_view op, std::string_view why = {}) const {
    refuse(where(op), ": is not initialised; call torch.ops.", library_, ".init(", call_argument(),
           ") on every rank first", why);
  }

  [[noreturn]] void forked(std::string_view op) const {
    refuse(where(op), ": was initialised in the parent of this process; a forked child ",
           "is no rank, unless it calls torch.ops.", library_, ".init(", call_argument(),
           ") itself");
  }

  /// Throws what is in flight again as torch turns it into RuntimeError, with op, group and rank.
  [[noreturn]] void translate(std::string_view op, session& s) const {
    try {
      throw;
    } catch (const std::invalid_argument& e) {  // refused before anything was sent
      throw std::runtime_error(where(op) + ": " + e.what());
    } catch (const std::bad_alloc&) {
      s.failed = true;
      throw;
    } catch (const std::exception& e) {
      s.failed = true;
      throw std::runtime_error(where(op) + ": " + kind_of(e) + e.what());
    }
  }

  const std::string library_;
  const std::string name_;
  std::atomic<session*> session_{new session};
};

/// The groups of one RANKFOLD_TORCH_LIBRARY, whose tag type `Library` is local to its source file.
template <class Library>
class groups {
 public:
  /// The group of that name. Neither locks nor allocates.
  static group& get(std::string_view op, std::string_view name) {
    if (name.empty()) return initial().self;
    if (node* found = find(name, head().load(std::memory_order_acquire))) return found->self;
    unknown(op, name);
  }

  /// How messages begin where there need not be such a group, as when a graph is traced.
  static std::string where(std::string_view op, std::string_view name) {
    if (name.empty()) return initial().self.where(op);
    if (node* found = find(name, head().load(std::memory_order_acquire))) {
      return found->self.where(op);
    }
    return group(Library::name, name).where(op);
  }

  static group& get_or_add(std::string_view name) {
    if (name.empty()) return initial().self;
    auto added = std::make_unique<node>(name);
    added->next = head().load(std::memory_order_acquire);
    do {
      if (node* found = find(name, added->next)) return found->self;
    } while (!head().compare_exchange_weak(added->next, added.get(), std::memory_order_acq_rel));
    return added.release()->self;
  }

 private:
  // Never freed: see `group`.
  struct node {
    explicit node(std::string_view name) : self(Library::name, name) {}
    group self;
    node* next = nullptr;
  };

  static node& initial() {
    static node* const first = new node("");
    return *first;
  }

  static std::atomic<node*>& head() {
    static std::atomic<node*> first{nullptr};
    return first;
  }

  static node* find(std::string_view name, node* from) {
    while (from != nullptr && from->self.name() != name) from = from->next;
    return from;
  }

  [[noreturn]] static void unknown(std::string_view op, std::string_view name) {
    std::string known;
    for (node* n = head().load(std::memory_order_acquire); n != nullptr; n = n->next) {
      known += (known.empty() ? "\"" : ", \"") + n->self.name() + "\"";
    }
    refuse(Library::name, "::", op, ": there is no group \"", name,
           "\", expected the default group \"\"", known.empty() ? "" : " or one of ", known,
           "; a group is made by torch.ops.", Library::name, ".init(\"", name, "\") on every rank");
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
