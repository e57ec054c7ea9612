// SPDX-License-Identifier: Apache-2.0
// RANKFOLD_DEEPSPEED_MODULE: what DeepSpeed looks for in its own shared-memory op, over rankfold.
#pragma once

#if !__has_include(<Python.h>)
#  error "rankfold/torch/deepspeed.hpp makes a Python module: <Python.h> is not in the include path"
#endif

// Hides the library's namespace, as torch/library.hpp says.
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/torch/library.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/version_guard.hpp"

#include <pybind11/pybind11.h>

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// DeepSpeed's ops and module functions, in terms of the ops of RANKFOLD_TORCH_LIBRARY `Library`.
///
/// Like DeepSpeed's own, they have one group, of all ranks, and no token: they are right where each
/// needs the result of the one before, as in a model's layers.
template <class Library>
struct deepspeed {
  static void define_ops(::torch::Library& m) {
    taken() = c10::Dispatcher::singleton()
                  .findSchema({"deepspeed::inference_all_reduce", ""})
                  .has_value();
    if (taken()) return;
    m.def("inference_all_reduce(Tensor self) -> Tensor");
    m.def("inference_all_reduce_(Tensor(a!) self) -> Tensor(a!)");
    m.impl("inference_all_reduce", composite(TORCH_FN(all_reduce)));
    m.impl("inference_all_reduce_", composite(TORCH_FN(all_reduce_)));
  }

  static void define_module(pybind11::module_& m) {
    const pybind11::call_guard<pybind11::gil_scoped_release> without_gil;
    m.doc() = "DeepSpeed's all-reduce for inference, over rankfold";
    m.def("initialize", &initialize, pybind11::arg("size"), pybind11::arg("rank"), without_gil,
          "Meets the other ranks, as DeepSpeed asks it to after init_distributed.");
    m.def("vector_kernel_level", &vector_kernel_level,
          "2: every element type goes this way. 0 over several hosts: DeepSpeed then takes its "
          "process group.");
  }

 private:
  static ::torch::CppFunction composite(auto function) {
    return ::torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, function);
  }

  static at::Tensor all_reduce(const at::Tensor& self) {
    static const auto op =
        find_op<at::Tensor(const at::Tensor&, text_argument, text_argument, std::int64_t)>(
            Library::name, "all_reduce", unordered::name);
    return op.call(self, "sum", "", 0);
  }

  static at::Tensor& all_reduce_(at::Tensor& self) {
    static const auto op = find_op<void(at::Tensor&, text_argument, text_argument, std::int64_t)>(
        Library::name, "_all_reduce_", unordered::name);
    op.call(self, "sum", "", 0);
    return self;
  }

  static void initialize(int size, int rank) {
    if (level() >= 0) return;
    if (taken()) {
      throw std::runtime_error(
          std::string(Library::name) +
          ".initialize: torch.ops.deepspeed has been registered by another library of this "
          "process, expected none; hand this module to DeepSpeed before "
          "deepspeed.init_distributed");
    }
    if (size > ranks_here(size)) {
      level() = 0;
      return;
    }
    const detail::run_text run = detail::run_of_environment();
    if (!run.enough && size > 1) {
      throw std::runtime_error(
          std::string(Library::name) +
          ".initialize: nothing in the environment tells this run from others, expected "
          "MASTER_ADDR and MASTER_PORT, the same on all ranks");
    }
    try {
      find_op<std::optional<at::Tensor>(text_argument, std::int64_t, std::int64_t, text_argument,
                                        double)>(Library::name, "init", "")
          .call("", rank, size, "deepspeed " + run.text, 0);
    } catch (const c10::Error& e) {
      throw std::runtime_error(e.what_without_backtrace());
    }
    level() = 2;
  }

  static int vector_kernel_level() { return (std::max)(level(), 0); }

  /// How many ranks this host has, as the launcher tells it: DeepSpeed's or torchrun's.
  static int ranks_here(int size) {
    for (const char* name : {"LOCAL_SIZE", "LOCAL_WORLD_SIZE"}) {
      if (const char* text = detail::environment_variable(name)) {
        return detail::parse_variable(name, text, 1, size);
      }
    }
    return size;
  }

  static int& level() {
    static int value = -1;  // not initialised
    return value;
  }
  static bool& taken() {
    static bool value = false;
    return value;
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE

/// Public. Makes the library that it stands in the Python module NAME, which DeepSpeed takes for
/// its shared-memory op: with `initialize` and `vector_kernel_level`, and the ops
/// torch.ops.deepspeed.inference_all_reduce and inference_all_reduce_. Beside them, torch.ops.NAME
/// has all ops of RANKFOLD_TORCH_LIBRARY. At file scope, in one source file. See docs/torch.md.
#define RANKFOLD_DEEPSPEED_MODULE(NAME)                                             \
  RANKFOLD_TORCH_LIBRARY(NAME)                                                      \
  TORCH_LIBRARY_FRAGMENT(deepspeed, rankfold_deepspeed_library) {                   \
    ::rankfold::torch_ops::deepspeed<rankfold_torch_library_##NAME>::define_ops(    \
        rankfold_deepspeed_library);                                                \
  }                                                                                 \
  PYBIND11_MODULE(NAME, rankfold_deepspeed_module) {                                \
    ::rankfold::torch_ops::deepspeed<rankfold_torch_library_##NAME>::define_module( \
        rankfold_deepspeed_module);                                                 \
  }
