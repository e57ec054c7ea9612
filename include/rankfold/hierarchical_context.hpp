// SPDX-License-Identifier: Apache-2.0
// A context of several hosts: the steps among all ranks, over messages, and as parts of it the
// steps among the ranks of a host, over memory, and among the ranks of one rail, over messages. A
// rail is what the ranks with the same place on their hosts form.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/context.hpp"
#include "rankfold/context_base.hpp"
#include "rankfold/detail/canonical_tree.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/reducer.hpp"
#include "rankfold/message_context.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/transport/hierarchical.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// The memory part of a hierarchical transport, with the ranks' numbers among all.
template <memory_transport Memory>
class local_view {
 public:
  static constexpr bool crosses_processes = Memory::crosses_processes;

  local_view(Memory& memory, std::vector<int> world, int world_size)
      : memory_(&memory), world_(std::move(world)), world_size_(world_size) {}

  int rank() const noexcept { return memory_->rank(); }
  int size() const noexcept { return memory_->size(); }
  std::string_view name() const noexcept { return "hierarchical"; }
  std::byte* segment(int r) const noexcept { return memory_->segment(r); }
  std::size_t segment_size() const noexcept { return memory_->segment_size(); }
  peer_state state(int r) const noexcept { return memory_->state(r); }
  int world_rank(int r) const noexcept { return world_[static_cast<std::size_t>(r)]; }
  int world_size() const noexcept { return world_size_; }

 private:
  Memory* memory_;
  std::vector<int> world_;
  int world_size_;
};

/// Some ranks of a message transport, on channels of their own.
template <message_transport Message>
class message_view {
 public:
  using request = typename Message::request;
  static constexpr int channels = 4;

  message_view(Message& message, std::vector<int> world, int first_channel)
      : message_(&message), world_(std::move(world)), first_channel_(first_channel) {
    while (world_[static_cast<std::size_t>(rank_)] != message.rank()) ++rank_;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(world_.size()); }
  std::string_view name() const noexcept { return "hierarchical"; }
  std::size_t workspace_bytes() const
    requires requires(const Message& m) { m.workspace_bytes(); }
  {
    return message_->workspace_bytes();
  }
  std::uint64_t context_key() const
    requires requires(const Message& m) { m.context_key(); }
  {
    return message_->context_key();
  }
  request send(int peer, int channel, const std::byte* data, std::size_t bytes) {
    return message_->send(world_rank(peer), first_channel_ + channel, data, bytes);
  }
  request receive(int peer, int channel, std::byte* data, std::size_t bytes) {
    return message_->receive(world_rank(peer), first_channel_ + channel, data, bytes);
  }
  bool done(request& r) { return message_->done(r); }
  void abandon(request&& r, std::shared_ptr<const void> memory) noexcept {
    message_->abandon(std::move(r), std::move(memory));
  }
  void announce(std::span<const std::byte> notice) noexcept { message_->announce(notice); }
  std::size_t heard(std::span<std::byte> notice) { return message_->heard(notice); }
  peer_state state(int r) const noexcept { return message_->state(world_rank(r)); }
  int world_rank(int r) const noexcept { return world_[static_cast<std::size_t>(r)]; }
  int world_size() const noexcept { return message_->size(); }

 private:
  Message* message_;
  std::vector<int> world_;
  int first_channel_;
  int rank_ = 0;
};

/// Holds what a base class refers to: constructed before it, destroyed after it.
template <class T>
struct held_first {
  T held;
};

}  // namespace detail

