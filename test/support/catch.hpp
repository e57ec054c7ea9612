// SPDX-License-Identifier: Apache-2.0
// Catch2 v3 (catch_all.hpp) or v2 (catch.hpp), whichever is there.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#  include <catch2/catch_all.hpp>
#else
#  include <catch2/catch.hpp>
#endif
