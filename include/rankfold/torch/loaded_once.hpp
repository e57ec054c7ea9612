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

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/argument.hpp"

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

  /// The op `_loaded_again`, which the second library calls.
  static constexpr const char* op = "_loaded_again";
  static void loaded_again(std::string_view other_path) {
    other().store(new std::string(other_path), std::memory_order_release);  // kept for ever
  }
};

/// What the library says that registers nothing.
template <class Library>
std::string loaded_twice() {
  return "rankfold: " + loaded_once<Library>::path() + " registers nothing: torch.ops." +
         Library::name + " has been registered by another library of this process";
}

template <class Library>
void check_loaded_once() {
  const std::string* other = loaded_once<Library>::other().load(std::memory_order_acquire);
  if (other == nullptr) return;
  refuse(Library::name, "::init: the namespace ", Library::name,
         " was registered by two libraries, ", loaded_once<Library>::path(), " and ", *other,
         ", expected one. The ops are those of the first; give each extension a namespace of its "
         "own, and load a rebuilt one in a new process");
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE

/// Names the type that stands for a namespace of ops, `rankfold_torch_library_NAMESPACE`; a second
/// time in one library is a link error.
#define RANKFOLD_DETAIL_TORCH_NAMESPACE(NAMESPACE)                             \
  extern "C" __attribute__((visibility("hidden")))                             \
  const char rankfold_torch_library_used_twice_for_##NAMESPACE;                \
  extern "C" const char rankfold_torch_library_used_twice_for_##NAMESPACE = 0; \
  namespace {                                                                  \
  struct rankfold_torch_library_##NAMESPACE {                                  \
    static constexpr const char* name = #NAMESPACE;                            \
  };                                                                           \
  }
