// SPDX-License-Identifier: Apache-2.0
// All-reduce between processes of one host. Start it once a rank, as torchrun or mpirun would:
//
//     for r in 0 1; do
//       RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ./01_all_reduce &
//     done; wait
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>

int main() try {
  auto comm = rankfold::communicator{rankfold::shm_transport::from_environment()};

  std::vector<float> x(1000, static_cast<float>(comm.rank() + 1));
  std::vector<float> y(1000);

  comm.all_reduce(std::span<const float>(x), std::span(y), rankfold::max{});  // out of place
  comm.all_reduce(std::span(x));                                              // sum, in place

  std::printf("rank %d of %d: sum %g, max %g\n", comm.rank(), comm.size(), x[0], y[0]);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
