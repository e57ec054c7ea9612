// SPDX-License-Identifier: Apache-2.0
// The choice from given measurements; the lead of rank 0, whatever the ranks' clocks say; then real
// measurements on every kind of transport.
#include "rankfold/tuner.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <stdlib.h>
#include <unistd.h>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/testing/run_ranks.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/shm.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/contexts.hpp"
#include "support/fork_ranks.hpp"
#include "support/simulated_hosts.hpp"
#include "support/temporary_folder.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using detail::tuner_question;
using detail::tuner_turn;

namespace {

// --- the choice ---------------------------------------------------------------------------------

using times = std::vector<double>;

/// Three values at two sizes; each has the times of six rounds, in which the given one takes 1.
tuner_question measured(const times& a, const times& b) {
  tuner_question q{2, collective::all_reduce, {512, 256, 128}};
  const times given(6, 1.0);
  q.sizes.push_back({1000, {0, 1, 1}, {given, a, {}}});  // 256 and 128 do the same here
  q.sizes.push_back({2000, {0, 1, 2}, {given, a, b}});
  return q;
}

std::size_t choice(const tuner_question& q, std::size_t least = 0) {
  return q.values[detail::best_value(q, least).value];
}

// --- the lead -----------------------------------------------------------------------------------

/// A machine of which one knows what a turn takes.
struct machine {
  double seconds_a_byte = 1e-10;
  double around = 1e-6;  // each turn
  std::size_t best_chunk = 128 << 10;
  double stalls_at = 1e9;  // 20 times as slow from then on
  double slow_for = 0;     // three times as slow for so many seconds, then as long not, and so on

  double now = 0;
  int turns = 0;
  std::size_t largest = 0;

  double take(const tuner_turn& turn) {
    ++turns;
    largest = (std::max)(largest, static_cast<std::size_t>(turn.bytes));
    const auto off = std::abs(std::log2(static_cast<double>(turn.value)) -
                              std::log2(static_cast<double>(best_chunk)));
    double call = 1e-7 + seconds_a_byte * static_cast<double>(turn.bytes) * (1 + 0.1 * off);
    if (slow_for != 0 && std::fmod(now, 2 * slow_for) > slow_for) call *= 3;
    if (now >= stalls_at) call *= 20;
    const double seconds = turn.repeats * call;
    now += around + seconds;
    return seconds;
  }
};

struct conducted {
  tuning chosen;
  std::string report;
};

/// Asks for the best chunk of an all_reduce.
conducted conduct(machine& m, double budget = 0.15) {
  tuner_question q{2, collective::all_reduce, {512 << 10, 64 << 10, 128 << 10, 256 << 10}};
  for (std::size_t bytes = 64 << 10; bytes <= 16 << 20; bytes *= 4) {
    q.sizes.push_back({bytes, {0, 1, 2, 3}, std::vector<times>(4)});
  }
  conducted result;
  tuning given;
  given.exchange_chunk_bytes = given.rooted_chunk_bytes = 4096;
  result.chosen = detail::conduct_tuner(
      {q}, given, budget,
      [&](const std::vector<tuner_turn>& turns) {
        times took;
        for (const tuner_turn& turn : turns) took.push_back(m.take(turn));
        return took;
      },
      [&] { return m.now; }, result.report);
  return result;
}

// --- ranks --------------------------------------------------------------------------------------

/// What tune_by gives three ranks of which rank r measures `measure(r, turn)`.
template <class Measure>
std::vector<conducted> tune_threads(const Measure& measure,
                                    const tuner_options& options = {.budget = 30s}) {
  std::vector<conducted> all(3);
  run_contexts(3, {.workspace_bytes = 4 << 20}, [&](test_context& ctx) {
    conducted& own = all[static_cast<std::size_t>(ctx.rank())];
    own.report = collectives::tune_by(
        ctx, options, [&](const tuner_turn& turn) { return measure(ctx.rank(), turn); });
    own.chosen = ctx.tuning();
  });
  return all;
}

bool alike(const std::vector<conducted>& all) {
  return std::all_of(all.begin(), all.end(), [&](const conducted& c) {
    return c.chosen == all[0].chosen && c.report == all[0].report && !c.report.empty();
  });
}

communicator_options measuring(std::chrono::milliseconds budget = 150ms) {
  return {.timeout = 30s, .tuner = {.measure = true, .budget = budget}};
}

/// One rank's tuning and report as a text.
template <class Comm>
std::string outcome_of(const Comm& comm) {
  return std::to_string(comm.tuning().hash()) + ' ' + comm.tuning_report();
}

std::string fresh_key() {
  static int ordinal = 0;
  return "tuner-" + std::to_string(::getpid()) + "-" + std::to_string(ordinal++);
}

/// Makes a communicator in each of `ranks` processes, with the variables that `set(rank)` sets, and
/// calls f(communicator&) there.
template <class Set, class F>
std::vector<rank_outcome> in_processes(int ranks, const Set& set, const F& f) {
  const std::string key = fresh_key();
  return fork_ranks(ranks, [&](int rank, const rank_voice&) {
    ::setenv("RANKFOLD_TIMEOUT", "30", 1);
    set(rank);
    auto transport = shm_transport::connect(key, rank, ranks);
    const auto begin = std::chrono::steady_clock::now();
    communicator comm(std::move(transport));
    return f(comm, std::chrono::steady_clock::now() - begin);
  });
}

}  // namespace

