// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// Copies `size_bytes` bytes; the ranges do not overlap. Null pointers are fine for zero bytes.
inline void copy(void* out, const void* in, std::size_t size_bytes) noexcept {
  if (size_bytes != 0) {  // memcpy's pointers must be valid even then
    std::memcpy(out, in, size_bytes);
  }
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
