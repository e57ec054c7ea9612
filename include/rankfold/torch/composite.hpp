// SPDX-License-Identifier: Apache-2.0
// The op that writes and returns what it wrote: a composite of one that returns nothing.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/SmallVector.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// Calls what graphs hold, and returns what it has written.
///
/// Where a graph is traced, what is written and is not contiguous is copied, and copied back, in
/// the graph; the kernel would do the same. For if the graph holds an op that writes to an input,
/// and returns a value that equals it but has other strides, such as `x * 1` of a slice, Inductor
/// of torch 2.14 takes the input for that value, writes to a copy, and the input stays as it was.
class writing_composite final : public c10::OperatorKernel {
 public:
  explicit writing_composite(c10::OperatorHandle core) : core_(std::move(core)) {
    const auto& arguments = core_.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (is_written(arguments[i])) written_.push_back(i);
    }
  }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const std::size_t begin = stack->size() - core_.schema().arguments().size();
    c10::SmallVector<c10::IValue, 2> results;
    c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> copies;  // of what, and the copy
    for (const std::size_t i : written_) {
      c10::IValue& argument = (*stack)[begin + i];
      results.push_back(argument);
      const at::Tensor& x = argument.toTensor();
      if (!x.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python) ||
          is_known_contiguous(x)) {
        continue;
      }
      copies.emplace_back(x, x.clone(c10::MemoryFormat::Contiguous));
      argument = copies.back().second;
    }
    core_.callBoxed(stack);
    for (const auto& [x, copy] : copies) x.copy_(copy);
    stack->resize(begin);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

 private:
  c10::OperatorHandle core_;
  std::vector<std::size_t> written_;
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
