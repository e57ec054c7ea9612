// SPDX-License-Identifier: Apache-2.0
// Memory of the transports: a mapping that unmaps itself, and the checks of what a user asked for.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Both halves together, per rank: large enough to pipeline, small enough to stay in the caches.
inline constexpr std::size_t default_workspace_bytes = std::size_t{4} << 20;
inline constexpr std::size_t max_workspace_bytes = std::size_t{1} << 46;  // keeps sums in 64 bits
inline constexpr int max_ranks = 4096;

/// The size of a segment for what the user asked for, in a world of `size` ranks.
inline std::size_t checked_segment_bytes(std::size_t workspace_bytes, int size) {
  if (workspace_bytes == 0 || workspace_bytes > max_workspace_bytes) {
    throw std::invalid_argument("rankfold: workspace_bytes is " + std::to_string(workspace_bytes) +
                                ", expected 1 to " + std::to_string(max_workspace_bytes));
  }
  return segment_bytes(workspace_bytes, size);
}

inline void check_world_size(int size) {
  if (size < 1 || size > max_ranks) {
    throw std::invalid_argument("rankfold: world size is " + std::to_string(size) +
                                ", expected 1 to " + std::to_string(max_ranks));
  }
}

inline void check_rank(int rank, int size) {
  check_world_size(size);
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("rankfold: rank is " + std::to_string(rank) + ", expected 0 to " +
                                std::to_string(size - 1) + " in a world of " +
                                std::to_string(size));
  }
}

/// A range of mapped memory, unmapped by its destructor.
class mapping {
 public:
  mapping() = default;
  mapping(void* address, std::size_t bytes) noexcept
      : data_(static_cast<std::byte*>(address)), bytes_(bytes) {}
  mapping(mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  mapping& operator=(mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  /// Zeroed memory of this process; a page belongs to whom touches it first.
  static mapping anonymous(std::size_t bytes) {
    void* address =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      throw transport_error("rankfold: no memory for the workspace: need " + bytes_text(bytes) +
                            ", mmap says " + std::strerror(errno));
    }
    return {address, bytes};
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