TEST_CASE("tuner: a value must win clearly, in most rounds, and lose nowhere", "[tuner]") {
  const times slow(6, 1.5);
  CHECK(choice(measured(times(6, 0.9), slow)) == 256);
  CHECK(choice(measured(times(6, 0.97), slow)) == 512);
  CHECK(choice(measured({0.5, 0.9, 0.9, 0.9, 0.9, 3.0}, slow)) == 256);  // one round is noise
  CHECK(choice(measured({0.5, 0.5, 0.5, 0.5, 1.0, 1.0}, slow)) == 512);  // a third of them is not
  // The third value is measured at the second size only; at the first it is what the second is.
  CHECK(choice(measured(times(6, 0.9), times(6, 0.7))) == 128);
  CHECK(choice(measured(times(6, 1.01), times(6, 0.7))) == 128);
  CHECK(choice(measured(times(6, 1.04), times(6, 0.7))) == 512);  // slower at the first size
  CHECK(choice(measured(times(6, 0.9), times(6, 0.7)), 200) == 256);
  CHECK(choice(measured(times(6, 0.9), times(6, 0.7)), 600) == 512);
  tuner_question same = measured(times(6, 0.5), times(6, 0.5));
  same.sizes[0].same_as = same.sizes[1].same_as = {0, 0, 0};
  CHECK(choice(same) == 512);
}

TEST_CASE("tuner: a value is compared with the given one of the same round", "[tuner]") {
  tuner_question q{2, collective::all_reduce, {512, 256}};
  q.sizes.push_back({1000, {0, 1}, {{1, 10, 1, 10, 1}, {0.8, 8, 0.8, 8, 0.8}}});
  CHECK(choice(q) == 256);
  q.sizes[0].times[1] = {1, 1, 10, 1, 10};  // the same times, in other rounds
  CHECK(choice(q) == 512);
}

TEST_CASE("tuner: the best value is found within the budget, also where the machine drifts",
          "[tuner]") {
  for (const double slow_for : {0.0, 0.02}) {
    machine m{.slow_for = slow_for};
    const conducted c = conduct(m);
    INFO(c.report);
    CHECK(c.chosen.chunk_bytes == 128 << 10);
    CHECK(contains(c.report, "chunk_bytes 524288 -> 131072 (8"));
    CHECK(m.now < (slow_for == 0 ? 0.15 : 0.17));
    CHECK(m.largest == 16 << 20);
  }
  machine fine{.best_chunk = 512 << 10};
  const conducted kept = conduct(fine);
  CHECK(kept.chosen.chunk_bytes == 512 << 10);
  CHECK(contains(kept.report, "as given, nothing else was clearly faster"));
}

