// SPDX-License-Identifier: Apache-2.0
// What every transport must pass: the collectives' values to the bit, and their errors. Needs no
// test framework; whoever writes a transport runs it on theirs.
//
//     for (const auto& check : rankfold::testing::conformance_checks<my_transport>(run))
//     check.body();
//
// `run(ranks, options, f)` calls f(communicator<my_transport>&) on that many ranks, each in a
// thread of its own, with these communicator_options; it returns when all have ended and rethrows
// the first exception (as run_ranks does). The workspace should be small (64 KiB) so that chunks
// are many.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "rankfold/communicator.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace testing {

/// A check did not hold.
class conformance_failure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// One check; `body` throws conformance_failure (or what the library throws) if it does not hold.
struct conformance_check {
  std::string name;
  std::function<void()> body;
};

/// How conformance_checks runs ranks over the transport under test.
template <class Transport>
using conformance_run = std::function<void(int ranks, const communicator_options&,
                                           const std::function<void(communicator<Transport>&)>&)>;

/// The ranks, seed and sizes of a conformance run.
struct conformance_options {
  std::vector<int> ranks = {1, 2, 3, 4, 5, 8};
  std::uint64_t seed = 1;
};

namespace conformance_detail {

inline void require(bool holds, const std::string& text) {
  if (!holds) throw conformance_failure(text);
}

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64 (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The oracle: its own conversions and its own recursion, so that a fault of the library's kernels
// or algorithms cannot hide in it.

template <class T>
double widen(T x) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
  } else {
    return static_cast<double>(x);
  }
}

inline bfloat16 narrow_to_bfloat16(float f) {
  if (f != f) return bfloat16::from_bits(0x7fc0);
  const auto bits = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t half = 0x7fff + (bits >> 16 & 1);  // ties to even
  return bfloat16::from_bits(static_cast<std::uint16_t>((bits + half) >> 16));
}

template <class T>
T quiet(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x != x ? std::numeric_limits<T>::quiet_NaN() : x;
  } else {
    return x;
  }
}

enum class kind { sum, avg, max };

/// What a fold accumulates in, and one step of it, as docs/numerics.md says.
template <class T>
using wide = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

