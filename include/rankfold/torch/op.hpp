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
#include <string>
#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class... Types>
struct types {};

/// In `arguments`: numbers of rows, one a rank, or none; std::optional<row_list> where it is used.
struct rows_argument {};

/// "op" or "op.overload".
template <class Overload>
std::string overload_name(std::string_view op) {
  return std::string(op) + (*Overload::name != '\0' ? "." : "") + Overload::name;
}

/// The order token in a schema.
inline std::string order_argument(char alias) {
  return std::string("Tensor(") + alias + "!) order, ";
}

/// The op that graphs hold.
template <class Op>
std::string core_name() {
  return std::string("_") + Op::writing_name;
}

/// Calls `define(name, signature)` for the three ops of a description. `order` is the schema of
/// their order token, `nothing` what the core returns.
template <class Op, class Define>
void define_forms(const std::string& order, const char* nothing, Define&& define) {
  const std::string rest = order + Op::parameters + R"(str group="", int tag=0) -> )";
  const std::string written = Op::keeps_shape ? "(Tensor(a!) x, " : "(Tensor(a!) out, Tensor x, ";
  define(Op::name, "(Tensor x, " + rest + "Tensor");
  define(core_name<Op>(), written + rest + nothing);
  define(Op::writing_name, written + rest + "Tensor(a!)");
}

/// The tensor x of a call.
struct input {
  std::span<const std::int64_t> shape;
  std::size_t count;  // of elements
  dtype type;
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