TEST_CASE("tuner: where little fits in the budget, the large sizes are left out", "[tuner]") {
  machine slow{.seconds_a_byte = 5e-9, .around = 1e-4};
  const conducted c = conduct(slow);
  INFO(c.report);
  CHECK(slow.now < 0.15);
  CHECK(slow.largest < 4 << 20);
  CHECK(c.chosen.chunk_bytes == 128 << 10);
  for (const double budget : {0.0, 1e-3, 1e-2}) {
    machine stuck{.seconds_a_byte = 1e-6};
    const conducted none = conduct(stuck, budget);
    CHECK(none.chosen.chunk_bytes == 512 << 10);
    CHECK(contains(none.report, "fewer than 5 rounds say nothing"));
    CHECK(stuck.turns <= 2);
  }
  // One that stalls in the middle of a round: what is left of that is not waited for.
  machine worse{.seconds_a_byte = 1e-9, .stalls_at = 0.1};
  const conducted cut = conduct(worse);
  INFO(cut.report);
  CHECK(worse.largest == 4 << 20);  // which would take another 0.3 s
  CHECK(worse.now > 0.15);
  CHECK(worse.now < 0.3);
}

TEST_CASE("tuner: chunk_bytes does not cut the other chunks below what is best for them",
          "[tuner]") {
  for (const std::size_t exchange : {4096, 256 << 10}) {
    machine m{.best_chunk = 64 << 10};
    tuner_question q{2, collective::all_reduce, {512 << 10, 64 << 10, 256 << 10}};
    q.sizes.push_back({1 << 20, {0, 1, 2}, std::vector<times>(3)});
    tuning given;
    given.exchange_chunk_bytes = exchange;
    given.rooted_chunk_bytes = 4096;
    std::string report;
    const tuning chosen = detail::conduct_tuner(
        {q}, given, 0.1,
        [&](const std::vector<tuner_turn>& turns) {
          times took;
          for (const tuner_turn& turn : turns) took.push_back(m.take(turn));
          return took;
        },
        [&] { return m.now; }, report);
    CHECK(chosen.chunk_bytes == (exchange == 4096 ? 64 << 10 : 256 << 10));
  }
}

TEST_CASE("tuner: the ranks agree, though each measures other times", "[tuner][ranks]") {
  std::mt19937_64 random(values::seed());
  const std::uint64_t salt = random();
  const auto all = tune_threads([&](int rank, const tuner_turn& turn) {
    // Any number, on each rank another: also none that a clock could give.
    const std::uint64_t h = (salt ^ turn.value ^ turn.bytes << 20) * (2 * std::uint64_t(rank) + 3);
    if (h % 13 == 0) return std::numeric_limits<double>::quiet_NaN();
    if (h % 17 == 0) return -1.0;
    return 1e-6 * static_cast<double>(h >> 40);
  });
  CHECK(alike(all));

  // Each rank by a clock of its own: rank 2's runs ten times too fast.
  const auto timed = [](double on_2) {
    return tune_threads([=](int rank, const tuner_turn& turn) {
      const bool large =
          tuning_fields[turn.field].value == &tuning::rooted_chunk_bytes && turn.value >= 256 << 10;
      return 1e-7 * turn.repeats * (rank == 2 ? (large ? on_2 : 10) : (large ? 0.5 : 1));
    });
  };
  // The slowest rank counts: what is fast on the others does not.
  CHECK(alike(timed(10)));
  CHECK(timed(10)[0].chosen == tuning{});
  const auto won = timed(5);
  CHECK(alike(won));
  tuning but_one = won[0].chosen;
  CHECK(std::exchange(but_one.rooted_chunk_bytes, tuning{}.rooted_chunk_bytes) >= 256 << 10);
  CHECK(but_one == tuning{});
}

TEST_CASE("tuner: the questions are those whose values make a difference", "[tuner]") {
  for (const int ranks : {2, 3}) {
    run_contexts(ranks, {.workspace_bytes = 4 << 20}, [&](test_context& ctx) {
      bool one_shot = false;
      for (const tuner_question& q : detail::tuner_questions(ctx)) {
        one_shot = one_shot || tuning_fields[q.field].value == &tuning::one_shot_max_bytes;
        if (q.values[0] != tuning{}.*tuning_fields[q.field].value) throw error("not as given");
        for (const auto& size : q.sizes) {
          if (size.measured() < 2) throw error("nothing to compare");
        }
      }
      // Two ranks are one-shot at any size.
      if (one_shot != (ranks > 2)) throw error("one_shot_max_bytes");
      if (ctx.tuning() != tuning{}) throw error("another tuning is left behind");
    });
  }
}

