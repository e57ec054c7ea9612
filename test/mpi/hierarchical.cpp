// SPDX-License-Identifier: Apache-2.0
// The conformance checks over shared memory inside hosts and MPI between them.
#include "mpi/conformance.hpp"
#include "rankfold/mpi.hpp"

int main(int argc, char** argv) {
  return mpi_test::run_conformance(argc, argv, [] {
    return rankfold::hierarchical_mpi_transport_of(
        MPI_COMM_WORLD, {.mpi = {.workspace_bytes = 65536}, .shm = {.workspace_bytes = 65536}});
  });
}
