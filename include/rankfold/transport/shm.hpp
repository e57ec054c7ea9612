// SPDX-License-Identifier: Apache-2.0
// The transport of ranks that are processes of one host, over shared memory without a name.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "rankfold/assert.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/bootstrap/unix_socket.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/process_life.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

struct shm_options {
  /// What a rank stages its data in, both halves together; rounded up to whole pages. The same on
  /// all ranks.
  std::size_t workspace_bytes = detail::default_workspace_bytes;
  /// How long the ranks may take to find each other. Default: RANKFOLD_TIMEOUT, else 5 minutes.
  std::chrono::milliseconds timeout = default_timeout();
  /// A path for the socket over which the ranks meet, for ranks in different network namespaces
  /// (some containers); empty: no path, which is better. It is gone when they have met.
  std::string socket_path = {};
  /// Tells communicators apart that a process makes in no fixed order, such as in several threads:
  /// a name for each, the same on all ranks.
  std::string label = {};
  /// Called about ten times a second while the ranks meet; what it throws ends the start.
  std::function<void()> interrupt = {};
};

/// One rank of several that are processes of this host.
///
/// The memory is passed from process to process as descriptors: there is nothing with a name that
/// could clash, be left behind or fill up /dev/shm. A rank that ends without destroying its
/// transport is seen as `died`; after a fork the child's copy is not `valid` and its destructor
/// leaves the peers alone.
class shm_transport {
 public:
  static constexpr bool crosses_processes = true;

  /// Meets the other ranks of the run that this process was started in; read_environment() says
  /// where that is read from. A second one, made by all ranks, is separate from the first.
  ///
  /// Collective: all ranks, in the same order where they make more than one.
  /// Throws:     `rendezvous_error` where the environment tells no place, or the ranks do not come
  ///             together on this host in time: on all of them, naming ranks; `transport_error`
  ///             where there is no memory, or the system refuses something; `std::invalid_argument`
  ///             for an option or a variable that is malformed.
  static shm_transport from_environment(shm_options options = {}) {
    const rank_environment place = read_environment();
    detail::check_one_host(place);
    detail::communicator_number number(options.label);
    const std::string key =
        place.run + " label=" + options.label + " communicator=" + std::to_string(number.value());
    shm_transport made = connect(key, place.rank, place.size, std::move(options));
    number.keep();
    return made;
  }

  /// Meets the other ranks that are given the same key, whoever started them.
  ///
  /// Collective: `size` processes of one user, ranks 0 to size - 1; no two runs at a time with one
  /// key. Throws:     as from_environment.
  static shm_transport connect(std::string_view key, int rank, int size, shm_options options = {}) {
    detail::check_rank(rank, size);
    const std::size_t bytes = detail::checked_segment_bytes(options.workspace_bytes, size);
    shm_transport made(rank, size, bytes, options);
    meeting participant(made);
    if (size == 1) {
      participant.create();
    } else {
      unix_socket_rendezvous({.key = std::string(key),
                              .rank = rank,
                              .size = size,
                              .segment_bytes = bytes,
                              .timeout = options.timeout,
                              .socket_path = std::move(options.socket_path),
                              .interrupt = std::move(options.interrupt)},
                             participant);
    }
    return made;
  }

