// SPDX-License-Identifier: Apache-2.0
// Measures, when a communicator is made, which tuning is best on this machine among these ranks.
//
// Rank 0 leads. Before each turn all ranks make one exchange: rank 0's line says what to measure
// next, the others' what the last turn took them. So the slowest rank counts, no clock but rank 0's
// decides how long it goes on, and all end with what rank 0 has chosen, whatever their clocks say.
//
// What is measured: for a field of the tuning, some values at some sizes, in rounds. The machine
// may be noisy and change between rounds, so a value is compared with the given one within a round,
// and replaces it only where it is clearly faster in most rounds and slower at no size.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/algorithm/select.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/collective/all_gather.hpp"
#include "rankfold/collective/all_reduce.hpp"
#include "rankfold/collective/broadcast.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/partition.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/staging.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/reducer.hpp"
#include "rankfold/tuning.hpp"
#include "rankfold/tuning_file.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Whether a communicator measures its tuning when it is made. The same on all ranks, but for
/// `file` and `budget`, of which rank 0's count.
struct tuner_options {
  /// Measure, and replace what of the given tuning is slow here. The constructor of the
  /// communicator is then a collective call.
  bool measure = false;
  /// A file with tunings. One that it has for this kind of machine, transport, number of ranks and
  /// version of rankfold is used; else one is measured and written into it.
  std::string file = {};
  /// How long measuring may take. With less than it needs, the tuning stays as given.
  std::chrono::milliseconds budget{150};

  bool is_on() const noexcept { return measure || !file.empty(); }
};

/// What the environment asks for: `measure` where RANKFOLD_TUNE is 1, and the `file`
/// RANKFOLD_TUNING_FILE, unless RANKFOLD_TUNE is 0.
///
/// Throws: `std::invalid_argument` where RANKFOLD_TUNE is anything else.
inline tuner_options default_tuner() {
  const char* const tune = detail::environment_variable("RANKFOLD_TUNE");
  const char* const file = detail::environment_variable("RANKFOLD_TUNING_FILE");
  tuner_options options;
  if (tune != nullptr) options.measure = detail::parse_variable("RANKFOLD_TUNE", tune, 0, 1) == 1;
  if (file != nullptr && (tune == nullptr || options.measure)) options.file = file;
  return options;
}

namespace detail {

enum class tuner_action : std::uint8_t { measure, rest, end };

/// What all ranks do next: `repeats` calls of `what`, with `value` in a field of the tuning.
struct tuner_turn {
  std::uint64_t value = 0;
  std::uint64_t bytes = 0;  // of the vector; all_gather: of a block
  std::uint32_t repeats = 0;
  std::uint16_t field = 0;  // of tuning_fields
  collective what = collective::barrier;
  tuner_action action = tuner_action::rest;

  tuning of(tuning base) const noexcept {
    base.*tuning_fields[field].value = static_cast<std::size_t>(value);
    return base;
  }
};

/// The line of a rank in the exchange before a turn.
struct tuner_line {
  tuner_turn turn;     // rank 0's: the next one
  double seconds = 0;  // what the last one took
};
static_assert(sizeof(tuner_line) <= inline_capacity && std::is_trivially_copyable_v<tuner_line>);

/// A field of the tuning, the values that it may have, and what they took at some sizes.
struct tuner_question {
  struct size {
    std::size_t bytes;
    /// For each value, the first one that makes all ranks do the same at this size: only that is
    /// measured.
    std::vector<std::size_t> same_as;
    /// Seconds a call on the slowest rank, of each value in each round; none for one that is the
    /// same as another.
    std::vector<std::vector<double>> times;

    std::size_t measured() const {
      std::size_t n = 0;
      for (std::size_t v = 0; v < same_as.size(); ++v) n += same_as[v] == v ? 1 : 0;
      return n;
    }
  };