TEST_CASE("tuner: measures on threads, and no rank keeps another tuning", "[tuner][ranks]") {
  CHECK(communicator(self_transport{}, measuring()).tuning_report() ==
        "as given: there is one rank");
  double best = 1;
  for (int i = 0; i < 5 && best > 0.2; ++i) {
    const auto seconds =
        testing::run_ranks(2,
                           [](auto& comm) {
                             const std::string& text = comm.tuning_report();
                             return std::stod(text.substr(text.find("for ") + 4)) / 1000;
                           },
                           {.communicator = measuring()});
    best = (std::min)(best, seconds[0]);
  }
  CHECK(best < 0.2);
  for (const int ranks : {2, 3, 8}) {
    const auto outcomes = testing::run_ranks(
        ranks,
        [](auto& comm) {
          std::vector<double> x(100'000, comm.rank() + 1.0);
          comm.all_reduce(std::span(x));
          const double sum = comm.size() * (comm.size() + 1) / 2.0;
          if (std::count(x.begin(), x.end(), sum) != 100'000) throw error("wrong sum");
          // A group is as its parent, and measures nothing.
          auto group = comm.split(0);
          if (group.tuning() != comm.tuning() || !group.tuning_report().empty()) {
            throw error("the group has another tuning");
          }
          return outcome_of(comm);
        },
        {.communicator = measuring(60ms)});
    INFO(outcomes[0]);
    CHECK(contains(outcomes[0], " measured for "));
    CHECK(std::count(outcomes.begin(), outcomes.end(), outcomes[0]) == ranks);
  }
}

TEST_CASE("tuner: measures over messages and over several hosts", "[tuner][ranks]") {
  const auto check = [](const std::vector<std::string>& outcomes) {
    INFO(outcomes[0]);
    CHECK(contains(outcomes[0], " measured for "));
    CHECK(std::count(outcomes.begin(), outcomes.end(), outcomes[0]) ==
          static_cast<int>(outcomes.size()));
  };
  std::vector<std::string> outcomes(3);
  auto mailboxes = testing::mailbox_transport::create(3, {});
  run_rank_threads(3, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    outcomes[i] = outcome_of(communicator(std::move(mailboxes[i]), measuring(60ms)));
  });
  check(outcomes);
  for (const std::vector<int>& marks : {std::vector{0, 0, 1, 1}, {0, 1}, {0, 0, 1, 2}, {0, 0}}) {
    outcomes.assign(marks.size(), "");
    run_on_hosts(marks, measuring(60ms), [&](communicator<simulated_hosts>& comm) {
      int x[1] = {1};
      comm.all_reduce(std::span(x));
      if (x[0] != comm.size()) throw error("wrong sum");
      outcomes[static_cast<std::size_t>(comm.rank())] = outcome_of(comm);
    });
    check(outcomes);
  }
}

TEST_CASE("tuner: RANKFOLD_TUNE is off, on, or an error", "[tuner][processes]") {
  const auto asked = [](const char* tune, const char* file) {
    const auto outcome = fork_ranks(1, [&](int, const rank_voice&) {
      if (tune != nullptr) ::setenv("RANKFOLD_TUNE", tune, 1);
      if (file != nullptr) ::setenv("RANKFOLD_TUNING_FILE", file, 1);
      const tuner_options options = communicator_options{}.tuner;
      return std::string(options.is_on() ? "on " : "off ") + (options.measure ? "measure " : "") +
             options.file;
    })[0];
    return outcome.error + outcome.text;
  };
  CHECK(asked(nullptr, nullptr) == "off ");
  CHECK(asked("", "") == "off ");
  CHECK(asked("0", nullptr) == "off ");
  CHECK(asked("1", nullptr) == "on measure ");
  CHECK(asked(nullptr, "/a") == "on /a");
  CHECK(asked("1", "/a") == "on measure /a");
  CHECK(asked("0", "/a") == "off ");
  CHECK(contains(asked("yes", nullptr), "invalid_argument"));
  CHECK(contains(asked("yes", nullptr), "RANKFOLD_TUNE is \"yes\""));
}

TEST_CASE("tuner: RANKFOLD_TUNE measures in processes, and one that lacks it is told of",
          "[tuner][processes]") {
  const auto tuned = [](const auto& comm, auto) { return outcome_of(comm); };
  for (const int ranks : {2, 4}) {
    const auto outcomes =
        in_processes(ranks, [](int) { ::setenv("RANKFOLD_TUNE", "1", 1); }, tuned);
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error << outcome.text);
      CHECK(contains(outcome.text, " measured for "));
      CHECK(outcome.text == outcomes[0].text);
    }
  }
  for (const int with : {0, 1}) {
    const auto outcomes = in_processes(
        2,
        [&](int rank) {
          if (rank == with) ::setenv("RANKFOLD_TUNE", "1", 1);
        },
        [](auto& comm, auto) {
          comm.barrier();
          return std::string("no error");
        });
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error << outcome.text);
      CHECK(outcome.error == "mismatch_error");
      CHECK(contains(outcome.text, "RANKFOLD_TUNE"));
      CHECK(contains(outcome.text, "barrier"));
    }
  }
  // One that ends without a call.
  const auto left = in_processes(
      2,
      [](int rank) {
        if (rank == 0) ::setenv("RANKFOLD_TUNE", "1", 1);
      },
      tuned);
  CHECK(left[0].error == "peer_lost_error");
  CHECK(contains(left[0].text, "tune (call 1) on rank 0 of 2 over shm: rank 1 left"));
}

