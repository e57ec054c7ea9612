// SPDX-License-Identifier: Apache-2.0
// More elements than an int can count, and more bytes than 32 bits can.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/rankfold.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"

using namespace rankfold;

namespace {

constexpr std::size_t count = (std::size_t{1} << 31) + 7;

/// Not where a sanitizer needs several times as much, and as much time.
bool has_memory(std::uint64_t gibibytes) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return false;
#endif
  return detail::available_memory().available > gibibytes << 30;
}

/// Of its position, in such a way that neighbouring chunks and pages differ.
std::int8_t value(std::size_t i, int rank) {
  return static_cast<std::int8_t>(i ^ (i >> 12) ^ (i >> 24) ^ static_cast<std::size_t>(rank * 77));
}

}  // namespace

TEST_CASE("all_reduce of 2^31 + 7 elements of one byte", "[stress][large]") {
  if (!has_memory(6)) LEAVE_OUT("it needs 6 GiB of memory, and no sanitizer");
  const auto wrong = testing::run_ranks(2, [](auto& comm) {
    std::vector<std::int8_t> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = value(i, comm.rank());
    comm.all_reduce(std::span(x));
    std::size_t bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bad += x[i] != static_cast<std::int8_t>(value(i, 0) + value(i, 1));
    }
    return bad;
  });
  CHECK(wrong == std::vector<std::size_t>{0, 0});
}

TEST_CASE("a message of 2^31 + 7 bytes", "[stress][large]") {
  if (!has_memory(6)) LEAVE_OUT("it needs 6 GiB of memory, and no sanitizer");
  const auto wrong = testing::run_ranks(2, [](auto& comm) {
    std::vector<std::int8_t> x(count);
    std::size_t bad = 0;
    if (comm.rank() == 0) {
      for (std::size_t i = 0; i < count; ++i) x[i] = value(i, 0);
      comm.send(std::span<const std::int8_t>(x), 1);
    } else {
      comm.recv(std::span(x), 0);
      for (std::size_t i = 0; i < count; ++i) bad += x[i] != value(i, 0);
    }
    return bad;
  });
  CHECK(wrong == std::vector<std::size_t>{0, 0});
}
