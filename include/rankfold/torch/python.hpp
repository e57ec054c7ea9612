// SPDX-License-Identifier: Apache-2.0
// Lets Python's signal handlers run while a collective waits, so that Ctrl-C works. Python is found
// at run time: an extension links to none, and works in a C++ program that has none.
#pragma once

#include <stdexcept>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include <sys/syscall.h>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// A signal handler of Python raised an exception while a call waited.
class interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace python {

/// The few functions of Python's C API that are needed, as declared there (objects as void*).
struct api {
  int (*is_initialized)() = nullptr;
  int (*gil_ensure)() = nullptr;
  void (*gil_release)(int) = nullptr;
  int (*check_signals)() = nullptr;
  void (*fetch_error)(void**, void**, void**) = nullptr;
  const char* (*exception_name)(void*) = nullptr;
  unsigned long (*thread_ident)() = nullptr;
  int (*raise_later)(unsigned long, void*) = nullptr;
  void (*decrease_reference)(void*) = nullptr;
  int (*has_gil)() = nullptr;
  void* (*save_thread)() = nullptr;
  void (*restore_thread)(void*) = nullptr;
  bool complete = false;
};

template <class Function>
bool find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

inline const api& functions() {
  static const api found = [] {
    api a;
    a.complete =
        find("Py_IsInitialized", a.is_initialized) && find("PyGILState_Ensure", a.gil_ensure) &&
        find("PyGILState_Release", a.gil_release) && find("PyErr_CheckSignals", a.check_signals) &&
        find("PyErr_Fetch", a.fetch_error) && find("PyExceptionClass_Name", a.exception_name) &&
        find("PyThread_get_thread_ident", a.thread_ident) &&
        find("PyThreadState_SetAsyncExc", a.raise_later) &&
        find("Py_DecRef", a.decrease_reference) && find("PyGILState_Check", a.has_gil) &&
        find("PyEval_SaveThread", a.save_thread) && find("PyEval_RestoreThread", a.restore_thread);
    return a;
  }();
  return found;
}

}  // namespace python

/// Gives the GIL up while it lives, if this thread has it: before a wait for what may need it.
class without_gil {
 public:
  without_gil() {
    const python::api& py = python::functions();
    if (py.complete && py.is_initialized() != 0 && py.has_gil() != 0) saved_ = py.save_thread();
  }
  without_gil(const without_gil&) = delete;
  without_gil& operator=(const without_gil&) = delete;
  ~without_gil() {
    if (saved_ != nullptr) python::functions().restore_thread(saved_);
  }

 private:
  void* saved_ = nullptr;
};

/// Runs the handlers of signals that have come. Called, without the GIL, about ten times a second
/// by whatever waits.
///
/// Throws: `interrupted` if a handler raised an exception, KeyboardInterrupt for one. That
///         exception itself is put off: it cannot pass through C++ that may run more Python on its
///         way out. Python raises it in this thread as soon as it runs again, so that a program
///         which catches RuntimeError does not swallow a Ctrl-C.
inline void check_signals() {
  // Only the main thread runs handlers; and another one, asking for the GIL while the interpreter
  // ends, would never come back.
  if (::getpid() != static_cast<::pid_t>(::syscall(SYS_gettid))) return;
  const python::api& py = python::functions();
  if (!py.complete || py.is_initialized() == 0) return;
  const int state = py.gil_ensure();
  std::string name;
  if (py.check_signals() != 0) {
    void* type = nullptr;
    void* value = nullptr;
    void* traceback = nullptr;
    py.fetch_error(&type, &value, &traceback);
    if (type != nullptr) {
      name = py.exception_name(type);
      py.raise_later(py.thread_ident(), type);
    }
    for (void* object : {type, value, traceback}) py.decrease_reference(object);
  }
  py.gil_release(state);
  if (!name.empty()) throw interrupted("interrupted: a signal's handler raised " + name);
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
