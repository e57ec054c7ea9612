// SPDX-License-Identifier: Apache-2.0
// Steps over messages: what they keep apart, what they refuse, and how they end.
#include "rankfold/message_context.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rankfold/testing/mailbox_transport.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/contexts.hpp"
#include "support/rank_threads.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using testing::mailbox_transport;
using message_test_context = context<mailbox_transport>;

namespace {

struct message_setup {
  std::size_t workspace_bytes = 16384;
  std::size_t eager_bytes = 0;  // every message waits for its receiver
  wait_options waiting = {};
};

template <class F>
void run_message_contexts(int ranks, const message_setup& setup, F&& f) {
  auto transports = mailbox_transport::create(
      ranks, {.workspace_bytes = setup.workspace_bytes, .eager_bytes = setup.eager_bytes});
  run_rank_threads(ranks, [&](int r) {
    message_test_context ctx(std::move(transports[static_cast<std::size_t>(r)]), {}, setup.waiting);
    f(ctx);
  });
}

/// What a call says where it fails, "" where it does not.
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("a root over messages runs at most one step ahead, and its data are not written over",
          "[message_context]") {
  constexpr int steps = 200;
  for (const std::size_t eager : {std::size_t{0}, std::size_t{1} << 20}) {
    std::vector<int> wrong(3, 0);
    std::atomic<int> slowest{0};
    std::atomic<int> lead{0};
    run_message_contexts(3, {.eager_bytes = eager}, [&](message_test_context& ctx) {
      for (int i = 1; i <= steps; ++i) {
        ctx.run(test_call(), [&] {
          ctx.next_step();
          if (ctx.rank() == 0) {
            // One piece inside the packet, one that is too large for it.
            std::memset(ctx.half(0), i & 0xff, 3000);
            ctx.give(1, 0, 100);
            ctx.give(2, 0, 3000);
            ctx.publish();
            lead = (std::max)(lead.load(), i - slowest.load());
          } else {
            ctx.publish();
            ctx.wait(0);
            if (ctx.rank() == 2 && i % 20 == 0) std::this_thread::sleep_for(1ms);
            const std::size_t last = ctx.rank() == 1 ? 99 : 2999;
            for (const std::size_t at : {std::size_t{0}, last}) {
              wrong[static_cast<std::size_t>(ctx.rank())] +=
                  std::to_integer<int>(ctx.half(0)[at]) != (i & 0xff);
            }
            if (ctx.rank() == 2) slowest = i;
          }
        });
      }
    });
    CHECK(wrong == std::vector<int>{0, 0, 0});
    CHECK(lead <= 3);  // published i while the slowest may still read i - 1, having stored i - 2
  }
}

TEST_CASE("pieces of a half arrive where they lay", "[message_context]") {
  std::vector<int> wrong(2, 0);
  run_message_contexts(2, {}, [&](message_test_context& ctx) {
    const int peer = 1 - ctx.rank();
    for (const std::size_t piece : {std::size_t{1}, std::size_t{200}, std::size_t{1500}}) {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        for (std::size_t i = 0; i < ctx.half_bytes(); ++i) {
          ctx.half(ctx.rank())[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(peer));
        }
        const std::size_t end = ctx.half_bytes() - piece;
        for (const std::size_t at : {std::size_t{0}, std::size_t{2000}, std::size_t{4500}, end}) {
          ctx.give(peer, at, piece);
        }
        ctx.publish();
        ctx.wait_all();
        for (const std::size_t at : {std::size_t{0}, std::size_t{2000}, std::size_t{4500}, end}) {
          for (std::size_t i = at; i < at + piece; ++i) {
            const auto wanted =
                static_cast<std::byte>(i * 7 + static_cast<std::size_t>(ctx.rank()));
            wrong[static_cast<std::size_t>(ctx.rank())] += ctx.half(peer)[i] != wanted;
          }
        }
      });
    }
  });
  CHECK(wrong == std::vector<int>{0, 0});
}

TEST_CASE("ranks over messages that differ in tuning or workspace are told so",
          "[message_context]") {
  for (const bool workspace : {false, true}) {
    std::vector<std::string> said(2);
    auto transports = mailbox_transport::create(2, {.workspace_bytes = 16384});
    run_rank_threads(2, [&](int r) {
      tuning tune;
      if (!workspace && r == 1) tune.chunk_bytes = 4096;
      auto mine = std::move(transports[static_cast<std::size_t>(r)]);
      if (workspace && r == 1) mine.options().workspace_bytes = 32768;
      message_test_context ctx(std::move(mine), tune, {});
      said[static_cast<std::size_t>(r)] = failure_of([&] {
        ctx.run(test_call(), [&] {
          ctx.next_step();
          ctx.publish();
          ctx.wait_all();
        });
      });
    });
    for (const std::string& text : said) {
      CHECK(contains(text, workspace ? "a workspace of" : "another tuning"));
    }
  }
}

