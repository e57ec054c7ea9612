// SPDX-License-Identifier: Apache-2.0
// What happens when two libraries of one process register the same namespace, as when an extension
// is rebuilt and loaded again from another path. Registering an op twice would end the process;
// instead the second library registers nothing and tells the first one, whose `init` refuses from
// then on.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include <dlfcn.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class Library>
struct loaded_once {
  /// The path of the library that this is part of.
  static std::string path() {
    ::Dl_info info{};
    const bool found = ::dladdr(reinterpret_cast<const void*>(&loaded_once::path), &info) != 0;
    return found && info.dli_fname != nullptr ? info.dli_fname : "a library";
  }

  static std::atomic<const std::string*>& other() {
    static std::atomic<const std::string*> path_of_other{nullptr};
    return path_of_other;
  }

  static void loaded_again(std::string_view other_path) {
    other().store(new std::string(other_path), std::memory_order_release);  // kept for ever
  }
};

/// Whether another library has taken the namespace; if so, that one knows now.
template <class Library>
bool loaded_before() {
  const std::string op = std::string(Library::name) + "::_loaded_again";
  const auto found = c10::Dispatcher::singleton().findSchema({op, ""});
  if (!found) return false;
  const std::string path = loaded_once<Library>::path();
  found->template typed<void(std::string_view)>().call(path);
  TORCH_WARN("rankfold: ", path, " registers nothing: torch.ops.", Library::name,
             " has been registered by another library of this process");
  return true;
}

template <class Library>
void define_loaded_once(::torch::Library& m) {
  m.def("_loaded_again(str library) -> ()", &loaded_once<Library>::loaded_again);
}

template <class Library>
void check_loaded_once() {
  const std::string* other = loaded_once<Library>::other().load(std::memory_order_acquire);
  TORCH_CHECK(other == nullptr, Library::name, "::init: the namespace ", Library::name,
              " was registered by two libraries, ", loaded_once<Library>::path(), " and ", *other,
              ", expected one. The ops are those of the first; give each extension a namespace of "
              "its own, ",
              "and load a rebuilt one in a new process");
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
