// SPDX-License-Identifier: Apache-2.0
// The order token: the tensor that every collective writes, so that compilers keep their order.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// One for each thread and all groups: collectives block, so that their order matters across
/// groups, too; those of two threads have none.
class order_token {
 public:
  static const at::Tensor& of_this_thread() {
    thread_local const order_token mine;
    return mine.tensor_;
  }

  /// To be called by every collective, with the token that it has written. Autograd takes what is
  /// written for lost, and refuses the backward pass of a graph that has saved it; compiled graphs
  /// do save the token, for their backward half has collectives, too. What the token holds means
  /// nothing to anybody, so that compiled graphs may leave it with one and the same version.
  ///
  /// Compiled graphs run without gradients. They count what they write before they run, and hand
  /// over the token or a copy of it. What is called by hand counts nothing.
  static void forget_version(const at::Tensor& given) {
    if (c10::GradMode::is_enabled()) return;
    set_version(given, 1);
    set_version(of_this_thread(), 1);
  }

  order_token(const order_token&) = delete;
  order_token& operator=(const order_token&) = delete;

 private:
  order_token() {
    const std::lock_guard lock(unused().mutex);
    if (auto& tensors = unused().tensors; !tensors.empty()) {
      tensor_ = std::move(tensors.back());
      tensors.pop_back();
      return;
    }
    const c10::InferenceMode off(false);  // else it could not be used outside of inference mode
    tensor_ = at::detail::empty_cpu({1}, c10::ScalarType::Long);
    *tensor_.mutable_data_ptr<std::int64_t>() = 0;
  }
  /// Kept for another thread: to let go of it would take the interpreter, which may be gone.
  ~order_token() {
    const std::lock_guard lock(unused().mutex);
    unused().tensors.push_back(std::move(tensor_));
  }

  static void set_version(const at::Tensor& x, std::int64_t version) {
    if (x.is_inference()) return;  // has none
    c10::VariableVersion counter = x.unsafeGetTensorImpl()->version_counter();
    counter.set_version(version);
  }

  struct store {
    std::mutex mutex;
    std::vector<at::Tensor> tensors;
  };
  static store& unused() {
    static store* const made = new store;  // outlives every thread
    return *made;
  }

  at::Tensor tensor_;
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
