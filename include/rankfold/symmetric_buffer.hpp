// SPDX-License-Identifier: Apache-2.0
// What communicator::allocate gives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/symmetric_allocation.hpp"

RANKFOLD_BEGIN_NAMESPACE

template <class T>
class symmetric_buffer;

namespace detail {
template <class T>
symmetric_buffer<T> make_symmetric_buffer(std::shared_ptr<symmetric_allocation> memory,
                                          std::size_t count) noexcept;
}

/// `size()` elements of this rank's own, in memory that all ranks of its communicator address: an
/// all_reduce of them, or of a part of them, is read by the peers where it lies. Else it is memory
/// like any other. Movable; empty when default-constructed or moved from.
///
/// Lifetime: may be destroyed in any thread, on each rank when it likes, before or after the
///           communicator; not while a call uses it. Its memory is given back at once; its range of
///           addresses when all ranks have destroyed theirs, at the next allocate or with the
///           communicator.
template <class T>
class symmetric_buffer {
 public:
  symmetric_buffer() = default;
  symmetric_buffer(symmetric_buffer&& other) noexcept
      : memory_(std::move(other.memory_)), count_(std::exchange(other.count_, 0)) {}
  symmetric_buffer& operator=(symmetric_buffer&& other) noexcept {
    symmetric_buffer taken(std::move(other));
    std::swap(memory_, taken.memory_);
    std::swap(count_, taken.count_);
    return *this;
  }
  ~symmetric_buffer() {
    if (memory_ != nullptr) memory_->release();
  }

  /// Zero at first; begins a page.
  T* data() const noexcept {
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_->data());
  }
  std::size_t size() const noexcept { return count_; }
  std::span<T> span() const noexcept { return {data(), count_}; }

 private:
  friend symmetric_buffer detail::make_symmetric_buffer<T>(
      std::shared_ptr<detail::symmetric_allocation> memory, std::size_t count) noexcept;

  std::shared_ptr<detail::symmetric_allocation> memory_;
  std::size_t count_ = 0;
};

namespace detail {

template <class T>
symmetric_buffer<T> make_symmetric_buffer(std::shared_ptr<symmetric_allocation> memory,
                                          std::size_t count) noexcept {
  symmetric_buffer<T> made;
  made.memory_ = std::move(memory);
  made.count_ = count;
  return made;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
