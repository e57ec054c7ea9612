// SPDX-License-Identifier: Apache-2.0
// An all-reduce between processes that mpirun starts, on one host or many.
//
//     g++ -std=c++20 -O2 -march=native -pthread -I include examples/mpi_all_reduce.cpp
//         $(pkg-config --cflags --libs ompi) -o mpi_all_reduce          (MPICH: mpich)
//     mpirun -n 4 ./mpi_all_reduce
//
// MPI need not be initialised: rankfold does it, and finalises it at exit.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>
#include <rankfold/transport/mpi.hpp>

int main() {
  try {
    auto comm = rankfold::communicator{rankfold::mpi_transport::world()};
    std::vector<float> x(std::size_t{1} << 20, 0.5f * static_cast<float>(comm.rank() + 1));
    comm.all_reduce(std::span(x));  // sum, in place: the same bits on every rank
    std::printf("rank %d of %d: sum %g\n", comm.rank(), comm.size(), static_cast<double>(x.back()));
    return 0;
  } catch (const rankfold::error& e) {
    std::fprintf(stderr, "mpi_all_reduce: %s\n", e.what());
    return 1;
  }
}
