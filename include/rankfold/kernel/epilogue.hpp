// SPDX-License-Identifier: Apache-2.0
// What is done with the elements of a result as soon as they are final, without its types: so that
// algorithms are compiled once for all epilogues.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// An epilogue for a whole block: f(block, first, count) gets `count` elements of the result, of
/// which the first has the index `first`.
template <class F, class T>
concept block_epilogue = std::invocable<F&, const T*, std::size_t, std::size_t>;

/// An epilogue for one element: f(x, i) gets element i of the result and returns what `out` holds
/// there afterwards.
template <class F, class T>
concept element_epilogue = std::invocable<F&, const T&, std::size_t>;

namespace kernel {

/// Calls `apply(f, block, first, count)` for blocks of a result, in ascending order and without
/// gaps; never for no elements.
struct epilogue {
  using function = void (*)(void* f, const void* block, std::size_t first, std::size_t count);

  function apply;
  void* f;
};

/// Refers to `f`, which must outlive it. `T` is the type of the elements, or void.
template <class T, class F>
  requires block_epilogue<F, T>
epilogue epilogue_for(F& f) noexcept {
  using plain = std::remove_const_t<F>;
  return {[](void* state, const void* block, std::size_t first, std::size_t count) {
            (*static_cast<F*>(state))(static_cast<const T*>(block), first, count);
          },
          const_cast<plain*>(std::addressof(f))};
}

}  // namespace kernel

RANKFOLD_END_NAMESPACE
