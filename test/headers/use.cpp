// SPDX-License-Identifier: Apache-2.0
// Calls what people call, so that templates are compiled, under flags that the tests choose.
#include <cstdint>
#include <span>
#include <vector>

#include "all.hpp"

namespace {

struct longest {
  double operator()(double a, double b) const { return a > b ? a : b; }
};

template <class T, class Op, class Comm>
void use_elements(Comm& comm, Op op) {
  std::vector<T> x(8);
  std::vector<T> y(8);
  comm.all_reduce(std::span(x), op);
  comm.all_reduce(std::span<const T>(x), std::span(y), op, {.tag = 1});
  comm.reduce_scatter(std::span(x), op);
  comm.all_gather(std::span(x));
  comm.broadcast(std::span(x), 0);
}

template <class Comm>
void use(Comm& comm) {
  comm.barrier();
  use_elements<float>(comm, rankfold::sum{});
  use_elements<double>(comm, rankfold::avg{});
  use_elements<double>(comm, longest{});
  use_elements<rankfold::bfloat16>(comm, rankfold::max{});
  use_elements<rankfold::float16>(comm, rankfold::min{});
  use_elements<rankfold::float8_e4m3fn>(comm, rankfold::sum{});
  use_elements<rankfold::float8_e5m2>(comm, rankfold::max{});
  use_elements<std::int8_t>(comm, rankfold::prod{});
  use_elements<std::int64_t>(comm, rankfold::bit_xor{});
  use_elements<std::uint16_t>(comm, rankfold::logical_and{});
  float data[4] = {};
  comm.all_reduce(data, data, 4, rankfold::dtype::float32, rankfold::reduction::sum);
}

}  // namespace

int main() {
  rankfold::communicator alone{rankfold::self_transport{}};
  use(alone);
  rankfold::communicator processes{rankfold::shm_transport::from_environment()};
  use(processes);
  rankfold::testing::run_ranks(2, [](auto& comm) { use(comm); });
}
