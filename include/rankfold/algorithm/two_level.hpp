// SPDX-License-Identifier: Apache-2.0
// all_reduce over several hosts: reduce-scatter inside each host, an exchange of partial folds
// between hosts on all rails at the same time, all-gather inside each host; pipelined in chunks, so
// that memory and network work at the same time.
//
// Two levels as in Karonis et al. 2000, Exploiting Hierarchy in Parallel Computer Networks to
// Optimize Collective Operation Performance; the fold keeps the canonical tree: a host ships one
// partial fold for each largest subtree of the tree whose ranks it holds.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rankfold/detail/canonical_tree.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/partial.hpp"
#include "rankfold/kernel/reducer.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace algorithms {

/// One call of two_level_all_reduce. `carriers` ranks a host, the first ones, have a slice of every
/// chunk each, which they fold for their host and exchange on their rail; the others only stage
/// their data and fetch the result.
///
/// In round c a rank stages chunk c and, if it is a carrier, its slice of the result of an earlier
/// chunk, in one local step; a carrier then completes what its rail began in round c - 1, and folds
/// and sends chunk c, which travels while round c + 1 stages.
///
/// A small vector every rank folds for its host and exchanges on its rail as a whole, so that there
/// is nothing to pass on inside the host (`whole`).
///
/// On the rail, each carrier sends all others its partials, and all do the last folds. Where that
/// would be much (`scattered`), it sends each its share of the slice only, and the results go round
/// in a second step, together with the next chunk's partials.
template <class Context, class Output>
class two_level {
 public:
  two_level(Context& ctx, const kernel::reducer& reducer, const void* in, const Output& out,
            std::size_t count)
      : ctx_(ctx),
        local_(ctx.local()),
        reducer_(reducer),
        partial_(*reducer.partial),
        in_(static_cast<const std::byte*>(in)),
        out_(out),
        count_(count),
        size_(reducer.element_size),
        line_(detail::elements_per_line(size_)),
        hosts_(ctx.layout().hosts()),
        host_(static_cast<std::size_t>(
            ctx.layout().host_of[static_cast<std::size_t>(ctx.transport().rank())])),
        place_(static_cast<std::size_t>(local_.rank())),
        units_(ctx.most_units()) {
    const std::size_t bytes = count * size_;
    const bool small = bytes <= ctx.tuning().whole_rail_max_bytes;
    carriers_ = small ? 1 : ctx.layout().rails();
    whole_ = small && ctx.layout().is_even() && bytes <= local_.half_bytes() &&
             count * units_ * partial_.size <= ctx.half_bytes();
    carries_ = place_ < carriers_;
    if (whole_) {
      slice_limit_ = share_limit_ = count;
      return;
    }
    scattered_ = hosts_ > 2 && (hosts_ - 1) * (bytes / carriers_) > ctx.tuning().one_shot_max_bytes;
    // A local half holds a chunk, one slice a carrier, and one slice of a result; the rail's holds
    // the partials of a slice and a share of a result.
    const std::size_t local_room = local_.half_bytes() / ((carriers_ + 1) * size_);
    const std::size_t rail_room = ctx.half_bytes() / ((units_ + 1) * partial_.size);
    const std::size_t wanted = ctx.tuning().chunk_bytes / (carriers_ * size_);
    slice_limit_ = (std::min)({local_room, rail_room, (std::max)(wanted, line_)});
    // Whole lines a share, too.
    const std::size_t grain = scattered_ ? line_ * hosts_ : line_;
    slice_limit_ = (std::max)(detail::round_down(slice_limit_, grain), scattered_ ? grain : line_);
    share_limit_ = scattered_ ? slice_limit_ / hosts_ : slice_limit_;
    chunk_ = slice_limit_ * carriers_;
    chunks_ = (count + chunk_ - 1) / chunk_;
    lag_ = scattered_ ? 2 : 1;
  }

  void run() {
    if (count_ == 0) return meet();
    if (whole_) return exchange_whole();
    for (std::size_t round = 0; round <= chunks_ + lag_; ++round) {
      if (round < chunks_ || round > lag_) share_inside(round);
      if (!carries_) continue;
      if (round >= 1 && round < chunks_ + lag_) receive(round - 1);
      if (round < chunks_ + lag_ - 1) send(round);
    }
  }

