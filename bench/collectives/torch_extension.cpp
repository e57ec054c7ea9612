// SPDX-License-Identifier: Apache-2.0
#include <rankfold/torch.hpp>
RANKFOLD_TORCH_LIBRARY(rankfold_bench)

// Ops of the same schemas that do nothing: what torch itself takes for a call
// (bench/torch_call.py).
namespace {

void nothing_(at::Tensor&, at::Tensor&, std::string_view, std::string_view, std::int64_t) {}

at::Tensor nothing(const at::Tensor& x, at::Tensor&, std::string_view, std::string_view,
                   std::int64_t) {
  return at::empty(x.sizes(), x.options());
}

}  // namespace

TORCH_LIBRARY(rankfold_bench_nothing, m) {
  m.def(
      "nothing_(Tensor(a!) x, Tensor(b!) order, str op=\"sum\", str group=\"\", int tag=0) -> ()");
  m.def("nothing(Tensor x, Tensor(a!) order, str op=\"sum\", str group=\"\", int tag=0) -> Tensor");
}
TORCH_LIBRARY_IMPL(rankfold_bench_nothing, CPU, m) {
  m.impl("nothing_", TORCH_FN(nothing_));
  m.impl("nothing", TORCH_FN(nothing));
}
