// SPDX-License-Identifier: Apache-2.0
// The protocol below the algorithms: steps, rooted steps, failing, waiting.
#include "rankfold/context.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include "support/catch.hpp"
#include "support/contexts.hpp"

using namespace rankfold;
using namespace std::chrono_literals;

TEST_CASE("a root runs at most one step ahead, and its data are not written over early",
          "[context]") {
  constexpr int steps = 200;
  std::vector<int> wrong(3, 0);
  std::atomic<int> slowest{0};
  std::atomic<int> lead{0};
  run_contexts(3, {}, [&](test_context& ctx) {
    for (int i = 1; i <= steps; ++i) {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        if (ctx.rank() == 0) {
          std::memcpy(ctx.half(0), &i, sizeof i);
          ctx.publish();
          lead = (std::max)(lead.load(), i - slowest.load());
        } else {
          ctx.publish();
          ctx.wait(0);
          if (ctx.rank() == 2 && i % 20 == 0) std::this_thread::sleep_for(1ms);
          int found = 0;
          std::memcpy(&found, ctx.half(0), sizeof found);
          wrong[static_cast<std::size_t>(ctx.rank())] += found != i;
          if (ctx.rank() == 2) slowest = i;
        }
      });
    }
  });
  CHECK(wrong == std::vector<int>{0, 0, 0});
  CHECK(lead <= 3);  // published i while the slowest may still read i - 1, having stored i - 2
}

TEST_CASE("a root of steps that use little runs ahead by the lead, and no more", "[context]") {
  constexpr int lead = static_cast<int>(detail::max_lead);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64}, std::size_t{200}}) {
    INFO(bytes << " bytes of the half");
    std::atomic<int> published{0};
    int wrong = 0;
    int most = 0;
    run_contexts(2, {.workspace_bytes = 2 * 16384}, [&](test_context& ctx) {
      if (ctx.rank() == 1) {
        while (published < lead) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(20ms);  // for a root that would go on
        most = published;
      }
      for (int i = 1; i <= 10 * lead; ++i) {
        ctx.run(test_call(), [&] {
          ctx.next_step(bytes);
          std::byte* const half = ctx.half(0);
          if (ctx.rank() == 0) {
            for (std::size_t at = 0; at < bytes; at += 4) std::memcpy(half + at, &i, 4);
            ctx.publish(&i, sizeof i);
            published = i;
          } else {
            ctx.publish();
            ctx.wait(0);
            int found = 0;
            std::memcpy(&found, ctx.payload(0), sizeof found);
            wrong += found != i;
            for (std::size_t at = 0; at < bytes; at += 4) {
              std::memcpy(&found, half + at, 4);
              wrong += found != i;
            }
          }
        });
      }
    });
    CHECK(most == lead);
    CHECK(wrong == 0);
  }
}

