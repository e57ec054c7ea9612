// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/file_descriptor.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <sys/resource.h>

#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"

namespace detail = rankfold::detail;

namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

TEST_CASE("a descriptor is closed once, by its last owner", "[detail][file_descriptor]") {
  int number = -1;
  {
    detail::file_descriptor second;
    CHECK_FALSE(second);
    {
      detail::file_descriptor first(open_null());
      number = first.get();
      second = std::move(first);
    }
    CHECK(second.get() == number);
    CHECK(is_open(number));
  }
  CHECK_FALSE(is_open(number));
}

TEST_CASE("a private descriptor is closed in a forked child, and its number left alone there",
          "[detail][file_descriptor]") {
  auto kept = detail::private_descriptor::opened_by(open_null);
  auto moved = std::move(kept);
  const int number = moved.get();
  REQUIRE(is_open(number));
  const auto outcomes = fork_ranks(1, [&moved, number](int, const rank_voice&) {
    std::string found = is_open(number) ? "open" : "closed";
    // Someone else gets the number; the child's copy must not close it.
    const bool taken = ::dup2(open_null(), number) == number;
    moved = detail::private_descriptor();
    return found + (taken && is_open(number) ? " untouched" : " touched");
  });
  CHECK(outcomes[0].text == "closed untouched");
  CHECK(is_open(number));
  moved = detail::private_descriptor();
  CHECK_FALSE(is_open(number));
}

TEST_CASE("what cannot be opened leaves errno and nothing else", "[detail][file_descriptor]") {
  const auto none =
      detail::private_descriptor::opened_by([] { return ::open("/no/such/file", O_RDONLY); });
  CHECK(errno == ENOENT);
  CHECK_FALSE(none);
}

TEST_CASE("too few open files are an error that says how many", "[detail][file_descriptor]") {
  const auto outcomes = fork_ranks(3, [](int rank, const rank_voice&) {
    ::rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    int last = -1;
    for (int fd = 0; rank == 2 && fd >= 0; fd = open_null()) last = fd;
    try {
      detail::check_open_file_limit(rank == 0 ? 30 : 64, "the test");
    } catch (const rankfold::transport_error&) {
      for (int fd = 32; fd <= last; ++fd) ::close(fd);  // a sanitizer needs some to look at it
      throw;
    }
  });
  CHECK(outcomes[0].returned);
  for (const std::size_t rank : {1U, 2U}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].error == "transport_error");
    CHECK(contains(outcomes[rank].text, "the test needs 64 more open files"));
    CHECK(contains(outcomes[rank].text, "of 64 allowed"));
  }
  CHECK(contains(outcomes[2].text, "but 64 of 64"));
}
