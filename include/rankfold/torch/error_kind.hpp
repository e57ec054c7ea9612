// SPDX-License-Identifier: Apache-2.0
// What kind of error it is, in front of its text: torch knows only RuntimeError and its like.
#pragma once

#include <exception>
#include <string>

#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// "timeout_error: " and so on; nothing for what is no error of the library.
inline std::string kind_of(const std::exception& e) {
  const auto is = [&]<class Error>() { return dynamic_cast<const Error*>(&e) != nullptr; };
  if (is.template operator()<timeout_error>()) return "timeout_error: ";
  if (is.template operator()<peer_lost_error>()) return "peer_lost_error: ";
  if (is.template operator()<mismatch_error>()) return "mismatch_error: ";
  if (is.template operator()<rendezvous_error>()) return "rendezvous_error: ";
  if (is.template operator()<transport_error>()) return "transport_error: ";
  if (is.template operator()<aborted_error>()) return "aborted_error: ";
  return "";
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
