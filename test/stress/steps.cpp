// SPDX-License-Identifier: Apache-2.0
// Random mixes of collectives on ranks that dawdle at random, each result compared with a scalar
// computation of its own; and the same with one rank that fails somewhere.
//
// RANKFOLD_STRESS_SECONDS says how long (default 3), RANKFOLD_TEST_SEED where to begin. A failure
// names the seed of its round: with that as RANKFOLD_TEST_SEED it is the first round.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/values.hpp"

using namespace rankfold;
using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;
using values::random_bits;

namespace {

using comm_t = communicator<threads_transport>;

#if defined(__SANITIZE_THREAD__)
constexpr bool slowed_down = true;
#else
constexpr bool slowed_down = false;
#endif
/// Within this time all ranks know that one has failed.
constexpr auto bound = slowed_down ? 5s : 1s;

std::chrono::duration<double> stress_time() {
  const char* const text = std::getenv("RANKFOLD_STRESS_SECONDS");
  return std::chrono::duration<double>(text != nullptr ? std::strtod(text, nullptr) : 3.0);
}

// --- elements
// -------------------------------------------------------------------------------------

std::uint64_t mix(std::uint64_t x) { return random_bits(x)(); }

/// x → a·x + b, modulo 2^32, in three words: composition depends on the order. 12 bytes, so that no
/// cache line holds a whole number of them.
struct affine {
  std::uint32_t a, b, check;
  friend bool operator==(const affine&, const affine&) = default;
};

class planted : public std::runtime_error {
 public:
  planted() : std::runtime_error("planted in the operator") {}
};

thread_local int throw_after = -1;  // operations until compose throws; below 0: never
thread_local std::uint64_t operations = 0;

/// First the left one, then the right one. Dawdles now and then.
struct compose {
  affine operator()(const affine& f, const affine& g) const {
    if (throw_after >= 0 && throw_after-- == 0) throw planted();
    if (++operations % 509 == 0) std::this_thread::yield();
    return {f.a * g.a, g.a * f.b + g.b, f.check ^ g.check};
  }
};

/// Element i of a rank in a call.
template <class T>
T item(std::uint64_t call_seed, int rank, std::size_t i) {
  const std::uint64_t x = mix(call_seed ^ static_cast<std::uint64_t>(rank) << 56 ^ i);
  if constexpr (std::is_same_v<T, affine>) {
    return {static_cast<std::uint32_t>(x) | 1, static_cast<std::uint32_t>(x >> 32),
            static_cast<std::uint32_t>(x >> 16)};
  } else if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(static_cast<std::int64_t>(x)) * 0x1p-40F;  // sums round
  } else {
    return static_cast<T>(x);
  }
}

template <class T, class Op>
T combine(T x, T y) {
  if constexpr (std::is_same_v<T, affine>) {
    return {x.a * y.a, y.a * x.b + y.b, x.check ^ y.check};
  } else if constexpr (std::is_same_v<Op, rankfold::max>) {
    return x < y ? y : x;
  } else if constexpr (std::is_same_v<Op, bit_xor>) {
    return static_cast<T>(x ^ y);
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return static_cast<T>(static_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(y));
  } else {
    return x + y;
  }
}

/// Element i folded over ranks first … first + n - 1: split at the largest power of two below n.
template <class T, class Op>
T folded(std::uint64_t call_seed, int first, int n, std::size_t i) {
  if (n == 1) return item<T>(call_seed, first, i);
  int left = 1;
  while (2 * left < n) left *= 2;
  return combine<T, Op>(folded<T, Op>(call_seed, first, left, i),
                        folded<T, Op>(call_seed, first + left, n - left, i));
}

