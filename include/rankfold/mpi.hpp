// SPDX-License-Identifier: Apache-2.0
// rankfold over MPI, on one or more hosts:
//
//     rankfold::communicator comm{rankfold::hierarchical_mpi_transport_of(MPI_COMM_WORLD)};
//
// is what most programs want: shared memory inside a host, MPI between hosts. mpi_transport alone
// (transport/mpi.hpp) uses MPI for everything. See docs/transports.md.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rankfold/transport/hierarchical.hpp"
#include "rankfold/transport/mpi.hpp"
#include "rankfold/transport/shm.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Shared memory inside each host, MPI between hosts.
using hierarchical_mpi_transport = hierarchical_transport<shm_transport, mpi_transport>;

/// Options of both parts; see mpi_options and shm_options. `shm.label` is not used.
struct hierarchical_mpi_options {
  mpi_options mpi = {};
  shm_options shm = {};
};

/// One rank of `comm`, whose ranks may be on several hosts. Which of them share one is asked of MPI
/// (MPI_Comm_split_type) and proved by their meeting in shared memory, never taken from an
/// environment variable.
///
/// Collective: all ranks of `comm`, as mpi_transport::from.
/// Throws:     what mpi_transport::from and shm_transport::connect throw; `rendezvous_error` where
///             ranks that MPI takes for neighbours cannot share memory.
inline hierarchical_mpi_transport hierarchical_mpi_transport_of(
    MPI_Comm comm, hierarchical_mpi_options options = {}) {
  child_options meeting{.timeout = options.mpi.timeout, .interrupt = options.mpi.interrupt};
  mpi_transport all = mpi_transport::from(comm, std::move(options.mpi));
  const std::vector<int> marks = all.host_marks();
  return hierarchical_mpi_transport::compose(
      std::move(all), marks,
      [&](std::string_view key, int rank, int size) {
        return shm_transport::connect(key, rank, size, options.shm);
      },
      meeting);
}

RANKFOLD_END_NAMESPACE
