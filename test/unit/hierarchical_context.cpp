// SPDX-License-Identifier: Apache-2.0
// Several hosts: what crosses between the two levels, errors above all.
#include "rankfold/hierarchical_context.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rankfold/async.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/simulated_hosts.hpp"

using namespace rankfold;
using namespace std::chrono_literals;

namespace {

const std::vector<int> two_by_two{0, 0, 1, 1};

/// What each rank's calls end with; `f` makes them.
template <class F>
std::vector<std::string> failures(const std::vector<int>& marks,
                                  const communicator_options& options, F&& f) {
  std::vector<std::string> said(marks.size(), "nothing");
  run_on_hosts(marks, options, [&](auto& comm) {
    try {
      f(comm);
    } catch (const std::exception& e) {
      said[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  return said;
}

}  // namespace

TEST_CASE("a tuning that is set counts on both levels", "[hierarchical]") {
  const tuning set{.inline_max_bytes = 1000, .chunk_bytes = 4096};
  const tuning expected{.inline_max_bytes = 40, .chunk_bytes = 4096};
  run_transports_on_hosts(two_by_two, [&](simulated_hosts&& transport) {
    context<simulated_hosts> ctx(std::move(transport), {}, {});
    ctx.set_tuning(set);
    if (ctx.tuning() != expected || ctx.local().tuning() != expected ||
        ctx.rail()->tuning() != expected) {
      throw error("another tuning");
    }
  });
}

TEST_CASE("an abort on one host ends the calls of all hosts", "[hierarchical]") {
  const auto said = failures(two_by_two, {.timeout = 30s}, [](auto& comm) {
    std::vector<float> x(10000);
    comm.all_reduce(std::span(x));
    if (comm.rank() == 3) comm.abort("enough");
    comm.all_reduce(std::span(x));
    comm.all_reduce(std::span(x));
  });
  for (const std::string& text : said) {
    INFO(text);
    CHECK(contains(text, "rank 3 aborted: enough"));
  }
}

TEST_CASE("errors between hosts name ranks by their numbers among all", "[hierarchical]") {
  // Ranks 2 and 3 are 0 and 1 on their host, and each is 1 on its rail.
  const auto said = failures(two_by_two, {.timeout = 400ms}, [](auto& comm) {
    std::vector<float> x(100000);
    if (comm.rank() >= 2) std::this_thread::sleep_for(1500ms);
    comm.all_reduce(std::span(x));
  });
  for (const std::string& text : said) {
    INFO(text);
    CHECK((contains(text, "rank 2 did not arrive") || contains(text, "rank 3 did not arrive")));
    CHECK(contains(text, "of 4 over hierarchical"));
  }
}

TEST_CASE("an operator that throws on one host ends the calls of all hosts", "[hierarchical]") {
  const auto said = failures(two_by_two, {.timeout = 30s}, [](auto& comm) {
    std::vector<int> x(5000, 1);
    const bool fails = comm.rank() == 1;
    comm.all_reduce(std::span(x), [fails](int a, int b) {
      if (fails) throw std::runtime_error("my operator");
      return a + b;
    });
    comm.barrier();
  });
  for (const std::string& text : said) CHECK(contains(text, "my operator"));
}

TEST_CASE("calls of one level and of two notice each other, wherever they meet", "[hierarchical]") {
  for (const std::vector<int>& marks :
       {two_by_two, std::vector<int>{0, 0, 1}, std::vector<int>{0, 1, 0, 1, 2}}) {
    for (std::size_t other = 0; other < marks.size(); ++other) {
      INFO(marks.size() << " ranks, another call on " << other);
      const auto said = failures(marks, {.timeout = 30s}, [&](auto& comm) {
        std::vector<float> x(20000);
        if (comm.rank() == static_cast<int>(other)) {
          comm.broadcast(std::span(x), 0);
        } else {
          comm.all_reduce(std::span(x));
        }
        comm.barrier();
      });
      for (const std::string& text : said) {
        CHECK(contains(text, "different calls"));
        CHECK(contains(text, "broadcast"));
      }
    }
  }
}

TEST_CASE("an element that is larger than what is folded at a time", "[hierarchical]") {
  struct block {
    std::array<std::uint8_t, 9000> bytes;
  };
  std::vector<int> wrong(4, 0);
  run_on_hosts(
      std::vector<int>{0, 0, 0, 1}, {},
      [&](auto& comm) {
        std::vector<block> x(8);
        for (auto& b : x) b.bytes.fill(static_cast<std::uint8_t>(1 << comm.rank()));
        comm.all_reduce(std::span(x),
                        [](const block& a, const block& b) {
                          block c = a;
                          for (std::size_t i = 0; i < c.bytes.size(); ++i) c.bytes[i] |= b.bytes[i];
                          return c;
                        },
                        {.algorithm = algorithm::two_level});
        for (const auto& b : x) {
          for (const std::uint8_t byte : b.bytes) {
            wrong[static_cast<std::size_t>(comm.rank())] += byte != 15;
          }
        }
      },
      std::size_t{8} << 20);
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("two_level is refused where there is one level", "[hierarchical]") {
  const auto said = failures({0, 1}, {.timeout = 10s}, [](auto& comm) {
    std::vector<float> x(10);
    comm.all_reduce(std::span(x), sum{}, {.algorithm = algorithm::two_level});
  });
  for (const std::string& text : said) CHECK(contains(text, "two_level is for several hosts"));
}

TEST_CASE("messages between ranks do not count as steps of the hosts", "[hierarchical]") {
  std::vector<float> found(4);
  run_on_hosts(two_by_two, {.timeout = 30s}, [&](auto& comm) {
    std::vector<float> x(1, static_cast<float>(comm.rank()));
    if (comm.rank() == 0) comm.send(std::span<const float>(x), 3);
    if (comm.rank() == 3) comm.recv(std::span(x), 0);
    comm.all_reduce(std::span(x));
    comm.barrier();
    comm.all_reduce(std::span(x));
    found[static_cast<std::size_t>(comm.rank())] = x[0];
  });
  CHECK(found == std::vector<float>(4, 12));  // (0 + 1 + 2 + 0) · 4
}

TEST_CASE("after an error no rank waits for what never comes, also where nobody tells who is gone",
          "[hierarchical]") {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> said(2, "nothing");
  run_transports_on_hosts(
      std::vector<int>{0, 1},
      [&](simulated_hosts&& transport) {
        communicator<simulated_hosts> comm(std::move(transport), {.timeout = 60s});
        try {
          // Only the receiver sees what is wrong; the root, a call ahead, hears of it.
          const std::vector<std::size_t> counts{2, 3};
          std::vector<float> in(comm.rank() == 0 ? 5 : 0);
          std::vector<float> out(comm.rank() == 0 ? 2 : 5);
          comm.scatter(std::span<const float>(in), std::span(out), counts, 0);
          comm.barrier();
          comm.barrier();
        } catch (const mismatch_error& e) {
          said[static_cast<std::size_t>(comm.rank())] = e.what();
        }
      },
      65536, /*notices_loss=*/false);
  for (const std::string& text : said) CHECK(contains(text, "expects 5"));
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("a message that was posted moves on while a call of two levels waits", "[hierarchical]") {
  std::vector<int> wrong(4, 0);
  run_on_hosts(two_by_two, {.timeout = 20s}, [&](auto& comm) {
    const int rank = comm.rank();
    auto queue = comm.async();
    std::vector<float> message(1000000, 7);  // in several pieces, each of which needs this rank
    std::vector<float> x(50000, 1);
    handle sent;
    if (rank == 0) sent = queue.send(std::span<const float>(message), 3);
    if (rank == 3) {
      std::fill(message.begin(), message.end(), 0.0f);
      queue.recv(std::span(message), 0).wait();  // before it joins the others
    }
    queue.all_reduce(std::span(x)).wait();
    if (rank == 0) sent.wait();
    wrong[static_cast<std::size_t>(rank)] = x[49999] != 4 || message[999999] != 7;
  });
  CHECK(wrong == std::vector<int>(4, 0));
}