  std::size_t field;
  collective what;
  std::vector<std::size_t> values;  // the first one is the given one
  std::vector<size> sizes = {};
};

/// A value replaces the given one where it takes at most this part of the time in three quarters of
/// the rounds, in the geometric mean over the sizes at which it makes a difference,
inline constexpr double tuner_gain = 0.95;
/// and more than this nowhere, in the median of the rounds.
inline constexpr double tuner_loss = 1.02;
/// Of fewer rounds nothing is concluded.
inline constexpr std::size_t tuner_least_rounds = 5;

struct tuner_choice {
  std::size_t value;  // which one
  double ratio = 1;   // what it takes of the given one's time, the geometric mean of the medians
};

/// The best value that is at least `least`, or the given one.
inline tuner_choice best_value(const tuner_question& question, std::size_t least) {
  const auto quantile = [](std::vector<double> ratios, double part) {
    std::sort(ratios.begin(), ratios.end());
    const double place = part * static_cast<double>(ratios.size() - 1);
    return ratios[static_cast<std::size_t>(std::ceil(place))];
  };
  tuner_choice best{0};
  double best_sum = 0;
  for (std::size_t v = 1; v < question.values.size(); ++v) {
    if (question.values[v] < least) continue;
    double sum = 0;
    double bound = 0;
    int sizes = 0;
    bool loses = false;
    for (const tuner_question::size& size : question.sizes) {
      if (size.same_as[v] == size.same_as[0]) continue;
      const std::vector<double>& given = size.times[size.same_as[0]];
      std::vector<double> ratios = size.times[size.same_as[v]];
      for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= given[i];
      const double median = quantile(ratios, 0.5);
      loses = loses || median > tuner_loss;
      sum += std::log(median);
      bound += std::log(quantile(ratios, 0.75));
      ++sizes;
    }
    if (sizes == 0 || loses || bound > sizes * std::log(tuner_gain) || sum >= best_sum) continue;
    best = {v, std::exp(sum / sizes)};
    best_sum = sum;
  }
  return best;
}

/// What rank 0 decides: asks the questions within the budget, and returns the tuning.
///
/// `ask(turns)` makes all ranks carry out the turns, and returns the seconds that each took on the
/// slowest rank; `now()` are the seconds since the start. `report` gets what came of it.
///
/// Small sizes go first; a size is left out, with all larger ones of its question, where the least
/// number of rounds with it would not fit in the budget.
template <class Ask, class Now>
tuning conduct_tuner(std::vector<tuner_question> questions, const tuning& given, double budget,
                     Ask&& ask, Now&& now, std::string& report) {
  constexpr double turn_seconds = 50e-6;  // of back-to-back calls, so that the clock weighs little
  constexpr double most_repeats = 1000;
  constexpr std::size_t most_rounds = 15;
  struct group {  // the turns that are compared with each other
    tuner_question* question;
    std::size_t size;
    std::uint32_t repeats = 1;
    double seconds = 0;  // that all of its turns took, last time
    std::size_t bytes() const { return question->sizes[size].bytes; }
  };
  const auto turn_of = [](const group& g, std::size_t v) {
    return tuner_turn{g.question->values[v],
                      g.bytes(),
                      g.repeats,
                      static_cast<std::uint16_t>(g.question->field),
                      g.question->what,
                      tuner_action::measure};
  };

  // What fits: each size once to touch the memory, and once to see how long it takes.
  std::vector<group> candidates;
  for (tuner_question& q : questions) {
    for (std::size_t s = 0; s < q.sizes.size(); ++s) candidates.push_back({&q, s});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const group& a, const group& b) { return a.bytes() < b.bytes(); });
  std::vector<group> groups;
  std::vector<double> a_byte(questions.size(), 0);  // what a call took for each, last time
  std::vector<bool> closed(questions.size(), false);
  double round = 0;  // what one takes
  for (group& g : candidates) {
    const auto q = static_cast<std::size_t>(g.question - questions.data());
    if (closed[q]) continue;
    const auto turns = static_cast<double>(g.question->sizes[g.size].measured());
    const auto fits = [&](double begun, double turn) {
      return begun + tuner_least_rounds * (round + turns * turn) <= budget;
    };
    const double begin = now();
    const double expected = a_byte[q] * static_cast<double>(g.bytes());
    closed[q] = !fits(begin + 2 * expected, expected);
    if (closed[q]) continue;
    const std::vector<double> tried = ask(std::vector<tuner_turn>(2, turn_of(g, 0)));
    const double end = now();
    const double around = (std::max)(0.0, (end - begin - tried[0] - tried[1]) / 2);
    const double call = (std::max)(tried[1], 1e-9);
    g.repeats = static_cast<std::uint32_t>((std::clamp)(turn_seconds / call, 1.0, most_repeats));
    a_byte[q] = call / static_cast<double>(g.bytes());
    const double turn = around + g.repeats * call;
    closed[q] = !fits(end, turn);
    if (closed[q]) continue;
    g.seconds = turns * turn;
    round += g.seconds;
    groups.push_back(g);
  }
  for (tuner_question& q : questions) {  // what does not fit has no say
    const auto kept = [&](const tuner_question::size& size) {
      return std::any_of(groups.begin(), groups.end(), [&](const group& g) {
        return g.question == &q && g.bytes() == size.bytes;
      });
    };
    const auto end = std::find_if_not(q.sizes.begin(), q.sizes.end(), kept);
    q.sizes.erase(end, q.sizes.end());
  }

