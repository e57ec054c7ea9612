// SPDX-License-Identifier: Apache-2.0
// The transport of ranks of an MPI communicator. The only header that needs MPI: rankfold.hpp does
// not include it. docs/transports.md says what MPI promises and what it does not.
#pragma once

#if !__has_include(<mpi.h>)
#  error \
      "rankfold/transport/mpi.hpp needs <mpi.h>: pkg-config ompi or mpich has the flags, mpicxx knows them"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

// The C interface alone; the C++ one of old MPIs costs a second to compile and a library to link.
#pragma push_macro("OMPI_SKIP_MPICXX")
#pragma push_macro("MPICH_SKIP_MPICXX")
#undef OMPI_SKIP_MPICXX
#undef MPICH_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#pragma pop_macro("OMPI_SKIP_MPICXX")
#pragma pop_macro("MPICH_SKIP_MPICXX")

#include "rankfold/assert.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

struct mpi_options {
  /// What a rank stages its data in, both halves together, for each rank of the communicator. The
  /// same on all ranks.
  std::size_t workspace_bytes = detail::default_workspace_bytes;
  /// How long the ranks may take to come together. Default: RANKFOLD_TIMEOUT, else 5 minutes.
  std::chrono::milliseconds timeout = default_timeout();
  /// Called about ten times a second while the ranks meet; what it throws ends the start.
  std::function<void()> interrupt = {};
};

namespace detail {

/// MPI's own words.
inline std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS || length <= 0) {
    return "MPI error " + std::to_string(code);
  }
  std::string words(text, static_cast<std::size_t>(length));
  std::replace(words.begin(), words.end(), '\n', ' ');  // MPICH gives a stack of calls
  return words;
}

inline void mpi_check(int code, const char* operation) {
  if (code != MPI_SUCCESS) {
    throw transport_error(std::string("rankfold: ") + operation + ": " + mpi_text(code));
  }
}

inline const char* mpi_level_name(int level) noexcept {
  return level == MPI_THREAD_MULTIPLE     ? "MPI_THREAD_MULTIPLE"
         : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
         : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                                          : "MPI_THREAD_SINGLE";
}

/// A share in memory that is never given back: for what MPI may use as long as the process lives.
/// Takes no memory itself.
inline void keep_for_ever(std::shared_ptr<const void> memory) noexcept {
  union never_destroyed {
    explicit never_destroyed(std::shared_ptr<const void>&& taken) noexcept
        : share(std::move(taken)) {}
    ~never_destroyed() {}
    std::shared_ptr<const void> share;
  };
  [[maybe_unused]] const never_destroyed kept(std::move(memory));
}

/// Whether this thread is in a call of MPI that rankfold has made.
inline constinit thread_local bool in_mpi_call = false;

/// One thread's turn to call MPI; behind a lock where several may, but one at a time.
class mpi_turn {
 public:
  mpi_turn() = default;
  explicit mpi_turn(std::unique_lock<std::mutex> lock) noexcept : lock_(std::move(lock)) {
    in_mpi_call = taken_ = true;
  }
  mpi_turn(mpi_turn&& other) noexcept
      : lock_(std::move(other.lock_)), taken_(std::exchange(other.taken_, false)) {}
  mpi_turn& operator=(mpi_turn&&) = delete;
  ~mpi_turn() {
    if (taken_) in_mpi_call = false;
  }

  explicit operator bool() const noexcept { return taken_; }

 private:
  std::unique_lock<std::mutex> lock_;
  bool taken_ = false;
};

/// What all transports of this process share: whether MPI is there, which threads may call it, and
/// the transfers that nobody asks for any more. One for the life of the process.
///
/// Thread-safety: any.
class mpi_process {
 public:
  static mpi_process& instance() {
    static auto* const process = new mpi_process;  // outlives static objects that have transports
    return *process;
  }

