// SPDX-License-Identifier: Apache-2.0
// The main function of the Catch2 programs that run under mpirun: every rank runs every test, and
// a failure on any of them fails the job.
#if !__has_include(<catch2/catch_all.hpp>)
#  define CATCH_CONFIG_RUNNER
#endif
#include "support/catch.hpp"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int failed = Catch::Session().run(argc, argv);
  // Every rank comes here: no test waits without a deadline.
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
