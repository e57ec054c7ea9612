// SPDX-License-Identifier: Apache-2.0
// A fold in parts: subtrees of the canonical tree are folded where their inputs are, and their
// results, the partials, are combined elsewhere, with the bits of one fold over all inputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "rankfold/assert.hpp"
#include "rankfold/detail/canonical_tree.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fold_batch.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/kernel/reducer.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// The type of partials: what `Op` folds elements of `T` in where a rounding would be lost between,
/// float for sum, prod and avg of the 16-bit and the 8-bit floats; else `T` itself.
template <class Op, class T>
using partial_t = std::conditional_t<std::is_same_v<Op, sum> || std::is_same_v<Op, prod> ||
                                         std::is_same_v<Op, avg>,
                                     accumulator_t<T>, T>;

/// The last fold, of n partials that make up all `total` inputs: out[i] is what the `fold_function`
/// of these inputs stores; divided by `total` for avg, rounded, with the canonical NaN.
///
/// Requires:   as `fold_function`. If a partial is larger than an element, `out` may still be equal
///             to an input: the elements then take up its first part.
using finish_function = void (*)(const void* op, const void* const* in, int n, int total, void* out,
                                 std::size_t count);

/// A reduction in parts, of one element type under one operator, without its types: three
/// functions, and the bytes of a partial.
///
/// `fold`, of the n inputs of a subtree of the canonical tree, also of one, gives a partial;
/// `combine` of n partials a partial; `finish` of n partials, also of one, the result. The n
/// operands of the latter two are subtrees next to each other whose canonical tree (n of them split
/// at the largest power of two below n) is that of the inputs: two siblings, or equal blocks of a
/// power of two of which the last may be shorter. detail/canonical_tree.hpp finds them.
///
/// Where a partial is as large as an element, an element as it is is the partial of its rank.
///
/// Requires:   as `fold_function`; but `out` of `fold` overlaps no input where a partial is larger
///             than an element.
/// Numerics:   bit by bit `fold` over all inputs, for any such cut. Nothing is rounded to T, nor
///             divided, before `finish`. The bits of partials are determined, too.
/// Throws:     as `fold_function`.
using partial_reducer = dispatch::partial_reducer;

/// The `fold` of a `partial_reducer` whose partials are not elements.
template <class Arch, class Op, class T>
void fold_partial(const void*, const void* const* in, int n, void* out,
                  std::size_t count) noexcept {
  detail::fold_builtin<Arch, Op, T, partial_t<Op, T>>(in, n, n, out, count);
}

/// The `finish_function` of elements of type `T` under `Op`, for the instruction set `Arch`.
template <class Arch, class Op, class T>
  requires reduction_op<Op, T>
void finish(const void* op, const void* const* in, int n, [[maybe_unused]] int total, void* out,
            std::size_t count) noexcept(builtin_operator<Op>) {
  if constexpr (std::is_same_v<Op, avg> || !std::is_same_v<partial_t<Op, T>, T>) {
    detail::fold_builtin<Arch, Op, partial_t<Op, T>, T>(in, n, total, out, count);
  } else {
    fold<Arch, Op, T>(op, in, n, out, count);
  }
}

/// The partial_reducer of `T` under `Op` for the instruction set `Arch`. Where partials are
/// elements it has no kernels of its own: it shares those of `fold_for`.
template <class Arch, class Op, class T>
  requires reduction_op<Op, T>
inline constexpr partial_reducer partial_reducer_v = [] {
  using step = std::conditional_t<std::is_same_v<Op, avg>, sum, Op>;
  using partial = partial_t<Op, T>;
  const fold_function combine = fold_for<partial, step, Arch>();
  if constexpr (std::is_same_v<partial, T>) {
    return partial_reducer{combine, combine, &finish<Arch, Op, T>, sizeof(partial)};
  } else {
    return partial_reducer{&fold_partial<Arch, step, T>, combine, &finish<Arch, Op, T>,
                           sizeof(partial)};
  }
}();

/// The same of `T` under `Op` for the instruction set that this translation unit is compiled for,
/// or that was chosen for the machine.
///
/// Throws: see kernel/dispatch.hpp; nothing without it.
template <class T, class Op, class Arch = simd::native>
  requires reduction_op<Op, T>
