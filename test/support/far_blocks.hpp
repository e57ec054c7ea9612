// SPDX-License-Identifier: Apache-2.0
// A buffer of more than 4 GiB of which only the pages that are written take memory.
#pragma once

#include <cstddef>
#include <span>

#include <sys/mman.h>

class far_buffer {
 public:
  explicit far_buffer(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  far_buffer(const far_buffer&) = delete;
  far_buffer& operator=(const far_buffer&) = delete;
  ~far_buffer() {
    if (*this) ::munmap(data_, bytes_);
  }

  /// Whether the machine has given it.
  explicit operator bool() const { return data_ != MAP_FAILED; }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  std::size_t bytes_;
  void* data_;
};
