// SPDX-License-Identifier: Apache-2.0
// The steps over messages, with messages that need the receiver to be complete and with others.
#include <cstddef>
#include <functional>
#include <utility>

#include "conformance/check.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "support/rank_threads.hpp"

using namespace rankfold;
using testing::mailbox_transport;

TEST_CASE("message transports pass the conformance checks", "[conformance][mailbox]") {
  for (const std::size_t eager : {std::size_t{0}, std::size_t{1} << 20}) {
    INFO("eager up to " << eager << " bytes");
    check_conformance<mailbox_transport>(
        [eager](int ranks, const communicator_options& options,
                const std::function<void(communicator<mailbox_transport>&)>& f) {
          auto transports =
              mailbox_transport::create(ranks, {.workspace_bytes = 65536, .eager_bytes = eager});
          run_rank_threads(ranks, [&](int r) {
            communicator<mailbox_transport> comm(std::move(transports[static_cast<std::size_t>(r)]),
                                                 options);
            f(comm);
          });
        },
        {.seed = eager + 1});
  }
}
