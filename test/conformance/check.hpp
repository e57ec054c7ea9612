// SPDX-License-Identifier: Apache-2.0
// Runs the library's conformance checks as sections of one Catch2 test case a transport.
#pragma once

#include <exception>
#include <string>

#include "rankfold/testing/conformance.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"

template <class Transport>
void check_conformance(const rankfold::testing::conformance_run<Transport>& run,
                       const rankfold::testing::conformance_options& options = {}) {
  for (const auto& check : rankfold::testing::conformance_checks<Transport>(run, options)) {
    std::string failure;
    try {
      check.body();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    INFO(check.name);
    CHECK(failure == "");
  }
}