/// `count` elements between two fences.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t count)
      : count_(count), bytes_(2 * fence + count * sizeof(T), std::byte{0x5A}) {}
  std::span<T> span() { return {reinterpret_cast<T*>(bytes_.data() + fence), count_}; }
  bool fences_stand() const {
    for (std::size_t i = 0; i < fence; ++i) {
      if (bytes_[i] != std::byte{0x5A} || bytes_[bytes_.size() - 1 - i] != std::byte{0x5A})
        return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t fence = 64;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

// --- calls
// ----------------------------------------------------------------------------------------

enum class kind {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  uneven_reduce_scatter,
  uneven_all_gather,
  uneven_gather,
  uneven_scatter,
  uneven_all_to_all,
  barrier
};
enum class of_type { float_sum, float_max, int_sum, short_xor, affine_compose };

struct call {
  kind what = kind::barrier;
  of_type type = of_type::int_sum;
  std::size_t count = 0;
  int root = 0;
  call_options options;
  std::uint64_t seed = 0;

  std::string text() const {
    return std::array{"all_reduce",        "reduce_scatter", "all_gather",
                      "broadcast",         "reduce",         "gather",
                      "scatter",           "all_to_all",     "uneven reduce_scatter",
                      "uneven all_gather", "uneven gather",  "uneven scatter",
                      "uneven all_to_all", "barrier"}[static_cast<std::size_t>(what)] +
           std::string(" of ") + std::to_string(count) + " × type " +
           std::to_string(static_cast<int>(type)) + ", root " + std::to_string(root) +
           ", algorithm " + std::string(name_of(options.algorithm)) + ": ";
  }
};

std::size_t size_of(of_type type) {
  return std::array<std::size_t, 5>{4, 4, 4, 2, sizeof(affine)}[static_cast<std::size_t>(type)];
}

template <class T, std::size_t N>
T any_of(random_bits& random, const std::array<T, N>& choice) {
  return choice[random.below(N)];
}

/// The next call of a sequence: the same on every rank that draws from the same bits.
call next_call(random_bits& shared, int ranks, std::size_t chunk_bytes) {
  call c;
  c.seed = shared();
  c.what = any_of(
      shared, std::array{kind::all_reduce, kind::all_reduce, kind::all_reduce, kind::reduce_scatter,
                         kind::all_gather, kind::broadcast, kind::broadcast, kind::reduce,
                         kind::reduce, kind::gather, kind::scatter, kind::all_to_all,
                         kind::uneven_reduce_scatter, kind::uneven_all_gather, kind::uneven_gather,
                         kind::uneven_scatter, kind::uneven_all_to_all, kind::barrier});
  c.type = static_cast<of_type>(shared.below(5));
  c.root = static_cast<int>(shared.below(static_cast<std::size_t>(ranks)));
  c.options.tag = static_cast<std::uint32_t>(shared.below(4));
  const std::size_t chunk = chunk_bytes / size_of(c.type) + 1;
  const auto near = [&](std::size_t x) { return x + shared.below(3) - (x > 0 ? 1 : 0); };
  switch (shared.below(6)) {
    case 0:
      c.count = shared.below(3);
      break;
    case 1:
      c.count = near(static_cast<std::size_t>(ranks));
      break;
    case 2:
      c.count = near(chunk);
      break;
    case 3:
      c.count = near(chunk / static_cast<std::size_t>(ranks));
      break;
    case 4:
      c.count = 3 * chunk + 7;
      break;
    default:
      c.count = shared.below(2 * chunk + 16);
  }
  if (c.what == kind::all_reduce || c.what == kind::reduce) {
    c.options.algorithm =
        any_of(shared, std::array{algorithm::automatic, algorithm::one_shot, algorithm::two_shot});
  }
  return c;
}

/// Nothing, mostly; else something between a yield and a nap, and rarely one long enough for peers
/// to fall asleep.
void dawdle(random_bits& own) {
  switch (own.below(24)) {
    case 0:
    case 1:
      std::this_thread::yield();
      break;
    case 2:
      std::this_thread::sleep_for(std::chrono::microseconds(own.below(50)));
      break;
    case 3:
      if (own.below(8) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(own.below(1500)));
      break;
    case 4:
      for (const auto until = steady::now() + 5us; steady::now() < until;) {
      }
      break;
    default:
      break;
  }
}

/// How many elements each rank's block has.
std::vector<std::size_t> counts_of(const call& c, int ranks) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) {
    const bool uneven = c.what >= kind::uneven_reduce_scatter && c.what != kind::barrier;
    const auto share = mix(c.seed + static_cast<std::uint64_t>(r) * 77);
    counts.push_back(!uneven ? c.count : share % 4 == 0 ? 0 : share % (c.count + 1));
  }
  return counts;
}

