// SPDX-License-Identifier: Apache-2.0
// Several hosts in one process, in layouts of all kinds: the same bits as everywhere.
#include "rankfold/transport/hierarchical.hpp"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "conformance/check.hpp"
#include "support/simulated_hosts.hpp"

using namespace rankfold;

namespace {

// How many ranks -> the host of each.
using layouts = std::map<int, std::vector<int>>;

void check_layouts(const layouts& of_size, std::uint64_t seed) {
  std::vector<int> ranks;
  for (const auto& [size, marks] : of_size) ranks.push_back(size);
  check_conformance<simulated_hosts>(
      [&](int size, const communicator_options& options,
          const std::function<void(communicator<simulated_hosts>&)>& f) {
        run_on_hosts(of_size.at(size), options, f);
      },
      {.ranks = ranks, .seed = seed});
}

}  // namespace

TEST_CASE("hierarchical transport passes the conformance checks: hosts of equal size",
          "[conformance][hierarchical]") {
  check_layouts({{1, {0}}, {2, {0, 1}}, {4, {0, 0, 1, 1}}, {6, {0, 0, 0, 1, 1, 1}}}, 1);
  check_layouts({{4, {0, 0, 0, 0}}, {6, {0, 0, 1, 1, 2, 2}}, {8, {0, 0, 1, 1, 2, 2, 3, 3}}}, 2);
}

TEST_CASE("hierarchical transport passes the conformance checks: hosts of unequal size",
          "[conformance][hierarchical]") {
  check_layouts({{3, {0, 0, 1}}, {4, {0, 0, 0, 1}}, {7, {0, 0, 0, 0, 0, 1, 2}}}, 3);
}

TEST_CASE("hierarchical transport passes the conformance checks: ranks dealt out in turn",
          "[conformance][hierarchical]") {
  check_layouts({{4, {0, 1, 0, 1}}, {5, {7, 3, 7, 3, 5}}, {8, {0, 1, 2, 0, 1, 2, 0, 1}}}, 4);
}
