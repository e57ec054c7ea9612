// SPDX-License-Identifier: Apache-2.0
// The collectives of whatever MPI this file is compiled with.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include <cstddef>
#include <stdexcept>
#include <string>

#include <mpi.h>

#include "bench/support/worker.hpp"

namespace {

void work(const bench::arguments& arguments) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  arguments.pin(rank);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::string greeting(version, static_cast<std::size_t>(length));
  greeting.resize((std::min)(greeting.size(), greeting.find_first_of(",\n")));

  bench::measurer measurer(rank, size);
  bench::channel(arguments.prefix, rank).serve(greeting, [&](const bench::request& asked) {
    if (asked.dtype != "float32") throw std::invalid_argument("MPI has no type " + asked.dtype);
    const int count = static_cast<int>(asked.count());
    const int block = count / size;
    const auto measure = [&](auto&& call) { return measurer.measure(asked, call); };
    if (asked.is("all_gather")) {
      return measure([&](std::byte* in, std::byte* out) {
        MPI_Allgather(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
      });
    }
    if (asked.is("reduce_scatter")) {
      return measure([&](std::byte* in, std::byte* out) {
        MPI_Reduce_scatter_block(in, out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
    }
    if (asked.is("broadcast")) {
      return measure(
          [&](std::byte*, std::byte* out) { MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD); });
    }
    if (asked.is("all_to_all")) {
      return measure([&](std::byte* in, std::byte* out) {
        MPI_Alltoall(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
      });
    }
    return measure([&, in_place = asked.in_place()](std::byte* in, std::byte* out) {
      MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
  });
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int result = bench::run(argc, argv, work);
  if (result != 0) MPI_Abort(MPI_COMM_WORLD, result);
  MPI_Finalize();
  return result;
}
