// SPDX-License-Identifier: Apache-2.0
// Keys by which the ranks of a new group find each other and nobody else does.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <sys/random.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// 16 bytes that nobody can guess, and nobody gets again.
inline void fill_random(std::uint8_t (&bytes)[16]) {
  std::size_t done = 0;
  while (done < sizeof bytes) {
    const ::ssize_t got = ::getrandom(bytes + done, sizeof bytes - done, 0);
    if (got < 0 && errno != EINTR) {
      throw transport_error("rankfold: the system gives no random number (getrandom): " +
                            std::string(std::strerror(errno)));
    }
    if (got > 0) done += static_cast<std::size_t>(got);
  }
}

inline std::string hex_text(const std::uint8_t (&bytes)[16]) {
  std::string text;
  for (const std::uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