/// Where block `rank` begins; all of them where it is the number of ranks.
std::size_t begin_of(const std::vector<std::size_t>& counts, std::size_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank),
                         std::size_t{0});
}

template <class T, class Op>
std::string reduce(comm_t& comm, const call& c, random_bits& own) {
  const int ranks = comm.size();
  const auto me = static_cast<std::size_t>(comm.rank());
  const bool scatters = c.what == kind::reduce_scatter || c.what == kind::uneven_reduce_scatter;
  const std::vector<std::size_t> counts = counts_of(c, ranks);
  const std::size_t count = counts[me];
  const std::size_t begin = scatters ? begin_of(counts, me) : 0;
  const bool gets = c.what != kind::reduce || comm.rank() == c.root;
  buffer<T> in(scatters ? begin_of(counts, counts.size()) : count);
  buffer<T> out(gets ? count : 0);
  for (std::size_t i = 0; i < in.span().size(); ++i) in.span()[i] = item<T>(c.seed, comm.rank(), i);
  const bool in_place = own.below(2) == 0;  // each rank as it likes
  std::span<T> result = in_place ? in.span() : out.span();
  switch (c.what) {
    case kind::reduce_scatter:
      if (in_place) {
        result = comm.reduce_scatter(in.span(), Op{}, c.options);
      } else {
        comm.reduce_scatter(in.span(), out.span(), Op{}, c.options);
      }
      break;
    case kind::uneven_reduce_scatter:
      if (in_place) {
        result = comm.reduce_scatter(in.span(), counts, Op{}, c.options);
      } else {
        comm.reduce_scatter(in.span(), out.span(), counts, Op{}, c.options);
      }
      break;
    case kind::reduce:
      if (in_place) {
        comm.reduce(in.span(), c.root, Op{}, c.options);
      } else {
        comm.reduce(in.span(), out.span(), c.root, Op{}, c.options);
      }
      break;
    default:
      if (in_place) {
        comm.all_reduce(in.span(), Op{}, c.options);
      } else {
        comm.all_reduce(in.span(), out.span(), Op{}, c.options);
      }
  }
  for (std::size_t i = 0; i < count && gets; ++i) {
    if (!(result[i] == folded<T, Op>(c.seed, 0, ranks, begin + i))) {
      return c.text() + "wrong at " + std::to_string(i);
    }
  }
  for (std::size_t i = 0; i < in.span().size(); ++i) {
    const bool is_result = gets && in_place && i >= begin && i < begin + count;
    if (!is_result && !(in.span()[i] == item<T>(c.seed, comm.rank(), i))) {
      return c.text() + "input changed at " + std::to_string(i);
    }
  }
  return in.fences_stand() && out.fences_stand() ? "" : c.text() + "written outside";
}

/// "" if `found` is the elements of rank `from` from `begin` on.
template <class T>
std::string compare(const call& c, std::span<const T> found, int from, std::size_t begin) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!(found[i] == item<T>(c.seed, from, begin + i))) {
      return c.text() + "wrong at " + std::to_string(i) + " of rank " + std::to_string(from);
    }
  }
  return "";
}

