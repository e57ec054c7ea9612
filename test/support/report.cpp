// SPDX-License-Identifier: Apache-2.0
// Writes one line per test case, `passed NAME`, `failed NAME` or `skipped NAME`, to the file that
// the environment variable RANKFOLD_TEST_REPORT names; tools/ci_summary.py counts them. Takes
// Catch2 v2 and v3.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // v2: the listener's types
#include <cstdlib>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "support/catch.hpp"

namespace {

#ifdef CATCH_VERSION_MAJOR
#  if CATCH_VERSION_MAJOR >= 3
using listener = Catch::EventListenerBase;
std::string_view name_of(const Catch::TestCaseStats& stats) { return stats.testInfo->name; }
#  else
using listener = Catch::TestEventListenerBase;
std::string_view name_of(const Catch::TestCaseStats& stats) { return stats.testInfo.name; }
#  endif
#endif

class report : public listener {
 public:
  using listener::listener;

  void testRunStarting(const Catch::TestRunInfo&) override {
    const char* path = std::getenv("RANKFOLD_TEST_REPORT");
    if (path != nullptr)
      file_ = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  }

  void testCaseStarting(const Catch::TestCaseInfo&) override { test_is_left_out = false; }

  // Written at once and without a buffer: a crash later on takes nothing away, and a forked child
  // has nothing to write a second time.
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    const bool failed = stats.totals.assertions.failed > 0 || stats.totals.testCases.failed > 0;
    const char* const state = failed ? "failed " : test_is_left_out ? "skipped " : "passed ";
    const std::string line = std::string(state).append(name_of(stats)).append("\n");
    if (file_ >= 0 && ::getpid() == owner_) {
      [[maybe_unused]] const ssize_t written = ::write(file_, line.data(), line.size());
    }
  }

 private:
  int file_ = -1;
  pid_t owner_ = ::getpid();
};

CATCH_REGISTER_LISTENER(report)

}  // namespace
