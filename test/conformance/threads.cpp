// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/threads.hpp"

#include <cstdint>
#include <functional>

#include "conformance/check.hpp"
#include "rankfold/testing/run_ranks.hpp"

using namespace rankfold;

TEST_CASE("threads transport passes the conformance checks", "[conformance][threads]") {
  for (const std::uint64_t seed : {1u, 2u}) {
    INFO("seed " << seed);
    check_conformance<threads_transport>(
        [](int ranks, const communicator_options& options,
           const std::function<void(communicator<threads_transport>&)>& f) {
          testing::run_ranks(ranks, f,
                             {.communicator = options, .threads = {.workspace_bytes = 65536}});
        },
        {.seed = seed});
  }
}
