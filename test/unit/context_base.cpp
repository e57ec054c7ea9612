// SPDX-License-Identifier: Apache-2.0
// What both kinds of contexts share; most of it is tested with them.
#include "rankfold/context_base.hpp"

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"

using namespace rankfold;
using namespace std::chrono_literals;

TEST_CASE("a failure has the type of its exception, and back", "[context_base]") {
  using detail::failure;
  for (const failure kind : {failure::timeout, failure::peer_lost, failure::mismatch,
                             failure::transport, failure::aborted}) {
    try {
      detail::throw_failure(kind, "text");
      FAIL("did not throw");
    } catch (const error& e) {
      CHECK(detail::failure_of_current_exception() == kind);
      CHECK(std::string(e.what()) == "text");
      CHECK(detail::text_of_current_exception() == "text");
    }
  }
  try {
    throw 5;
  } catch (...) {
    CHECK(detail::failure_of_current_exception() == failure::aborted);
    CHECK(detail::text_of_current_exception() == "an exception of unknown type");
  }
}

TEST_CASE("an error of the library that a call meets keeps its type and words on all ranks",
          "[context_base]") {
  // The callback stands for a part of a larger communicator that fails while this one waits.
  std::vector<std::string> said(2);
  try {
    testing::run_ranks(2,
                       [&](auto& comm) {
                         try {
                           if (comm.rank() == 1) std::this_thread::sleep_for(500ms);
                           comm.barrier();
                           comm.barrier();
                         } catch (const transport_error& e) {
                           said[static_cast<std::size_t>(comm.rank())] = e.what();
                         }
                       },
                       {.communicator = {.timeout = 20s,
                                         .interrupt = [] { throw transport_error("the cable"); }}});
  } catch (const error&) {
  }
  CHECK(said == std::vector<std::string>(2, "the cable"));
}

TEST_CASE("other exceptions get the call in front, and end the others with aborted_error",
          "[context_base]") {
  std::vector<std::string> said(2);
  testing::run_ranks(2, [&](auto& comm) {
    try {
      std::vector<int> x(100);
      comm.all_reduce(std::span(x), [&](int a, int b) {
        if (comm.rank() == 0) throw std::runtime_error("no number");
        return a + b;
      });
      comm.barrier();
    } catch (const aborted_error& e) {
      said[static_cast<std::size_t>(comm.rank())] = e.what();
    } catch (const std::runtime_error& e) {
      said[static_cast<std::size_t>(comm.rank())] = std::string("own: ") + e.what();
    }
  });
  CHECK(said[0] == "own: no number");
  CHECK(contains(said[1], "all_reduce (call 1) on rank 0 of 2 over threads: no number"));
}