TEST_CASE("steps of all sizes mixed: nothing is written over while it is read", "[context]") {
  constexpr int steps = 3000;
  std::vector<int> wrong(3, 0);
  run_contexts(3, {.workspace_bytes = 2 * 16384}, [&](test_context& ctx) {
    std::mt19937 shared(20261130);
    std::mt19937 own(static_cast<unsigned>(ctx.rank()));
    for (int i = 1; i <= steps; ++i) {
      const int root = static_cast<int>(shared() % 4);  // 3: all wait for all
      // Mostly the same kind again, so that ranks get ahead.
      static constexpr std::size_t sizes[] = {0, 64, 512, 16384};
      const std::size_t bytes = sizes[(i / 7 + static_cast<int>(shared() % 8 == 0)) % 4];
      ctx.run(test_call(bytes), [&] {
        ctx.next_step(bytes);
        for (std::size_t at = 0; at < bytes; at += 64) {
          std::memcpy(ctx.half(ctx.rank()) + at, &i, sizeof i);
        }
        ctx.publish(&i, sizeof i);
        const auto read = [&](int r) {
          if (own() % 40 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
          int found = 0;
          std::memcpy(&found, ctx.payload(r), sizeof found);
          wrong[static_cast<std::size_t>(ctx.rank())] += found != i;
          for (std::size_t at = 0; at < bytes; at += 64) {
            std::memcpy(&found, ctx.half(r) + at, sizeof found);
            wrong[static_cast<std::size_t>(ctx.rank())] += found != i;
          }
        };
        if (root == 3) {
          ctx.wait_all();
          for (int r = 0; r < 3; ++r) read(r);
        } else if (ctx.rank() != root) {
          ctx.wait(root);
          read(root);
        }
      });
    }
  });
  CHECK(wrong == std::vector<int>{0, 0, 0});
}

TEST_CASE("a rooted mismatch in a line shows within as many calls as a root is ahead",
          "[context]") {
  std::vector<std::string> said(2);
  int made = 0;
  run_contexts(2, {}, [&](test_context& ctx) {
    try {
      for (std::uint32_t i = 1; i <= 5 * detail::max_lead; ++i) {
        // Odd steps differ: no later call may make up for it.
        const std::uint32_t tag = i == 7 && ctx.rank() == 1 ? 1000 : i;
        ctx.run(test_call(0, tag), [&] {
          ctx.next_step(0);
          ctx.publish();
          if (ctx.rank() == 0) made = static_cast<int>(i);
        });
      }
    } catch (const mismatch_error& e) {
      said[static_cast<std::size_t>(ctx.rank())] = e.what();
    }
  });
  CHECK(said[0].find("tag 7") != std::string::npos);
  CHECK(said[0].find("tag 1000") != std::string::npos);
  CHECK(said[0] == said[1]);
  CHECK(made <= static_cast<int>(7 + detail::max_lead));
}

TEST_CASE("a deadline names who is furthest behind, whoever was waited for", "[context]") {
  std::vector<std::string> said(3);
  std::atomic<int> ended{0};
  run_contexts(3, {}, [&](test_context& ctx) {
    if (ctx.rank() == 1) {  // stays away
      while (ended < 2) std::this_thread::sleep_for(1ms);
      return;
    }
    ctx.set_timeout(ctx.rank() == 2 ? 200ms : 60s);
    try {
      ctx.run(test_call(0, 1), [&] {  // to rank 0
        ctx.next_step(0);
        ctx.publish();
        if (ctx.rank() == 0) ctx.wait_all();
      });
      ctx.run(test_call(0, 2), [&] {  // from rank 0
        ctx.next_step(0);
        ctx.publish();
        if (ctx.rank() == 2) ctx.wait(0);
      });
    } catch (const timeout_error& e) {
      said[static_cast<std::size_t>(ctx.rank())] = e.what();
    }
    ++ended;
  });
  CHECK(said[2].find("(call 1)") != std::string::npos);
  CHECK(said[2].find(": rank 1 did not arrive within") != std::string::npos);
  CHECK(said[0] == said[2]);
}

TEST_CASE("a rooted mismatch shows in the root's next call", "[context]") {
  std::string root_said;
  std::string other_said;
  run_contexts(2, {}, [&](test_context& ctx) {
    const auto rooted = [&](std::uint32_t tag) {
      ctx.run(test_call(0, tag), [&] {
        ctx.next_step();
        ctx.publish();
        if (ctx.rank() != 0) ctx.wait(0);
      });
    };
    std::string& said = ctx.rank() == 0 ? root_said : other_said;
    try {
      rooted(ctx.rank() == 0 ? 1 : 2);
      rooted(3);
    } catch (const mismatch_error& e) {
      said = e.what();
    }
  });
  CHECK(root_said.find("tag 1") != std::string::npos);
  CHECK(root_said.find("tag 2") != std::string::npos);
  CHECK(root_said == other_said);
}

TEST_CASE("ranks with different tunings are told so at first contact", "[context]") {
  auto transports = threads_transport::create(2, {.workspace_bytes = 8192});
  std::vector<std::string> said(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        test_context ctx(std::move(transports[r]), {.chunk_bytes = r == 0 ? 1024u : 2048u}, {});
        try {
          ctx.run(test_call(), [&] {
            ctx.next_step();
            ctx.publish();
            ctx.wait_all();
          });
        } catch (const mismatch_error& e) {
          said[r] = e.what();
        }
      });
    }
  }
  CHECK(said[0].find("tuning") != std::string::npos);
  CHECK(said[0] == said[1]);
}