TEST_CASE("a packet of another group, version or step is refused", "[message_context]") {
  const auto said_with = [](const std::function<void(detail::packet&)>& spoil) {
    auto transports = mailbox_transport::create(2, {.workspace_bytes = 16384});
    detail::packet forged{};
    forged.magic = detail::packet_magic;
    forged.step = 1;
    forged.tuning_hash = tuning().hash();
    forged.half_bytes = 8192;
    const fingerprint call = test_call();
    forged.fingerprint[0] = call.words[0];
    forged.fingerprint[1] = call.words[1];
    spoil(forged);
    (void)transports[1].send(0, 0, reinterpret_cast<const std::byte*>(&forged), sizeof forged);
    message_test_context ctx(std::move(transports[0]), {}, {.timeout = 5s});
    return failure_of([&] {
      ctx.run(call, [&] {
        ctx.next_step();
        ctx.publish();
        ctx.wait_all();
      });
    });
  };
  CHECK(said_with([](detail::packet&) {}) == "");
  CHECK(contains(said_with([](detail::packet& p) { p.magic = 1; }), "no packet of this version"));
  CHECK(contains(said_with([](detail::packet& p) { p.key = 1; }), "another group"));
  CHECK(contains(said_with([](detail::packet& p) { p.step = 2; }), "does not make sense"));
  CHECK(contains(said_with([](detail::packet& p) { p.regions = 5; }), "does not make sense"));
  CHECK(contains(said_with([](detail::packet& p) {
                   p.regions = 1;
                   p.region_of[0] = {8000, 193};
                 }),
                 "does not make sense"));
  CHECK(contains(said_with([](detail::packet& p) {
                   p.regions = 1;
                   p.region_of[0] = {~std::uint64_t{0}, 2};
                 }),
                 "does not make sense"));
  CHECK(contains(said_with([](detail::packet& p) { ++p.fingerprint[1]; }), "different calls"));
}

TEST_CASE("what a rank has sent arrives, although it is gone by then", "[message_context]") {
  for (const std::size_t eager : {std::size_t{0}, std::size_t{1} << 20}) {
    std::vector<int> found(2, 0);
    run_message_contexts(2, {.eager_bytes = eager}, [&](message_test_context& ctx) {
      if (ctx.rank() == 1) std::this_thread::sleep_for(100ms);
      ctx.run(test_call(), [&] {
        ctx.next_step();
        if (ctx.rank() == 0) {
          std::memset(ctx.half(0), 5, 5000);
          ctx.give_all(0, 5000);
          ctx.publish();
        } else {
          ctx.publish();
          ctx.wait(0);
          found[1] = std::to_integer<int>(ctx.half(0)[4999]);
        }
      });
    });
    CHECK(found[1] == 5);
  }
}

TEST_CASE("a rank that is thrown out of its program tells the others at once",
          "[message_context]") {
  std::string said;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_message_contexts(2, {.waiting = {.timeout = 60s}}, [&](message_test_context& ctx) {
      if (ctx.rank() == 1) throw std::runtime_error("the program's own");
      said = failure_of([&] {
        ctx.run(test_call(), [&] {
          ctx.next_step();
          ctx.publish();
          ctx.wait_all();
        });
      });
    });
  } catch (const std::runtime_error&) {
  }
  CHECK(contains(said, "rank 1 left"));
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}

TEST_CASE("a send that nobody receives ends at the deadline", "[message_context]") {
  std::string said;
  auto transports = mailbox_transport::create(2, {.workspace_bytes = 16384, .eager_bytes = 0});
  const auto begin = std::chrono::steady_clock::now();
  {
    message_test_context ctx(std::move(transports[0]), {}, {.timeout = 300ms});
    said = failure_of([&] {
      for (int i = 0; i < 4; ++i) {
        ctx.run(test_call(), [&] {
          ctx.next_step();
          ctx.publish();
        });
      }
    });
  }
  CHECK(contains(said, "rank 1 did not arrive within 0.3 s"));
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}
