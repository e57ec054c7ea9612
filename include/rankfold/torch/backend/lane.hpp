// SPDX-License-Identifier: Apache-2.0
// A queue over a communicator, whatever its transport: what a process group posts its calls to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "rankfold/async.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// The type of elements that are only moved: of those that the library does not know bytes travel,
/// and `id` tells them apart.
struct element_type {
  dtype type;
  std::uint32_t id = 0;
  call_options options(std::uint32_t tag = 0) const { return {.tag = tag, .type_id = id}; }
};

/// The collectives of a communicator, with types known at run time.
class calls {
 public:
  virtual ~calls() = default;
  virtual void barrier() = 0;
  virtual void all_reduce(void* data, std::size_t count, dtype type, reduction op) = 0;
  virtual void reduce(void* data, std::size_t count, dtype type, int root, reduction op) = 0;
  virtual void reduce_scatter(const void* in, void* out, std::size_t count, dtype type,
                              reduction op) = 0;
  virtual void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts,
                              dtype type, reduction op) = 0;
  virtual void broadcast(void* data, std::size_t count, element_type type, int root) = 0;
  virtual void all_gather(const void* in, void* out, std::size_t count, element_type type) = 0;
  virtual void all_gather(const void* in, std::span<void* const> outs, std::size_t count,
                          element_type type) = 0;
  virtual void all_gather(const void* in, std::span<void* const> outs,
                          std::span<const std::size_t> counts, element_type type) = 0;
  virtual void gather(const void* in, void* out, std::size_t count, element_type type,
                      int root) = 0;
  virtual void scatter(const void* in, void* out, std::size_t count, element_type type,
                       int root) = 0;
  virtual void all_to_all(const void* in, std::span<const std::size_t> send_counts, void* out,
                          std::span<const std::size_t> recv_counts, element_type type) = 0;
};

template <class Transport>
class calls_of final : public calls {
 public:
  explicit calls_of(communicator<Transport>& comm) : comm_(comm) {}

  void barrier() override { comm_.barrier(); }
  void all_reduce(void* data, std::size_t count, dtype type, reduction op) override {
    comm_.all_reduce(data, data, count, type, op);
  }
  void reduce(void* data, std::size_t count, dtype type, int root, reduction op) override {
    comm_.reduce(data, data, count, type, root, op);
  }
  void reduce_scatter(const void* in, void* out, std::size_t count, dtype type,
                      reduction op) override {
    comm_.reduce_scatter(in, out, count, type, op);
  }
  void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, dtype type,
                      reduction op) override {
    comm_.reduce_scatter(in, out, counts, type, op);
  }
  void broadcast(void* data, std::size_t count, element_type type, int root) override {
    comm_.broadcast(data, count, type.type, root, type.options());
  }
  void all_gather(const void* in, void* out, std::size_t count, element_type type) override {
    comm_.all_gather(in, out, count, type.type, type.options());
  }
  void all_gather(const void* in, std::span<void* const> outs, std::size_t count,
                  element_type type) override {
    comm_.all_gather(in, outs, count, type.type, type.options());
  }
  void all_gather(const void* in, std::span<void* const> outs, std::span<const std::size_t> counts,
                  element_type type) override {
    comm_.all_gather(in, outs, counts, type.type, type.options());
  }
  void gather(const void* in, void* out, std::size_t count, element_type type, int root) override {
    comm_.gather(in, out, count, type.type, root, type.options());
  }
  void scatter(const void* in, void* out, std::size_t count, element_type type, int root) override {
    comm_.scatter(in, out, count, type.type, root, type.options());
  }
  void all_to_all(const void* in, std::span<const std::size_t> send_counts, void* out,
                  std::span<const std::size_t> recv_counts, element_type type) override {
    comm_.all_to_all(in, send_counts, out, recv_counts, type.type, type.options());
  }

 private:
  communicator<Transport>& comm_;
};

/// The queue; see async_queue.
class lane {
 public:
  virtual ~lane() = default;
  /// Posts `body`, which has `bytes` to move and that much time for all of its calls together.
  virtual handle post(std::function<void(calls&)> body, std::size_t bytes,
                      std::chrono::milliseconds timeout) = 0;
  virtual handle send(const void* data, std::size_t count, element_type type, int peer,
                      std::uint32_t tag) = 0;
  /// By tag; of any rank where `peer` is negative. `*from` gets the rank.
  virtual handle recv(void* data, std::size_t count, element_type type, int peer, std::uint32_t tag,
                      int* from) = 0;
  /// Posted as a call: cancels receives that nothing has come for.
  virtual handle cancel_receives() = 0;
  /// Posted as a call: for messages, and for leaving.
  virtual handle set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void abort(std::string_view reason) noexcept = 0;
};

template <class Transport>
class lane_of final : public lane {
 public:
  explicit lane_of(communicator<Transport> comm) : queue_(std::move(comm)) {}

  handle post(std::function<void(calls&)> body, std::size_t bytes,
              std::chrono::milliseconds timeout) override {
    return queue_.run(
        [body = std::move(body)](communicator<Transport>& comm) {
          calls_of<Transport> made(comm);
          body(made);
        },
        bytes, timeout);
  }
  handle send(const void* data, std::size_t count, element_type type, int peer,
              std::uint32_t tag) override {
    return queue_.send(data, count, type.type, peer, type.options(tag));
  }
  handle recv(void* data, std::size_t count, element_type type, int peer, std::uint32_t tag,
              int* from) override {
    return queue_.recv_tagged(data, count, type.type, peer, type.options(tag), from);
  }
  handle cancel_receives() override { return queue_.cancel_tagged(); }
  handle set_timeout(std::chrono::milliseconds timeout) override {
    return queue_.run([timeout](communicator<Transport>& comm) { comm.set_timeout(timeout); });
  }
  void abort(std::string_view reason) noexcept override { queue_.abort(reason); }

 private:
  async_queue<Transport> queue_;
};

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
