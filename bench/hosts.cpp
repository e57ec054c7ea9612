// SPDX-License-Identifier: Apache-2.0
// all_reduce over several hosts: rankfold's hierarchical transport, its MPI transport alone, and
// MPI_Allreduce of the MPI this file is compiled with, in one program, in turn. Started by
// bench/hosts.py. Rank 0 prints a line for each size and round:
//
//   BYTES ROUND HIERARCHICAL MPI FLAT      microseconds a call, of the slowest rank
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

#include "rankfold/mpi.hpp"

namespace {

using clock = std::chrono::steady_clock;

/// Microseconds a call, of the slowest rank.
template <class Call>
double time_of(std::vector<float>& data, int calls, Call&& call) {
  std::fill(data.begin(), data.end(), 1.0f);
  call();
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double own =
      std::chrono::duration<double, std::micro>(clock::now() - begin).count() / calls;
  double slowest = 0;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void work(std::size_t largest, int rounds) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  rankfold::communicator two_levels{rankfold::hierarchical_mpi_transport_of(MPI_COMM_WORLD)};
  rankfold::communicator flat{rankfold::mpi_transport::from(MPI_COMM_WORLD)};
  if (rank == 0) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    std::printf("# %zu hosts, %d ranks, %.*s\n", two_levels.transport().layout().hosts(), size,
                static_cast<int>(std::find(version, version + length, '\n') - version), version);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t bytes = 8; bytes <= largest; bytes *= bytes < 1024 ? 8 : 4) {
      std::vector<float> data(bytes / 4);
      const int calls = bytes <= 16384 ? 100 : bytes <= (1 << 20) ? 20 : 4;
      double times[3];
      for (int turn = 0; turn < 3; ++turn) {
        const int who = (turn + round) % 3;
        times[who] = time_of(data, calls, [&] {
          if (who == 0) {
            two_levels.all_reduce(std::span(data));
          } else if (who == 1) {
            MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT,
                          MPI_SUM, MPI_COMM_WORLD);
          } else {
            flat.all_reduce(std::span(data));
          }
        });
      }
      std::fill(data.begin(), data.end(), 1.0f);
      two_levels.all_reduce(std::span(data));
      for (const float x : data) {
        if (x != static_cast<float>(size)) throw std::runtime_error("wrong result");
      }
      if (rank == 0) {
        std::printf("%zu %d %.2f %.2f %.2f\n", bytes, round, times[0], times[1], times[2]);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    work(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : std::size_t{16} << 20,
         argc > 2 ? std::atoi(argv[2]) : 3);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
