// SPDX-License-Identifier: Apache-2.0
// rankfold's collectives over whatever MPI this file is compiled with.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include <utility>

#include "bench/collectives/rankfold.hpp"
#include "bench/support/worker.hpp"
#include "rankfold/transport/mpi.hpp"

namespace {

void work(const bench::arguments& arguments) {
  rankfold::mpi_transport transport = rankfold::mpi_transport::world();
  arguments.pin(transport.rank());
  rankfold::communicator comm{std::move(transport)};
  bench::serve_collectives(comm, arguments, {});
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, work); }
