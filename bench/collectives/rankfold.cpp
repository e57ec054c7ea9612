// SPDX-License-Identifier: Apache-2.0
// rankfold's collectives over shared memory, called from C++. Options: the fields of
// rankfold::tuning, workspace_bytes, spin_us, algorithm.
#include "rankfold/rankfold.hpp"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>

#include "bench/support/worker.hpp"

namespace {

rankfold::algorithm algorithm_named(const std::string& name) {
  for (const auto a : {rankfold::algorithm::automatic, rankfold::algorithm::inline_line,
                       rankfold::algorithm::one_shot, rankfold::algorithm::two_shot}) {
    if (name == rankfold::name_of(a)) return a;
  }
  throw std::invalid_argument("unknown algorithm " + name);
}

void work(const bench::arguments& arguments) {
  rankfold::communicator_options options;
  rankfold::shm_options shm;
  rankfold::call_options call;
  for (const auto& [key, value] : arguments.options) {
    if (key == "algorithm") {
      call.algorithm = algorithm_named(value);
    } else if (key == "inline_max_bytes") {
      options.tune.inline_max_bytes = std::stoul(value);
    } else if (key == "one_shot_max_bytes") {
      options.tune.one_shot_max_bytes = std::stoul(value);
    } else if (key == "chunk_bytes") {
      options.tune.chunk_bytes = std::stoul(value);
    } else if (key == "workspace_bytes") {
      shm.workspace_bytes = std::stoul(value);
    } else if (key == "spin_us") {
      options.spin = std::chrono::microseconds(std::stol(value));
    } else {
      throw std::invalid_argument("unknown option " + key);
    }
  }
  const char* const rank = std::getenv("RANK");
  arguments.pin(rank != nullptr ? std::stoi(rank) : 0);
  rankfold::communicator comm{rankfold::shm_transport::from_environment(shm), options};
  bench::measurer measurer(comm.rank(), comm.size());
  const auto measure = [&]<class T>(const bench::request& asked, T) {
    const std::size_t count = asked.count();
    const std::size_t block = count / static_cast<std::size_t>(comm.size());
    const auto span_of = [](std::byte* data, std::size_t n) {
      return std::span(reinterpret_cast<T*>(data), n);
    };
    if (asked.is("all_gather")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.all_gather(span_of(in, block), span_of(out, count), call);
      });
    }
    if (asked.is("reduce_scatter")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.reduce_scatter(span_of(in, count), span_of(out, block), rankfold::sum{}, call);
      });
    }
    if (asked.is("broadcast")) {
      return measurer.measure(
          asked, [&](std::byte*, std::byte* out) { comm.broadcast(span_of(out, count), 0, call); });
    }
    if (asked.is("all_to_all")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.all_to_all(span_of(in, count), span_of(out, count), call);
      });
    }
    if (asked.in_place()) {
      return measurer.measure(asked, [&](std::byte*, std::byte* out) {
        comm.all_reduce(std::span(reinterpret_cast<T*>(out), count), rankfold::sum{}, call);
      });
    }
    return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
      comm.all_reduce(std::span(reinterpret_cast<const T*>(in), count),
                      std::span(reinterpret_cast<T*>(out), count), rankfold::sum{}, call);
    });
  };
  bench::channel(arguments.prefix, comm.rank())
      .serve(std::to_string(RANKFOLD_VERSION_MAJOR) + '.' + std::to_string(RANKFOLD_VERSION_MINOR) +
                 '.' + std::to_string(RANKFOLD_VERSION_PATCH),
             [&](const bench::request& asked) {
               return asked.dtype == "float32" ? measure(asked, float{})
                                               : measure(asked, rankfold::bfloat16{});
             });
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, work); }
