// SPDX-License-Identifier: Apache-2.0
#include "rankfold/assert.hpp"

#include <csignal>

#include <unistd.h>

#include <sys/wait.h>

#include "support/catch.hpp"

namespace {

[[noreturn]] void exit_with_7(const char*, int, const char*, const char*) { _exit(7); }

int status_of_child(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a broken invariant calls the handler", "[assert]") {
  const int status = status_of_child([] {
    rankfold::set_assert_handler(exit_with_7);
    RANKFOLD_ASSERT(RANKFOLD_ASSERT_LEVEL, 1 == 2, "arithmetic");
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("the process is aborted when the handler returns", "[assert]") {
  const int status = status_of_child([] {
    signal(SIGABRT, SIG_DFL);
    rankfold::set_assert_handler([](const char*, int, const char*, const char*) {});
    RANKFOLD_ASSERT(RANKFOLD_ASSERT_LEVEL, false, "");
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

TEST_CASE("a check above the level is not evaluated", "[assert]") {
  int evaluated = 0;
  RANKFOLD_ASSERT(RANKFOLD_ASSERT_LEVEL + 1, ++evaluated > 1, "");
  CHECK(evaluated == 0);
}
