// SPDX-License-Identifier: Apache-2.0
// What describes a collective as an op, without a word about torch's classes: a header each, such
// as torch/all_reduce.hpp. torch/collective.hpp makes ops of it.
//
// A description has
//
//   name, writing_name    of the op that returns a new tensor, and of the one that writes
//   parameters            the schema of what is its own, behind x and the order token; behind that
//                         come `group` and `tag`, which all ops have
//   arguments             the types of those parameters
//   keeps_shape           whether the result is like x: then the writing op works in place, else
//                         it has an argument `out` before x
//   reduces               whether the first parameter is an operator
//   rows(shape, place, where, arguments…)      where it does not keep the shape: how many rows the
//                         result has
//   call(input, place, where, arguments…)      checks a call of this rank's; then
//   call(communicator, in, out, options)       makes it
//   gradient(backward, gradient of the result) of x
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class... Types>
struct types {};

/// In `arguments`: numbers of rows, one a rank, or none; std::optional<row_list> where it is used.
struct rows_argument {};

/// The tensor x of a call.
struct input {
  std::span<const std::int64_t> shape;
  std::size_t count;  // of elements
  dtype type;
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