TEST_CASE("the first cause is kept for every later call", "[context]") {
  run_contexts(2, {}, [&](test_context& ctx) {
    const auto step = [&] {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        ctx.publish();
        ctx.wait_all();
      });
    };
    step();
    const auto expect_aborted = [&](const char* part) {
      try {
        step();
      } catch (const aborted_error& e) {
        if (std::string(e.what()).find(part) != std::string::npos) return;
        throw std::runtime_error(std::string("unexpected: ") + e.what());
      }
      throw std::runtime_error("nothing thrown");
    };
    if (ctx.rank() == 1) ctx.abort("first");
    expect_aborted("first");
    ctx.abort("second");
    expect_aborted("first");
  });
}

TEST_CASE("two threads in one context at once are refused, one after the other are not",
          "[context]") {
  auto transports = threads_transport::create(1, {.workspace_bytes = 8192});
  test_context ctx(std::move(transports[0]), {}, {});
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      ctx.run(test_call(), [&] {
        ctx.next_step();
        ctx.publish();
      });
    }).join();
  }
  CHECK(ctx.steps() == 3);
  bool refused = false;
  ctx.run(test_call(), [&] {
    std::thread([&] {
      try {
        ctx.run(test_call(), [] {});
      } catch (const std::logic_error&) {
        refused = true;
      }
    }).join();
  });
  CHECK(refused);
}

TEST_CASE("a context made before fork is inert in the child", "[context]") {
  auto transports = threads_transport::create(2, {.workspace_bytes = 8192});
  auto parent = std::make_unique<test_context>(std::move(transports[0]), tuning{}, wait_options{});
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      parent->run(test_call(), [] {});
    } catch (const error& e) {
      code = std::string(e.what()).find("fork") != std::string::npos ? 0 : 2;
    }
    parent->abort("from the child");
    parent.reset();
    _exit(code);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(transports[1].state(0) == peer_state::alive);
  CHECK_NOTHROW(parent->run(test_call(), [&] {
    parent->next_step();
    parent->publish();
  }));
}

TEST_CASE("an interrupt callback ends a wait within a second", "[context]") {
  std::vector<std::string> said(2);
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> over{false};
  run_contexts(2, {.waiting = {.interrupt = [&] { throw std::runtime_error("Ctrl-C"); }}},
               [&](test_context& ctx) {
                 try {
                   if (ctx.rank() == 1) {
                     while (!over) std::this_thread::sleep_for(1ms);
                   }
                   ctx.run(test_call(), [&] {
                     ctx.next_step();
                     ctx.publish();
                     ctx.wait_all();
                   });
                 } catch (const std::exception& e) {
                   said[static_cast<std::size_t>(ctx.rank())] = e.what();
                 }
                 over = true;
               });
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  CHECK(said[0] == "Ctrl-C");
  CHECK(said[1].find("Ctrl-C") != std::string::npos);
}

TEST_CASE("a rank that waits long burns little CPU", "[context]") {
  // 20 waits of 20 ms: the waiting thread may use 10 % of the time.
  const auto cpu_time = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  double used = 1;
  run_contexts(2, {}, [&](test_context& ctx) {
    const double begin = cpu_time();
    for (int i = 0; i < 20; ++i) {
      if (ctx.rank() == 1) std::this_thread::sleep_for(20ms);
      ctx.run(test_call(), [&] {
        ctx.next_step();
        ctx.publish();
        ctx.wait_all();
      });
    }
    if (ctx.rank() == 0) used = cpu_time() - begin;
  });
  CHECK(used < 0.04);
}

TEST_CASE("the deadline counts for the whole call", "[context]") {
  std::vector<std::string> said(2);
  const auto begin = std::chrono::steady_clock::now();
  run_contexts(2, {.waiting = {.timeout = 400ms}}, [&](test_context& ctx) {
    try {
      ctx.run(test_call(), [&] {
        for (int i = 0; i < 100; ++i) {
          ctx.next_step();
          if (ctx.rank() == 1) std::this_thread::sleep_for(50ms);  // slow, but never missing
          ctx.publish();
          ctx.wait_all();
        }
      });
    } catch (const timeout_error& e) {
      said[static_cast<std::size_t>(ctx.rank())] = e.what();
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < 2s);
  CHECK(said[0].find("within 0.4 s") != std::string::npos);
  CHECK(said[0] == said[1]);
}