/// all_gather and gather.
template <class T>
std::string bring(comm_t& comm, const call& c, random_bits& own) {
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::vector<std::size_t> counts = counts_of(c, comm.size());
  const bool rooted = c.what == kind::gather || c.what == kind::uneven_gather;
  const bool gets = !rooted || comm.rank() == c.root;
  const std::vector<std::size_t> known = gets ? counts : std::vector<std::size_t>{};
  buffer<T> in(counts[me]);
  buffer<T> out(gets ? begin_of(counts, counts.size()) : 0);
  const bool in_place = gets && own.below(2) == 0;
  const std::span<T> mine =
      in_place ? out.span().subspan(begin_of(counts, me), counts[me]) : in.span();
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = item<T>(c.seed, comm.rank(), i);
  switch (c.what) {
    case kind::all_gather:
      if (in_place) {
        comm.all_gather(out.span(), c.options);
      } else {
        comm.all_gather(mine, out.span(), c.options);
      }
      break;
    case kind::uneven_all_gather:
      if (in_place) {
        comm.all_gather(out.span(), counts, c.options);
      } else {
        comm.all_gather(mine, out.span(), counts, c.options);
      }
      break;
    case kind::gather:
      comm.gather(mine, out.span(), c.root, c.options);
      break;
    default:
      comm.gather(mine, out.span(), known, c.root, c.options);
  }
  for (std::size_t r = 0; r < known.size(); ++r) {
    const auto block = out.span().subspan(begin_of(counts, r), counts[r]);
    const std::string wrong = compare<T>(c, block, static_cast<int>(r), 0);
    if (!wrong.empty()) return wrong;
  }
  return in.fences_stand() && out.fences_stand() ? "" : c.text() + "written outside";
}

template <class T>
std::string hand_out(comm_t& comm, const call& c, random_bits& own) {
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::vector<std::size_t> counts = counts_of(c, comm.size());
  const bool is_root = comm.rank() == c.root;
  const std::size_t begin = begin_of(counts, me);
  buffer<T> in(is_root ? begin_of(counts, counts.size()) : 0);
  buffer<T> out(counts[me]);
  for (std::size_t i = 0; i < in.span().size(); ++i) in.span()[i] = item<T>(c.seed, c.root, i);
  const bool in_place = is_root && own.below(2) == 0;
  const std::span<T> mine = in_place ? in.span().subspan(begin, counts[me]) : out.span();
  if (c.what == kind::scatter) {
    comm.scatter(in.span(), mine, c.root, c.options);
  } else {
    const std::vector<std::size_t> known = is_root ? counts : std::vector<std::size_t>{};
    comm.scatter(in.span(), mine, known, c.root, c.options);
  }
  const std::string wrong = compare<T>(c, mine, c.root, begin);
  if (!wrong.empty()) return wrong;
  const std::string changed = compare<T>(c, in.span(), c.root, 0);
  if (!changed.empty()) return changed + " in the input";
  return in.fences_stand() && out.fences_stand() ? "" : c.text() + "written outside";
}

template <class T>
std::string turn(comm_t& comm, const call& c, random_bits& own) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  const bool even = c.what == kind::all_to_all;
  // As much from a to b as from b to a, so that each rank may do it in place as it likes.
  const auto sent_by = [&](std::size_t from) {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto share = mix(c.seed + (std::min)(from, r) * 64 + (std::max)(from, r));
      counts.push_back(even ? c.count : share % 3 == 0 ? 0 : share % (c.count + 1));
    }
    return counts;
  };
  const std::vector<std::size_t> counts = sent_by(me);
  const std::size_t total = begin_of(counts, ranks);
  const bool in_place = own.below(2) == 0;
  buffer<T> in(total);
  buffer<T> out(in_place ? 0 : total);
  for (std::size_t i = 0; i < total; ++i) in.span()[i] = item<T>(c.seed, comm.rank(), i);
  if (even) {
    if (in_place) {
      comm.all_to_all(in.span(), c.options);
    } else {
      comm.all_to_all(in.span(), out.span(), c.options);
    }
  } else if (in_place) {
    comm.all_to_all(in.span(), counts, c.options);
  } else {
    comm.all_to_all(in.span(), counts, out.span(), counts, c.options);
  }
  const std::span<T> result = in_place ? in.span() : out.span();
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto block = result.subspan(begin_of(counts, r), counts[r]);
    const std::string wrong = compare<T>(c, block, static_cast<int>(r), begin_of(sent_by(r), me));
    if (!wrong.empty()) return wrong;
  }
  return in.fences_stand() && out.fences_stand() ? "" : c.text() + "written outside";
}

