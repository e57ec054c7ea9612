// SPDX-License-Identifier: Apache-2.0
// The main function of the test programs; Catch2 v2 needs its implementation in one place, too.
#if !__has_include(<catch2/catch_all.hpp>)
#  define CATCH_CONFIG_RUNNER
#endif
#include <cstdlib>
#include <string_view>

#include "support/catch.hpp"

int main(int argc, char** argv) {
#ifdef __x86_64__
  const char* const variable = std::getenv("RANKFOLD_ISA");
  const std::string_view isa = variable == nullptr ? "" : variable;
  if ((isa == "avx2" && __builtin_cpu_supports("avx2") == 0) ||
      (isa == "avx512" && __builtin_cpu_supports("avx512bw") == 0)) {
    return 77;  // skipped: the machine does not have it
  }
#endif
  return Catch::Session().run(argc, argv);
}

#if defined(__SANITIZE_THREAD__)
// An exception that several threads hold is destroyed by the last of them. libstdc++ counts them
// with atomics that ThreadSanitizer does not see, since the library is not instrumented, so that it
// takes the destruction for a race with what another thread has read before.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:rankfold::*error::~error\nrace:std::runtime_error::~runtime_error\n";
}
#endif
