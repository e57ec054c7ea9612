// SPDX-License-Identifier: Apache-2.0
// RANKFOLD_TORCH_BACKEND: a Python module that makes rankfold a backend of torch.distributed.
#pragma once

// Hides the library's namespace, as torch/library.hpp says.
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif

#include <chrono>
#include <string>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/backend/process_group.hpp"

#include <pybind11/chrono.h>

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// Makes gloo groups, which torch has no header for.
inline c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int size,
                                                   std::chrono::milliseconds timeout) {
  const pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("torch._C._distributed_c10d")
      .attr("ProcessGroupGloo")(store, rank, size, timeout)
      .cast<c10::intrusive_ptr<c10d::Backend>>();
}

/// What torch calls for a new group: `options` is a _DistributedBackendOptions of
/// torch._C._distributed_c10d, the other one what the user gave as pg_options.
inline c10::intrusive_ptr<c10d::Backend> create(const pybind11::object& options,
                                                const pybind11::object&) {
  auto store = options.attr("store").cast<c10::intrusive_ptr<c10d::Store>>();
  const int rank = options.attr("group_rank").cast<int>();
  const int size = options.attr("group_size").cast<int>();
  const auto timeout = options.attr("timeout").cast<std::chrono::milliseconds>();
  const auto name = options.attr("group_id").cast<std::string>();
  const pybind11::gil_scoped_release no_gil;
  return c10::make_intrusive<process_group>(std::move(store), rank, size, timeout, name,
                                            &make_gloo);
}

inline void define_module(pybind11::module_& module) {
  module.doc() = "rankfold as a backend of torch.distributed: init_process_group(\"rankfold\")";
  pybind11::list devices;
  devices.append("cpu");
  pybind11::module_::import("torch.distributed")
      .attr("Backend")
      .attr("register_backend")("rankfold", pybind11::cpp_function(&create),
                                pybind11::arg("extended_api") = true,
                                pybind11::arg("devices") = devices);
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function(&process_group::end_of_program));
}

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE

/// Public. At file scope, in one source file of a library that becomes the Python module NAME (no
/// quotes): importing it registers the backend "rankfold".
#define RANKFOLD_TORCH_BACKEND(NAME)                                         \
  PYBIND11_MODULE(NAME, rankfold_torch_backend_module) {                     \
    ::rankfold::torch_backend::define_module(rankfold_torch_backend_module); \
  }