  std::size_t rounds = 0;
  for (bool in_time = !groups.empty(); in_time && rounds < most_rounds; rounds += in_time ? 1 : 0) {
    in_time = now() + round <= budget;
    round = 0;
    for (group& g : groups) {
      const double begin = now();
      in_time = in_time && begin + g.seconds <= budget;
      if (!in_time) break;
      tuner_question::size& size = g.question->sizes[g.size];
      std::vector<tuner_turn> turns;
      std::vector<std::size_t> of;
      for (std::size_t i = 0; i < g.question->values.size(); ++i) {
        // Not always the same one first.
        const std::size_t v = (i + rounds) % g.question->values.size();
        if (size.same_as[v] != v) continue;
        turns.push_back(turn_of(g, v));
        of.push_back(v);
      }
      const std::vector<double> times = ask(turns);
      for (std::size_t i = 0; i < of.size(); ++i) {
        size.times[of[i]].push_back((std::max)(times[i], 1e-9) / g.repeats);
      }
      g.seconds = now() - begin;
      round += g.seconds;
    }
  }
  for (tuner_question& q : questions) {
    for (tuner_question::size& size : q.sizes) {
      for (std::vector<double>& times : size.times) times.resize((std::min)(times.size(), rounds));
    }
  }

  const auto milliseconds = [](double seconds) {
    return std::to_string(static_cast<long>(seconds * 1e3)) + " ms";
  };
  report = "measured for " + milliseconds(now()) + " in " + std::to_string(rounds) + " rounds: ";
  if (rounds < tuner_least_rounds) {
    report += "as given, since fewer than " + std::to_string(tuner_least_rounds) +
              " rounds say nothing; the budget is " + milliseconds(budget);
    return given;
  }
  tuning chosen = given;
  std::string changes;
  for (const tuner_question& q : questions) {
    const tuning_field& field = tuning_fields[q.field];
    // chunk_bytes limits the other chunks, too; its question is the last.
    const std::size_t least =
        field.value == &tuning::chunk_bytes
            ? (std::max)(chosen.exchange_chunk_bytes, chosen.rooted_chunk_bytes)
            : 0;
    const tuner_choice choice = best_value(q, least);
    if (choice.value == 0) continue;
    chosen.*field.value = q.values[choice.value];
    changes += (changes.empty() ? "" : ", ") + std::string(field.name) + " " +
               std::to_string(q.values[0]) + " -> " + std::to_string(q.values[choice.value]) +
               " (" + std::to_string(static_cast<int>(std::lround(100 * choice.ratio))) +
               " % of the time)";
  }
  report += changes.empty() ? "as given, nothing else was clearly faster" : changes;
  return chosen;
}