template <class T>
std::string copy(comm_t& comm, const call& c, random_bits& own) {
  switch (c.what) {
    case kind::scatter:
    case kind::uneven_scatter:
      return hand_out<T>(comm, c, own);
    case kind::all_to_all:
    case kind::uneven_all_to_all:
      return turn<T>(comm, c, own);
    case kind::broadcast:
      break;
    default:
      return bring<T>(comm, c, own);
  }
  buffer<T> data(c.count);
  for (std::size_t i = 0; i < c.count; ++i) data.span()[i] = item<T>(c.seed, comm.rank(), i);
  comm.broadcast(data.span(), c.root, c.options);
  const std::string wrong = compare<T>(c, data.span(), c.root, 0);
  if (!wrong.empty()) return wrong;
  return data.fences_stand() ? "" : c.text() + "written outside";
}

/// Carries out a call; returns what is wrong with the result.
std::string make(comm_t& comm, const call& c, random_bits& own) {
  if (c.what == kind::barrier) {
    comm.barrier(c.options);
    return "";
  }
  const bool reduces = c.what == kind::all_reduce || c.what == kind::reduce_scatter ||
                       c.what == kind::reduce || c.what == kind::uneven_reduce_scatter;
  switch (c.type) {
    case of_type::float_sum:
      return reduces ? reduce<float, sum>(comm, c, own) : copy<float>(comm, c, own);
    case of_type::float_max:
      return reduces ? reduce<float, rankfold::max>(comm, c, own) : copy<float>(comm, c, own);
    case of_type::int_sum:
      return reduces ? reduce<std::int32_t, sum>(comm, c, own) : copy<std::int32_t>(comm, c, own);
    case of_type::short_xor:
      return reduces ? reduce<std::uint16_t, bit_xor>(comm, c, own)
                     : copy<std::uint16_t>(comm, c, own);
    case of_type::affine_compose:
      break;
  }
  return reduces ? reduce<affine, compose>(comm, c, own) : copy<affine>(comm, c, own);
}

// --- rounds
// ---------------------------------------------------------------------------------------

struct round_setup {
  int ranks;
  std::uint64_t seed;
  testing::run_options options;
};

round_setup setup_of(std::uint64_t seed) {
  random_bits random(seed * 0x9E3779B9U + 1);
  round_setup setup;
  setup.seed = seed;
  setup.ranks = any_of(random, std::array{2, 3, 4, 5, 8, 2, 3});
  communicator_options& options = setup.options.communicator;
  options.timeout = 20s;
  options.tune.inline_max_bytes = any_of(random, std::array<std::size_t, 3>{0, 8, 40});
  options.tune.one_shot_max_bytes = any_of(random, std::array<std::size_t, 3>{0, 200, 2000});
  options.tune.chunk_bytes = any_of(random, std::array<std::size_t, 4>{64, 200, 512, 3000});
  options.spin = any_of(random, std::array{0us, 20us, 200us});
  setup.options.threads.workspace_bytes = any_of(random, std::array<std::size_t, 2>{8192, 65536});
  return setup;
}

random_bits own_bits(std::uint64_t seed, int rank) {
  return random_bits(mix(seed) + static_cast<std::uint64_t>(rank));
}

/// Calls `round(seed)` for `share` of the time, with at least one seed after another; stops at the
/// first that says what is wrong.
void for_rounds(double share, const std::function<std::string(const round_setup&)>& round) {
  const auto until =
      steady::now() + std::chrono::duration_cast<steady::duration>(stress_time() * share);
  std::uint64_t seed = values::seed();
  int rounds = 0;
  do {
    const round_setup setup = setup_of(seed);
    INFO("seed " << seed << ", " << setup.ranks << " ranks, " << rounds << " rounds before");
    const std::string wrong = round(setup);
    CHECK(wrong == "");
    if (!wrong.empty()) return;
    ++seed;
    ++rounds;
  } while (steady::now() < until);
}

}  // namespace