 private:
  struct bounds {
    std::size_t begin;
    std::size_t count;
  };

  /// The slice of chunk c that carrier q has.
  bounds slice(std::size_t c, std::size_t q) const {
    const std::size_t begin = c * chunk_;
    const detail::slice s =
        detail::slice_of((std::min)(chunk_, count_ - begin), carriers_, q, line_);
    return {begin + s.begin, s.count};
  }

  /// The share of one's own slice of chunk c that host h completes; all of it, unless scattered.
  bounds share(std::size_t c, std::size_t h) const {
    const bounds all = slice(c, place_);
    if (!scattered_) return all;
    const detail::slice s = detail::slice_of(all.count, hosts_, h, line_);
    return {all.begin + s.begin, s.count};
  }

  /// Nothing to fold, but every call is a meeting of all.
  void meet() {
    local_.next_step();
    local_.publish();
    if (place_ == 0) {
      local_.wait_all();
      auto& rail = *ctx_.rail();
      rail.next_step();
      rail.publish();
      rail.wait_all();
    }
    local_.next_step();
    local_.publish();
    if (place_ != 0) local_.wait(0);
  }

  void exchange_whole() {
    const bounds all{0, count_};
    local_.next_step(count_ * size_);
    kernel::copy(local_.half(local_.rank()), in_, count_ * size_);
    local_.publish();
    local_.wait_all();
    auto& rail = *ctx_.rail();
    rail.next_step();
    rail.give_all(0, fold_units(all, 0, 0));
    rail.publish();
    rail.wait_all();
    out_.put(0, count_,
             [&](std::size_t offset, std::size_t now, void* to) { finish(now, offset, to); });
  }

  /// The local step: chunk `round` goes in, and the result of an earlier one comes out.
  void share_inside(std::size_t round) {
    local_.next_step();
    if (round < chunks_) {
      for (std::size_t q = 0; q < carriers_; ++q) {
        if (q == place_) continue;
        const bounds s = slice(round, q);
        kernel::copy(local_.half(local_.rank()) + q * slice_limit_ * size_, in_ + s.begin * size_,
                     s.count * size_);
      }
    }
    local_.publish();
    // Who carries writes into the half to come, so that all must have come to this one.
    if (carries_ && round < chunks_ + lag_) {
      local_.wait_all();
    } else if (round > lag_) {
      for (std::size_t q = 0; q < carriers_; ++q) {
        if (q != place_) local_.wait(static_cast<int>(q));
      }
    }
    if (round <= lag_) return;
    for (std::size_t q = 0; q < carriers_; ++q) {
      const bounds s = slice(round - lag_ - 1, q);
      out_.take(s.begin, s.count, local_.half(static_cast<int>(q)) + result_offset());
    }
  }

  /// Where a slice of a result lies in a local half.
  std::size_t result_offset() const { return chunk_ * size_; }
  /// Where the partials for a host, and of its unit u, lie in a rail's half.
  std::size_t partial_offset(std::size_t h, std::size_t u) const {
    return ((scattered_ ? h * units_ : 0) + u) * share_limit_ * partial_.size;
  }
  /// Where a share of a result lies in a rail's half.
  std::size_t final_offset() const { return units_ * slice_limit_ * partial_.size; }

  /// Folds chunk `round` for this host and sends the partials, and with them the share of a result.
  void send(std::size_t round) {
    auto& rail = *ctx_.rail();
    rail.next_step();
    if (round < chunks_) {
      for (std::size_t h = 0; h < (scattered_ ? hosts_ : 1); ++h) {
        const bounds s = share(round, h);
        const std::size_t inside = s.begin - slice(round, place_).begin;
        const std::size_t bytes = fold_units(s, place_ * slice_limit_ + inside, h);
        if (scattered_) {
          rail.give(static_cast<int>(h), partial_offset(h, 0), bytes);
        } else {
          rail.give_all(0, bytes);
        }
      }
    }
    if (scattered_ && round >= 1) {
      rail.give_all(final_offset(), share(round - 1, host_).count * size_);
    }
    rail.publish();
  }

