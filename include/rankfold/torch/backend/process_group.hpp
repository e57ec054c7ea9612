// SPDX-License-Identifier: Apache-2.0
// The backend of torch.distributed: c10d's calls, made to rankfold's.
//
// Every call is posted to the group's queue. One that is asynchronous returns a Work for it; any
// other waits for it at once, and the queue lets it carry the call out itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/torch/backend/buffer.hpp"
#include "rankfold/torch/backend/checks.hpp"
#include "rankfold/torch/backend/join.hpp"
#include "rankfold/torch/backend/lane.hpp"
#include "rankfold/torch/backend/monitored_barrier.hpp"
#include "rankfold/torch/backend/work.hpp"
#include "rankfold/torch/python.hpp"
#include "rankfold/torch/store_meeting.hpp"
#include "rankfold/torch/tensor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

using work_ptr = c10::intrusive_ptr<c10d::Work>;

class process_group final : public c10d::Backend {
 public:
  /// Collective: all ranks of the group; returns when all have met.
  process_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                std::chrono::milliseconds timeout, const std::string& name, gloo_maker make_gloo)
      : Backend(rank, size),
        store_(std::move(store)),
        options_(c10::make_intrusive<Options>("rankfold", timeout)),
        make_gloo_(std::move(make_gloo)),
        context_(std::make_shared<work_context>(name, rank, size)),
        timeout_(checked_timeout("init", timeout)) {
    options_->group_name = name;
    try {
      lane_ = join(store_, rank, size, timeout_, make_gloo_);
    } catch (...) {
      context_->fail("init");
    }
    context_->lane = lane_;
    init();
    const std::lock_guard lock(all_mutex());
    all().push_back(this);
  }

  ~process_group() override {
    {
      const std::lock_guard lock(all_mutex());
      std::erase(all(), this);
    }
    shutdown();
  }

  const std::string getBackendName() const override { return "rankfold"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  c10d::ErrorType getError() override { return context_->error; }

  void setTimeout(std::chrono::milliseconds timeout) override {
    const std::chrono::milliseconds most = checked_timeout("set_timeout", timeout);
    try {
      open()->set_timeout(most);
    } catch (...) {
      context_->fail("set_timeout");
    }
    timeout_ = most;
    options_->timeout = timeout;  // for Python alone, which has a lock
  }

  void setSequenceNumberForGroup() override {}  // all ranks begin with 0
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // --- the end ---

  void abort() override {
    is_aborted_ = true;
    if (const auto there = find_lane()) there->abort("abort() was called");
    const std::lock_guard lock(mutex_);
    if (gloo_) gloo_->abort();
  }

  /// Waits for the calls that were posted, and for messages to be taken for a while; cancels
  /// receives that nothing has come for.
  void shutdown() override {
    const torch_ops::without_gil waiting;
    leaving one;
    {
      const std::lock_guard lock(mutex_);
      one.last = std::exchange(lane_, nullptr);
      one.messages.swap(messages_);
    }
    if (one.last == nullptr) return;
    if (generation_ == detail::fork_generation()) {
      const clock::rep over = end_of_everything();
      // What is complete is not given up, however late it is.
      finish({one}, over == 0 ? clock::now() + timeout_.load()
                              : (std::max)(clock::time_point(clock::duration(over)),
                                           clock::now() + std::chrono::milliseconds(100)));
    }
    one.last.reset();
    const std::lock_guard lock(mutex_);
    gloo_.reset();
  }

  /// To be called before the interpreter ends: the same for groups that nobody has shut down, but
  /// all of them together are not waited for as long.
  static void end_of_program() {
    const torch_ops::without_gil waiting;
    const clock::time_point until = clock::now() + most_at_end;
    end_of_everything() = until.time_since_epoch().count();
    std::vector<c10::intrusive_ptr<process_group>> left;
    {
      const std::lock_guard lock(all_mutex());
      for (process_group* one : all()) {
        if (one->generation_ != detail::fork_generation()) continue;
        left.push_back(c10::intrusive_ptr<process_group>::unsafe_reclaim_from_nonowning(one));
      }
    }
    std::vector<leaving> open;
    for (const auto& one : left) {
      const std::lock_guard lock(one->mutex_);
      if (one->lane_) open.push_back({one->lane_, one->messages_});
    }
    finish(open, until);
    for (const auto& one : left) one->context_->futures.drain(until);
  }

  // --- groups of some ranks ---

  bool supportsSplitting() const override { return true; }

  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& members,
                                    const c10::intrusive_ptr<Options>& options) override {
    const auto own = std::find(members.begin(), members.end(), rank_);
    if (own == members.end()) return {};
    return merge(store, options, static_cast<int>(own - members.begin()),
                 static_cast<int>(members.size()));
  }

  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override {
    return c10::make_intrusive<process_group>(
        store, rank, size, options ? options->timeout : timeout_.load(),
        options ? options->group_name : options_->group_name, make_gloo_);
  }

  // --- several calls that are waited for together: the asynchronous ones that a thread makes
  // between these two. Where an exception has come in between, torch does not call the second one.

  void startCoalescing() override {
    const std::lock_guard lock(mutex_);
    end_coalescing();
    coalescing_.push_back({std::this_thread::get_id(), {}});
  }

  work_ptr endCoalescing() override {
    std::vector<handle> calls;
    {
      const std::lock_guard lock(mutex_);
      calls = end_coalescing();
    }
    const call_info info{"coalesced", "rankfold:coalesced", c10d::OpType::COALESCED, no_options{}};
    return track(info, {}, std::move(calls), {});
  }

  // --- collectives ---

  work_ptr broadcast(tensors& list, const c10d::BroadcastOptions& options) override {
    const call_info info{"broadcast", "rankfold:broadcast", c10d::OpType::BROADCAST, options};
    const checks check(*context_, info);
    const at::Tensor x = check.only(list, "tensors");
    check.writable(x);
    const int root = check.root(options.rootRank);
    return launch(info, list, {x}, bytes_of(x), [x, root](calls& c) {
      const moved_type type(x);
      const buffer b(x, access::both);
      c.broadcast(b.out(), type.count(x), type.type, root);
      b.store();
    });
  }

  work_ptr allreduce(tensors& list, const c10d::AllreduceOptions& options) override {
    const call_info info{"all_reduce", "rankfold:all_reduce", c10d::OpType::ALLREDUCE, options};
    const checks check(*context_, info);
    check.that(list.size() == 1, "tensors has ", list.size(), " tensors, expected one");
    if (list[0].layout() == c10::kSparse) return allreduce_sparse(list, options);
    const at::Tensor x = check.parts(list[0], options.reduceOp);
    const folding how = check.fold(x, options.reduceOp);
    check.writable(x);
    return launch(info, list, list, bytes_of(x), [x, how](calls& c) { all_reduce(c, x, how); });
  }

  /// What rankfold does not have gloo does.
  work_ptr allreduce_sparse(tensors& list, const c10d::AllreduceOptions& options) override {
    TORCH_WARN_ONCE(
        "rankfold: sparse tensors are reduced by gloo, over a group of its own that is made now");
    const call_info info{"all_reduce", "rankfold:sparse_all_reduce",
                         c10d::OpType::_ALLREDUCE_SPARSE, options};
    try {
      return gloo()->allreduce(list, options);
    } catch (...) {
      context_->fail(info.name);
    }
  }

  work_ptr allreduce_coalesced(tensors& list,
                               const c10d::AllreduceCoalescedOptions& options) override {
    const call_info info{"all_reduce", "rankfold:all_reduce", c10d::OpType::ALLREDUCE_COALESCED,
                         options};
    const checks check(*context_, info);
    tensors parts;
    std::vector<folding> how;
    for (const at::Tensor& x : list) {
      parts.push_back(check.parts(x, options.reduceOp));
      how.push_back(check.fold(parts.back(), options.reduceOp));
      check.writable(x);
    }
    return launch(info, list, list, bytes_of(list), [parts, how](calls& c) {
      for (std::size_t i = 0; i < parts.size(); ++i) all_reduce(c, parts[i], how[i]);
    });
  }

  work_ptr reduce(tensors& list, const c10d::ReduceOptions& options) override {
    const call_info info{"reduce", "rankfold:reduce", c10d::OpType::REDUCE, options};
    const checks check(*context_, info);
    const at::Tensor x = check.parts(check.only(list, "tensors"), options.reduceOp);
    const folding how = check.fold(x, options.reduceOp);
    check.writable(x);
    const int root = check.root(options.rootRank);
    return launch(info, list, list, bytes_of(x), [x, how, root, own = rank_](calls& c) {
      const buffer b(how(x), access::both);
      c.reduce(b.out(), count_of(x), how.type, root, how.op);
      if (own == root) b.store(x);
    });
  }

  work_ptr allgather(std::vector<tensors>& outputs, tensors& inputs,
                     const c10d::AllgatherOptions& options) override {
    const call_info info{"all_gather", "rankfold:all_gather", c10d::OpType::ALLGATHER, options};
    const checks check(*context_, info);
    const at::Tensor in = check.only(inputs, "inputs");
    const tensors out = check.only_list(outputs, "outputs", in);
    check_written(check, out);
    return launch(info, inputs, out, bytes_of(out),
                  [in, out, own = rank_](calls& c) { gather_into_list(c, in, out, own); });
  }

  work_ptr _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    const call_info info{"all_gather_single", "rankfold:_all_gather_base",
                         c10d::OpType::_ALLGATHER_BASE, options};
    const checks check(*context_, info);
    check.blocks(input, output, "input", "output");
    check.writable(output);
    return launch(info, {input}, {output}, bytes_of(output),
                  [in = input, out = output](calls& c) { gather_into_tensor(c, in, out); });
  }

  /// `outputs[r][i]` gets input i of rank r.
  work_ptr allgather_coalesced(std::vector<tensors>& outputs, tensors& inputs,
                               const c10d::AllgatherOptions& options) override {
    const call_info info{"all_gather_coalesced", "rankfold:all_gather",
                         c10d::OpType::ALLGATHER_COALESCED, options};
    const checks check(*context_, info);
    check.that(outputs.size() == static_cast<std::size_t>(size_), "outputs has ", outputs.size(),
               " lists, expected one for each of the ", size_, " ranks");
    std::vector<tensors> out(inputs.size());
    tensors all;
    for (const tensors& of_rank : outputs) {
      check.pairs(of_rank, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) out[i].push_back(of_rank[i]);
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check.tensor(inputs[i]);
      check.one_a_rank(out[i], "outputs", inputs[i]);
    }
    check_written(check, all);
    return launch(info, inputs, all, bytes_of(all), [in = inputs, out, own = rank_](calls& c) {
      for (std::size_t i = 0; i < in.size(); ++i) gather_into_list(c, in[i], out[i], own);
    });
  }

  work_ptr allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                           const c10d::AllgatherOptions& options) override {
    const call_info info{"all_gather_single", "rankfold:_all_gather_base", c10d::OpType::COALESCED,
                         options};
    const checks check(*context_, info);
    check.pairs(outputs, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check.blocks(inputs[i], outputs[i], "input", "output");
    }
    check_written(check, outputs);
    return launch(info, inputs, outputs, bytes_of(outputs), [in = inputs, out = outputs](calls& c) {
      for (std::size_t i = 0; i < in.size(); ++i) {
        gather_into_tensor(c, in[i], out[i]);
      }
    });
  }

  work_ptr gather(std::vector<tensors>& outputs, tensors& inputs,
                  const c10d::GatherOptions& options) override {
    const call_info info{"gather", "rankfold:gather", c10d::OpType::GATHER, options};
    const checks check(*context_, info);
    const at::Tensor in = check.only(inputs, "inputs");
    const int root = check.root(options.rootRank);
    const tensors out = check.at_root(outputs, "outputs", in, root);
    check_written(check, out);
    return launch(info, inputs, out, bytes_of(out) + bytes_of(in), [in, out, root](calls& c) {
      const moved_type type(in);
      const buffer from(in, access::read);
      list_buffer to(out);
      c.gather(from.in(), to.out(), type.count(in), type.type, root);
      to.store();
    });
  }

  work_ptr scatter(tensors& outputs, std::vector<tensors>& inputs,
                   const c10d::ScatterOptions& options) override {
    const call_info info{"scatter", "rankfold:scatter", c10d::OpType::SCATTER, options};
    const checks check(*context_, info);
    const at::Tensor out = check.only(outputs, "outputs");
    check.writable(out);
    const int root = check.root(options.rootRank);
    const tensors in = check.at_root(inputs, "inputs", out, root);
    return launch(info, in, outputs, bytes_of(in) + bytes_of(out), [in, out, root](calls& c) {
      const moved_type type(out);
      list_buffer from(in);
      const buffer to(out, access::write);
      c.scatter(from.load(), to.out(), type.count(out), type.type, root);
      to.store();
    });
  }

  work_ptr reduce_scatter(tensors& outputs, std::vector<tensors>& inputs,
                          const c10d::ReduceScatterOptions& options) override {
    const call_info info{"reduce_scatter", "rankfold:reduce_scatter", c10d::OpType::REDUCE_SCATTER,
                         options};
    const checks check(*context_, info);
    const at::Tensor given = check.only(outputs, "outputs");
    check.writable(given);
    const at::Tensor out = check.parts(given, options.reduceOp);
    tensors in;
    for (const at::Tensor& x : check.only_list(inputs, "inputs", given)) {
      in.push_back(check.parts(x, options.reduceOp));
    }
    const folding how = check.fold(out, options.reduceOp);
    return launch(info, in, outputs, bytes_of(in), [in, out, how](calls& c) {
      tensors values;
      for (const at::Tensor& x : in) values.push_back(how(x));
      list_buffer from(values);
      const buffer to(out, access::write);
      if (const auto counts = uneven_counts(in, 1)) {
        c.reduce_scatter(from.load(), to.out(), *counts, how.type, how.op);
      } else {
        c.reduce_scatter(from.load(), to.out(), count_of(out), how.type, how.op);
      }
      to.store();
    });
  }

  work_ptr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    const call_info info{"reduce_scatter_single", "rankfold:_reduce_scatter_base",
                         c10d::OpType::_REDUCE_SCATTER_BASE, options};
    const checks check(*context_, info);
    const scattering one = scattering_of(check, output, input, options.reduceOp);
    return launch(info, {input}, {output}, bytes_of(input), [one](calls& c) { one(c); });
  }

  work_ptr reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                           const c10d::ReduceScatterOptions& options) override {
    const call_info info{"reduce_scatter_single", "rankfold:_reduce_scatter_base",
                         c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, options};
    const checks check(*context_, info);
    check.pairs(outputs, inputs);
    std::vector<scattering> all;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      all.push_back(scattering_of(check, outputs[i], inputs[i], options.reduceOp));
    }
    return launch(info, inputs, outputs, bytes_of(inputs), [all](calls& c) {
      for (const scattering& one : all) one(c);
    });
  }

  /// Splits or none: blocks may differ, and what one rank sends another must expect.
  work_ptr alltoall_base(at::Tensor& output, at::Tensor& input,
                         std::vector<std::int64_t>& output_splits,
                         std::vector<std::int64_t>& input_splits,
                         const c10d::AllToAllOptions& options) override {
    const call_info info{"all_to_all_single", "rankfold:all_to_all", c10d::OpType::ALLTOALL_BASE,
                         options};
    const checks check(*context_, info);
    check.tensor(input);
    check.writable(output);
    check.same_type(input, output);
    const moved_type type(input);
    std::vector<std::size_t> sends = check.counts(input, input_splits, "input");
    std::vector<std::size_t> receives = check.counts(output, output_splits, "output");
    check.own_block(sends[own_index()], receives[own_index()], type);
    return launch(info, {input}, {output}, bytes_of(input) + bytes_of(output),
                  [in = input, out = output, type, sends = std::move(sends),
                   receives = std::move(receives)](calls& c) {
                    const buffer from(in, access::read);
                    const buffer to(out, access::write);
                    c.all_to_all(from.in(), sends, to.out(), receives, type.type);
                    to.store();
                  });
  }

  work_ptr alltoall(tensors& outputs, tensors& inputs,
                    const c10d::AllToAllOptions& options) override {
    const call_info info{"all_to_all", "rankfold:all_to_all", c10d::OpType::ALLTOALL, options};
    const checks check(*context_, info);
    for (const auto* list : {&outputs, &inputs}) {
      check.that(list->size() == static_cast<std::size_t>(size_),
                 list == &inputs ? "inputs" : "outputs", " has ", list->size(),
                 " tensors, expected one for each of the ", size_, " ranks");
    }
    for (const auto* list : {&outputs, &inputs}) {
      for (const at::Tensor& x : *list) {
        check.tensor(x);
        check.same_type(inputs[0], x);
      }
    }
    check_written(check, outputs);
    const moved_type type(inputs[0]);
    std::vector<std::size_t> sends = counts_of(inputs, type.per_element);
    std::vector<std::size_t> receives = counts_of(outputs, type.per_element);
    check.own_block(sends[own_index()], receives[own_index()], type);
    return launch(info, inputs, outputs, bytes_of(inputs) + bytes_of(outputs),
                  [in = inputs, out = outputs, type, sends = std::move(sends),
                   receives = std::move(receives)](calls& c) {
                    list_buffer from(in);
                    list_buffer to(out);
                    c.all_to_all(from.load(), sends, to.out(), receives, type.type);
                    to.store();
                  });
  }

  work_ptr barrier(const c10d::BarrierOptions& options) override {
    const call_info info{"barrier", "rankfold:barrier", c10d::OpType::BARRIER, options};
    return launch(info, {}, {}, 0, [](calls& c) { c.barrier(); });
  }

  /// Over the store: the group stays as it is where ranks are missing.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override {
    const call_info info{"monitored_barrier", "rankfold:monitored_barrier", c10d::OpType::BARRIER,
                         options};
    try {
      const auto timeout =
          options.timeout == c10d::kUnsetTimeout ? timeout_.load() : bounded(options.timeout);
      barriers_.call(*store_, rank_, size_, timeout, all_ranks);
    } catch (...) {
      context_->fail(info.name);
    }
  }

  // --- messages ---

  work_ptr send(tensors& list, int peer, int tag) override {
    return message({"send", "rankfold:send", c10d::OpType::SEND, no_options{}}, list, peer, tag);
  }

  work_ptr recv(tensors& list, int peer, int tag) override {
    return message({"recv", "rankfold:recv", c10d::OpType::RECV, no_options{}}, list, peer, tag);
  }

  work_ptr recvAnysource(tensors& list, int tag) override {
    return message({"recv", "rankfold:recvAnySource", c10d::OpType::RECVANYSOURCE, no_options{}},
                   list, any_rank, tag);
  }

 private:
  using clock = std::chrono::steady_clock;

  static constexpr int any_rank = -1;
  static constexpr std::chrono::seconds most_at_end{10};
  static constexpr std::chrono::seconds most_for_messages{5};

  // --- how calls are made ---

  std::chrono::milliseconds checked_timeout(const char* what,
                                            std::chrono::milliseconds timeout) const {
    const std::chrono::milliseconds most = bounded(timeout);
    TORCH_CHECK(most.count() > 0, context_->where(what), ": the timeout is ", most.count(),
                " ms, expected more than 0");
    return most;
  }

  std::chrono::milliseconds timeout_of(const call_info& info) const {
    const std::chrono::milliseconds own = bounded(info.timeout);
    return own.count() > 0 ? own : timeout_.load();
  }

  std::size_t own_index() const { return static_cast<std::size_t>(rank_); }

  /// Posts a call; waits for it, unless it is asynchronous.
  template <class Body>
  work_ptr launch(const call_info& info, const tensors& inputs, tensors results, std::size_t bytes,
                  Body body) {
    ++sequence_;
    try {
      auto noting = [context = context_, body = std::move(body)](calls& c) {
        try {
          body(c);
        } catch (...) {
          context->note(std::current_exception());
          throw;
        }
      };
      // Who waits at once carries the call out, so that the queue's thread need not wake up.
      handle posted = open()->post(std::move(noting), info.is_async ? bytes : 0, timeout_of(info));
      if (info.is_async || at::hasCallbacks()) [[unlikely]] {
        return track(info, inputs, {std::move(posted)}, std::move(results));
      }
      posted.wait();
    } catch (...) {
      context_->fail(name_of(info, inputs, results));
    }
    return {};
  }

  /// What errors call it: also of which type, where that is one that rankfold does not know.
  static std::string name_of(const call_info& info, const tensors& inputs, const tensors& results) {
    const tensors& some = inputs.empty() ? results : inputs;
    if (some.empty() || torch_ops::dtype_of(some[0].scalar_type())) return info.name;
    return std::string(info.name) + " of " + c10::toString(some[0].scalar_type());
  }

  work_ptr message(const call_info& info, tensors& list, int peer, int tag) {
    const checks check(*context_, info);
    const at::Tensor x = check.only(list, "tensors");
    check.that(peer == any_rank || (peer >= 0 && peer < size_), "the peer is rank ", peer,
               ", expected 0 to ", size_ - 1);
    check.that(tag >= 0 && tag <= static_cast<int>(fingerprint::max_tag), "tag is ", tag,
               ", expected 0 to ", fingerprint::max_tag);
    check.that(x.is_contiguous(), "the tensor is not contiguous, expected one that is");
    const moved_type how(x);
    const auto number = static_cast<std::uint32_t>(tag);
    try {
      const std::shared_ptr<lane> there = open();
      const auto from = std::make_shared<int>(peer);
      handle posted;
      if (info.type == c10d::OpType::SEND) {
        posted = there->send(x.const_data_ptr(), how.count(x), how.type, peer, number);
      } else {
        posted =
            there->recv(x.mutable_data_ptr(), how.count(x), how.type, peer, number, from.get());
      }
      keep(posted);
      // Holds the memory until then.
      posted.then(
          [x, from, context = context_](const std::exception_ptr& ended) { context->note(ended); });
      return track(info, list, {std::move(posted)}, {x}, from);
    } catch (...) {
      context_->fail(name_of(info, list, {}));
    }
  }

  work_ptr track(const call_info& info, const tensors& inputs, std::vector<handle> posted,
                 tensors results, std::shared_ptr<const int> source = nullptr) {
    if (info.is_async) coalesce(posted);
    auto made =
        c10::make_intrusive<work>(context_, name_of(info, inputs, results), info.type,
                                  at::hasCallbacks() ? info.title : nullptr, inputs, sequence_,
                                  std::move(posted), std::move(results), std::move(source));
    made->start_recording();
    return made;
  }

  static constexpr std::size_t many = 64;  // handles, before it is worth looking which are over

  static bool is_good(const handle& call) {
    bool good = false;
    if (call.test()) call.then([&](const std::exception_ptr& error) { good = error == nullptr; });
    return good;
  }

  void coalesce(const std::vector<handle>& posted) {
    const std::lock_guard lock(mutex_);
    for (coalesced& one : coalescing_) {
      if (one.thread != std::this_thread::get_id()) continue;
      if (one.calls.size() >= many) std::erase_if(one.calls, is_good);
      one.calls.insert(one.calls.end(), posted.begin(), posted.end());
    }
  }

  /// The calls of this thread. With the lock.
  std::vector<handle> end_coalescing() {
    const auto own = std::find_if(coalescing_.begin(), coalescing_.end(), [](const coalesced& one) {
      return one.thread == std::this_thread::get_id();
    });
    if (own == coalescing_.end()) return {};
    std::vector<handle> calls = std::move(own->calls);
    coalescing_.erase(own);
    return calls;
  }

  std::shared_ptr<lane> find_lane() {
    const std::lock_guard lock(mutex_);
    return lane_;
  }

  std::shared_ptr<lane> open() {
    if (auto there = find_lane()) return there;
    throw aborted_error("rankfold: the process group was destroyed");
  }

  /// Remembers a message until it is complete, for the end.
  void keep(const handle& message) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() >= many) {
      std::erase_if(messages_, [](const handle& h) { return h.test(); });
    }
    messages_.push_back(message);
  }

  /// A group that is to end: its queue, and messages that may be under way.
  struct leaving {
    std::shared_ptr<lane> last;
    std::vector<handle> messages;
  };

  /// Waits for what was posted, and for messages to be taken for a while, all of it together until
  /// then; gives up what is not complete. Afterwards the queues hold no tensors: their threads
  /// would take the GIL to let go of one, and end the program if there is no interpreter any more.
  static void finish(const std::vector<leaving>& all, clock::time_point until) {
    const auto taken = (std::min)(until, clock::now() + most_for_messages);
    std::vector<handle> cancelled;
    for (const leaving& one : all) cancelled.push_back(one.last->cancel_receives());
    for (std::size_t i = 0; i < all.size(); ++i) {
      bool good = is_over(cancelled[i], until);
      for (const handle& message : all[i].messages) good = good && is_over(message, taken);
      if (!good) {
        all[i].last->abort("the process group was destroyed before its calls were complete");
      }
    }
    // What was given up ends with this.
    const auto ended = (std::max)(until, clock::now() + std::chrono::seconds(1));
    cancelled.clear();
    for (const leaving& one : all) cancelled.push_back(one.last->cancel_receives());
    for (const handle& call : cancelled) is_over(call, ended);
    // A call is complete a moment before the queue lets go of what it held: another one is behind
    // it. That is also how long the ranks may take to leave.
    std::vector<handle> last;
    for (const leaving& one : all) {
      last.push_back(one.last->set_timeout((std::max)(left(ended), std::chrono::milliseconds(1))));
    }
    for (const handle& call : last) is_over(call, ended);
  }

  static std::chrono::milliseconds left(clock::time_point until) {
    return (std::max)(std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()),
                      std::chrono::milliseconds(0));
  }

  /// Waits until then for a call to be complete, or to have failed.
  static bool is_over(const handle& call, clock::time_point until) {
    try {
      call.wait(left(until));
    } catch (...) {
      // Failed, or the time is over.
    }
    return call.test();
  }

  /// Of what rankfold does not have. The ranks meet in a thread of its own, so that abort() and
  /// Ctrl-C end that.
  c10::intrusive_ptr<Backend> gloo() {
    const auto check = [this] {
      if (is_aborted_) throw aborted_error("rankfold: abort() was called");
      torch_ops::check_signals();
    };
    check();
    open();
    const std::lock_guard one_at_a_time(gloo_mutex_);
    {
      const std::lock_guard lock(mutex_);
      if (gloo_) return gloo_;
    }
    const auto made = std::make_shared<c10::intrusive_ptr<Backend>>();
    const auto make = [made, maker = make_gloo_, rank = rank_, size = size_,
                       timeout = timeout_.load()](const detail::store_meeting& met) {
      *made = maker(c10::make_intrusive<c10d::PrefixStore>(met.session(), met.store()), rank, size,
                    timeout);
    };
    detail::store_meeting::run(
        std::make_shared<detail::store_meeting>(
            detail::store_meeting::place{"a group of gloo", store_, "rankfold-gloo", rank_, size_,
                                         timeout_.load()},
            "-", make),
        check);
    const std::lock_guard lock(mutex_);
    gloo_ = *made;
    return gloo_;
  }

  /// When a program that ends is to have ended, as clock has it; 0 before that.
  static std::atomic<clock::rep>& end_of_everything() {
    static std::atomic<clock::rep> until{0};
    return until;
  }

  static std::mutex& all_mutex() {
    static std::mutex* const mutex = new std::mutex;  // used until the very end
    return *mutex;
  }
  static std::vector<process_group*>& all() {
    static auto* const groups = new std::vector<process_group*>;
    return *groups;
  }

  // --- what calls do ---

  static void check_written(const checks& check, const tensors& list) {
    for (const at::Tensor& x : list) check.writable(x);
  }

  static std::size_t bytes_of(const at::Tensor& x) { return torch_backend::bytes_of(x); }
  static std::size_t bytes_of(const tensors& list) {
    std::size_t bytes = 0;
    for (const at::Tensor& x : list) bytes += bytes_of(x);
    return bytes;
  }

  static void all_reduce(calls& c, const at::Tensor& x, const folding& how) {
    const buffer b(how(x), access::both);
    c.all_reduce(b.out(), count_of(x), how.type, how.op);
    b.store(x);
  }

  static void gather_into_tensor(calls& c, const at::Tensor& in, const at::Tensor& out) {
    const moved_type type(in);
    const buffer from(in, access::read);
    const buffer to(out, access::write);
    c.all_gather(from.in(), to.out(), type.count(in), type.type);
    to.store();
  }

  /// Straight to where each tensor of the list is.
  static void gather_into_list(calls& c, const at::Tensor& in, const tensors& out, int own) {
    const moved_type type(in);
    const buffer given(in, access::read);
    std::vector<buffer> to;
    std::vector<void*> places;
    bool is_written = false;  // the input, before the others have read it
    for (const at::Tensor& x : out) {
      places.push_back(to.emplace_back(x, access::write).out());
      const bool is_own = static_cast<int>(places.size()) == own + 1;
      is_written =
          is_written || (detail::overlap(given.in(), bytes_of(in), places.back(), bytes_of(x)) &&
                         !(is_own && places.back() == given.in()));
    }
    const buffer from = is_written ? buffer(copy_of(in), access::read) : given;
    if (const auto counts = uneven_counts(out, type.per_element)) {
      c.all_gather(from.in(), places, *counts, type.type);
    } else {
      c.all_gather(from.in(), places, type.count(in), type.type);
    }
    for (const buffer& b : to) b.store();
  }

  struct scattering {
    at::Tensor in;
    at::Tensor out;
    folding how;
    void operator()(calls& c) const {
      const buffer from(how(in), access::read);
      const buffer to(out, access::write);
      c.reduce_scatter(from.in(), to.out(), count_of(out), how.type, how.op);
      to.store();
    }
  };

  static scattering scattering_of(const checks& check, const at::Tensor& output,
                                  const at::Tensor& input, const c10d::ReduceOp& op) {
    check.blocks(output, input, "output", "input");
    check.writable(output);
    const at::Tensor out = check.parts(output, op);
    return {check.parts(input, op), out, check.fold(out, op)};
  }

  const unsigned generation_ = detail::fork_generation();
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const gloo_maker make_gloo_;
  const std::shared_ptr<work_context> context_;
  std::atomic<std::uint64_t> sequence_{0};
  monitored_barriers barriers_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<bool> is_aborted_{false};

  std::mutex gloo_mutex_;  // of whoever makes gloo_
  std::mutex mutex_;       // of what follows
  std::shared_ptr<lane> lane_;
  std::vector<handle> messages_;
  c10::intrusive_ptr<Backend> gloo_;
  struct coalesced {
    std::thread::id thread;
    std::vector<handle> calls;
  };
  std::vector<coalesced> coalescing_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
