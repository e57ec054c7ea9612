// SPDX-License-Identifier: Apache-2.0
// The conformance checks over MPI alone.
#include "mpi/conformance.hpp"

#include "rankfold/transport/mpi.hpp"

int main(int argc, char** argv) {
  return mpi_test::run_conformance(
      argc, argv, [] { return rankfold::mpi_transport::world({.workspace_bytes = 65536}); });
}
