// SPDX-License-Identifier: Apache-2.0
// The conformance checks under mpirun: every process runs every check, those below its number of
// ranks on a communicator of the first ranks. Prints `FAIL CHECK: why` and, at the end, how many
// hold.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "mpi/ranks.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/testing/conformance.hpp"
#include "rankfold/transport/mpi.hpp"
#include "support/kernels.hpp"

namespace mpi_test {

/// The main function of a program that is started as `mpirun -n P PROGRAM RANKS…`, such as 1 2 3 4;
/// `make()` gives the transport of all P ranks, whose groups are checked. RANKFOLD_TEST_EVERY=K in
/// the environment leaves out all but every K-th check.
///
/// The checks make communicators fail, after which rankfold does not finalise MPI by itself: this
/// does, since all ranks are known to live.
template <class Make>
int run_conformance(int argc, char** argv, Make&& make) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  int hold = 0;
  int fail = 0;
  {
    auto all = make();
    using transport = decltype(all);
    rankfold::testing::conformance_options options{
        .ranks = {}, .seed = 5, .processes = true, .notices_loss = false};
    for (int i = 1; i < argc; ++i) options.ranks.push_back(std::atoi(argv[i]));
    for (const int ranks : options.ranks) {
      if (ranks < 1 || ranks > all.size()) {
        std::fputs("usage: mpirun -n P PROGRAM RANKS…, each at most P\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 2);
      }
    }
    const auto run = [&all](int ranks, const rankfold::communicator_options& how,
                            const std::function<void(rankfold::communicator<transport>&)>& f) {
      const std::string key = fresh_key();
      if (all.rank() >= ranks) return;
      std::vector<int> members(static_cast<std::size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      rankfold::communicator<transport> comm(all.child(members, all.rank(), key, {}), how);
      f(comm);
    };
    const char* const sample = std::getenv("RANKFOLD_TEST_EVERY");
    const int every = sample != nullptr ? std::atoi(sample) : 1;
    int index = 0;
    for (const auto& check : rankfold::testing::conformance_checks<transport>(run, options)) {
      if (index++ % every != 0) continue;
      try {
        check.body();
        ++hold;
      } catch (const std::exception& e) {
        ++fail;
        std::printf("FAIL %s: rank %d: %s\n", check.name.c_str(), all.rank(), e.what());
        std::fflush(stdout);
      }
    }
    std::printf("rank %d: %d checks hold, %d fail\n", all.rank(), hold, fail);
  }
  // Nobody finalises while another still sends: what is left of calls that failed is received by
  // rankfold then, and MPICH's MPI_Finalize waits for that.
  MPI_Barrier(MPI_COMM_WORLD);
  std::fflush(stdout);  // MPI_Finalize may not return: test/mpi/hosts.py
  MPI_Finalize();
  return fail == 0 ? 0 : 1;
}

}  // namespace mpi_test