/// What there is to ask on this context; which values make no difference at a size is found out by
/// the code that the calls go by.
template <class Context>
std::vector<tuner_question> tuner_questions(Context& ctx) {
  const tuning given = ctx.tuning();
  const auto ranks = static_cast<std::size_t>(ctx.size());
  constexpr std::size_t element = sizeof(float);
  constexpr std::size_t kib = 1024;
  // For the buffers of all ranks of a host together, too.
  const std::size_t most = (std::min)(16 * kib * kib, 64 * kib * kib / ranks);
  std::vector<tuner_question> all;
  const auto ask = [&](std::size_t tuning::* value, collective what,
                       const std::vector<std::size_t>& values,
                       const std::vector<std::size_t>& sizes, auto&& way) {
    tuner_question q{0, what, {given.*value}};
    while (tuning_fields[q.field].value != value) ++q.field;
    for (const std::size_t v : values) {
      if (v != given.*value) q.values.push_back(v);
    }
    for (const std::size_t bytes : sizes) {
      std::vector<std::size_t> ways;
      tuner_question::size size{bytes, {}, std::vector<std::vector<double>>(q.values.size())};
      for (const std::size_t v : q.values) {
        tuning tune = given;
        tune.*value = v;
        ctx.set_tuning(tune);
        ways.push_back(way(bytes));
        size.same_as.push_back(static_cast<std::size_t>(
            std::find(ways.begin(), ways.end(), ways.back()) - ways.begin()));
      }
      if (size.measured() > 1) q.sizes.push_back(std::move(size));
    }
    ctx.set_tuning(given);
    if (!q.sizes.empty()) all.push_back(std::move(q));
  };
  const auto powers = [](std::size_t least, std::size_t greatest, std::size_t factor) {
    std::vector<std::size_t> sizes;
    for (; least <= greatest; least *= factor) sizes.push_back(least);
    return sizes;
  };
  const auto algorithm_of = [&](collective what) {
    return [&ctx, what](std::size_t bytes) {
      return static_cast<std::size_t>(
          algorithms::select(ctx, what, algorithm::automatic, bytes, element));
    };
  };
  const std::vector<std::size_t> chunks = powers(32 * kib, 1024 * kib, 2);

  ask(&tuning::inline_max_bytes, collective::all_gather, {0, 8, 16}, {8, 16, 32},
      algorithm_of(collective::all_gather));
  if (ranks > 1) {
    // By the bytes that a rank reads from its peers.
    std::vector<std::size_t> reads =
        powers(32 * kib, (std::min)(4096 * kib, most * (ranks - 1)), 2);
    std::vector<std::size_t> sizes;
    for (const std::size_t bytes : reads) {
      sizes.push_back(round_down(bytes / (ranks - 1), cache_line));
    }
    std::erase(sizes, 0);
    ask(&tuning::one_shot_max_bytes, collective::all_reduce, reads, sizes,
        algorithm_of(collective::all_reduce));
  }
  if (algorithms::has_two_levels(ctx, element)) {
    const std::vector<std::size_t> sizes = powers(2 * kib, 64 * kib, 2);
    ask(&tuning::whole_rail_max_bytes, collective::all_reduce, sizes, sizes,
        [&](std::size_t bytes) {
          return std::size_t{bytes <= ctx.tuning().whole_rail_max_bytes ? 1U : 0U};
        });
  }
  ask(&tuning::exchange_chunk_bytes, collective::all_gather, chunks,
      powers(64 * kib, most / ranks, 4),
      [&](std::size_t bytes) { return (std::min)(bytes, exchange_bytes(ctx)); });
  ask(&tuning::rooted_chunk_bytes, collective::broadcast, chunks, powers(64 * kib, most, 4),
      [&](std::size_t bytes) { return (std::min)(bytes, rooted_bytes(ctx, bytes)); });
  ask(&tuning::chunk_bytes, collective::all_reduce, chunks, powers(64 * kib, most, 4),
      [&](std::size_t bytes) { return (std::min)(bytes, staging_bytes(ctx)); });
  return all;
}

/// Carries out turns on one rank, on memory of its own.
template <class Context>
class tuner_calls {
 public:
  tuner_calls(Context& ctx, const kernel::reducer& sum) : ctx_(ctx), sum_(sum) {}