  /// Initialises MPI unless it is. Throws transport_error where it has been finalised.
  void start() {
    const std::lock_guard lock(start_);
    if (started_) return check_not_finalized("MPI_Comm_idup");
    int flag = 0;
    MPI_Finalized(&flag);
    if (flag != 0) finalized_ = true;
    check_not_finalized("MPI_Comm_idup");
    MPI_Initialized(&flag);
    if (flag == 0) {
      int given = MPI_THREAD_SINGLE;
      mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given), "MPI_Init_thread");
      // Registered now, so that it runs after the destructors of static objects that have
      // transports.
      if (std::atexit([] { instance().finalize(); }) != 0) {
        throw transport_error("rankfold: atexit has no room: MPI could not be finalised at exit");
      }
    }
    mpi_check(MPI_Query_thread(&level_), "MPI_Query_thread");
    check_thread("MPI_Comm_create_keyval");
    // Attributes of MPI_COMM_SELF are deleted first in MPI_Finalize, whoever calls it: that is how
    // MPI tells libraries (MPI 3.1, 8.7.1).
    int key = MPI_KEYVAL_INVALID;
    mpi_check(MPI_Comm_create_keyval(
                  MPI_COMM_NULL_COPY_FN,
                  [](MPI_Comm, int, void*, void*) -> int {
                    instance().before_finalize();
                    return MPI_SUCCESS;
                  },
                  &key, nullptr),
              "MPI_Comm_create_keyval");
    mpi_check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
    mpi_check(MPI_Comm_free_keyval(&key), "MPI_Comm_free_keyval");  // it goes with the attribute
    started_ = true;
  }

  int level() const noexcept { return level_; }

  /// Notes a communicator of rankfold's own.
  void add(MPI_Comm comm) {
    const std::lock_guard lock(start_);
    comms_.push_back(comm);
  }

  /// One thread's turn to call MPI; throws where it may not.
  mpi_turn turn(const char* operation) {
    check_not_finalized(operation);
    if (generation_ != fork_generation()) [[unlikely]] {
      throw transport_error(std::string("rankfold: ") + operation +
                            ": MPI was initialised before fork(); a child cannot use it");
    }
    if (level_ != MPI_THREAD_MULTIPLE) check_thread(operation);
    if (level_ != MPI_THREAD_SERIALIZED) return mpi_turn(std::unique_lock<std::mutex>());
    return mpi_turn(std::unique_lock(turns_));
  }

  /// The same for what may wait for another time: no turn where MPI may not be called now.
  mpi_turn try_turn() noexcept {
    if (finalized_ || in_mpi_call || generation_ != fork_generation()) return {};
    if (level_ != MPI_THREAD_MULTIPLE && !thread_may_call()) return {};
    if (level_ != MPI_THREAD_SERIALIZED) return mpi_turn(std::unique_lock<std::mutex>());
    std::unique_lock lock(turns_, std::try_to_lock);
    return lock.owns_lock() ? mpi_turn(std::move(lock)) : mpi_turn();
  }

  /// For good: a communicator of this process has failed, so that MPI_Finalize might wait for ever.
  void fail() noexcept { failed_ = true; }

  /// Keeps `memory` until the transfer is complete. `owner` may forget it later.
  void keep(MPI_Request handle, bool receives, const void* owner,
            std::shared_ptr<const void> memory) noexcept {
    try {
      const std::lock_guard lock(kept_mutex_);
      kept_.push_back({handle, receives, false, owner, std::move(memory)});
      ++kept_count_;
    } catch (...) {
      keep_for_ever(std::move(memory));  // push_back has failed, and moved nothing
    }
  }

  /// `owner` is going: what it was to receive is cancelled, so that it takes no message of others.
  void forget(const void* owner) noexcept {
    const std::lock_guard lock(kept_mutex_);
    for (kept& k : kept_) {
      if (k.owner == owner) k.owner = nullptr;
    }
  }

  /// Moves kept transfers on and lets go of those that are complete; how many are left. Only by who
  /// has a turn.
  std::size_t poll() noexcept {
    if (kept_count_ == 0) return 0;
    const std::lock_guard lock(kept_mutex_);
    for (std::size_t i = 0; i < kept_.size();) {
      kept& k = kept_[i];
      if (k.owner == nullptr && k.receives && !k.cancelled) {
        k.cancelled = true;
        MPI_Cancel(&k.handle);
      }
      int flag = 0;
      // A transfer that has failed is over, too.
      if (MPI_Test(&k.handle, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag == 0) {
        ++i;
        continue;
      }
      std::swap(k, kept_.back());
      kept_.pop_back();
    }
    kept_count_ = kept_.size();
    return kept_.size();
  }

 private:
  struct kept {
    MPI_Request handle;
    bool receives;
    bool cancelled;
    const void* owner;
    std::shared_ptr<const void> memory;
  };

  mpi_process() = default;

  void check_not_finalized(const char* operation) const {
    if (finalized_) [[unlikely]] {
      throw transport_error(std::string("rankfold: ") + operation +
                            ": MPI has been finalised; destroy communicators before MPI_Finalize, "
                            "and make none after it");
    }
  }

  static bool thread_is_main() noexcept {
    static thread_local const bool is_main = [] {
      int flag = 0;
      return MPI_Is_thread_main(&flag) == MPI_SUCCESS && flag != 0;
    }();
    return is_main;
  }

  bool thread_may_call() const noexcept {
    return level_ >= MPI_THREAD_SERIALIZED || thread_is_main();
  }

  void check_thread(const char* operation) const {
    if (thread_may_call()) [[likely]]
      return;
    throw transport_error(std::string("rankfold: ") + operation + ": MPI gives " +
                          mpi_level_name(level_) +
                          ", so that only the thread that initialised it may call it; initialise "
                          "it by MPI_Init_thread with MPI_THREAD_MULTIPLE (rankfold does where the "
                          "program has not), or call from that thread");
  }

  /// Lets kept transfers end, for a second at most; whether all have.
  bool settle() noexcept {
    {
      const std::lock_guard lock(kept_mutex_);
      for (kept& k : kept_) k.owner = nullptr;
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    drain();
    while (poll() != 0) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

  /// Receives what nobody has, such as notices: MPI wants that done before it is finalised.
  void drain() noexcept {
    try {
      const std::lock_guard lock(start_);
      for (const MPI_Comm comm : comms_) {
        for (;;) {
          int flag = 0;
          int bytes = 0;
          MPI_Message message = MPI_MESSAGE_NULL;
          MPI_Status status;
          MPI_Request handle = MPI_REQUEST_NULL;
          if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, &message, &status) !=
                  MPI_SUCCESS ||
              flag == 0 || MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) {
            break;
          }
          auto room = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
          if (MPI_Imrecv(room->data(), bytes, MPI_BYTE, &message, &handle) != MPI_SUCCESS) break;
          keep(handle, false, nullptr, std::move(room));
        }
      }
    } catch (...) {
      // Out of memory: MPI drops it then.
    }
  }

  void before_finalize() noexcept {
    if (!finalized_ && generation_ == fork_generation()) settle();
    finalized_ = true;
  }

  /// At exit, where rankfold has initialised MPI. Not where MPI itself ends the program, from
  /// within a call.
  void finalize() noexcept {
    if (failed_) return;
    const mpi_turn turn = try_turn();
    if (turn && settle()) MPI_Finalize();
  }

  std::mutex start_;
  bool started_ = false;
  std::vector<MPI_Comm> comms_;  // of rankfold's own
  int level_ = MPI_THREAD_SINGLE;
  unsigned generation_ = fork_generation();
  std::mutex turns_;
  // All accesses are seq_cst: flags, which order nothing else.
  std::atomic<bool> finalized_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::size_t> kept_count_{0};
  std::mutex kept_mutex_;
  std::vector<kept> kept_;
};

