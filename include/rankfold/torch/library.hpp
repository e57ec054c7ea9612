// SPDX-License-Identifier: Apache-2.0
// RANKFOLD_TORCH_LIBRARY: which ops there are, and their registration.
#pragma once

// Hides the library's namespace, so that two extensions in one process share no state, whatever
// versions of rankfold they were built with. (The linker makes one of equal inline variables, even
// of libraries loaded with RTLD_LOCAL.) Has no effect where another header of rankfold came first.
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/barrier.hpp"
#include "rankfold/torch/collective.hpp"
#include "rankfold/torch/collectives.hpp"
#include "rankfold/torch/control.hpp"
#include "rankfold/torch/epilogue.hpp"
#include "rankfold/torch/loaded_once.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// The order matters: a call without a token takes the first overload that fits.
template <class Library, class... Op>
void define_collectives(::torch::Library& m, types<Op...>) {
  (collective_ops<Op, Library, ordered>::define(m), ...);
  (collective_ops<Op, Library, eager>::define(m), ...);
  (collective_ops<Op, Library, unordered>::define(m), ...);
  define_epilogues<Library, ordered>(m);
  define_epilogues<Library, eager>(m);
  define_epilogues<Library, unordered>(m);
  barrier_ops<Library, ordered>::define(m);
  barrier_ops<Library, eager>::define(m);
}

/// Whether another library has taken the namespace; if so, that one knows now.
template <class Library>
bool loaded_before() {
  using once = loaded_once<Library>;
  const auto found =
      c10::Dispatcher::singleton().findSchema({std::string(Library::name) + "::" + once::op, ""});
  if (!found) return false;
  const std::string path = once::path();
  found->template typed<void(text_argument)>().call(path);
  TORCH_WARN(loaded_twice<Library>());
  return true;
}

template <class Library>
void define_library(::torch::Library& m) {
  if (loaded_before<Library>()) return;
  m.def("_loaded_again(str library) -> ()",
        [](text_argument path) { loaded_once<Library>::loaded_again(text(path)); });
  define_collectives<Library>(m, collectives());
  control_ops<Library>::define(m);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE

/// Public. Registers rankfold's ops as torch.ops.NAMESPACE, beside others that may be there. At
/// file scope, in one source file of one library: a second one in the same library is a link error.
#define RANKFOLD_TORCH_LIBRARY(NAMESPACE)                                      \
  RANKFOLD_DETAIL_TORCH_NAMESPACE(NAMESPACE)                                   \
  TORCH_LIBRARY_FRAGMENT(NAMESPACE, rankfold_torch_library) {                  \
    ::rankfold::torch_ops::define_library<rankfold_torch_library_##NAMESPACE>( \
        rankfold_torch_library);                                               \
  }
