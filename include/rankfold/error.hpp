// SPDX-License-Identifier: Apache-2.0
// What can go wrong at run time. A wrong argument of one's own call is a std::invalid_argument.
#pragma once

#include <stdexcept>
#include <string>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Base of all errors that depend on other ranks or on the machine.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A rank did not arrive before the deadline; the message names it.
class timeout_error : public error {
 public:
  using error::error;
};

/// A peer died, or left by destroying its communicator, while it was still needed.
class peer_lost_error : public error {
 public:
  using error::error;
};

/// Ranks called different operations, or the same one with different arguments.
class mismatch_error : public error {
 public:
  using error::error;
};

/// The ranks could not find or accept each other at start.
class rendezvous_error : public error {
 public:
  using error::error;
};

/// The machine refused something: no memory, a system call or an MPI call failed.
class transport_error : public error {
 public:
  using error::error;
};

/// The communicator was given up before this call; the message holds the first cause.
class aborted_error : public error {
 public:
  using error::error;
};

RANKFOLD_END_NAMESPACE