TEST_CASE("tuner: a file is written by rank 0, then read", "[tuner][processes]") {
  const temporary_folder folder;
  const std::string path = folder.file("tunings");
  const auto run = [&](int ranks) {
    const auto outcomes = in_processes(
        ranks,
        [&](int rank) {
          // Rank 0's alone is looked at.
          ::setenv("RANKFOLD_TUNING_FILE", (rank == 0 ? path : path + ".no").c_str(), 1);
        },
        [](auto& comm, auto) { return outcome_of(comm); });
    for (const rank_outcome& outcome : outcomes) {
      INFO(outcome.error << outcome.text);
      CHECK(outcome.text == outcomes[0].text);
    }
    CHECK(folder.files() == 1);
    return outcomes[0].text;
  };
  const tuning_key two{.transport = "shm", .ranks = 2};
  const std::string first = run(2);
  INFO(first);
  CHECK(contains(first, "\"" + path + "\" has no tuning for [" + two.text() +
                            "]; now it has one, measured for "));
  CHECK(load_tuning(path, two));

  save_tuning(path, two, {.chunk_bytes = 4096});
  CHECK(run(2) == std::to_string(tuning{.chunk_bytes = 4096}.hash()) + " read from \"" + path +
                      "\" for [" + two.text() + "]");

  const std::string other = run(3);
  INFO(other);
  CHECK(contains(other, "3 ranks, 1 host, "));
  CHECK(contains(other, ", but one for [" + two.text() + "]; now it has one, measured for "));
  CHECK(load_tuning(path, two) == tuning{.chunk_bytes = 4096});

  folder.write("tunings", "no tuning\n");
  const auto broken = in_processes(
      2, [&](int) { ::setenv("RANKFOLD_TUNING_FILE", path.c_str(), 1); },
      [](auto& comm, auto) { return outcome_of(comm); });
  for (const rank_outcome& outcome : broken) {
    INFO(outcome.error << outcome.text);
    CHECK(outcome.threw);
    CHECK(contains(outcome.text, "\"" + path + "\" is broken in line 1"));
  }
  CHECK(broken[1].error == "aborted_error");
  CHECK(folder.read("tunings") == "no tuning\n");
}

TEST_CASE("tuner: a file that cannot be written is an error on all ranks", "[tuner][ranks]") {
  const temporary_folder folder;
  std::string text;
  try {
    tune_threads([](int, const tuner_turn&) { return 1e-4; },
                 {.file = folder.file("no/such/file"), .budget = 20ms});
  } catch (const error& e) {
    text = e.what();
  }
  CHECK(contains(text, "no/such/file\" cannot be written: No such file"));
}
