// SPDX-License-Identifier: Apache-2.0
// An all-reduce between processes that mpirun starts, on one host or many: shared memory inside a
// host, MPI between hosts.
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

#include <rankfold/mpi.hpp>

int main() {
  try {
    auto comm = rankfold::communicator{rankfold::hierarchical_mpi_transport_of(MPI_COMM_WORLD)};
    std::vector<float> x(std::size_t{1} << 20, 0.5f * static_cast<float>(comm.rank() + 1));
    comm.all_reduce(std::span(x));  // sum, in place: the same bits on every rank
    std::printf("rank %d of %d, hosts %zu: sum %g\n", comm.rank(), comm.size(),
                comm.transport().layout().hosts(), static_cast<double>(x.back()));
    return 0;
  } catch (const rankfold::error& e) {
    std::fprintf(stderr, "mpi_all_reduce: %s\n", e.what());
    return 1;
  }
}