/// A communicator of rankfold's own. Never freed by rankfold: MPI_Comm_free is collective and may
/// wait for all ranks, while destructors run in no order that ranks agree on. MPI_Finalize does it.
struct mpi_link {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request making = MPI_REQUEST_NULL;
  std::uint32_t slots = 1;           // ranges of tags
  std::vector<int> host_marks = {};  // of all ranks, once they are known
};

/// `bytes` bytes as one element, where an int cannot count them.
class mpi_large_type {
 public:
  mpi_large_type(std::size_t bytes, std::size_t block) {
    const std::size_t blocks = bytes / block;
    const std::size_t rest = bytes % block;
    RANKFOLD_ASSERT(1, blocks <= (std::numeric_limits<int>::max)(), "too large for MPI");
    const int lengths[2] = {static_cast<int>(blocks), static_cast<int>(rest)};
    const MPI_Aint places[2] = {0, static_cast<MPI_Aint>(blocks * block)};
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE};
    mpi_check(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &parts[0]),
              "MPI_Type_contiguous");
    const int made = MPI_Type_create_struct(2, lengths, places, parts, &type_);
    MPI_Type_free(&parts[0]);
    mpi_check(made, "MPI_Type_create_struct");
    mpi_check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  mpi_large_type(const mpi_large_type&) = delete;
  mpi_large_type& operator=(const mpi_large_type&) = delete;
  ~mpi_large_type() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);  // a transfer keeps its own reference
  }

  MPI_Datatype get() const noexcept { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace detail

/// One rank of an MPI communicator.
///
/// - MPI may be initialised or not. Where it is not, the first transport calls MPI_Init_thread with
///   MPI_THREAD_MULTIPLE, and MPI_Finalize is called at exit, unless a communicator has failed by
///   then: MPI_Finalize might wait for ranks that do not come. Some launchers then call the job
///   failed, which it is. A program that knows better calls MPI_Finalize itself.
/// - All messages go over a duplicate of the communicator, which no other library sees. Its errors
///   are returned and thrown; error handlers and attributes of other communicators stay as they
///   are. It is freed by MPI_Finalize alone: MPI_Comm_free may wait for all ranks.
/// - Every thread level will do. Below MPI_THREAD_MULTIPLE, transports of several threads take
///   turns, the program's own calls of MPI must not be made at the same time; below
///   MPI_THREAD_SERIALIZED only the thread that initialised MPI may use a transport. `announce` may
///   be called by any thread: where it may not call MPI, the owner's next call sends the notice.
/// - MPI tells nobody that a rank has died: `state` is always alive, so that only a deadline ends
///   a call. Many launchers end the whole job when a rank dies. docs/transports.md says more.
///
/// Errors: transport_error with MPI's text, the operation and the peer; also for use after
///         MPI_Finalize or by a thread that may not call MPI.
class mpi_transport {
 public:
  static constexpr int channels = 15;

  /// A transfer. One that is destroyed before it is done must have been given to `abandon`.
  class request {
   public:
    request() = default;
    request(request&& other) noexcept
        : handle_(std::exchange(other.handle_, MPI_REQUEST_NULL)),
          peer_(other.peer_),
          receives_(other.receives_) {}
    request& operator=(request&& other) noexcept {
      handle_ = std::exchange(other.handle_, MPI_REQUEST_NULL);
      peer_ = other.peer_;
      receives_ = other.receives_;
      return *this;
    }

   private:
    friend class mpi_transport;
    request(MPI_Request handle, int peer, bool receives) noexcept
        : handle_(handle), peer_(peer), receives_(receives) {}

    MPI_Request handle_ = MPI_REQUEST_NULL;
    int peer_ = 0;
    bool receives_ = false;
    std::size_t bytes_ = 0;
  };

  /// All ranks of MPI_COMM_WORLD. See `from`.
  static mpi_transport world(mpi_options options = {}) {
    detail::mpi_process::instance().start();
    return from(MPI_COMM_WORLD, std::move(options));
  }

  /// All ranks of `comm`, an intracommunicator.
  ///
  /// Collective: all ranks of `comm`, in the same order as its other collective operations.
  /// Throws:     `rendezvous_error` where they do not all come in time; `transport_error` where MPI
  ///             refuses something; `std::invalid_argument`. An error of MPI_Comm_idup itself goes
  ///             to the error handler of `comm` first, which by default ends the program.
  static mpi_transport from(MPI_Comm comm, mpi_options options = {}) {
    if (comm == MPI_COMM_NULL) {
      throw std::invalid_argument("rankfold: mpi_transport::from: the communicator is null");
    }
    (void)detail::checked_segment_bytes(options.workspace_bytes, 1);
    detail::mpi_process& process = detail::mpi_process::instance();
    process.start();
    auto link = std::make_shared<detail::mpi_link>();
    auto made = std::make_unique<group>();
    int size = 0;
    {
      const auto turn = process.turn("MPI_Comm_idup");
      int inter = 0;
      detail::mpi_check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
      if (inter != 0) {
        throw std::invalid_argument(
            "rankfold: mpi_transport::from: an intercommunicator; MPI_Intercomm_merge makes an "
            "intracommunicator of it");
      }
      detail::mpi_check(MPI_Comm_rank(comm, &made->rank), "MPI_Comm_rank");
      detail::mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
      detail::check_world_size(size);
      void* bound = nullptr;
      int found = 0;
      detail::mpi_check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found),
                        "MPI_Comm_get_attr");
      const int most = found != 0 ? *static_cast<int*>(bound) : 32767;  // what MPI guarantees
      link->slots = (static_cast<std::uint32_t>(most) + 1) / tags;
      detail::mpi_check(MPI_Comm_idup(comm, &link->comm, &link->making), "MPI_Comm_idup");
    }
    meet(process, link, size, options);
    {
      const auto turn = process.turn("MPI_Comm_set_errhandler");
      detail::mpi_check(MPI_Comm_set_errhandler(link->comm, MPI_ERRORS_RETURN),
                        "MPI_Comm_set_errhandler");
      process.add(link->comm);
    }
    made->link = std::move(link);
    made->workspace_bytes = options.workspace_bytes;
    made->members.resize(static_cast<std::size_t>(size));
    std::iota(made->members.begin(), made->members.end(), 0);
    return mpi_transport(std::move(made));
  }

  /// The transport of a group of this one's ranks; see splittable_transport. Does not wait: the
  /// group's messages go over the same duplicate of the communicator, told apart by their tags,
  /// which follow from `key`. `options` are not needed.
  ///
  /// Two groups may get the same tags; with MPI's usual range of tags (2^28 and more) one pair in
  /// 16 million does. Packets carry `context_key`, so that this is an error, not wrong data.
  ///
  /// Throws: `std::invalid_argument` for members that are no ranks of this transport, or a rank
  ///         that is not this one's place among them.
  mpi_transport child(std::span<const int> members, int rank, std::string_view key,
                      const child_options& /*options*/ = {}) const {
    auto made = std::make_unique<group>();
    detail::check_rank(rank, static_cast<int>(members.size()));
    for (const int member : members) {
      if (member < 0 || member >= size()) {
        throw std::invalid_argument("rankfold: mpi_transport::child: member " +
                                    std::to_string(member) + " is no rank of the " +
                                    std::to_string(size()) + " that there are");
      }
      made->members.push_back(world_rank(member));
    }
    if (members[static_cast<std::size_t>(rank)] != this->rank()) {
      throw std::invalid_argument("rankfold: mpi_transport::child: rank " + std::to_string(rank) +
                                  " of the group is member " +
                                  std::to_string(members[static_cast<std::size_t>(rank)]) +
                                  ", but this is rank " + std::to_string(this->rank()));
    }
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : key) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    made->link = group_->link;
    made->rank = rank;
    // Range 0 belongs to the root.
    made->first_tag = static_cast<int>(1 + (hash >> 32) % (made->link->slots - 1)) * tags;
    made->context_key = hash;
    made->workspace_bytes = group_->workspace_bytes;
    return mpi_transport(std::move(made));
  }

  /// For each rank the lowest rank on its host, so that it is equal for ranks on one host: for
  /// hierarchical_transport. MPI_Comm_split_type tells; no environment variable is asked.
  ///
  /// Collective: all ranks; asks MPI only once, and in MPI_Comm_split_type waits without a
  ///             deadline. A group's transport takes what the one of all ranks has found out
  ///             before.
  std::vector<int> host_marks() {
    std::vector<int>& known = group_->link->host_marks;
    if (known.empty()) {
      if (group_->first_tag != 0) {
        throw std::logic_error(
            "rankfold: mpi_transport::host_marks: call it on the transport of all ranks first, "
            "then on a group's");
      }
      const auto turn = enter("MPI_Comm_split_type");
      MPI_Comm host = MPI_COMM_NULL;
      check(MPI_Comm_split_type(comm(), MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host),
            "MPI_Comm_split_type", nobody);
      MPI_Comm_set_errhandler(host, MPI_ERRORS_RETURN);
      int lowest = rank();  // the host's rank 0 is its lowest: `rank()` was the key
      const int told = MPI_Bcast(&lowest, 1, MPI_INT, 0, host);
      MPI_Comm_free(&host);  // all ranks are here
      check(told, "MPI_Bcast", nobody);
      std::vector<int> marks(group_->members.size());
      check(MPI_Allgather(&lowest, 1, MPI_INT, marks.data(), 1, MPI_INT, comm()), "MPI_Allgather",
            nobody);
      known = std::move(marks);
    }
    std::vector<int> marks;
    marks.reserve(group_->members.size());
    for (const int member : group_->members)
      marks.push_back(known[static_cast<std::size_t>(member)]);
    return marks;
  }

  mpi_transport(mpi_transport&&) noexcept = default;
  mpi_transport& operator=(mpi_transport&& other) noexcept {
    mpi_transport taken(std::move(other));
    std::swap(group_, taken.group_);
    return *this;
  }
  ~mpi_transport() {
    if (group_ == nullptr) return;
    detail::mpi_process& process = detail::mpi_process::instance();
    const detail::mpi_turn turn = process.try_turn();
    if (turn) send_queued_notice();
    if (group_->hearing.handle_ != MPI_REQUEST_NULL) {
      process.keep(group_->hearing.handle_, true, group_.get(), group_->heard);
    }
    process.forget(group_.get());
    if (turn) process.poll();
  }

  int rank() const noexcept { return group_->rank; }
  int size() const noexcept { return static_cast<int>(group_->members.size()); }
  std::string_view name() const noexcept { return "mpi"; }
  std::size_t workspace_bytes() const noexcept { return group_->workspace_bytes; }
  /// Tells the packets of this group from those of others.
  std::uint64_t context_key() const noexcept { return group_->context_key; }
  /// MPI_THREAD_MULTIPLE or what else MPI gives.
  int thread_level() const noexcept { return detail::mpi_process::instance().level(); }
  /// Always alive: MPI cannot tell.
  peer_state state(int /*rank*/) const noexcept { return peer_state::alive; }

  request send(int peer, int channel, const std::byte* data, std::size_t bytes) {
    const auto turn = enter("MPI_Isend");
    return start("MPI_Isend", peer, /*receives=*/false, bytes,
                 [&](int count, MPI_Datatype type, MPI_Request* handle) {
                   return MPI_Isend(data, count, type, world_rank(peer), tag(channel), comm(),
                                    handle);
                 });
  }

  request receive(int peer, int channel, std::byte* data, std::size_t bytes) {
    const auto turn = enter("MPI_Irecv");
    return start("MPI_Irecv", peer, /*receives=*/true, bytes,
                 [&](int count, MPI_Datatype type, MPI_Request* handle) {
                   return MPI_Irecv(data, count, type, world_rank(peer), tag(channel), comm(),
                                    handle);
                 });
  }

  bool done(request& r) {
    if (r.handle_ == MPI_REQUEST_NULL) return true;
    const auto turn = enter("MPI_Test");
    return test(r);
  }

  void abandon(request&& r, std::shared_ptr<const void> memory) noexcept {
    const request taken = std::move(r);
    if (taken.handle_ == MPI_REQUEST_NULL) return;
    detail::mpi_process& process = detail::mpi_process::instance();
    process.keep(taken.handle_, taken.receives_, group_.get(), std::move(memory));
  }

  void announce(std::span<const std::byte> notice) noexcept {
    RANKFOLD_ASSERT(1, notice.size() <= max_notice, "the notice is too long");
    detail::mpi_process& process = detail::mpi_process::instance();
    process.fail();
    try {
      auto copy = std::make_shared<std::vector<std::byte>>(key_bytes + notice.size());
      std::memcpy(copy->data(), &group_->context_key, key_bytes);
      std::copy(notice.begin(), notice.end(), copy->begin() + key_bytes);
      if (const detail::mpi_turn turn = process.try_turn()) return send_notice(std::move(copy));
      const std::lock_guard lock(group_->queue_mutex);
      group_->queued = std::move(copy);
      group_->has_queued = true;
    } catch (...) {
      // Best effort: who waits has a deadline.
    }
  }

  std::size_t heard(std::span<std::byte> room) {
    group& g = *group_;
    // Each look costs MPI a walk through what it has received: one in a few microseconds will do.
    const auto now = std::chrono::steady_clock::now();
    if (g.hearing.handle_ == MPI_REQUEST_NULL && now < g.next_look) return 0;
    const auto turn = enter("MPI_Improbe");
    if (g.hearing.handle_ == MPI_REQUEST_NULL) {
      g.next_look = now + between_looks;
      int flag = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(MPI_ANY_SOURCE, tag(channels), comm(), &flag, &message, &status),
            "MPI_Improbe", nobody);
      if (flag == 0) return 0;
      int bytes = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", nobody);
      g.heard = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
      const auto at = std::find(g.members.begin(), g.members.end(), status.MPI_SOURCE);
      MPI_Request handle = MPI_REQUEST_NULL;
      check(MPI_Imrecv(g.heard->data(), bytes, MPI_BYTE, &message, &handle), "MPI_Imrecv", nobody);
      g.hearing = request(handle, static_cast<int>(at - g.members.begin()), true);
    }
    if (!test(g.hearing)) return 0;
    const std::shared_ptr<std::vector<std::byte>> notice = std::move(g.heard);
    if (notice->size() < key_bytes || std::memcmp(notice->data(), &g.context_key, key_bytes) != 0) {
      return 0;  // of another group, which has the same tags
    }
    detail::mpi_process::instance().fail();
    const std::size_t bytes = (std::min)(room.size(), notice->size() - key_bytes);
    if (bytes != 0) std::memcpy(room.data(), notice->data() + key_bytes, bytes);
    return bytes;
  }

 private:
  static constexpr int tags = channels + 1;  // the last one for notices
  static constexpr int nobody = -1;
  static constexpr std::size_t key_bytes = sizeof(std::uint64_t);
  static constexpr std::size_t most_bytes = (std::numeric_limits<int>::max)();
  static constexpr std::size_t block_bytes = std::size_t{1} << 30;
  static constexpr std::chrono::microseconds between_looks{20};

  /// What stays in its place when the transport is moved.
  struct group {
    std::shared_ptr<detail::mpi_link> link;
    std::vector<int> members;  // as ranks of the link
    int rank = 0;
    int first_tag = 0;
    std::uint64_t context_key = 0;
    std::size_t workspace_bytes = 0;
    unsigned calls = 0;

    request hearing;
    std::shared_ptr<std::vector<std::byte>> heard;
    std::chrono::steady_clock::time_point next_look{};

    std::mutex queue_mutex;
    std::atomic<bool> has_queued{false};  // seq_cst; the mutex orders what is queued
    std::shared_ptr<const std::vector<std::byte>> queued;
  };

  explicit mpi_transport(std::unique_ptr<group> made) noexcept : group_(std::move(made)) {}

  /// Waits until the duplicate is made, which takes all ranks.
  static void meet(detail::mpi_process& process, const std::shared_ptr<detail::mpi_link>& link,
                   int size, const mpi_options& options) {
    const auto begin = std::chrono::steady_clock::now();
    auto asked = begin;
    const auto give_up = [&] {
      process.fail();
      detail::keep_for_ever(link);  // MPI writes to it when the last rank comes
    };
    for (;;) {
      int flag = 0;
      int code = MPI_SUCCESS;
      {
        const auto turn = process.turn("MPI_Comm_idup");
        code = MPI_Test(&link->making, &flag, MPI_STATUS_IGNORE);
      }
      if (code != MPI_SUCCESS) {
        give_up();
        detail::mpi_check(code, "MPI_Comm_idup");
      }
      if (flag != 0) return;
      const auto now = std::chrono::steady_clock::now();
      if (now - begin >= options.timeout) {
        give_up();
        throw rendezvous_error("rankfold: mpi_transport: not all " + std::to_string(size) +
                               " ranks of the communicator made a transport of it within " +
                               detail::duration_text(options.timeout));
      }
      if (options.interrupt && now - asked >= std::chrono::milliseconds(100)) {
        asked = now;
        try {
          options.interrupt();
        } catch (...) {
          give_up();
          throw;
        }
      }
      if (now - begin < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }

  MPI_Comm comm() const noexcept { return group_->link->comm; }
  int tag(int channel) const noexcept { return group_->first_tag + channel; }
  int world_rank(int peer) const noexcept {
    RANKFOLD_ASSERT(1, peer >= 0 && peer < size(), "no such rank");
    return group_->members[static_cast<std::size_t>(peer)];
  }

  /// This thread's turn; first does what others have left for it.
  detail::mpi_turn enter(const char* operation) {
    detail::mpi_process& process = detail::mpi_process::instance();
    auto turn = process.turn(operation);
    if (group_->has_queued) [[unlikely]]
      send_queued_notice();
    if (++group_->calls % 256 == 0) [[unlikely]]
      process.poll();
    return turn;
  }

  template <class Start>
  request start(const char* operation, int peer, bool receives, std::size_t bytes, Start&& go) {
    MPI_Request handle = MPI_REQUEST_NULL;
    int code = MPI_SUCCESS;
    if (bytes <= most_bytes) [[likely]] {
      code = go(static_cast<int>(bytes), MPI_BYTE, &handle);
    } else {
      const detail::mpi_large_type type(bytes, block_bytes);
      code = go(1, type.get(), &handle);
    }
    check(code, operation, peer);
    return request(handle, peer, receives);
  }

  bool test(request& r) {
    int flag = 0;
    const int code = MPI_Test(&r.handle_, &flag, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) [[unlikely]] {
      r.handle_ = MPI_REQUEST_NULL;
      check(code, r.receives_ ? "MPI_Irecv" : "MPI_Isend", r.peer_);
    }
    return flag != 0;
  }

  std::string where(const char* operation, int peer) const {
    std::string text = std::string("rankfold: ") + operation;
    if (peer != nobody) text += " with rank " + std::to_string(peer);
    return text + " on rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ": ";
  }

  void check(int code, const char* operation, int peer) const {
    if (code == MPI_SUCCESS) [[likely]]
      return;
    detail::mpi_process::instance().fail();
    throw transport_error(where(operation, peer) + detail::mpi_text(code));
  }

  void send_queued_notice() noexcept {
    std::shared_ptr<const std::vector<std::byte>> notice;
    {
      const std::lock_guard lock(group_->queue_mutex);
      notice = std::move(group_->queued);
      group_->has_queued = false;
    }
    if (notice != nullptr) send_notice(std::move(notice));
  }

  /// Only by who has a turn.
  void send_notice(std::shared_ptr<const std::vector<std::byte>> notice) noexcept {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      MPI_Request handle = MPI_REQUEST_NULL;
      if (MPI_Isend(notice->data(), static_cast<int>(notice->size()), MPI_BYTE, world_rank(peer),
                    tag(channels), comm(), &handle) == MPI_SUCCESS) {
        detail::mpi_process::instance().keep(handle, false, nullptr, notice);
      }
    }
  }

  std::unique_ptr<group> group_;
};
static_assert(message_transport<mpi_transport> && splittable_transport<mpi_transport>);

RANKFOLD_END_NAMESPACE
