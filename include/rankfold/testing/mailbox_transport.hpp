// SPDX-License-Identifier: Apache-2.0
// A message transport between threads of one process: for tests of what runs on messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace testing {

/// Options of a mailbox_transport.
struct mailbox_options {
  std::size_t workspace_bytes = rankfold::detail::default_workspace_bytes;
  /// A larger message is taken from the sender's memory when it is received, as MPI does it: its
  /// send is not done before.
  std::size_t eager_bytes = 4096;
  /// Whether `state` tells that a rank has left. MPI does not.
  bool notices_loss = true;
};

/// One rank of several in this process, which have no memory in common.
class mailbox_transport {
  struct message {
    std::vector<std::byte> copy;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> memory;  // of an abandoned send
    bool taken = false;
  };
  struct stream {  // of one sender, receiver and channel
    std::deque<message> messages;
    std::uint64_t first = 0;     // number of the first of `messages`
    std::uint64_t receives = 0;  // how many were posted
  };
  struct office {
    std::mutex mutex;
    std::map<std::pair<std::pair<int, int>, int>, stream> streams;
    std::vector<std::vector<std::byte>> notices;
    std::vector<int> announcer;
    std::vector<peer_state> states;
    std::map<std::string, std::weak_ptr<office>, std::less<>> children;
  };

 public:
  static constexpr int channels = 64;

  struct request {
    enum { none, send, receive } kind = none;
    stream* where = nullptr;
    std::uint64_t number = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  /// Makes the transports of all ranks, in the order of their ranks.
  static std::vector<mailbox_transport> create(int size, mailbox_options options = {}) {
    rankfold::detail::check_world_size(size);
    const auto shared = open(size);
    std::vector<mailbox_transport> all;
    for (int r = 0; r < size; ++r) all.push_back(mailbox_transport(shared, r, size, options));
    return all;
  }

  mailbox_transport(mailbox_transport&&) = default;
  mailbox_transport& operator=(mailbox_transport&& other) noexcept {
    mailbox_transport taken(std::move(other));
    std::swap(office_, taken.office_);
    std::swap(rank_, taken.rank_);
    std::swap(size_, taken.size_);
    std::swap(options_, taken.options_);
    std::swap(heard_, taken.heard_);
    return *this;
  }
  ~mailbox_transport() {
    if (office_ == nullptr) return;
    const std::lock_guard lock(office_->mutex);
    office_->states[static_cast<std::size_t>(rank_)] = peer_state::left;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::string_view name() const noexcept { return "mailbox"; }
  std::size_t workspace_bytes() const noexcept { return options_.workspace_bytes; }
  /// This rank's own; the others keep theirs.
  mailbox_options& options() noexcept { return options_; }

  request send(int peer, int channel, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(office_->mutex);
    stream& s = office_->streams[{{rank_, peer}, channel}];
    message m;
    m.bytes = bytes;
    m.data = data;
    if (bytes <= options_.eager_bytes) m.copy.assign(data, data + bytes);
    s.messages.push_back(std::move(m));
    return {bytes <= options_.eager_bytes ? request::none : request::send, &s,
            s.first + s.messages.size() - 1, nullptr, bytes};
  }

  request receive(int peer, int channel, std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(office_->mutex);
    stream& s = office_->streams[{{peer, rank_}, channel}];
    return {request::receive, &s, s.receives++, data, bytes};
  }

  bool done(request& r) {
    if (r.kind == request::none) return true;
    const std::lock_guard lock(office_->mutex);
    stream& s = *r.where;
    if (r.number >= s.first + s.messages.size()) return false;
    if (r.kind == request::send) return r.number < s.first || s.messages[r.number - s.first].taken;
    message& m = s.messages[r.number - s.first];
    if (m.bytes > r.bytes) {
      throw transport_error("rankfold: a message of " + std::to_string(m.bytes) +
                            " bytes came, expected at most " + std::to_string(r.bytes));
    }
    if (m.bytes != 0) std::memcpy(r.data, m.copy.empty() ? m.data : m.copy.data(), m.bytes);
    m.taken = true;
    m.memory.reset();
    r.kind = request::none;
    while (!s.messages.empty() && s.messages.front().taken) {
      s.messages.pop_front();
      ++s.first;
    }
    return true;
  }

  void abandon(request&& r, std::shared_ptr<const void> memory) noexcept {
    if (r.kind != request::send) return;
    const std::lock_guard lock(office_->mutex);
    if (r.number >= r.where->first) {
      r.where->messages[r.number - r.where->first].memory = std::move(memory);
    }
  }

  void announce(std::span<const std::byte> notice) noexcept {
    const std::lock_guard lock(office_->mutex);
    office_->notices.emplace_back(notice.begin(), notice.end());
    office_->announcer.push_back(rank_);
  }

  /// Each notice once, as over MPI.
  std::size_t heard(std::span<std::byte> notice) {
    const std::lock_guard lock(office_->mutex);
    while (heard_ < office_->notices.size()) {
      const std::size_t i = heard_++;
      if (office_->announcer[i] == rank_) continue;
      const std::vector<std::byte>& found = office_->notices[i];
      std::memcpy(notice.data(), found.data(), (std::min)(notice.size(), found.size()));
      return (std::min)(notice.size(), found.size());
    }
    return 0;
  }

  peer_state state(int peer) const noexcept {
    if (!options_.notices_loss) return peer_state::alive;
    const std::lock_guard lock(office_->mutex);
    return office_->states[static_cast<std::size_t>(peer)];
  }

  /// See splittable_transport. Does not wait.
  mailbox_transport child(std::span<const int> members, int rank, std::string_view key,
                          const child_options& /*options*/ = {}) const {
    const std::lock_guard lock(office_->mutex);
    std::weak_ptr<office>& known = office_->children[std::string(key)];
    std::shared_ptr<office> shared = known.lock();
    if (shared == nullptr) known = shared = open(static_cast<int>(members.size()));
    return mailbox_transport(std::move(shared), rank, static_cast<int>(members.size()), options_);
  }

 private:
  mailbox_transport(std::shared_ptr<office> shared, int rank, int size, mailbox_options options)
      : office_(std::move(shared)), rank_(rank), size_(size), options_(options) {}

  static std::shared_ptr<office> open(int size) {
    auto shared = std::make_shared<office>();
    shared->states.resize(static_cast<std::size_t>(size), peer_state::alive);
    return shared;
  }

  std::shared_ptr<office> office_;
  int rank_;
  int size_;
  mailbox_options options_;
  std::size_t heard_ = 0;  // how many notices
};
static_assert(message_transport<mailbox_transport> && splittable_transport<mailbox_transport>);

}  // namespace testing

RANKFOLD_END_NAMESPACE
