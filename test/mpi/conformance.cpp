// SPDX-License-Identifier: Apache-2.0
// The conformance checks over MPI: every process runs every check, those below its number of ranks
// on a communicator of the first ranks. Prints `FAIL CHECK: why` and, at the end, how many hold.
//
// usage: mpirun -n P conformance RANKS…      such as 1 2 3 4; at most P each
#include "rankfold/testing/conformance.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "mpi/ranks.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/transport/mpi.hpp"

using namespace rankfold;

namespace {

void run(int ranks, const communicator_options& options,
         const std::function<void(communicator<mpi_transport>&)>& f) {
  if (mpi_test::world().rank() >= ranks) {
    (void)mpi_test::fresh_key();
    return;
  }
  communicator<mpi_transport> comm(mpi_test::first_ranks(ranks), options);
  f(comm);
}

/// The checks make communicators fail, after which rankfold does not finalise MPI by itself: here
/// all ranks are known to live.
struct mpi {
  mpi() {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  }
  ~mpi() { MPI_Finalize(); }
};

}  // namespace

int main(int argc, char** argv) {
  const mpi initialised;
  testing::conformance_options options{
      .ranks = {}, .seed = 5, .processes = true, .notices_loss = false};
  for (int i = 1; i < argc; ++i) options.ranks.push_back(std::atoi(argv[i]));
  for (const int ranks : options.ranks) {
    if (ranks < 1 || ranks > mpi_test::world().size()) {
      std::fputs("usage: mpirun -n P conformance RANKS…, each at most P\n", stderr);
      return 2;
    }
  }
  const int rank = mpi_test::world().rank();
  int hold = 0;
  int fail = 0;
  for (const auto& check : testing::conformance_checks<mpi_transport>(run, options)) {
    try {
      check.body();
      ++hold;
    } catch (const std::exception& e) {
      ++fail;
      std::printf("FAIL %s: rank %d: %s\n", check.name.c_str(), rank, e.what());
      std::fflush(stdout);
    }
  }
  std::printf("rank %d: %d checks hold, %d fail\n", rank, hold, fail);
  return fail == 0 ? 0 : 1;
}