  /// The seconds that it took this rank.
  double operator()(const tuner_turn& turn) {
    const std::size_t count = static_cast<std::size_t>(turn.bytes) / sizeof(float);
    const auto ranks = static_cast<std::size_t>(ctx_.size());
    const std::size_t need = turn.what == collective::all_gather ? count * ranks : count;
    if (data_.size() < need) data_ = std::vector<float>(need);
    float* const data = data_.data();
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < turn.repeats; ++i) {
      if (turn.what == collective::all_gather) {
        collectives::all_gather(ctx_, dtype::float32, sizeof(float),
                                data + static_cast<std::size_t>(ctx_.rank()) * count, data, count,
                                {});
      } else if (turn.what == collective::broadcast) {
        collectives::broadcast(ctx_, dtype::float32, sizeof(float), data, count, 0, {});
      } else {
        collectives::all_reduce(ctx_, sum_, data, data, count, {});
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  Context& ctx_;
  const kernel::reducer& sum_;
  std::vector<float> data_;  // zeros, and their sums
};

}  // namespace detail

namespace collectives {

/// Gives the context the tuning that `options` of rank 0 ask for; returns what came of it, the same
/// text on all ranks. `measure(turn)` carries out a turn on this rank, under the tuning that the
/// context has then, and returns the seconds that it took.
///
/// Collective: all ranks, before any other call.
/// Cost:       about `options.budget`; with a file that has the tuning, two steps.
/// Throws:     as a collective; rank 0 `error` for a file that is broken or cannot be written, the
///             others aborted_error with its text.
template <class Context, class Measure>
std::string tune_by(Context& ctx, const tuner_options& options, Measure&& measure) {
  using detail::tuner_action;
  using detail::tuner_line;
  using detail::tuner_turn;
  if (ctx.size() == 1) return "as given: there is one rank";
  const auto call =
      fingerprint::of(collective::tune, 0, dtype::user, 0, algorithm::automatic, 0, 0);
  const tuning given = ctx.tuning();
  const auto begin = std::chrono::steady_clock::now();
  tuner_line line;
  double slowest = 0;
  // The step before a turn: tells it, and what the last one took.
  const auto exchange = [&] {
    const void* const* const lines = algorithms::inline_line_exchange(ctx, &line, sizeof line);
    tuner_turn next;
    slowest = 0;
    for (int r = 0; r < ctx.size(); ++r) {
      tuner_line theirs;
      std::memcpy(&theirs, lines[r], sizeof theirs);
      slowest = (std::max)(slowest, theirs.seconds);
      if (r == 0) next = theirs.turn;
    }
    line.turn = next;
  };
  const auto carry_out = [&] {
    ctx.set_tuning(line.turn.of(given));
    line.seconds = measure(std::as_const(line.turn));
  };
  // Of rank 0 only.
  tuning chosen = given;
  std::string report;
  std::optional<tuning_key> key;

  if (ctx.rank() == 0) {
    bool found = false;
    if (!options.file.empty()) {
      key = tuning_key{std::string(ctx.transport().name()), ctx.size()};
      if constexpr (algorithms::has_hosts<Context>) {
        key->hosts = static_cast<int>(ctx.layout().hosts());
      }
    }
    ctx.run(call, [&] {
      if (key) {  // inside of a call, so that what this throws ends the others', too
        const detail::tuning_file file(options.file);
        if (const std::optional<tuning> there = file.find(key->text())) {
          chosen = *there;
          found = true;
          report = "read from \"" + options.file + "\" for [" + key->text() + "]";
        } else {
          report = "\"" + options.file + "\" has no tuning for [" + key->text() + "]";
          for (const std::string& other : file.keys()) report += ", but one for [" + other + "]";
          report += "; now it has one, ";
        }
      }
      exchange();
    });
    if (!found) {
      const auto ask = [&](const std::vector<tuner_turn>& turns) {
        std::vector<double> times;
        for (std::size_t i = 0; i <= turns.size(); ++i) {
          line.turn = i < turns.size() ? turns[i] : tuner_turn{};
          ctx.run(call, exchange);
          if (i > 0) times.push_back(slowest);
          if (i < turns.size()) carry_out();
        }
        return times;
      };
      const auto now = [begin] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      };
      std::string measured;
      chosen = detail::conduct_tuner(detail::tuner_questions(ctx), given,
                                     std::chrono::duration<double>(options.budget).count(), ask,
                                     now, measured);
      report += measured;
    }
    ctx.run(call, [&] {
      if (key && !found) save_tuning(options.file, *key, chosen);
      line.turn = {};
      line.turn.action = tuner_action::end;
      line.turn.bytes = report.size();
      exchange();
    });
  } else {
    while (line.turn.action != tuner_action::end) {
      ctx.run(call, exchange);
      if (line.turn.action == tuner_action::measure) carry_out();
    }
    report.resize(static_cast<std::size_t>(line.turn.bytes));
  }

  ctx.set_tuning(given);
  static_assert(std::is_trivially_copyable_v<tuning>);
  collectives::broadcast(ctx, dtype::user, 1, &chosen, sizeof chosen, 0, {});
  collectives::broadcast(ctx, dtype::user, 1, report.data(), report.size(), 0, {});
  ctx.set_tuning(chosen);
  return report;
}

/// The same by calls of all_reduce, all_gather and broadcast; `sum` is a reducer of float32.
template <class Context>
std::string tune(Context& ctx, const tuner_options& options, const kernel::reducer& sum) {
  return tune_by(ctx, options, detail::tuner_calls<Context>(ctx, sum));
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
