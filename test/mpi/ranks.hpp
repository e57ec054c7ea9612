// SPDX-License-Identifier: Apache-2.0
// What the tests under mpirun share: transports that are new for each test, and waiting for
// transfers with a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rankfold/transport/mpi.hpp"

namespace mpi_test {

/// The transport of all ranks; made by the first call, which all ranks make at the same place.
inline rankfold::mpi_transport& world() {
  static rankfold::mpi_transport transport =
      rankfold::mpi_transport::world({.workspace_bytes = 65536});
  return transport;
}

/// A key that no other group has; the same on all ranks, where they make the same groups.
inline std::string fresh_key() {
  static int made = 0;
  const std::string number = std::to_string(++made);
  return std::string(32 - number.size(), '0') + number;
}

/// The first `size` ranks' own transport; only they may call it, the others call fresh_key().
inline rankfold::mpi_transport first_ranks(int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return world().child(members, world().rank(), fresh_key());
}

inline rankfold::mpi_transport all_ranks() { return first_ranks(world().size()); }

/// Waits until `ready()`; throws after a minute.
template <class Ready>
void wait_until(Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!ready()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("waited a minute");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

inline void finish(rankfold::mpi_transport& transport, rankfold::mpi_transport::request& request) {
  wait_until([&] { return transport.done(request); });
}

inline void finish(rankfold::mpi_transport& transport,
                   std::vector<rankfold::mpi_transport::request>& requests) {
  for (auto& request : requests) finish(transport, request);
  requests.clear();
}

}  // namespace mpi_test
