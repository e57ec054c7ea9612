// SPDX-License-Identifier: Apache-2.0
// The overloads that every collective has, and how ops are defined.
//
// torch.compile reorders collectives that do not depend on each other, by local sizes, so that
// ranks come to differ, and drops those whose result nobody uses. A tensor that every collective
// writes, and that comes from outside the graph, keeps all of them in program order: the order
// token. So the overload that a call without a token is resolved to is not traceable: it breaks the
// graph, which is slow but right, or is an error where the user asked for one graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// `op(x, order, …)`: the default.
struct ordered {
  static constexpr const char* name = "";
  using order = types<at::Tensor&>;
  using nothing = void;
  static constexpr const char* nothing_schema = "()";
  static std::string order_argument(char alias) { return torch_ops::order_argument(alias); }
  static void check_traceable(std::string_view, std::string_view) {}
};

/// `op(x, …)`: the program's own order, in eager code.
struct eager {
  static constexpr const char* name = "eager";
  using order = types<>;
  // What an op returns that returns nothing: tracers do not ask an op that writes to an argument
  // and returns () whether it can be traced.
  using nothing = std::int64_t;
  static constexpr const char* nothing_schema = "int";
  static std::string order_argument(char) { return ""; }
  [[noreturn]] static void check_traceable(std::string_view library, std::string_view op) {
    // NotImplementedError is what torch.compile takes as a reason to break the graph.
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, library, "::", op,
        ": cannot be traced without the order token, which keeps it in its ",
        "place: pass the tensor that init() returned, from outside the compiled function: ", op,
        "(…, order). Where every collective needs the result of the one before, ", op,
        ".unordered(…) will do (docs/torch.md)");
  }
};

/// `op.unordered(x, …)`: traceable, for graphs whose collectives each need the result of the one
/// before.
struct unordered {
  static constexpr const char* name = "unordered";
  using order = types<>;
  using nothing = void;
  static constexpr const char* nothing_schema = "()";
  static std::string order_argument(char) { return ""; }
  static void check_traceable(std::string_view, std::string_view) {}
};

template <class Overload>
void define_op(::torch::Library& m, std::string_view op, const std::string& signature) {
  const std::vector<at::Tag> tags = op_tags();
  m.def((overload_name<Overload>(op) + signature).c_str(), tags);
}

/// Whether an op writes to the argument and returns that: not so the order token.
inline bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  return alias != nullptr && alias->isWrite() && argument.name() != "order";
}

/// The kernel of every device and layout that has none: says what was found.
template <class Library>
void refuse_tensor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  // "namespace::op", or "namespace::_op" of the one that graphs hold
  std::string_view name = op.schema().name();
  name.remove_prefix(std::string_view(Library::name).size() + 2);
  if (name.front() == '_') name.remove_prefix(1);
  const auto group_at = static_cast<std::size_t>(*op.schema().argumentIndexWithName("group"));
  const std::string where = groups<Library>::where(name, values[group_at].toStringRef());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!values[i].isTensor()) continue;
    const at::Tensor& tensor = values[i].toTensor();
    const bool dense = tensor.layout() == c10::kStrided && !tensor.is_quantized();
    TORCH_CHECK(dense && tensor.device().is_cpu(), where, ": ", arguments[i].name(), " is a ",
                tensor.is_quantized() ? "quantized tensor" : "tensor", " of layout ",
                tensor.layout(), " on device ", tensor.device(),
                ", expected a dense (strided) tensor on cpu");
  }
  TORCH_CHECK(false, where, ": expected dense (strided) tensors on cpu");
}

/// Every device and layout but those that have a kernel.
template <class Library>
void refuse_others(::torch::Library& m, const std::string& op) {
  m.impl(op.c_str(),
         ::torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                           ::torch::CppFunction::makeFromBoxedFunction<&refuse_tensor<Library>>()));
}

inline c10::OperatorHandle find_op(const char* library, const char* op, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string(library) + "::" + op).c_str(),
                                                        overload);
}

template <class Signature>
auto find_op(const char* library, const char* op, const char* overload) {
  return find_op(library, op, overload).template typed<Signature>();
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
