// SPDX-License-Identifier: Apache-2.0
// Where an algorithm puts the final elements of an all_reduce on a rank: into a buffer, or through
// an epilogue. In ascending order and each once, so that an epilogue may finish rows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rankfold/assert.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/kernel/copy.hpp"
#include "rankfold/kernel/epilogue.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// The caller's buffer, of elements of `size` bytes.
class buffer_output {
 public:
  /// What is put can be read again, at `at`.
  static constexpr bool keeps = true;

  buffer_output(void* out, std::size_t size) noexcept
      : out_(static_cast<std::byte*>(out)), size_(size) {}

  std::byte* at(std::size_t begin) const noexcept { return out_ + begin * size_; }

  /// `make(offset, count, to)` writes the elements from `begin` + `offset` on.
  template <class Make>
  void put(std::size_t begin, std::size_t count, Make&& make) const {
    make(std::size_t{0}, count, static_cast<void*>(at(begin)));
  }

  /// The elements from `begin` on, which are at `from`.
  void take(std::size_t begin, std::size_t count, const void* from) const {
    kernel::copy(at(begin), from, count * size_);
  }

 private:
  std::byte* out_;
  std::size_t size_;
};

/// An epilogue, which gets blocks that fit in the first cache beside what they are made of.
class epilogue_output {
 public:
  static constexpr bool keeps = false;
  static constexpr std::size_t block_bytes = 8192;

  epilogue_output(const kernel::epilogue& epilogue, std::size_t size) noexcept
      : epilogue_(epilogue), size_(size) {
    RANKFOLD_ASSERT(1, size <= block_bytes, "an element is larger than an epilogue's block");
  }

  template <class Make>
  void put(std::size_t begin, std::size_t count, Make&& make) const {
    alignas(cache_line) std::byte block[block_bytes];
    in_blocks(count, [&](std::size_t offset, std::size_t now) {
      make(offset, now, static_cast<void*>(block));
      epilogue_.apply(epilogue_.f, block, begin + offset, now);
    });
  }

  void take(std::size_t begin, std::size_t count, const void* from) const {
    in_blocks(count, [&](std::size_t offset, std::size_t now) {
      epilogue_.apply(epilogue_.f, static_cast<const std::byte*>(from) + offset * size_,
                      begin + offset, now);
    });
  }

 private:
  template <class Step>
  void in_blocks(std::size_t count, Step&& step) const {
    const std::size_t limit = elements_in(block_bytes, size_);
    for (std::size_t offset = 0; offset < count; offset += limit) {
      step(offset, (std::min)(limit, count - offset));
    }
  }

  kernel::epilogue epilogue_;
  std::size_t size_;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
