// SPDX-License-Identifier: Apache-2.0
// The transport of ranks that are processes of one host, over shared memory without a name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/assert.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/bootstrap/unix_socket.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/detail/process_life.hpp"
#include "rankfold/detail/segment_file.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
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
    meet(participant, {.key = std::string(key),
                       .rank = rank,
                       .size = size,
                       .segment_bytes = bytes,
                       .timeout = options.timeout,
                       .socket_path = std::move(options.socket_path),
                       .interrupt = std::move(options.interrupt)});
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

  /// More memory: the ranks meet as for a group, and hand each other a descriptor of each part.
  symmetric_memory allocate(std::size_t bytes, std::string_view key,
                            const child_options& options) const {
    memory_meeting participant(*this, bytes);
    meet(participant, {.key = "memory " + std::string(key),
                       .rank = rank_,
                       .size = size_,
                       .segment_bytes = bytes,
                       .timeout = options.timeout,
                       .socket_path = child_path(key),
                       .interrupt = options.interrupt});
    return participant.taken();
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
    explicit meeting(shm_transport& transport)
        : transport_(transport), file_{transport.size_, transport.segment_bytes_} {}

    shared_segment create() override {
      shared_segment made;
      made.memory = file_.create(transport_.rank_, transport_.entry(transport_.rank_).segment);
      if (transport_.size_ > 1) {
        detail::process_life life = detail::open_process_life();
        transport_.life_ = std::move(life.held);
        made.life = std::move(life.watched);
      }
      return made;
    }

    void adopt(int rank, shared_segment given) override {
      file_.adopt(transport_.rank_, rank, given.memory,
                  [this](int r) -> detail::mapping& { return transport_.entry(r).segment; });
      transport_.entry(rank).life = std::move(given.life);
      // given.memory closes: the mapping keeps the memory.
    }

   private:
    shm_transport& transport_;
    detail::segment_file file_;
  };

  /// This rank where all meet for more memory: they know already who lives.
  class memory_meeting final : public rendezvous_participant {
   public:
    memory_meeting(const shm_transport& transport, std::size_t bytes)
        : rank_(transport.rank_),
          file_{transport.size_, bytes},
          parts_(std::make_shared<std::vector<detail::mapping>>(
              static_cast<std::size_t>(transport.size_))) {}

    shared_segment create() override {
      shared_segment made;
      made.memory = file_.create(rank_, part(rank_));
      made.life = detail::open_process_life().watched;
      return made;
    }

    void adopt(int rank, shared_segment given) override {
      file_.adopt(rank_, rank, given.memory, [this](int r) -> detail::mapping& { return part(r); });
    }

    symmetric_memory taken() const {
      symmetric_memory memory{{}, parts_};
      for (const detail::mapping& part : *parts_) memory.parts.push_back(part.data());
      return memory;
    }

   private:
    detail::mapping& part(int rank) { return (*parts_)[static_cast<std::size_t>(rank)]; }

    int rank_;
    detail::segment_file file_;
    std::shared_ptr<std::vector<detail::mapping>> parts_;
  };

  shm_transport(int rank, int size, std::size_t segment_bytes, const shm_options& options)
      : rank_(rank),
        size_(size),
        segment_bytes_(segment_bytes),
        workspace_bytes_(options.workspace_bytes),
        socket_path_(options.socket_path),
        generation_(detail::fork_generation()),
        ranks_(static_cast<std::size_t>(size)) {}

  static void meet(rendezvous_participant& participant, const rendezvous_options& options) {
    if (options.size == 1) {
      participant.create();
    } else {
      unix_socket_rendezvous(options, participant);
    }
  }

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
static_assert(memory_transport<shm_transport> && splittable_transport<shm_transport> &&
              symmetric_transport<shm_transport>);

RANKFOLD_END_NAMESPACE
