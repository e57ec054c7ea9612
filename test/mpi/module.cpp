// SPDX-License-Identifier: Apache-2.0
// A library with the MPI transport in it, for a program that knows nothing of MPI: test_torch.py
// loads it into Python, beside torch.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>

#include "rankfold/communicator.hpp"
#include "rankfold/transport/mpi.hpp"

/// Sums `count` floats over all ranks, in place; the number of ranks, or 0 after an error.
extern "C" int mpi_module_all_reduce(float* data, std::size_t count) {
  try {
    static rankfold::communicator comm(rankfold::mpi_transport::world());
    comm.all_reduce(std::span(data, count));
    return comm.size();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 0;
  }
}