constexpr const partial_reducer& partial_reducer_for() noexcept(!simd::is_dispatched_v<Arch>) {
  if constexpr (builtin_operator<Op> && simd::is_dispatched_v<Arch>) {
    return *detail::find_entry(dispatch::kernels().partials, dtype_of_v<T>, reduction_of_v<Op>);
  } else if constexpr (builtin_operator<Op>) {  // see fold_for
    return partial_reducer_v<Arch, Op, element_t<dtype_of_v<T>>>;
  } else {
    return partial_reducer_v<Arch, Op, T>;
  }
}

/// The same for a type and an operator known only at run time. Instantiates all of them.
///
/// Throws: `std::invalid_argument` if the operator does not support the type, or one is unknown.
template <class Arch = simd::native>
const partial_reducer& partial_reducer_for(dtype type, reduction operation) {
  if constexpr (simd::is_dispatched_v<Arch>) {
    const auto* const found = detail::find_entry(dispatch::kernels().partials, type, operation);
    if (found == nullptr || found->fold == nullptr) {
      throw_undefined_fold(type, operation);
    }
    return *found;
  } else {
    return visit(operation, [type, operation]<class Op>(Op) -> const partial_reducer& {
      return visit(type, [type, operation]<class T>() -> const partial_reducer& {
        if constexpr (supports_v<Op, T>) {
          return partial_reducer_v<Arch, Op, T>;
        } else {
          throw_undefined_fold(type, operation);
        }
      });
    });
  }
}

/// `reducer_for` of algorithms that fold in parts.
template <class T, class Op, class Arch = simd::native>
reducer reducer_in_parts_for(const Op& op) noexcept(!simd::is_dispatched_v<Arch>) {
  reducer r = reducer_for<T, Op, Arch>(op);
  r.partial = &partial_reducer_for<T, Op, Arch>();
  return r;
}
template <class Arch = simd::native>
reducer reducer_in_parts_for(dtype type, reduction op) {
  reducer r = reducer_for<Arch>(type, op);
  r.partial = &partial_reducer_for<Arch>(type, op);
  return r;
}

}  // namespace kernel

namespace detail {

/// Memory of one who runs a `unit_plan`: plan.depth() pointers, and plan.slots() partials or more,
/// up to what the first cache holds (the plan is run for as many elements at a time as have room).
struct plan_memory {
  std::span<const void*> operands;
  std::span<std::byte> slots;
};

/// Folds `count` elements of all units, whose partials are at units[0], units[1], …, into `out`.
///
/// Requires:   as `kernel::finish_function`; a reducer with `partial`.
inline void run_plan(const unit_plan& plan, const kernel::reducer& reducer,
                     const plan_memory& memory, const void* const* units, void* out,
                     std::size_t count) {
  const kernel::partial_reducer& partial = *reducer.partial;
  const auto slots = static_cast<std::size_t>(plan.slots());
  std::size_t limit = slots == 0 ? count : memory.slots.size() / slots / partial.size;
  limit -= limit > 64 && slots != 0 ? limit % 64 : 0;  // whole registers
  RANKFOLD_ASSERT(1, limit != 0 || count == 0, "plan_memory has no room for one partial a slot");
  RANKFOLD_ASSERT(1, memory.operands.size() >= plan.depth(), "plan_memory has too few operands");
  for (std::size_t begin = 0; begin < count; begin += limit) {
    const std::size_t now = (std::min)(limit, count - begin);
    const void* const* next = units;
    const void** top = memory.operands.data();
    for (const auto& step : plan.steps()) {
      for (int k = 0; k < step.push; ++k) {
        *top++ = static_cast<const std::byte*>(*next++) + begin * partial.size;
      }
      top -= step.fold;
      if (&step == &plan.steps().back()) {
        partial.finish(reducer.op, top, step.fold, plan.ranks(),
                       static_cast<std::byte*>(out) + begin * reducer.element_size, now);
      } else {
        std::byte* const slot =
            memory.slots.data() + static_cast<std::size_t>(step.slot) * limit * partial.size;
        partial.combine(reducer.op, top, step.fold, slot, now);
        *top++ = slot;
      }
    }
  }
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
