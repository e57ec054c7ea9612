// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts: memory inside a host, messages between all.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Which ranks are where. Hosts are numbered by their lowest ranks.
struct host_layout {
  std::vector<int> host_of;                // of every rank
  std::vector<std::vector<int>> ranks_of;  // of every host, ascending

  /// From a number a rank that is equal for ranks on one host.
  static host_layout of(std::span<const int> marks) {
    host_layout made;
    std::vector<int> known;
    for (std::size_t r = 0; r < marks.size(); ++r) {
      const auto at = std::find(known.begin(), known.end(), marks[r]);
      const auto host = static_cast<std::size_t>(at - known.begin());
      if (at == known.end()) {
        known.push_back(marks[r]);
        made.ranks_of.emplace_back();
      }
      made.host_of.push_back(static_cast<int>(host));
      made.ranks_of[host].push_back(static_cast<int>(r));
    }
    return made;
  }

  std::size_t hosts() const noexcept { return ranks_of.size(); }
  const std::vector<int>& neighbours(int rank) const noexcept {
    return ranks_of[static_cast<std::size_t>(host_of[static_cast<std::size_t>(rank)])];
  }
  /// The place of `rank` among the ranks of its host.
  int local_rank(int rank) const noexcept {
    const std::vector<int>& all = neighbours(rank);
    return static_cast<int>(std::lower_bound(all.begin(), all.end(), rank) - all.begin());
  }
  /// How many ranks every host has at least: as many can work between hosts side by side.
  std::size_t rails() const noexcept {
    std::size_t least = host_of.size();
    for (const auto& ranks : ranks_of) least = (std::min)(least, ranks.size());
    return least;
  }
  /// Whether every host has as many ranks.
  bool is_even() const noexcept { return rails() * hosts() == host_of.size(); }
};

/// One rank of several on one or more hosts: `Memory` joins the ranks of a host, `Message` all.
///
/// all_reduce uses both, in two levels; what else there is goes over `Message` (MPI takes its own
/// shortcut inside a host). The bits of a result are those of every other transport, however the
/// ranks are spread over hosts.
template <memory_transport Memory, message_transport Message>
class hierarchical_transport {
 public:
  /// Joins the ranks of each host. `marks[r]` is any number that is equal for ranks on one host;
  /// `connect(key, rank, size)` makes the Memory among these, with a key that no other group has.
  ///
  /// Collective: all ranks of `all`.
  /// Throws:     `rendezvous_error` where the ranks of a host do not meet within
  ///             `options.timeout`; what `connect` throws.
  template <class Connect>
  static hierarchical_transport compose(Message all, std::span<const int> marks, Connect&& connect,
                                        const child_options& options = {}) {
    if (marks.size() != static_cast<std::size_t>(all.size())) {
      throw std::invalid_argument(
          "rankfold: hierarchical_transport: " + std::to_string(marks.size()) +
          " marks, expected " + std::to_string(all.size()) + ", one a rank");
    }
    host_layout layout = host_layout::of(marks);
    const std::string key = share_key(all, layout.neighbours(all.rank()), options);
    Memory local = connect(std::string_view(key), layout.local_rank(all.rank()),
                           static_cast<int>(layout.neighbours(all.rank()).size()));
    return hierarchical_transport(std::move(local), std::move(all), std::move(layout));
  }

  int rank() const noexcept { return all_.rank(); }
  int size() const noexcept { return all_.size(); }
  std::string_view name() const noexcept { return "hierarchical"; }

  const host_layout& layout() const noexcept { return layout_; }
  const Memory& local() const noexcept { return local_; }
  Memory& local() noexcept { return local_; }
  const Message& global() const noexcept { return all_; }
  Message& global() noexcept { return all_; }

  /// See splittable_transport.
  hierarchical_transport child(std::span<const int> members, int rank, std::string_view key,
                               const child_options& options) const
    requires splittable_transport<Memory> && splittable_transport<Message>
  {
    std::vector<int> marks;
    for (const int r : members) {
      marks.push_back(layout_.host_of[static_cast<std::size_t>(r)]);
    }
    host_layout layout = host_layout::of(marks);
    std::vector<int> neighbours;  // as ranks of this transport's local part
    for (const int r : layout.neighbours(rank)) {
      neighbours.push_back(layout_.local_rank(members[static_cast<std::size_t>(r)]));
    }
    // A key a host: in tests, several hosts are one process.
    std::string local_key(key);
    const auto host = static_cast<std::size_t>(layout.host_of[static_cast<std::size_t>(rank)]);
    for (std::size_t i = 0; i < 3 && i < local_key.size(); ++i) {
      local_key[i] = "0123456789abcdef"[(digit(local_key[i]) ^ (host >> (4 * i))) & 0xf];
    }
    Memory local = local_.child(neighbours, layout.local_rank(rank), local_key, options);
    Message all = all_.child(members, rank, key, options);
    return hierarchical_transport(std::move(local), std::move(all), std::move(layout));
  }

 private:
  static constexpr int key_channel = 8;

  hierarchical_transport(Memory local, Message all, host_layout layout)
      : local_(std::move(local)), all_(std::move(all)), layout_(std::move(layout)) {}

  static std::size_t digit(char c) noexcept {
    return static_cast<std::size_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }

  /// 32 hex digits that the lowest of `ranks` draws for all of them.
  static std::string share_key(Message& all, const std::vector<int>& ranks,
                               const child_options& options) {
    struct box {
      std::uint8_t key[16];
    };
    const auto shared = std::make_shared<box>();
    auto* const bytes = reinterpret_cast<std::byte*>(shared->key);
    std::vector<typename Message::request> requests;
    if (all.rank() == ranks.front()) {
      detail::fill_random(shared->key);
      for (const int r : ranks) {
        if (r == all.rank()) continue;
        requests.push_back(all.send(r, key_channel, bytes, sizeof shared->key));
      }
    } else {
      requests.push_back(all.receive(ranks.front(), key_channel, bytes, sizeof shared->key));
    }
    const auto begin = std::chrono::steady_clock::now();
    auto asked = begin;
    while (!requests.empty()) {
      if (all.done(requests.back())) {
        requests.pop_back();
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now - begin > options.timeout) {
        for (auto& request : requests) all.abandon(std::move(request), shared);
        throw rendezvous_error(
            "rankfold: rank " + std::to_string(all.rank()) + " of " + std::to_string(all.size()) +
            " could not start: " + detail::ranks_text(ranks) +
            " of this host did not meet within " + detail::duration_text(options.timeout));
      }
      if (options.interrupt && now - asked > std::chrono::milliseconds(100)) {
        asked = now;
        options.interrupt();
      }
      std::this_thread::yield();
    }
    return detail::hex_text(shared->key);
  }

  Memory local_;
  Message all_;
  host_layout layout_;
};

RANKFOLD_END_NAMESPACE
