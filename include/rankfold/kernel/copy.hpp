// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// Copies `size_bytes` bytes; the ranges do not overlap. Null pointers are fine for zero bytes.
inline void copy(void* out, const void* in, std::size_t size_bytes) noexcept {
  // Piece by piece: glibc's memcpy stores without reading first (rep movsb) only up to the size of
  // the second cache, and a store to a line that a peer has read costs several times more when it
  // reads.
  constexpr std::size_t piece = std::size_t{256} << 10;
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  for (; size_bytes > piece; size_bytes -= piece, to += piece, from += piece) {
    std::memcpy(to, from, piece);
  }
  if (size_bytes != 0) {  // memcpy's pointers must be valid even then
    std::memcpy(to, from, size_bytes);
  }
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
