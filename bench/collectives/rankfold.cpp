// SPDX-License-Identifier: Apache-2.0
// rankfold's collectives, called from C++, over shared memory or, with threads=P, between the
// threads of this process. Other options: the fields of rankfold::tuning, workspace_bytes, spin_us,
// algorithm, symmetric=1 for buffers from communicator::allocate, and tune=1 to have the tuning
// measured.
#include "rankfold/rankfold.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/collectives/rankfold.hpp"
#include "bench/support/worker.hpp"

namespace {

rankfold::algorithm algorithm_named(const std::string& name) {
  for (const auto a : {rankfold::algorithm::automatic, rankfold::algorithm::inline_line,
                       rankfold::algorithm::one_shot, rankfold::algorithm::two_shot}) {
    if (name == rankfold::name_of(a)) return a;
  }
  throw std::invalid_argument("unknown algorithm " + name);
}

void serve_threads(int ranks, std::size_t workspace_bytes, const bench::arguments& arguments,
                   const rankfold::communicator_options& options,
                   const rankfold::call_options& call, bool symmetric) {
  auto transports =
      rankfold::threads_transport::create(ranks, {.workspace_bytes = workspace_bytes});
  std::vector<std::jthread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&] {
      try {
        arguments.pin(transport.rank());
        rankfold::communicator comm{std::move(transport), options};
        bench::serve_collectives(comm, arguments, call, symmetric);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        std::_Exit(1);
      }
    });
  }
}

void work(const bench::arguments& arguments) {
  int threads = 0;
  bool symmetric = false;
  rankfold::communicator_options options;
  rankfold::shm_options shm;
  rankfold::call_options call;
  for (const auto& [key, value] : arguments.options) {
    if (key == "algorithm") {
      call.algorithm = algorithm_named(value);
    } else if (const auto field = std::find_if(
                   std::begin(rankfold::tuning_fields), std::end(rankfold::tuning_fields),
                   [&](const rankfold::tuning_field& f) { return f.name == key; });
               field != std::end(rankfold::tuning_fields)) {
      options.tune.*field->value = std::stoul(value);
    } else if (key == "tune") {
      options.tuner.measure = value == "1";
    } else if (key == "workspace_bytes") {
      shm.workspace_bytes = std::stoul(value);
    } else if (key == "symmetric") {
      symmetric = std::stoi(value) != 0;
    } else if (key == "threads") {
      threads = std::stoi(value);
    } else if (key == "spin_us") {
      options.spin = std::chrono::microseconds(std::stol(value));
    } else {
      throw std::invalid_argument("unknown option " + key);
    }
  }
  if (threads != 0) {
    return serve_threads(threads, shm.workspace_bytes, arguments, options, call, symmetric);
  }
  const char* const rank = std::getenv("RANK");
  arguments.pin(rank != nullptr ? std::stoi(rank) : 0);
  rankfold::communicator comm{rankfold::shm_transport::from_environment(shm), options};
  bench::serve_collectives(comm, arguments, call, symmetric);
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, work); }