template <memory_transport Memory, message_transport Message>
class context<hierarchical_transport<Memory, Message>>
    : private detail::held_first<hierarchical_transport<Memory, Message>>,
      public context<detail::message_view<Message>> {
  using holder = detail::held_first<hierarchical_transport<Memory, Message>>;
  using flat = context<detail::message_view<Message>>;

 public:
  using local_context = context<detail::local_view<Memory>>;
  using rail_context = flat;

  context(hierarchical_transport<Memory, Message> transport, const rankfold::tuning& tune,
          wait_options waiting)
      : holder{std::move(transport)},
        flat(detail::message_view<Message>(holder::held.global(), all_ranks(layout()), 0), tune,
             waiting),
        units_(detail::canonical_units(
            flat::size(), [&](int r) { return layout().host_of[static_cast<std::size_t>(r)]; })),
        plan_(units_),
        operands_(plan_.depth()),
        slots_(static_cast<std::size_t>(plan_.slots()) * 8192),
        partials_(units_.size()),
        units_of_(layout().hosts()) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      units_of_[static_cast<std::size_t>(units_[u].owner)].push_back(u);
    }
    for (const auto& units : units_of_) most_units_ = (std::max)(most_units_, units.size());
    // While a rank waits for its neighbours, what it has sent to other hosts must move on; else it
    // only listens, now and then: the CPU may be another rank's.
    const auto others = [this] {
      move_others_on();
      if (rail_ && rail_->has_transfers()) rail_->progress();
      if (const auto now = std::chrono::steady_clock::now(); now >= look_again_) {
        look_again_ = now + std::chrono::milliseconds(1);
        flat::progress();
      }
      return true;
    };
    const int world = holder::held.rank();
    wait_options inside = waiting;
    inside.progress = others;
    inside.progress_first = true;
    local_ = std::make_unique<local_context>(
        detail::local_view<Memory>(holder::held.local(), layout().neighbours(world),
                                   holder::held.size()),
        tune, inside);
    const int place = layout().local_rank(world);
    if (static_cast<std::size_t>(place) < layout().rails()) {
      std::vector<int> ranks;
      for (const auto& host : layout().ranks_of) {
        ranks.push_back(host[static_cast<std::size_t>(place)]);
      }
      waiting.progress = [this] { return move_others_on(); };
      rail_ = std::make_unique<rail_context>(
          detail::message_view<Message>(holder::held.global(), std::move(ranks), 4), tune,
          std::move(waiting));
    }
  }

  ~context() {
    // Where all have given up, nobody answers on the rails any more.
    if (rail_ && (this->failed_ || this->recorded())) rail_->forsake();
  }

  const hierarchical_transport<Memory, Message>& transport() const noexcept { return holder::held; }
  const host_layout& layout() const noexcept { return holder::held.layout(); }

  /// As in context_base.hpp, for the steps of all groups.
  void set_tuning(const rankfold::tuning& tune) noexcept {
    flat::set_tuning(tune);
    local_->set_tuning(tune);
    if (rail_) rail_->set_tuning(tune);
  }

  /// The steps among the ranks of this host.
  local_context& local() noexcept { return *local_; }
  std::size_t local_half_bytes() const noexcept { return local_->half_bytes(); }
  /// The steps among the ranks of this rank's rail, one a host, in the order of hosts; none for
  /// ranks whose place not every host has.
  rail_context* rail() noexcept { return rail_.get(); }

  /// What the hosts can fold alone, in the order of the canonical tree.
  const detail::tree_unit& unit(std::size_t u) const noexcept { return units_[u]; }
  std::span<const std::size_t> units_of(std::size_t host) const noexcept { return units_of_[host]; }
  std::size_t most_units() const noexcept { return most_units_; }

  /// Room for the place of each unit's partials; see finish_units.
  const void** partials() noexcept { return partials_.data(); }

  /// Folds the partials of all units, at partials(), into `count` elements at `out`.
  void finish_units(const kernel::reducer& reducer, void* out, std::size_t count) {
    // At least one partial a slot, however large an element is.
    const std::size_t least = static_cast<std::size_t>(plan_.slots()) * reducer.partial->size;
    if (slots_.size() < least) slots_.resize(least);
    detail::run_plan(plan_, reducer, {operands_, slots_}, partials_.data(), out, count);
  }

  /// Runs one call that makes steps among all ranks. It is also a step inside each host and of the
  /// first rail: where it meets a call that makes steps there, both notice.
  template <class Body>
  void run(const fingerprint& call, Body&& body) {
    flat::run(call, [&] {
      if (call.what() != collective::send_recv && layout().hosts() < world_ranks()) {
        const auto show = [](auto& part) {
          part.next_step();
          part.publish();
        };
        local_->run_part(*this, call, [&] { show(*local_); });
        if (local_->rank() == 0) rail_->run_part(*this, call, [&] { show(*rail_); });
      }
      body();
    });
  }

  /// Runs `body`, which makes steps of `local` and `rail`, as one call.
  template <class Body>
  void run_two_level(const fingerprint& call, Body&& body) {
    flat::run(call, [&] {
      if (this->recorded()) this->found_record();  // the parts do not know it yet
      local_->run_part(*this, call, [&] {
        if (rail_) {
          rail_->run_part(*this, call, body);
        } else {
          body();
        }
      });
    });
  }

 private:
  std::size_t world_ranks() const noexcept { return layout().host_of.size(); }

  /// What set_progress has asked for by now; the parts ask for it while they wait.
  bool move_others_on() { return this->waiting().progress && this->waiting().progress(); }

  static std::vector<int> all_ranks(const host_layout& layout) {
    std::vector<int> ranks(layout.host_of.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
    return ranks;
  }

  std::chrono::steady_clock::time_point look_again_{};
  std::vector<detail::tree_unit> units_;
  detail::unit_plan plan_;
  std::vector<const void*> operands_;
  std::vector<std::byte> slots_;
  std::vector<const void*> partials_;
  std::vector<std::vector<std::size_t>> units_of_;
  std::size_t most_units_ = 0;
  std::unique_ptr<local_context> local_;
  std::unique_ptr<rail_context> rail_;
};

RANKFOLD_END_NAMESPACE
