// SPDX-License-Identifier: Apache-2.0
// Catch2 v3 (catch_all.hpp) or v2 (catch.hpp), whichever is there.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#  include <catch2/catch_all.hpp>
#else
#  include <catch2/catch.hpp>
#endif

/// Whether the test case at hand has left out what this machine does not allow; support/report.cpp
/// then counts it as skipped.
inline bool test_is_left_out = false;

/// Ends a test case that cannot be run here: it counts as skipped, never as passed.
#define LEAVE_OUT(reason)      \
  do {                         \
    test_is_left_out = true;   \
    WARN("left out: " reason); \
    return;                    \
  } while (false)