template <class W>
W combine(kind op, W a, W b) {
  if (op == kind::max) {
    if constexpr (std::is_floating_point_v<W>) {
      if (a != a || b != b) return std::numeric_limits<W>::quiet_NaN();
      if (a == b) return std::signbit(a) ? b : a;  // +0 is above -0
    }
    return a < b ? b : a;
  }
  if constexpr (std::is_integral_v<W>) {
    return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

/// The canonical tree: n ranks split at the largest power of two below n.
template <class W>
W tree(kind op, const W* x, std::size_t n) {
  if (n == 1) return x[0];
  std::size_t left = 1;
  while (2 * left < n) left *= 2;
  return combine(op, tree(op, x, left), tree(op, x + left, n - left));
}

template <class T>
T expected(kind op, const std::vector<T>& of_ranks) {
  std::vector<wide<T>> x;
  for (const T& value : of_ranks) x.push_back(static_cast<wide<T>>(widen(value)));
  if constexpr (std::is_integral_v<T>) x.assign(of_ranks.begin(), of_ranks.end());
  wide<T> result = tree(op, x.data(), x.size());
  if constexpr (!std::is_integral_v<T>) {
    if (op == kind::avg) result /= static_cast<wide<T>>(x.size());
  }
  if constexpr (std::is_same_v<T, bfloat16>) {
    return narrow_to_bfloat16(result);
  } else {
    return quiet(result);
  }
}

/// Element i of rank r: mostly of all magnitudes, some NaN (also signalling, negative), ±0, ±inf,
/// denormals.
template <class T>
T value(std::uint64_t seed, int r, std::size_t i) {
  const std::uint64_t bits = mix(mix(seed + static_cast<std::uint64_t>(r)) + i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    using word =
        std::conditional_t<sizeof(T) == 8, std::uint64_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
    // Random bits have all exponents alike; half of the values get ordinary ones.
    word w = static_cast<word>(bits >> (64 - 8 * sizeof(word)));
    if ((bits & 1) != 0) {
      const double ordinary = (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 1000;
      if constexpr (std::is_same_v<T, bfloat16>) {
        return narrow_to_bfloat16(static_cast<float>(ordinary));
      } else {
        return static_cast<T>(ordinary);
      }
    }
    if ((bits & 62) == 62)
      w = static_cast<word>(w << 15 << 15 << (sizeof(word) == 8 ? 15 : 0));  // ±0 …
    return std::bit_cast<T>(w);
  }
}

template <class T>
std::string name() {
  return std::string(name_of(dtype_of_v<T>));
}

template <class T>
std::vector<T> row(std::uint64_t seed, int r, std::size_t count) {
  std::vector<T> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value<T>(seed, r, i);
  return x;
}

/// Compares bits.
template <class T>
void require_same(const T* found, const T* wanted, std::size_t count, const std::string& what) {
  if (count == 0 || std::memcmp(found, wanted, count * sizeof(T)) == 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(found + i, wanted + i, sizeof(T)) != 0) {
      throw conformance_failure(what + ": element " + std::to_string(i) + " of " +
                                std::to_string(count) + " is " + std::to_string(widen(found[i])) +
                                ", expected " + std::to_string(widen(wanted[i])));
    }
  }
}

inline constexpr std::size_t chunk_bytes = 1024;

inline communicator_options small_chunks() {
  communicator_options options;
  options.timeout = std::chrono::seconds(60);
  options.tune.chunk_bytes = chunk_bytes;
  options.tune.one_shot_max_bytes = 2 * chunk_bytes;
  return options;
}

template <class T>
std::vector<std::size_t> sizes(int ranks) {
  const std::size_t p = static_cast<std::size_t>(ranks);
  const std::size_t chunk = chunk_bytes / sizeof(T);
  std::vector<std::size_t> all = {0,
                                  1,
                                  p - 1,
                                  p,
                                  p + 1,
                                  40 / sizeof(T),
                                  chunk - 1,
                                  chunk,
                                  chunk + 1,
                                  2 * chunk + 1,
                                  3 * chunk + 7};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

template <class Op, class T, class Comm>
void check_all_reduce(Comm& comm, kind op, std::uint64_t seed) {
  const int ranks = comm.size();
  for (const std::size_t count : sizes<T>(ranks)) {
    std::vector<T> wanted(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<T> column;
      for (int r = 0; r < ranks; ++r) column.push_back(value<T>(seed + count, r, i));
      wanted[i] = expected(op, column);
    }
    const std::vector<T> in = row<T>(seed + count, comm.rank(), count);
    for (const algorithm how :
         {algorithm::automatic, algorithm::inline_line, algorithm::one_shot, algorithm::two_shot}) {
      if (how == algorithm::inline_line && count * sizeof(T) > 40) continue;
      const std::string what = "all_reduce of " + std::to_string(count) + " " + name<T>() + ", " +
                               std::string(name_of(how)) + ", rank " + std::to_string(comm.rank()) +
                               " of " + std::to_string(ranks);
      const call_options options{.algorithm = how, .tag = 7};
      // Guards around the output, and an odd start, show stray writes and hidden alignment.
      std::vector<T> out(count + 2, in.empty() ? T{} : in[0]);
      const T guard = out.back();
      const std::span<T> inner = std::span(out).subspan(1, count);
      comm.all_reduce(std::span<const T>(in), inner, Op{}, options);
      require_same(inner.data(), wanted.data(), count, what);
      require_same(&out.front(), &guard, 1, what + ", before");
      require_same(&out.back(), &guard, 1, what + ", behind");
      std::copy(in.begin(), in.end(), inner.begin());
      comm.all_reduce(inner, Op{}, options);
      require_same(inner.data(), wanted.data(), count, what + ", in place");
      require_same(&out.back(), &guard, 1, what + ", in place, behind");
    }
  }
}

template <class T, class Comm>
void check_reduce_scatter(Comm& comm, std::uint64_t seed) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::size_t count : sizes<T>(comm.size())) {
    std::vector<T> wanted(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<T> column;
      for (int r = 0; r < comm.size(); ++r) {
        column.push_back(value<T>(seed + count, r, rank * count + i));
      }
      wanted[i] = expected(kind::sum, column);
    }
    std::vector<T> in = row<T>(seed + count, comm.rank(), count * ranks);
    const std::vector<T> before = in;
    const std::string what = "reduce_scatter of " + std::to_string(count) + " " + name<T>() +
                             ", rank " + std::to_string(rank) + " of " + std::to_string(ranks);
    std::vector<T> out(count);
    comm.reduce_scatter(std::span<const T>(in), std::span(out));
    require_same(out.data(), wanted.data(), count, what);
    const std::span<T> own = comm.reduce_scatter(std::span(in));
    require(own.data() == in.data() + rank * count && own.size() == count, what + ": wrong block");
    require_same(own.data(), wanted.data(), count, what + ", in place");
    require_same(in.data(), before.data(), rank * count, what + ", blocks before");
    require_same(in.data() + (rank + 1) * count, before.data() + (rank + 1) * count,
                 (ranks - rank - 1) * count, what + ", blocks behind");
  }
}

template <class T, class Comm>
void check_moves(Comm& comm, std::uint64_t seed) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::size_t count : sizes<T>(comm.size())) {
    std::vector<T> wanted;
    for (int r = 0; r < comm.size(); ++r) {
      const std::vector<T> theirs = row<T>(seed + count, r, count);
      wanted.insert(wanted.end(), theirs.begin(), theirs.end());
    }
    const std::vector<T> in = row<T>(seed + count, comm.rank(), count);
    const std::string what = std::to_string(count) + " " + name<T>() + ", rank " +
                             std::to_string(rank) + " of " + std::to_string(ranks);
    std::vector<T> out(count * ranks);
    comm.all_gather(std::span<const T>(in), std::span(out));
    require_same(out.data(), wanted.data(), out.size(), "all_gather of " + what);
    std::fill(out.begin(), out.end(), T{});
    std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(rank * count));
    comm.all_gather(std::span(out));
    require_same(out.data(), wanted.data(), out.size(), "all_gather in place of " + what);
    for (int root = 0; root < comm.size(); ++root) {
      std::vector<T> data = in;
      comm.broadcast(std::span(data), root);
      require_same(data.data(), wanted.data() + static_cast<std::size_t>(root) * count, count,
                   "broadcast from " + std::to_string(root) + " of " + what);
    }
  }
}

