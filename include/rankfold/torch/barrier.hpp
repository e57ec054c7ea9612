// SPDX-License-Identifier: Apache-2.0
// The op of barrier: barrier(order, …) -> ().
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/overload.hpp"
#include "rankfold/torch/tensor.hpp"
#include "rankfold/torch/version_guard.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

template <class Library, class Overload, class Order = typename Overload::order>
struct barrier_ops;

template <class Library, class Overload, class... Order>
struct barrier_ops<Library, Overload, types<Order...>> {
  static void define(::torch::Library& m) {
    define_op<Overload>(m, "barrier",
                        "(" + Overload::order_argument('a') + R"(str group="", int tag=0) -> ())");
    const std::string name = overload_name<Overload>("barrier");
    m.impl(name.c_str(), ::torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(meta)));
    if constexpr (sizeof...(Order) == 0) {
      // Without a tensor there is no device to go by.
      m.impl(name.c_str(),
             ::torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run)));
    } else {
      m.impl(name.c_str(), ::torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(run)));
      refuse_others<Library>(m, name);
    }
  }

 private:
  static void run(Order... order, text_argument group_name, std::int64_t tag) {
    group& self = groups<Library>::get("barrier", text(group_name));
    const auto where = [&] { return self.where("barrier"); };
    const call_options options{.tag = check_tag(tag, where)};
    (step_order(order, where), ...);
    self.run("barrier", [&](communicator_type& c) { c.barrier(options); });
  }

  static void meta(Order... order, [[maybe_unused]] text_argument group_name, std::int64_t) {
    Overload::check_traceable(Library::name, "barrier");
    (check_traced_tensor(order, "order",
                         [&] { return groups<Library>::where("barrier", text(group_name)); }),
     ...);
  }
};

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