  shm_transport(shm_transport&&) = default;
  shm_transport& operator=(shm_transport&& other) noexcept {
    shm_transport taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~shm_transport() {
    // Before `life_` ends, so that peers never take one who left for one who died.
    if (valid()) detail::mark_left(segment(rank_));
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::string_view name() const noexcept { return "shm"; }
  std::byte* segment(int rank) const noexcept {
    RANKFOLD_ASSERT(2, rank >= 0 && rank < size_ && !ranks_.empty(), "no such rank");
    return ranks_[static_cast<std::size_t>(rank)].segment.data();
  }
  std::size_t segment_size() const noexcept { return segment_bytes_; }

  peer_state state(int rank) const noexcept {
    if (detail::has_left(segment(rank))) return peer_state::left;
    if (rank == rank_ || !detail::has_ended(ranks_[static_cast<std::size_t>(rank)].life.get())) {
      return peer_state::alive;
    }
    // Once more: it may have left and ended between the two looks.
    return detail::has_left(segment(rank)) ? peer_state::left : peer_state::died;
  }

  /// The transport of a group: its members meet as those of `connect` do. Where this one's ranks
  /// met at a path, the group's meet beside it.
  shm_transport child(std::span<const int> members, int rank, std::string_view key,
                      const child_options& options) const {
    shm_options how;
    how.workspace_bytes = workspace_bytes_;
    how.timeout = options.timeout;
    how.socket_path = child_path(key);
    how.interrupt = options.interrupt;
    return connect("group " + std::string(key), rank, static_cast<int>(members.size()),
                   std::move(how));
  }

  /// Whether this is of use: not moved from, and not the copy of a forked child.
  bool valid() const noexcept {
    return !ranks_.empty() && ranks_[static_cast<std::size_t>(rank_)].segment.data() != nullptr &&
           generation_ == detail::fork_generation();
  }

 private:
  struct rank_entry {
    detail::mapping segment;
    detail::file_descriptor life;  // none for one's own
  };

  /// This rank at the rendezvous.
  class meeting final : public rendezvous_participant {
   public:
    explicit meeting(shm_transport& transport) : transport_(transport) {}

    shared_segment create() override {
      const auto bytes = static_cast<std::uint64_t>(transport_.segment_bytes_);
      // Rank 0 comes first and looks for all: each alone would find room that the next one needs
      // too.
      if (transport_.rank_ == 0) {
        const auto size = static_cast<std::uint64_t>(transport_.size_);
        detail::check_memory(bytes * size,
                             std::to_string(size) + " segments of " + detail::bytes_text(bytes));
      } else {
        detail::check_memory(bytes, "a segment");
      }
      shared_segment made;
      made.memory = make_memory(transport_.segment_bytes_);
      rank_entry& own = transport_.entry(transport_.rank_);
      own.segment = map(made.memory, transport_.segment_bytes_);
      reserve(made.memory, own.segment);
      detail::init_segment(own.segment.data(), transport_.rank_, transport_.size_);
      if (::fcntl(made.memory.get(), F_ADD_SEALS, wanted_seals) != 0) {
        detail::throw_errno("a segment cannot be sealed", errno);
      }
      if (transport_.size_ > 1) {
        detail::process_life life = detail::open_process_life();
        transport_.life_ = std::move(life.held);
        made.life = std::move(life.watched);
      }
      return made;
    }

    void adopt(int rank, shared_segment given) override {
      const std::string who = "rankfold: rank " + std::to_string(transport_.rank_) +
                              ": the memory of rank " + std::to_string(rank);
      if (rank < 0 || rank >= transport_.size_ || rank == transport_.rank_ ||
          transport_.entry(rank).segment.data() != nullptr) {
        throw rendezvous_error(who + " was not expected");
      }
      struct ::stat status{};
      if (::fstat(given.memory.get(), &status) != 0) {
        detail::throw_errno("a segment cannot be looked at", errno);
      }
      if (!S_ISREG(status.st_mode) ||
          status.st_size != static_cast<::off_t>(transport_.segment_bytes_)) {
        throw rendezvous_error(who + " has " + std::to_string(status.st_size) +
                               " bytes, expected " + std::to_string(transport_.segment_bytes_));
      }
      // Without them its owner could cut it short and make every access here a SIGBUS.
      const int seals = ::fcntl(given.memory.get(), F_GET_SEALS);
      if (seals < 0 || (seals & wanted_seals) != wanted_seals) {
        throw rendezvous_error(who + " has seals " + std::to_string(seals) +
                               ", expected at least " + std::to_string(wanted_seals) +
                               " (not to shrink nor to grow)");
      }
      detail::mapping segment = map(given.memory, transport_.segment_bytes_);
      const detail::segment_header& header = detail::header_of(segment.data());
      if (header.magic != detail::segment_magic || header.layout != detail::layout_version ||
          header.rank != rank || header.size != transport_.size_) {
        throw rendezvous_error(who + " says rank " + std::to_string(header.rank) + " of " +
                               std::to_string(header.size) + ", layout " +
                               std::to_string(header.layout) + ", expected rank " +
                               std::to_string(rank) + " of " + std::to_string(transport_.size_) +
                               ", layout " + std::to_string(detail::layout_version));
      }
      rank_entry& entry = transport_.entry(rank);
      entry.segment = std::move(segment);
      entry.life = std::move(given.life);
      // given.memory closes: the mapping keeps the memory.
    }

   private:
    static constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    static detail::file_descriptor make_memory(std::size_t bytes) {
      // Larger files would be answered with a signal.
      ::rlimit limit{};
      if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
          limit.rlim_cur < bytes) {
        throw transport_error(
            "rankfold: no memory for a segment: need " + detail::bytes_text(bytes) + ", have " +
            detail::bytes_text(limit.rlim_cur) + ", a limit set by ulimit -f (file size)");
      }
      constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
      constexpr unsigned never_executed = 8;  // MFD_NOEXEC_SEAL, Linux 6.3
      detail::file_descriptor memory(::memfd_create("rankfold", flags | never_executed));
      if (!memory && errno == EINVAL) {
        memory = detail::file_descriptor(::memfd_create("rankfold", flags));
      }
      if (!memory) detail::throw_errno("a segment cannot be made (memfd_create)", errno);
      if (::ftruncate(memory.get(), static_cast<::off_t>(bytes)) != 0) {
        detail::throw_errno("a segment cannot be given " + detail::bytes_text(bytes), errno);
      }
      return memory;
    }

    static detail::mapping map(const detail::file_descriptor& memory, std::size_t bytes) {
      void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
      if (address == MAP_FAILED) {
        detail::throw_errno(
            "no address space for a segment of " + detail::bytes_text(bytes) + " (mmap)", errno);
      }
      return {address, bytes};
    }

    /// Takes all the memory now, by its owner and so near to it; what cannot be had is an error
    /// here and never a SIGBUS later.
    static void reserve(const detail::file_descriptor& memory, const detail::mapping& segment) {
      // Best effort, and first: where the system allows huge pages, they come with the first touch.
      constexpr std::size_t huge_page = std::size_t{2} << 20;
      constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
      if (segment.size() >= huge_page) ::madvise(segment.data(), segment.size(), MADV_HUGEPAGE);
      ::madvise(segment.data(), segment.size(), populate_write);
      while (::fallocate(memory.get(), 0, 0, static_cast<::off_t>(segment.size())) != 0) {
        if (errno == EINTR) continue;
        const int code = errno;
        const detail::memory_limit limit = detail::available_memory();
        throw transport_error("rankfold: no memory for a segment: need " +
                              detail::bytes_text(segment.size()) + ", have " +
                              detail::bytes_text(limit.available) + " (" + limit.set_by +
                              "), fallocate says " + detail::errno_text(code));
      }
    }

    shm_transport& transport_;
  };

  shm_transport(int rank, int size, std::size_t segment_bytes, const shm_options& options)
      : rank_(rank),
        size_(size),
        segment_bytes_(segment_bytes),
        workspace_bytes_(options.workspace_bytes),
        socket_path_(options.socket_path),
        generation_(detail::fork_generation()),
        ranks_(static_cast<std::size_t>(size)) {}

  rank_entry& entry(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// "<path>-<key>", with as much of the key as a socket's name has room for; empty for no path.
  std::string child_path(std::string_view key) const {
    constexpr std::size_t most = detail::socket_address::max_path_bytes;
    constexpr std::size_t least_digits = 8;
    if (socket_path_.empty()) return {};
    if (socket_path_.size() + 1 + least_digits > most) {
      throw std::invalid_argument(
          "rankfold: shm_options::socket_path is too long for the sockets of groups, which have a "
          "longer name: " +
          std::to_string(socket_path_.size()) + " bytes, expected at most " +
          std::to_string(most - 1 - least_digits));
    }
    return socket_path_ + "-" + std::string(key.substr(0, most - 1 - socket_path_.size()));
  }

  void swap(shm_transport& other) noexcept {
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    std::swap(segment_bytes_, other.segment_bytes_);
    std::swap(workspace_bytes_, other.workspace_bytes_);
    std::swap(socket_path_, other.socket_path_);
    std::swap(generation_, other.generation_);
    std::swap(life_, other.life_);
    std::swap(ranks_, other.ranks_);
  }

  int rank_;
  int size_;
  std::size_t segment_bytes_;
  std::size_t workspace_bytes_;
  std::string socket_path_;  // where the ranks have met, for groups
  unsigned generation_;
  detail::private_descriptor life_;  // destroyed after the mark in the destructor
  std::vector<rank_entry> ranks_;    // empty when moved from
};
static_assert(memory_transport<shm_transport> && splittable_transport<shm_transport>);

RANKFOLD_END_NAMESPACE
