// SPDX-License-Identifier: Apache-2.0
// Checks of the buffers that a caller passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

[[noreturn, gnu::cold]] inline void throw_overlap(std::string_view name) {
  throw std::invalid_argument(std::string(name) +
                              ": input and output overlap in part; they may be the same or apart");
}

[[noreturn, gnu::cold]] inline void throw_count(std::string_view name, std::string_view what,
                                                std::size_t found, std::size_t expected) {
  throw std::invalid_argument(std::string(name) + ": " + std::string(what) + " has " +
                              std::to_string(found) + " elements; expected " +
                              std::to_string(expected));
}

[[noreturn, gnu::cold]] inline void throw_rank(std::string_view name, std::string_view what,
                                               int rank, int size) {
  throw std::invalid_argument(std::string(name) + ": " + std::string(what) + " is " +
                              std::to_string(rank) + "; expected 0 to " + std::to_string(size - 1));
}

/// Whether [a, a + a_bytes) and [b, b + b_bytes) have a byte in common.
inline bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && x < y + b_bytes && y < x + a_bytes;
}

/// Throws unless [a, a + a_bytes) and [b, b + b_bytes) are apart.
inline void check_apart(std::string_view name, const void* a, std::size_t a_bytes, const void* b,
                        std::size_t b_bytes) {
  if (overlap(a, a_bytes, b, b_bytes)) [[unlikely]]
    throw_overlap(name);
}

/// Throws unless `found` == `expected`; `what` names the buffer.
inline void check_count(std::string_view name, std::string_view what, std::size_t found,
                        std::size_t expected) {
  if (found != expected) [[unlikely]]
    throw_count(name, what, found, expected);
}

/// Throws unless `rank` is one of `size`.
inline void check_rank(std::string_view name, std::string_view what, int rank, int size) {
  if (rank < 0 || rank >= size) [[unlikely]]
    throw_rank(name, what, rank, size);
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