  /// Folds the elements `s`, which are at `staged` in the local halves, for this host, into the
  /// partials for host h; how many bytes they take.
  std::size_t fold_units(const bounds& s, std::size_t staged, std::size_t h) {
    const std::size_t units = ctx_.units_of(host_).size();
    const void** const inputs = local_.inputs();
    std::byte* const own = ctx_.rail()->half(ctx_.rail()->rank());
    for (std::size_t u = 0; u < units; ++u) {
      const detail::tree_unit& unit = ctx_.unit(ctx_.units_of(host_)[u]);
      for (int i = 0; i < unit.count; ++i) {
        const auto l = static_cast<std::size_t>(ctx_.layout().local_rank(unit.first + i));
        inputs[i] =
            l == place_ ? in_ + s.begin * size_ : local_.half(static_cast<int>(l)) + staged * size_;
      }
      partial_.fold(reducer_.op, inputs, unit.count, own + partial_offset(h, u), s.count);
    }
    return units == 0 || s.count == 0 ? 0 : ((units - 1) * share_limit_ + s.count) * partial_.size;
  }

  /// Completes the rail's step of round `sent`.
  void receive(std::size_t sent) {
    auto& rail = *ctx_.rail();
    rail.wait_all();
    if (sent < chunks_) {
      const bounds s = share(sent, host_);
      finish(s.count, 0, scattered_ ? rail.next_half() + final_offset() : place_inside(sent, s));
    }
    if (scattered_ && sent >= 1) {
      for (std::size_t h = 0; h < hosts_; ++h) {
        const bounds s = share(sent - 1, h);
        kernel::copy(place_inside(sent - 1, s), rail.half(static_cast<int>(h)) + final_offset(),
                     s.count * size_);
      }
    }
  }

  /// Where a part of the own slice of the result of chunk c goes, for the ranks of this host.
  std::byte* place_inside(std::size_t c, const bounds& part) {
    return local_.next_half() + result_offset() + (part.begin - slice(c, place_).begin) * size_;
  }

  /// The last folds, to `to`: of `count` elements of the partials of all hosts, from `offset` on.
  void finish(std::size_t count, std::size_t offset, void* to) {
    auto& rail = *ctx_.rail();
    for (std::size_t h = 0; h < hosts_; ++h) {
      for (std::size_t u = 0; u < ctx_.units_of(h).size(); ++u) {
        ctx_.partials()[ctx_.units_of(h)[u]] =
            rail.half(static_cast<int>(h)) + partial_offset(host_, u) + offset * partial_.size;
      }
    }
    ctx_.finish_units(reducer_, to, count);
  }

  Context& ctx_;
  typename Context::local_context& local_;
  const kernel::reducer& reducer_;
  const kernel::partial_reducer& partial_;
  const std::byte* in_;
  const Output& out_;
  std::size_t count_;
  std::size_t size_;
  std::size_t line_;
  std::size_t hosts_;
  std::size_t host_;
  std::size_t place_;
  std::size_t units_;
  std::size_t carriers_ = 1;
  std::size_t slice_limit_ = 0;
  std::size_t share_limit_ = 0;
  std::size_t chunk_ = 0;
  std::size_t chunks_ = 0;
  std::size_t lag_ = 1;
  bool carries_ = false;
  bool scattered_ = false;
  bool whole_ = false;
};

/// Folds `count` elements over all ranks; see two_level. `reducer` is one of
/// kernel::reducer_in_parts_for.
///
/// Cost: between hosts a rank sends and receives (H - 1) · bytes / R, or 2 (H - 1) / H · bytes / R
/// where that is much less, for H hosts of at least R ranks, in partials (two and four times as
/// large for sums and products of 16-bit and 8-bit floats); inside a host as two_shot.
template <class Context, class Output>
void two_level_all_reduce(Context& ctx, const kernel::reducer& reducer, const void* in,
                          const Output& out, std::size_t count) {
  two_level<Context, Output>(ctx, reducer, in, out, count).run();
}

}  // namespace algorithms

RANKFOLD_END_NAMESPACE
