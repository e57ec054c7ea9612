// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/self.hpp"

#include <functional>

#include "conformance/check.hpp"

using namespace rankfold;

TEST_CASE("self transport passes the conformance checks", "[conformance][self]") {
  check_conformance<self_transport>(
      [](int, const communicator_options& options,
         const std::function<void(communicator<self_transport>&)>& f) {
        communicator<self_transport> comm(self_transport{}, options);
        f(comm);
      },
      {.ranks = {1}});
}
