// SPDX-License-Identifier: Apache-2.0
#include "rankfold/transport/hierarchical.hpp"

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/threads.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/rank_threads.hpp"
#include "support/simulated_hosts.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using testing::mailbox_transport;

TEST_CASE("a layout numbers hosts by their lowest ranks", "[hierarchical]") {
  const host_layout layout = host_layout::of(std::vector<int>{9, 4, 9, 4, 4, 7});
  CHECK(layout.hosts() == 3);
  CHECK(layout.host_of == std::vector<int>{0, 1, 0, 1, 1, 2});
  CHECK(layout.ranks_of == std::vector<std::vector<int>>{{0, 2}, {1, 3, 4}, {5}});
  CHECK(layout.rails() == 1);
  CHECK(layout.local_rank(4) == 2);
  CHECK(layout.neighbours(3) == std::vector<int>{1, 3, 4});
  CHECK(host_layout::of(std::vector<int>{1, 1, 2, 2}).rails() == 2);
}

TEST_CASE("the ranks of a host, and no others, get one key", "[hierarchical]") {
  const std::vector<int> marks{5, 6, 5, 6, 5};
  auto all = mailbox_transport::create(5);
  std::mutex mutex;
  std::map<std::string, std::vector<std::pair<int, int>>> met;
  run_rank_threads(5, [&](int r) {
    using transport = hierarchical_transport<self_transport, mailbox_transport>;
    transport::compose(std::move(all[static_cast<std::size_t>(r)]), marks,
                       [&](std::string_view key, int rank, int size) {
                         const std::lock_guard lock(mutex);
                         met[std::string(key)].emplace_back(rank, size);
                         return self_transport{};
                       });
  });
  REQUIRE(met.size() == 2);
  for (auto& [key, places] : met) {
    CHECK(key.size() == 32);
    CHECK(key.find_first_not_of("0123456789abcdef") == std::string::npos);
    std::sort(places.begin(), places.end());
    const int size = places[0].second;
    REQUIRE(places.size() == static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) CHECK(places[static_cast<std::size_t>(i)] == std::pair(i, size));
  }
}

TEST_CASE("a host whose ranks do not meet is an error that names them", "[hierarchical]") {
  auto all = mailbox_transport::create(3);
  using transport = hierarchical_transport<self_transport, mailbox_transport>;
  std::string said;
  try {
    transport::compose(std::move(all[2]), std::vector<int>{0, 1, 1},
                       [](std::string_view, int, int) { return self_transport{}; },
                       {.timeout = 200ms});
  } catch (const rendezvous_error& e) {
    said = e.what();
  }
  CHECK(contains(said, "ranks 1 and 2 of this host did not meet within 0.2 s"));
}

TEST_CASE("marks must be one a rank", "[hierarchical]") {
  auto all = mailbox_transport::create(2);
  using transport = hierarchical_transport<self_transport, mailbox_transport>;
  CHECK_THROWS_AS(transport::compose(std::move(all[0]), std::vector<int>{0},
                                     [](std::string_view, int, int) { return self_transport{}; }),
                  std::invalid_argument);
}

TEST_CASE("groups of several hosts work side by side with all", "[hierarchical]") {
  std::vector<std::vector<float>> found(6);
  run_on_hosts(std::vector<int>{0, 0, 0, 1, 1, 1}, {.timeout = 30s}, [&](auto& comm) {
    // One group across hosts with two ranks on each, one of the rest, in another order.
    const int color = comm.rank() % 3 == 1 ? 1 : 0;
    auto group = comm.split(color, -comm.rank());
    std::vector<float> x(3000, static_cast<float>(1 << comm.rank()));
    std::vector<float> y = x;
    group.all_reduce(std::span(x));
    comm.all_reduce(std::span(y));
    std::vector<float> z(3000, static_cast<float>(group.rank()));
    group.broadcast(std::span(z), group.size() - 1);
    found[static_cast<std::size_t>(comm.rank())] = {
        x[2999], y[2999], z[2999], static_cast<float>(group.rank()),
        static_cast<float>(group.transport().layout().hosts())};
  });
  CHECK(found[1] == std::vector<float>{18, 63, 1, 1, 2});
  CHECK(found[4] == std::vector<float>{18, 63, 1, 0, 2});
  CHECK(found[0] == std::vector<float>{45, 63, 3, 3, 2});
  CHECK(found[2] == std::vector<float>{45, 63, 3, 2, 2});
  CHECK(found[3] == std::vector<float>{45, 63, 3, 1, 2});
  CHECK(found[5] == std::vector<float>{45, 63, 3, 0, 2});
}