/// Runs f on `ranks` ranks and requires that each of them threw an E whose text has `part`.
template <class E, class Transport, class F>
void require_everywhere(const conformance_run<Transport>& run, int ranks,
                        const communicator_options& options, std::string_view part, F&& f) {
  std::vector<std::string> found(static_cast<std::size_t>(ranks), "nothing");
  run(ranks, options, [&](communicator<Transport>& comm) {
    std::string& mine = found[static_cast<std::size_t>(comm.rank())];
    try {
      f(comm);
    } catch (const E& e) {
      mine = std::string(e.what()).find(part) != std::string::npos
                 ? ""
                 : std::string("text: ") + e.what();
    } catch (const std::exception& e) {
      mine = std::string("another type: ") + e.what();
    }
  });
  for (int r = 0; r < ranks; ++r) {
    const std::string& text = found[static_cast<std::size_t>(r)];
    require(text.empty(), "rank " + std::to_string(r) + " of " + std::to_string(ranks) +
                              " should have thrown an error with «" + std::string(part) +
                              "», but threw " + text);
  }
}

}  // namespace conformance_detail

/// The checks of one transport.
template <transport Transport>
std::vector<conformance_check> conformance_checks(conformance_run<Transport> run,
                                                  const conformance_options& options = {}) {
  namespace cd = conformance_detail;
  using comm = communicator<Transport>;
  std::vector<conformance_check> checks;
  const auto add = [&checks](std::string name, std::function<void()> body) {
    checks.push_back({std::move(name), std::move(body)});
  };
  const std::uint64_t seed = options.seed;

  for (const int ranks : options.ranks) {
    const std::string on = " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    add("rank and size" + on, [=] {
      std::vector<int> seen(static_cast<std::size_t>(ranks), 0);
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::require(c.size() == ranks, "size() is " + std::to_string(c.size()));
        ++seen.at(static_cast<std::size_t>(c.rank()));
      });
      cd::require(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }),
                  "ranks are not 0 to size - 1, each once");
    });
    add("all_reduce gives the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_all_reduce<sum, float>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, float>(c, cd::kind::avg, seed);
        cd::check_all_reduce<max, float>(c, cd::kind::max, seed);
        cd::check_all_reduce<sum, bfloat16>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, bfloat16>(c, cd::kind::avg, seed);
        cd::check_all_reduce<sum, double>(c, cd::kind::sum, seed);
        cd::check_all_reduce<sum, std::uint8_t>(c, cd::kind::sum, seed);
        cd::check_all_reduce<max, std::int32_t>(c, cd::kind::max, seed);
        cd::check_all_reduce<sum, std::int64_t>(c, cd::kind::sum, seed);
      });
    });
    add("reduce_scatter gives the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_reduce_scatter<float>(c, seed);
        cd::check_reduce_scatter<bfloat16>(c, seed);
        cd::check_reduce_scatter<std::int32_t>(c, seed);
      });
    });
    add("all_gather and broadcast carry the bits as they are" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_moves<float>(c, seed);
        cd::check_moves<std::uint8_t>(c, seed);
        cd::check_moves<double>(c, seed);
      });
    });
    add("a user's operator folds in the canonical order" + on, [=] {
      struct pair {
        std::int32_t first;
        std::int32_t last;
        std::int32_t ordered;
      };
      // Associative only in order: it notices a rank that is folded out of turn.
      const auto join = [](const pair& a, const pair& b) {
        return pair{a.first, b.last, a.ordered & b.ordered & (a.last + 1 == b.first ? 1 : 0)};
      };
      run(ranks, cd::small_chunks(), [&](comm& c) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{1000}}) {
          std::vector<pair> x(count, pair{c.rank(), c.rank(), 1});
          c.all_reduce(std::span(x), join);
          for (const pair& p : x) {
            cd::require(p.first == 0 && p.last == c.size() - 1 && p.ordered == 1,
                        "ranks were folded out of order");
          }
        }
      });
    });
    add("a barrier holds everyone until the last has come" + on, [=] {
      std::atomic<int> arrived{0};
      run(ranks, cd::small_chunks(), [&](comm& c) {
        for (int i = 1; i <= 50; ++i) {
          if (cd::mix(static_cast<std::uint64_t>(i * 64 + c.rank())) % 8 == 0)
            std::this_thread::yield();
          ++arrived;
          c.barrier();
          cd::require(arrived >= i * c.size(), "left barrier " + std::to_string(i) + " too early");
          c.barrier();
        }
      });
    });
    if (ranks == 1) continue;

    const auto differs = [=](const std::string& what, std::string_view part,
                             std::function<void(comm&)> call) {
      add("mismatch is an error on every rank: " + what + on, [=] {
        cd::require_everywhere<mismatch_error, Transport>(run, ranks, cd::small_chunks(), part,
                                                          [&](comm& c) {
                                                            call(c);
                                                            c.barrier();
                                                          });
      });
    };
    const auto last = [](comm& c) { return c.rank() == c.size() - 1; };
    differs("count", "of 5 × float32", [=](comm& c) {
      std::vector<float> x(last(c) ? 5 : 4);
      c.all_reduce(std::span(x));
    });
    differs("element type", "× int32", [=](comm& c) {
      std::vector<float> x(4);
      std::vector<std::int32_t> y(4);
      if (last(c)) return c.all_reduce(std::span(y));
      c.all_reduce(std::span(x));
    });
    differs("operator", "by max", [=](comm& c) {
      std::vector<float> x(4);
      if (last(c)) return c.all_reduce(std::span(x), max{});
      c.all_reduce(std::span(x));
    });
    differs("operation", "all_gather", [=](comm& c) {
      std::vector<float> x(4);
      std::vector<float> y(4 * static_cast<std::size_t>(c.size()));
      if (last(c)) return c.all_gather(std::span<const float>(x), std::span(y));
      c.all_reduce(std::span(x));
    });
    differs("algorithm", "one_shot", [=](comm& c) {
      std::vector<float> x(4);
      c.all_reduce(std::span(x), sum{},
                   {.algorithm = last(c) ? algorithm::one_shot : algorithm::automatic});
    });
    differs("tag", "tag 9", [=](comm& c) {
      std::vector<float> x(4);
      c.all_reduce(std::span(x), sum{}, {.tag = last(c) ? 9u : 8u});
    });
    differs("root", "from root", [=](comm& c) {
      std::vector<float> x(4);
      c.broadcast(std::span(x), last(c) ? 0 : 1);
    });
    add("a rank that never arrives is named at the deadline" + on, [=] {
      communicator_options impatient = cd::small_chunks();
      impatient.timeout = std::chrono::milliseconds(300);
      std::atomic<int> done{0};
      cd::require_everywhere<error, Transport>(run, ranks, impatient,
                                               "rank " + std::to_string(ranks - 1), [&](comm& c) {
                                                 if (last(c)) {
                                                   while (done < ranks - 1)
                                                     std::this_thread::yield();
                                                 }
                                                 try {
                                                   c.barrier();
                                                 } catch (const timeout_error&) {
                                                   ++done;
                                                   throw;
                                                 } catch (...) {
                                                   if (!last(c)) done = ranks;
                                                   throw;
                                                 }
                                               });
    });
    add("a rank that leaves is noticed within a second" + on, [=] {
      const auto begin = std::chrono::steady_clock::now();
      std::vector<std::string> found(static_cast<std::size_t>(ranks));
      run(ranks, cd::small_chunks(), [&](comm& c) {
        if (last(c)) return;
        try {
          c.barrier();
        } catch (const peer_lost_error& e) {
          found[static_cast<std::size_t>(c.rank())] = e.what();
        }
      });
      const auto took = std::chrono::steady_clock::now() - begin;
      for (int r = 0; r < ranks - 1; ++r) {
        cd::require(found[static_cast<std::size_t>(r)].find("rank " + std::to_string(ranks - 1) +
                                                            " left") != std::string::npos,
                    "rank " + std::to_string(r) + " got: " + found[static_cast<std::size_t>(r)]);
      }
      cd::require(took < std::chrono::seconds(2), "it took more than a second");
    });
    add("abort ends every rank's call, and the next names the cause" + on, [=] {
      std::vector<std::string> next(static_cast<std::size_t>(ranks));
      cd::require_everywhere<aborted_error, Transport>(
          run, ranks, cd::small_chunks(), "enough", [&](comm& c) {
            if (last(c)) {
              c.abort("enough");
            }
            try {
              c.barrier();
            } catch (...) {
              try {
                c.barrier();
              } catch (const aborted_error& e) {
                next[static_cast<std::size_t>(c.rank())] = e.what();
              }
              throw;
            }
          });
      for (const std::string& text : next) {
        cd::require(text.find("enough") != std::string::npos, "the next call said: " + text);
      }
    });
    add("an operator that throws ends every rank's call" + on, [=] {
      std::atomic<int> ended{0};
      run(ranks, cd::small_chunks(), [&](comm& c) {
        std::vector<std::int32_t> x(100, 1);
        try {
          const auto add_or_throw = [&](std::int32_t a, std::int32_t b) {
            if (last(c)) throw std::runtime_error("my operator");
            return a + b;
          };
          c.all_reduce(std::span(x), add_or_throw, {.algorithm = algorithm::one_shot});
          c.barrier();
        } catch (const std::runtime_error& e) {
          cd::require(std::string(e.what()).find("my operator") != std::string::npos, e.what());
          ++ended;
        }
      });
      cd::require(ended == ranks, "only " + std::to_string(ended) + " ranks ended");
    });
  }
  return checks;
}

}  // namespace testing

RANKFOLD_END_NAMESPACE
