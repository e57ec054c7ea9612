// SPDX-License-Identifier: Apache-2.0
// A reduction without its types: what an algorithm needs to know of it, so that algorithms are
// compiled once per transport and not once per element type and operator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace kernel {

using partial_reducer = dispatch::partial_reducer;  // kernel/partial.hpp

struct reducer {
  fold_function fold;
  const void* op;
  std::size_t element_size;
  dtype type;
  std::uint32_t operator_id;
  const partial_reducer* partial = nullptr;  ///< only of `reducer_in_parts_for`
};

/// The reducer of T by `op`, which must outlive it.
///
/// Arch is a parameter of this and of whatever calls it with a default, so that two translation
/// units built for different instruction sets never share one function (the linker would merge
/// equal names).
template <class T, class Op, class Arch = simd::native>
reducer reducer_for(const Op& op) noexcept(!simd::is_dispatched_v<Arch>) {
  return {fold_for<T, Op, Arch>(), &op, sizeof(T), dtype_of_v<T>, operator_id_v<Op, T>};
}

/// The reducer of run-time types. Throws std::invalid_argument for a pair that has no meaning.
template <class Arch = simd::native>
reducer reducer_for(dtype type, reduction op) {
  return {fold_for<Arch>(type, op), nullptr, size_of(type), type, static_cast<std::uint32_t>(op)};
}

}  // namespace kernel

RANKFOLD_END_NAMESPACE