TEST_CASE("random mixes of collectives give the right results whoever dawdles", "[stress][steps]") {
  for_rounds(0.6, [](const round_setup& setup) {
    const auto wrong = testing::run_ranks(
        setup.ranks,
        [&](comm_t& comm) -> std::string {
          random_bits shared(setup.seed);
          random_bits own = own_bits(setup.seed, comm.rank());
          for (int i = 0; i < 150; ++i) {
            dawdle(own);
            const call c =
                next_call(shared, comm.size(), setup.options.communicator.tune.chunk_bytes);
            const std::string found = make(comm, c, own);
            if (!found.empty())
              return "rank " + std::to_string(comm.rank()) + ", call " + std::to_string(i) + ", " +
                     found;
          }
          return "";
        },
        setup.options);
    std::string all;
    for (const std::string& text : wrong) all += text;
    return all;
  });
}

namespace {

enum class fault {
  operator_throws,
  all_throw,
  leaves,
  aborts,
  aborted_from_outside,
  other_tag,
  other_count,
  sleeps
};

/// What becomes of a rank.
struct outcome {
  std::string type;   // of what the first call that failed threw
  std::string text;   // of it
  std::string again;  // what the next call threw
  std::string wrong;  // a result that was not right
  steady::time_point ended;
};

template <class F>
void observe(outcome& o, F&& f) {
  try {
    f();
  } catch (const timeout_error& e) {
    o.type = "timeout_error", o.text = e.what();
  } catch (const peer_lost_error& e) {
    o.type = "peer_lost_error", o.text = e.what();
  } catch (const mismatch_error& e) {
    o.type = "mismatch_error", o.text = e.what();
  } catch (const aborted_error& e) {
    o.type = "aborted_error", o.text = e.what();
  } catch (const planted& e) {
    o.type = "planted", o.text = e.what();
  } catch (const std::exception& e) {
    o.type = "another exception", o.text = e.what();
  }
}

std::string check_outcome(const outcome& o, int rank, const std::string& type,
                          const std::string& part) {
  const auto says = [&](const std::string& text) {
    return "rank " + std::to_string(rank) + ": " + text + "; it threw " + o.type + " (" + o.text +
           "), then " + o.again + "\n";
  };
  if (!o.wrong.empty()) return says("wrong result: " + o.wrong);
  if (o.type != type) return says("expected " + type);
  if (o.text.find(part) == std::string::npos) return says("expected \"" + part + "\" in the text");
  return "";
}

std::string run_with_fault(round_setup setup) {
  random_bits random(setup.seed + 77);
  const auto what = static_cast<fault>(random.below(8));
  const int victim = static_cast<int>(random.below(static_cast<std::size_t>(setup.ranks)));
  const int at = static_cast<int>(random.below(30));
  if (what == fault::sleeps) setup.options.communicator.timeout = slowed_down ? 1500ms : 800ms;
  std::vector<outcome> outcomes(static_cast<std::size_t>(setup.ranks));
  steady::time_point failed_at;  // written by the victim, read when all have ended
  std::atomic<int> ended{0};

  testing::run_ranks(
      setup.ranks,
      [&](comm_t& comm) {
        outcome& mine = outcomes[static_cast<std::size_t>(comm.rank())];
        random_bits shared(setup.seed);
        random_bits own = own_bits(setup.seed, comm.rank());
        const bool is_victim = comm.rank() == victim;
        std::jthread from_outside;
        bool left = false;
        observe(mine, [&] {
          for (int i = 0;; ++i) {
            if (i > at + 1000) throw std::logic_error("the fault has been lost");
            dawdle(own);
            call c = next_call(shared, comm.size(), setup.options.communicator.tune.chunk_bytes);
            if (i == at && (what == fault::operator_throws || what == fault::all_throw)) {
              c.what = kind::all_reduce;
              c.type = of_type::affine_compose;
              c.count += 1;
              if (what == fault::all_throw) throw_after = 0;
            }
            if (i == at && is_victim) {
              failed_at = steady::now();
              switch (what) {
                case fault::operator_throws:
                  throw_after = static_cast<int>(own.below(2));
                  break;
                case fault::all_throw:
                  break;
                case fault::leaves:
                  left = true;
                  return;
                case fault::aborts:
                  comm.abort("planted by itself");
                  break;
                case fault::aborted_from_outside:
                  from_outside = std::jthread([&comm, nap = own.below(300)] {
                    std::this_thread::sleep_for(std::chrono::microseconds(nap));
                    comm.abort("planted from outside");
                  });
                  break;
                case fault::other_tag:
                  c.options.tag = 1000;
                  break;
                case fault::other_count:
                  // Whose counts are drawn may have the same ones all the same.
                  if (c.what >= kind::uneven_reduce_scatter) c.what = kind::broadcast;
                  c.count += 1;
                  break;
                case fault::sleeps:
                  // Until the others have given up, which takes them a timeout.
                  while (ended < setup.ranks - 1 && steady::now() - failed_at < 60s) {
                    std::this_thread::sleep_for(10ms);
                  }
                  break;
              }
            }
            mine.wrong = make(comm, c, own);
            if (!mine.wrong.empty()) {
              comm.abort("wrong result");
              return;
            }
          }
        });
        throw_after = -1;
        mine.ended = steady::now();
        if (left) {
          ++ended;
          return;
        }
        outcome next;
        observe(next, [&] { comm.barrier(); });
        mine.again = next.type + ": " + next.text;
        // Nobody leaves before all have seen what they must see.
        for (++ended; ended < comm.size();) std::this_thread::sleep_for(100us);
      },
      setup.options);

  std::string wrong;
  std::string cause;
  for (int r = 0; r < setup.ranks; ++r) {
    const outcome& o = outcomes[static_cast<std::size_t>(r)];
    const std::string who = "rank " + std::to_string(victim);
    switch (what) {
      case fault::operator_throws:
        wrong += r == victim ? check_outcome(o, r, "planted", "planted in the operator")
                             : check_outcome(o, r, "aborted_error", "planted in the operator");
        break;
      case fault::all_throw:
        // Who throws late may find another's mark first.
        wrong += check_outcome(o, r, o.type == "aborted_error" ? "aborted_error" : "planted",
                               "planted in the operator");
        break;
      case fault::leaves:
        if (r == victim) continue;
        wrong += check_outcome(o, r, "peer_lost_error", who + " left");
        break;
      case fault::aborts:
        wrong += check_outcome(o, r, "aborted_error", who + " aborted: planted by itself");
        break;
      case fault::aborted_from_outside:
        wrong += check_outcome(o, r, "aborted_error", who + " aborted: planted from outside");
        break;
      case fault::other_tag:
      case fault::other_count:
        wrong += check_outcome(o, r, "mismatch_error", who + " ");
        break;
      case fault::sleeps:
        wrong += check_outcome(o, r, "timeout_error", who + " did not arrive within");
        break;
    }
    auto late = o.ended - failed_at;
    if (what == fault::sleeps) late -= setup.options.communicator.timeout;
    if (late > bound) {
      wrong += "rank " + std::to_string(r) + " ended " +
               std::to_string(std::chrono::duration<double>(late).count()) + " s after the fault\n";
    }
    if (cause.empty()) cause = o.again;
    if (o.again != cause || cause.find("aborted_error: ") != 0) {
      wrong += "rank " + std::to_string(r) + " says " + o.again + ", another " + cause + "\n";
    }
  }
  if (!wrong.empty()) {
    wrong += "fault " + std::to_string(static_cast<int>(what)) + " on rank " +
             std::to_string(victim) + " at call " + std::to_string(at);
  }
  return wrong;
}

}  // namespace

TEST_CASE("when one rank fails somewhere, all end in the same error within a second",
          "[stress][abort]") {
  for_rounds(0.4, run_with_fault);
}
