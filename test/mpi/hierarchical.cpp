// SPDX-License-Identifier: Apache-2.0
// The conformance checks over shared memory inside hosts and MPI between them.
#include "rankfold/transport/hierarchical.hpp"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mpi/conformance.hpp"
#include "rankfold/transport/mpi.hpp"
#include "rankfold/transport/shm.hpp"

using namespace rankfold;

int main(int argc, char** argv) {
  return mpi_test::run_conformance(argc, argv, [] {
    mpi_transport world = mpi_transport::world({.workspace_bytes = 65536});
    const std::vector<int> marks = world.host_marks();
    return hierarchical_transport<shm_transport, mpi_transport>::compose(
        std::move(world), std::span<const int>(marks),
        [](std::string_view key, int rank, int size) {
          return shm_transport::connect(std::string(key), rank, size, {.workspace_bytes = 65536});
        });
  });
}
