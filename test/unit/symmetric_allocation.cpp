// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/symmetric_allocation.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <unistd.h>

#include <sys/mman.h>
#include <sys/wait.h>

#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/symmetric_buffer.hpp"
#include "support/catch.hpp"

using namespace rankfold;
using detail::page;
using detail::symmetric_allocation;
using allocation_ptr = std::shared_ptr<symmetric_allocation>;

namespace {

/// `ranks` parts of `bytes`, as each rank sees them.
std::vector<allocation_ptr> allocate(std::size_t ranks, std::size_t bytes, int sharing) {
  const std::size_t part = symmetric_allocation::part_bytes(bytes);
  void* const address =
      ::mmap(nullptr, ranks * part, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  REQUIRE(address != MAP_FAILED);
  const auto owner = std::make_shared<const detail::mapping>(address, ranks * part);
  symmetric_memory memory{{}, owner};
  for (std::size_t r = 0; r < ranks; ++r) memory.parts.push_back(owner->data() + r * part);
  std::vector<allocation_ptr> all;
  for (std::size_t r = 0; r < ranks; ++r) {
    all.push_back(std::make_shared<symmetric_allocation>(memory, static_cast<int>(r), bytes));
  }
  return all;
}

}  // namespace

TEST_CASE("an allocation is released when all ranks have, and a rank's pages go with its own",
          "[detail][symmetric]") {
  for (const int sharing : {MAP_SHARED, MAP_PRIVATE}) {
    const auto ranks = allocate(3, 3 * page + 1, sharing);
    for (const auto& own : ranks) {
      own->data()[0] = own->data()[own->size() - 1] = std::byte{7};
    }
    CHECK(ranks[0]->data(2) == ranks[2]->data());
    ranks[0]->release();
    ranks[2]->release();
    CHECK(!ranks[1]->released());
    CHECK(ranks[1]->data(0)[3 * page] == std::byte{0});
    CHECK(ranks[1]->data()[3 * page] == std::byte{7});
    ranks[1]->release();
    CHECK(ranks[0]->released());
  }
}

TEST_CASE("a buffer releases its memory once, wherever it was moved to", "[symmetric]") {
  const auto ranks = allocate(1, 4096, MAP_PRIVATE);
  {
    auto buffer = detail::make_symmetric_buffer<double>(ranks[0], 512);
    CHECK(static_cast<void*>(buffer.data()) == ranks[0]->data());
    symmetric_buffer<double> other(std::move(buffer));
    CHECK(buffer.data() == nullptr);
    CHECK(buffer.span().empty());
    other.span()[511] = 1;
    buffer = std::move(other);
    CHECK(!ranks[0]->released());
    CHECK(buffer.span().size() == 512);
    buffer = {};
    CHECK(ranks[0]->released());
  }
  CHECK(symmetric_buffer<float>().span().empty());
}

TEST_CASE("a forked child leaves the memory as it is", "[detail][symmetric]") {
  const auto ranks = allocate(1, 4096, MAP_SHARED);
  auto buffer = detail::make_symmetric_buffer<int>(ranks[0], 1024);
  buffer.span()[5] = 5;
  const ::pid_t child = ::fork();
  if (child == 0) {
    buffer = {};
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(!ranks[0]->released());
  CHECK(buffer.span()[5] == 5);
}

TEST_CASE("an address is found in the allocation that it lies in, with all of its bytes",
          "[detail][symmetric]") {
  detail::symmetric_allocations known;
  CHECK(!known.used());
  const auto place = [&](const std::byte* data, std::size_t bytes) {
    const detail::symmetric_place found = known.place_of(data, bytes);
    return std::pair(found.allocation, found.offset);
  };
  const std::pair<std::uint64_t, std::uint64_t> nowhere{0, 0};
  const auto first = allocate(2, 1000, MAP_PRIVATE);
  const auto second = allocate(2, 5000, MAP_PRIVATE);
  CHECK(place(first[0]->data(), 1) == nowhere);
  known.add(first[0]);
  known.add(second[0]);
  CHECK(known.used());
  CHECK(place(first[0]->data(), 1000) == std::pair<std::uint64_t, std::uint64_t>{1, 0});
  CHECK(place(second[0]->data() + 4999, 1) == std::pair<std::uint64_t, std::uint64_t>{2, 4999});
  CHECK(place(second[0]->data() + 4999, 2) == nowhere);
  CHECK(place(first[0]->data() + 1001, 0) == nowhere);
  CHECK(place(first[0]->data() - 1, 1) == nowhere);
  CHECK(place(first[1]->data(), 1) == nowhere);  // another rank's
  CHECK(place(nullptr, 1) == nowhere);

  CHECK(known.find({1, 10}, 1, 990) == first[1]->data() + 10);
  CHECK(known.find({1, 10}, 1, 991) == nullptr);
  CHECK(known.find({1, 1001}, 1, 0) == nullptr);
  CHECK(known.find({3, 0}, 1, 1) == nullptr);

  // Numbers are not given again, and what nobody uses goes with the next.
  for (const auto& own : first) own->release();
  const auto third = allocate(2, 10, MAP_PRIVATE);
  CHECK(known.find({1, 0}, 1, 1) != nullptr);
  known.add(third[0]);
  CHECK(known.find({1, 0}, 1, 1) == nullptr);
  CHECK(place(first[0]->data(), 1) == nowhere);
  CHECK(place(third[0]->data(), 1) == std::pair<std::uint64_t, std::uint64_t>{3, 0});
  CHECK(first[0].use_count() == 1);
}
