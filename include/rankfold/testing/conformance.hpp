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
//
// Where each rank is a process (mpirun), set conformance_options::processes. Every process then
// runs the same checks in the same order, and `run` calls f in this process if its rank is below
// `ranks`, on a communicator of the first `ranks` processes, else does nothing. A check judges by
// what the ranks of this process see: it holds if it holds in all processes.
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
#include <iterator>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "rankfold/async.hpp"
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
  /// Ranks are processes, so that checks cannot compare what they saw.
  bool processes = false;
  /// The transport notices at once that a rank has left. Where it does not, only deadlines tell.
  bool notices_loss = true;
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

/// Of the floats of 8 and 16 bits: the bits of the fraction, the exponent's bias, the magnitude
/// that too large numbers become, and the NaN.
struct layout {
  int fraction;
  int bias;
  int largest;
  int nan;
};
template <class T>
inline constexpr layout layout_of = {};
template <>
inline constexpr layout layout_of<bfloat16> = {7, 127, 0x7f80, 0x7fc0};
template <>
inline constexpr layout layout_of<float16> = {10, 15, 0x7c00, 0x7e00};
template <>
inline constexpr layout layout_of<float8_e4m3fn> = {3, 7, 0x7e, 0x7f};
template <>
inline constexpr layout layout_of<float8_e5m2> = {2, 15, 0x7c, 0x7f};

template <class T>
inline constexpr bool is_small_v = layout_of<T>.fraction != 0;

template <class T>
double widen(T x) {
  if constexpr (is_small_v<T>) {
    constexpr layout l = layout_of<T>;
    constexpr bool has_infinity = !std::is_same_v<T, float8_e4m3fn>;
    constexpr int hidden = 1 << l.fraction;
    constexpr int sign = 1 << (8 * sizeof(T) - 1);
    const int magnitude = x.bits & (sign - 1);
    double value = std::ldexp(magnitude % hidden, 1 - l.bias - l.fraction);
    if (magnitude >= hidden) {
      value = std::ldexp(magnitude % hidden + hidden, magnitude / hidden - l.bias - l.fraction);
    }
    if (magnitude == l.largest && has_infinity) value = std::numeric_limits<double>::infinity();
    if (magnitude > l.largest) value = std::numeric_limits<double>::quiet_NaN();
    return (x.bits & sign) != 0 ? -value : value;
  } else {
    return static_cast<double>(x);
  }
}

/// A float in T, as docs/numerics.md says.
template <class T>
T narrow(float f) {
  using word = decltype(T::bits);
  constexpr layout l = layout_of<T>;
  if (f != f) return T::from_bits(static_cast<word>(l.nan));
  const int sign = std::signbit(f) ? 1 << (8 * sizeof(T) - 1) : 0;
  const double magnitude = std::fabs(f);
  if (std::isinf(f)) return T::from_bits(static_cast<word>(sign | l.largest));
  // In units of the last place, which is that of the least exponent below the normal range.
  const int least = 1 - l.bias;
  const int exponent = magnitude < std::ldexp(1.0, least) ? least : std::ilogb(magnitude);
  const double units = std::ldexp(magnitude, l.fraction - exponent);
  auto whole = static_cast<int>(units);
  const double rest = units - whole;
  if (rest > 0.5 || (rest == 0.5 && whole % 2 != 0)) ++whole;  // ties to even
  // The hidden bit, and a carry, add to the exponent.
  const int pattern = ((exponent + l.bias - 1) << l.fraction) + whole;
  return T::from_bits(static_cast<word>(sign | (std::min)(pattern, l.largest)));
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
using wide = std::conditional_t<is_small_v<T>, float, T>;

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
  if constexpr (is_small_v<T>) {
    return narrow<T>(result);
  } else {
    return quiet(result);
  }
}

/// Element i of rank r: ordinary numbers, random bits of all magnitudes, and one in eight a zero,
/// infinity, NaN (also signalling, negative) or denormal.
template <class T>
T value(std::uint64_t seed, int r, std::size_t i) {
  const std::uint64_t bits = mix(mix(seed + static_cast<std::uint64_t>(r)) + i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    using word = std::conditional_t<
        sizeof(T) == 8, std::uint64_t,
        std::conditional_t<sizeof(T) == 4, std::uint32_t,
                           std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
    constexpr int width = 8 * sizeof(word);
    constexpr int fraction = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : layout_of<T>.fraction;
    if ((bits & 1) != 0) {
      const double ordinary = (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 1000;
      if constexpr (is_small_v<T>) {
        return narrow<T>(static_cast<float>(ordinary));
      } else {
        return static_cast<T>(ordinary);
      }
    }
    if ((bits & 6) != 6) return std::bit_cast<T>(static_cast<word>(bits >> (64 - width)));
    constexpr std::uint64_t hidden = std::uint64_t{1} << fraction;
    constexpr std::uint64_t sign = std::uint64_t{1} << (width - 1);
    constexpr std::uint64_t infinity = sign - hidden;
    constexpr std::uint64_t special[] = {
        0, infinity, infinity + 1, 1, infinity + hidden / 2 + 3, hidden - 1, hidden, infinity - 1};
    const std::uint64_t pattern = special[bits >> 8 & 7] | ((bits & 8) != 0 ? sign : 0);
    return std::bit_cast<T>(static_cast<word>(pattern));
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
  options.tune.symmetric_min_bytes = chunk_bytes / 2;
  options.tune.symmetric_in_place_min_bytes = 2 * chunk_bytes;
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

/// The fold of the ranks' rows, from element `begin` on.
template <class T>
std::vector<T> folded(kind op, std::uint64_t seed, int ranks, std::size_t begin,
                      std::size_t count) {
  std::vector<T> result(count);
  std::vector<T> column(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < count; ++i) {
    for (int r = 0; r < ranks; ++r)
      column[static_cast<std::size_t>(r)] = value<T>(seed, r, begin + i);
    result[i] = expected(op, column);
  }
  return result;
}

/// "broadcast of 7 float32, rank 1 of 3".
template <class T, class Comm>
std::string describe(std::string_view what, const Comm& comm, std::size_t count) {
  return std::string(what) + " of " + std::to_string(count) + " " + name<T>() + ", rank " +
         std::to_string(comm.rank()) + " of " + std::to_string(comm.size());
}

template <class Op, class T, class Comm>
void check_all_reduce(Comm& comm, kind op, std::uint64_t seed) {
  const int ranks = comm.size();
  for (const std::size_t count : sizes<T>(ranks)) {
    const std::vector<T> wanted = folded<T>(op, seed + count, ranks, 0, count);
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

/// Epilogues get the bits of the fold, each element once, and blocks in order.
template <class Op, class T, class Comm>
void check_epilogues(Comm& comm, kind op, std::uint64_t seed) {
  struct seen {
    T x;
    std::size_t index;
  };
  for (const std::size_t count : sizes<T>(comm.size())) {
    const std::vector<T> wanted = folded<T>(op, seed + count, comm.size(), 0, count);
    std::vector<T> in = row<T>(seed + count, comm.rank(), count);
    const std::vector<T> before = in;
    for (const algorithm how : {algorithm::automatic, algorithm::one_shot, algorithm::two_shot}) {
      const std::string what = describe<T>("all_reduce with an epilogue", comm, count) + ", " +
                               std::string(name_of(how));
      std::vector<seen> out(count, seen{T{}, count});
      comm.all_reduce(std::span<const T>(in), std::span(out), Op{},
                      [](const T& x, std::size_t i) { return seen{x, i}; }, {.algorithm = how});
      for (std::size_t i = 0; i < count; ++i) {
        require(out[i].index == i, what + ": element " + std::to_string(i) + " is missing");
        require_same(&out[i].x, &wanted[i], 1, what);
      }
      in = before;
      std::size_t end = 0;
      comm.all_reduce(std::span<const T>(in), Op{},
                      [&](const T* block, std::size_t first, std::size_t some) {
                        require(first == end, what + ": blocks are not in order");
                        std::copy(block, block + some, in.data() + first);
                        end = first + some;
                      },
                      {.algorithm = how});
      require(end == count, what + ": blocks are missing");
      require_same(in.data(), wanted.data(), count, what + ", in blocks, in place");
      in = before;
    }
  }
}

template <class Op, class T, class Comm>
void check_reduce(Comm& comm, kind op, std::uint64_t seed) {
  for (const std::size_t count : sizes<T>(comm.size())) {
    const std::vector<T> wanted = folded<T>(op, seed + count, comm.size(), 0, count);
    const std::vector<T> in = row<T>(seed + count, comm.rank(), count);
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      const std::vector<T>& kept = is_root ? wanted : in;
      for (const algorithm how : {algorithm::automatic, algorithm::two_shot}) {
        const std::string what = describe<T>("reduce", comm, count) + ", root " +
                                 std::to_string(root) + ", " + std::string(name_of(how));
        std::vector<T> out(is_root ? count : 0);  // the others need none
        comm.reduce(std::span<const T>(in), std::span(out), root, Op{}, {.algorithm = how});
        require_same(out.data(), wanted.data(), out.size(), what);
        std::vector<T> data = in;
        comm.reduce(std::span(data), root, Op{}, {.algorithm = how});
        require_same(data.data(), kept.data(), count, what + ", in place");
      }
    }
  }
}

template <class T, class Comm>
void check_reduce_scatter(Comm& comm, std::uint64_t seed) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::size_t count : sizes<T>(comm.size())) {
    const std::vector<T> wanted =
        folded<T>(kind::sum, seed + count, comm.size(), rank * count, count);
    std::vector<T> in = row<T>(seed + count, comm.rank(), count * ranks);
    const std::vector<T> before = in;
    const std::string what = describe<T>("reduce_scatter", comm, count);
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

inline std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t first) {
  std::size_t sum = 0;
  for (std::size_t r = 0; r < first; ++r) sum += counts[r];
  return sum;
}

/// Tables of a count a rank: of all sizes; nothing but for one rank; nothing at all; single ones.
template <class T>
std::vector<std::vector<std::size_t>> count_tables(int ranks, std::uint64_t seed) {
  const auto p = static_cast<std::size_t>(ranks);
  const std::vector<std::size_t> all = sizes<T>(ranks);
  std::vector<std::vector<std::size_t>> tables(6, std::vector<std::size_t>(p, 0));
  for (std::size_t r = 0; r < p; ++r) {
    tables[0][r] = all[(r * 5 + 3) % all.size()];
    tables[1][r] = all[mix(seed + r) % all.size()];
    tables[2][r] = r % 2;
  }
  tables[3].front() = all.back();
  tables[4].back() = all.back();
  return tables;  // the last one is all zeros
}

template <class T, class Comm>
void check_uneven_reduce_scatter(Comm& comm, std::uint64_t seed) {
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::vector<std::size_t>& counts : count_tables<T>(comm.size(), seed)) {
    const std::size_t begin = sum_of(counts, rank);
    const std::size_t total = sum_of(counts, counts.size());
    const std::vector<T> wanted = folded<T>(kind::sum, seed, comm.size(), begin, counts[rank]);
    std::vector<T> in = row<T>(seed, comm.rank(), total);
    const std::vector<T> before = in;
    const std::string what = describe<T>("uneven reduce_scatter", comm, counts[rank]);
    std::vector<T> out(counts[rank]);
    comm.reduce_scatter(std::span<const T>(in), std::span(out), counts);
    require_same(out.data(), wanted.data(), out.size(), what);
    const std::span<T> own = comm.reduce_scatter(std::span(in), counts);
    require(own.data() == in.data() + begin && own.size() == counts[rank], what + ": wrong block");
    require_same(own.data(), wanted.data(), own.size(), what + ", in place");
    std::copy(before.begin() + static_cast<std::ptrdiff_t>(begin),
              before.begin() + static_cast<std::ptrdiff_t>(begin + own.size()), own.begin());
    require_same(in.data(), before.data(), total, what + ", the other blocks");
  }
}

template <class T, class Comm>
void check_moves(Comm& comm, std::uint64_t seed) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::size_t count : sizes<T>(comm.size())) {
    std::vector<T> wanted;  // every rank's row, one behind the other
    for (int r = 0; r < comm.size(); ++r) {
      const std::vector<T> theirs = row<T>(seed + count, r, count);
      wanted.insert(wanted.end(), theirs.begin(), theirs.end());
    }
    const std::vector<T> in = row<T>(seed + count, comm.rank(), count);
    const std::size_t own = rank * count;
    std::vector<T> out(count * ranks);
    comm.all_gather(std::span<const T>(in), std::span(out));
    require_same(out.data(), wanted.data(), out.size(), describe<T>("all_gather", comm, count));
    std::fill(out.begin(), out.end(), T{});
    std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(own));
    comm.all_gather(std::span(out));
    require_same(out.data(), wanted.data(), out.size(),
                 describe<T>("all_gather in place", comm, count));
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      const auto what = [&](std::string_view operation) {
        return describe<T>(operation, comm, count) + ", root " + std::to_string(root);
      };
      std::vector<T> data = in;
      comm.broadcast(std::span(data), root);
      require_same(data.data(), wanted.data() + static_cast<std::size_t>(root) * count, count,
                   what("broadcast"));

      std::vector<T> all(is_root ? count * ranks : 0);  // the others need none
      comm.gather(std::span<const T>(in), std::span(all), root);
      require_same(all.data(), wanted.data(), all.size(), what("gather"));
      data = in;
      if (is_root) {
        std::fill(all.begin(), all.end(), T{});
        std::copy(in.begin(), in.end(), all.begin() + static_cast<std::ptrdiff_t>(own));
      }
      comm.gather(is_root ? std::span(all) : std::span(data), root);
      require_same(all.data(), wanted.data(), all.size(), what("gather in place"));
      require_same(data.data(), in.data(), count, what("gather in place, the input"));

      if (is_root) all = wanted;
      std::fill(data.begin(), data.end(), T{});
      comm.scatter(std::span<const T>(all), std::span(data), root);
      require_same(data.data(), in.data(), count, what("scatter"));
      std::fill(data.begin(), data.end(), T{});
      comm.scatter(is_root ? std::span(all) : std::span(data), root);
      require_same(is_root ? all.data() + own : data.data(), in.data(), count,
                   what("scatter in place"));
      require_same(all.data(), wanted.data(), all.size(), what("scatter in place, the blocks"));
    }
    // Rank s sends rank r the elements from r · count on of its row.
    std::vector<T> mine = row<T>(seed, comm.rank(), count * ranks);
    std::vector<T> theirs;
    for (int s = 0; s < comm.size(); ++s) {
      const std::vector<T> sent = row<T>(seed, s, count * ranks);
      theirs.insert(theirs.end(), sent.begin() + static_cast<std::ptrdiff_t>(own),
                    sent.begin() + static_cast<std::ptrdiff_t>(own + count));
    }
    std::fill(out.begin(), out.end(), T{});
    comm.all_to_all(std::span<const T>(mine), std::span(out));
    require_same(out.data(), theirs.data(), out.size(), describe<T>("all_to_all", comm, count));
    comm.all_to_all(std::span(mine));
    require_same(mine.data(), theirs.data(), out.size(),
                 describe<T>("all_to_all in place", comm, count));
  }
}

template <class T, class Comm>
void check_uneven_moves(Comm& comm, std::uint64_t seed) {
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  for (const std::vector<std::size_t>& counts : count_tables<T>(comm.size(), seed + 1)) {
    const std::size_t count = counts[rank];
    const auto own = static_cast<std::ptrdiff_t>(sum_of(counts, rank));
    std::vector<T> wanted;
    for (int r = 0; r < comm.size(); ++r) {
      const std::vector<T> theirs = row<T>(seed, r, counts[static_cast<std::size_t>(r)]);
      wanted.insert(wanted.end(), theirs.begin(), theirs.end());
    }
    const std::vector<T> in = row<T>(seed, comm.rank(), count);
    std::vector<T> out(wanted.size());
    comm.all_gather(std::span<const T>(in), std::span(out), counts);
    require_same(out.data(), wanted.data(), out.size(),
                 describe<T>("uneven all_gather", comm, count));
    std::fill(out.begin(), out.end(), T{});
    std::copy(in.begin(), in.end(), out.begin() + own);
    comm.all_gather(std::span(out), counts);
    require_same(out.data(), wanted.data(), out.size(),
                 describe<T>("uneven all_gather in place", comm, count));
    for (int root = 0; root < comm.size(); ++root) {
      const bool is_root = comm.rank() == root;
      const auto what = [&](std::string_view operation) {
        return describe<T>(operation, comm, count) + ", root " + std::to_string(root);
      };
      const std::vector<std::size_t> known = is_root ? counts : std::vector<std::size_t>{};
      std::vector<T> all(is_root ? wanted.size() : 0);
      std::vector<T> data = in;
      comm.gather(std::span<const T>(in), std::span(all), known, root);
      require_same(all.data(), wanted.data(), all.size(), what("uneven gather"));
      if (is_root) {
        std::fill(all.begin(), all.end(), T{});
        std::copy(in.begin(), in.end(), all.begin() + own);
      }
      comm.gather(is_root ? std::span(all) : std::span(data), known, root);
      require_same(all.data(), wanted.data(), all.size(), what("uneven gather in place"));

      std::fill(data.begin(), data.end(), T{});
      comm.scatter(std::span<const T>(all), std::span(data), known, root);
      require_same(data.data(), in.data(), count, what("uneven scatter"));
      std::fill(data.begin(), data.end(), T{});
      comm.scatter(is_root ? std::span(all) : std::span(data), known, root);
      require_same(is_root ? all.data() + own : data.data(), in.data(), count,
                   what("uneven scatter in place"));
      require_same(all.data(), wanted.data(), all.size(),
                   what("uneven scatter in place, the blocks"));
    }
  }
}

/// Uneven all_to_all where rank s sends rank r `count_of(s, r)` elements of its row, one block
/// behind the other.
template <class T, class Comm, class Count>
void check_uneven_all_to_all(Comm& comm, std::uint64_t seed, const Count& count_of) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  const auto sent_by = [&](std::size_t s) {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r < ranks; ++r) counts.push_back(count_of(s, r));
    return counts;
  };
  const std::vector<std::size_t> send_counts = sent_by(rank);
  std::vector<std::size_t> recv_counts;
  std::vector<T> wanted;
  for (std::size_t s = 0; s < ranks; ++s) {
    const std::size_t begin = sum_of(sent_by(s), rank);
    recv_counts.push_back(count_of(s, rank));
    for (std::size_t i = 0; i < recv_counts.back(); ++i)
      wanted.push_back(value<T>(seed, static_cast<int>(s), begin + i));
  }
  std::vector<T> in = row<T>(seed, comm.rank(), sum_of(send_counts, ranks));
  std::vector<T> out(wanted.size());
  comm.all_to_all(std::span<const T>(in), send_counts, std::span(out), recv_counts);
  require_same(out.data(), wanted.data(), out.size(),
               describe<T>("uneven all_to_all", comm, in.size()));
}

/// In place: counts that are the same both ways.
template <class T, class Comm, class Count>
void check_uneven_all_to_all_in_place(Comm& comm, std::uint64_t seed, const Count& count_of) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rank = static_cast<std::size_t>(comm.rank());
  const auto counts_of = [&](std::size_t s) {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r < ranks; ++r) {
      counts.push_back(count_of((std::min)(s, r), (std::max)(s, r)));
    }
    return counts;
  };
  const std::vector<std::size_t> counts = counts_of(rank);
  std::vector<T> wanted;
  for (std::size_t s = 0; s < ranks; ++s) {
    const std::size_t begin = sum_of(counts_of(s), rank);
    for (std::size_t i = 0; i < counts[s]; ++i)
      wanted.push_back(value<T>(seed, static_cast<int>(s), begin + i));
  }
  std::vector<T> data = row<T>(seed, comm.rank(), wanted.size());
  comm.all_to_all(std::span(data), counts);
  require_same(data.data(), wanted.data(), data.size(),
               describe<T>("uneven all_to_all in place", comm, data.size()));
}

template <class T, class Comm>
void check_uneven_all_to_alls(Comm& comm, std::uint64_t seed) {
  const std::vector<std::size_t> all = sizes<T>(comm.size());
  const std::size_t p = static_cast<std::size_t>(comm.size());
  const auto any = [&](std::size_t s, std::size_t r) {
    return all[mix(seed + s * 64 + r) % all.size()];
  };
  const auto none = [](std::size_t, std::size_t) { return std::size_t{0}; };
  // One pair has more than the workspace, the others nothing.
  const auto one_pair = [&](std::size_t s, std::size_t r) {
    return s == 0 && r == p - 1 ? 200000 / sizeof(T) : 0;
  };
  // Everything goes to one rank.
  const auto to_last = [&](std::size_t s, std::size_t r) {
    return r == p - 1 ? all[s % 11 % all.size()] : 0;
  };
  check_uneven_all_to_all<T>(comm, seed, any);
  check_uneven_all_to_all<T>(comm, seed, none);
  check_uneven_all_to_all<T>(comm, seed, one_pair);
  check_uneven_all_to_all<T>(comm, seed, to_last);
  check_uneven_all_to_all_in_place<T>(comm, seed, any);
  check_uneven_all_to_all_in_place<T>(comm, seed, one_pair);
}

/// Message `number` from one rank to another.
inline std::vector<std::uint64_t> message(std::uint64_t seed, int from, int to, int number,
                                          std::size_t count) {
  std::vector<std::uint64_t> data(count);
  const std::uint64_t name =
      mix(seed + static_cast<std::uint64_t>(from * 64 + to)) + static_cast<std::uint64_t>(number);
  for (std::size_t i = 0; i < count; ++i) data[i] = mix(name + 1000 * i);
  return data;
}

/// Around what travels with a header, what fits in a slot, and what takes many.
inline constexpr std::size_t message_counts[] = {0, 1, 5, 6, 100, 128, 129, 700, 20'000};

template <class Comm>
void check_messages(Comm& comm, std::uint64_t seed) {
  const int me = comm.rank();
  int number = 0;
  for (const std::size_t count : message_counts) {
    for (int from = 0; from < comm.size(); ++from) {
      for (int to = 0; to < comm.size(); ++to) {
        const std::vector<std::uint64_t> data = message(seed, from, to, number, count);
        std::vector<std::uint64_t> found(count);
        if (me == from) comm.send(std::span(data), to, {.tag = 3});
        if (me == to) {
          comm.recv(std::span(found), from, {.tag = 3});
          require(found == data, "rank " + std::to_string(to) + " did not get what rank " +
                                     std::to_string(from) + " sent, " + std::to_string(count) +
                                     " elements");
        }
      }
    }
    ++number;
  }
  // Nobody receives in the order in which others send; a collective is in between.
  std::int32_t ranks = 1;
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < comm.size(); ++r) {
      const auto data = message(seed, me, r, i, 2);
      comm.send(std::span(data), r);
    }
    if (i == 1) comm.all_reduce(std::span(&ranks, 1));
    for (int r = comm.size(); r-- > 0;) {
      std::vector<std::uint64_t> found(2);
      comm.recv(std::span(found), r);
      require(found == message(seed, r, me, i, 2), "messages between pairs are mixed up");
    }
  }
  require(ranks == comm.size(), "a collective between messages went wrong");
}

template <class Comm>
void check_queue(Comm& comm, std::uint64_t seed) {
  const int me = comm.rank();
  auto queue = comm.async();
  std::vector<std::vector<std::uint64_t>> out;
  std::vector<std::vector<std::uint64_t>> in;
  std::vector<std::vector<std::int32_t>> sums;
  // Posted in an order of each rank's own, all before any is waited for.
  struct posted {
    std::uint64_t when;
    int peer;  // -1: a collective
    bool sends;
  };
  std::vector<posted> all;
  for (int r = 0; r < queue.size(); ++r) {
    for (const bool sends : {true, false}) {
      all.push_back(
          {mix(seed + static_cast<std::uint64_t>((me * 64 + r) * 2 + (sends ? 1 : 0))), r, sends});
    }
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    all.push_back({mix(seed * 7 + i + 100 * static_cast<std::uint64_t>(me)), -1, false});
  }
  std::sort(all.begin(), all.end(),
            [](const posted& a, const posted& b) { return a.when < b.when; });
  const auto count = [&](int from, int to) {
    return message_counts[static_cast<std::size_t>(from * 3 + to + 4) % std::size(message_counts)];
  };
  out.reserve(all.size());
  in.reserve(all.size());
  sums.reserve(all.size());
  std::vector<handle> handles;
  for (const posted& p : all) {
    if (p.peer < 0) {
      sums.emplace_back(1000, me);
      handles.push_back(queue.all_reduce(std::span(sums.back())));
    } else if (p.sends) {
      out.push_back(message(seed, me, p.peer, 0, count(me, p.peer)));
      handles.push_back(queue.send(std::span(out.back()), p.peer));
    } else {
      in.emplace_back(count(p.peer, me));
      handles.push_back(queue.recv(std::span(in.back()), p.peer));
    }
  }
  for (std::size_t i = handles.size(); i-- > 0;) handles[i].wait();
  std::size_t next = 0;
  for (const posted& p : all) {
    if (p.peer < 0 || p.sends) continue;
    require(in[next++] == message(seed, p.peer, me, 0, count(p.peer, me)),
            "a message that was posted did not come as it was sent");
  }
  const std::int32_t sum = queue.size() * (queue.size() - 1) / 2;
  for (const auto& s : sums) {
    require(std::all_of(s.begin(), s.end(), [&](std::int32_t x) { return x == sum; }),
            "a collective that was posted went wrong");
  }
  comm = queue.release();
  comm.barrier();
}

/// all_reduce of memory from allocate and of ordinary memory in turns, written over at once.
template <class Comm>
void check_allocated(Comm& comm) {
  const int me = comm.rank();
  const int size = comm.size();
  constexpr std::size_t most = 5 * chunk_bytes / sizeof(std::int32_t) + 3;
  auto lies = comm.template allocate<std::int32_t>(most + 1);
  auto freed = comm.template allocate<double>(3);
  require(std::count(lies.span().begin(), lies.span().end(), 0) ==
              static_cast<std::ptrdiff_t>(most + 1),
          "allocated memory is not zero");
  if (me % 2 == 0) freed = {};
  std::vector<std::int32_t> ordinary(most);
  std::vector<std::int32_t> out(most);
  int turn = 0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{127}, std::size_t{128}, most}) {
    for (const bool in_place : {false, true}) {
      for (const int lying : {size, 1, 0}) {  // so many ranks have their input in it
        const auto in = (me + turn++) % size < lying ? lies.span().subspan(1, count)
                                                     : std::span(ordinary).first(count);
        const auto into = in_place ? in : std::span(out).first(count);
        for (std::size_t i = 0; i < count; ++i) in[i] = me + static_cast<std::int32_t>(i);
        comm.all_reduce(in, into);
        for (std::size_t i = 0; i < count; ++i) {
          require(into[i] == size * (size - 1) / 2 + size * static_cast<std::int32_t>(i),
                  "a sum of allocated memory is wrong");
        }
        std::fill(in.begin(), in.end(), -1);
      }
    }
  }
}

template <class Comm>
void check_groups(Comm& comm) {
  const int me = comm.rank();
  const int size = comm.size();
  auto halves = comm.split(me % 2, -me);  // in reverse
  auto reversed = comm.split(0, -me);
  auto some = comm.split_or_none(me == 0 && size > 1 ? undefined : 7);
  require(some.has_value() == (me != 0 || size == 1), "split_or_none gave a group to no color");
  require(reversed.size() == size && reversed.rank() == size - 1 - me,
          "keys do not order the ranks of a group");
  const auto members = [](auto& group, int own) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(group.size()));
    all[static_cast<std::size_t>(group.rank())] = own;
    group.all_gather(std::span(all));
    return all;
  };
  std::vector<std::int32_t> expected;
  for (int r = size - 1; r >= 0; --r) {
    if (r % 2 == me % 2) expected.push_back(r);
  }
  for (int i = 0; i < 3; ++i) {
    require(members(halves, me) == expected, "a group has other ranks than its color");
    std::int32_t x = 1;
    comm.all_reduce(std::span(&x, 1));
    require(x == size, "the parent does not work beside its groups");
    x = 1;
    if (some) some->all_reduce(std::span(&x, 1));
    require(x == (me == 0 || size == 1 ? 1 : size - 1), "a group of some ranks went wrong");
  }
  try {
    comm.barrier();
    comm.abort("the groups are to go on");
  } catch (const aborted_error&) {
    // Who leaves the barrier first may abort before it is over here.
  }
  require(members(halves, me) == expected, "a group does not outlive its parent");
}

/// Runs f on `ranks` ranks and requires that each of them throws an E whose text has `part`.
template <class E, class Transport, class F>
void require_everywhere(const conformance_run<Transport>& run, int ranks,
                        const communicator_options& options, const std::string& part, F&& f) {
  run(ranks, options, [&](communicator<Transport>& comm) {
    std::string found;
    try {
      f(comm);
      found = "nothing";
    } catch (const E& e) {
      if (std::string(e.what()).find(part) == std::string::npos) {
        found = std::string("text: ") + e.what();
      }
    } catch (const conformance_failure&) {
      throw;
    } catch (const std::exception& e) {
      found = std::string("another type: ") + e.what();
    }
    require(found.empty(), "rank " + std::to_string(comm.rank()) + " of " + std::to_string(ranks) +
                               " should have thrown an error with «" + part + "», but threw " +
                               found);
  });
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
  // What takes its time is looked at on the fewest and the most ranks.
  int fewest = 0;
  int most = 0;
  for (const int ranks : options.ranks) {
    if (ranks > 1 && (fewest == 0 || ranks < fewest)) fewest = ranks;
    most = (std::max)(most, ranks);
  }

  for (const int ranks : options.ranks) {
    const std::string on = " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    add("rank and size" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::require(c.size() == ranks, "size() is " + std::to_string(c.size()));
        std::vector<int> all(static_cast<std::size_t>(ranks), -1);
        all.at(static_cast<std::size_t>(c.rank())) = c.rank();
        c.all_gather(std::span(all));
        for (int r = 0; r < ranks; ++r) {
          cd::require(all[static_cast<std::size_t>(r)] == r,
                      "ranks are not 0 to size - 1, each once");
        }
      });
    });
    if (ranks == fewest || ranks == most) {
      add("a tuning is measured, and all ranks have the same" + on, [=] {
        communicator_options measuring;
        measuring.tuner = {.measure = true, .budget = std::chrono::milliseconds(30)};
        run(ranks, measuring, [&](comm& c) {
          std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks));
          hashes.at(static_cast<std::size_t>(c.rank())) = c.tuning().hash();
          c.all_gather(std::span(hashes));
          cd::require(hashes == std::vector(hashes.size(), c.tuning().hash()),
                      "the tunings differ");
          cd::require(ranks == 1 || c.tuning_report().starts_with("measured for "),
                      "the report is: " + c.tuning_report());
        });
      });
    }
    add("all_reduce gives the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_all_reduce<sum, float>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, float>(c, cd::kind::avg, seed);
        cd::check_all_reduce<max, float>(c, cd::kind::max, seed);
        cd::check_all_reduce<sum, bfloat16>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, bfloat16>(c, cd::kind::avg, seed);
        cd::check_all_reduce<sum, float16>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, float16>(c, cd::kind::avg, seed);
        cd::check_all_reduce<sum, float8_e4m3fn>(c, cd::kind::sum, seed);
        cd::check_all_reduce<avg, float8_e5m2>(c, cd::kind::avg, seed);
        cd::check_all_reduce<sum, double>(c, cd::kind::sum, seed);
        cd::check_all_reduce<sum, std::uint8_t>(c, cd::kind::sum, seed);
        cd::check_all_reduce<max, std::int32_t>(c, cd::kind::max, seed);
        cd::check_all_reduce<sum, std::int64_t>(c, cd::kind::sum, seed);
      });
    });
    add("all_reduce gives epilogues the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_epilogues<sum, float>(c, cd::kind::sum, seed);
        cd::check_epilogues<avg, bfloat16>(c, cd::kind::avg, seed);
        cd::check_epilogues<max, std::int32_t>(c, cd::kind::max, seed);
      });
    });
    add("reduce gives every root the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_reduce<sum, float>(c, cd::kind::sum, seed);
        cd::check_reduce<avg, bfloat16>(c, cd::kind::avg, seed);
        cd::check_reduce<sum, float16>(c, cd::kind::sum, seed);
        cd::check_reduce<sum, float8_e5m2>(c, cd::kind::sum, seed);
        cd::check_reduce<max, std::int32_t>(c, cd::kind::max, seed);
      });
    });
    add("reduce_scatter gives the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_reduce_scatter<float>(c, seed);
        cd::check_reduce_scatter<bfloat16>(c, seed);
        cd::check_reduce_scatter<float16>(c, seed);
        cd::check_reduce_scatter<float8_e4m3fn>(c, seed);
        cd::check_reduce_scatter<std::int32_t>(c, seed);
      });
    });
    add("reduce_scatter of uneven blocks gives the canonical fold's bits" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_uneven_reduce_scatter<float>(c, seed);
        cd::check_uneven_reduce_scatter<float16>(c, seed);
        cd::check_uneven_reduce_scatter<std::uint8_t>(c, seed);
      });
    });
    add("all_gather, broadcast, gather, scatter and all_to_all carry the bits as they are" + on,
        [=] {
          run(ranks, cd::small_chunks(), [&](comm& c) {
            cd::check_moves<float>(c, seed);
            cd::check_moves<std::uint8_t>(c, seed);
            cd::check_moves<double>(c, seed);
          });
        });
    add("all_gather, gather and scatter carry uneven blocks" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_uneven_moves<float>(c, seed);
        cd::check_uneven_moves<std::uint8_t>(c, seed);
      });
    });
    add("all_to_all carries uneven blocks, however skewed" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        cd::check_uneven_all_to_alls<double>(c, seed);
        cd::check_uneven_all_to_alls<std::uint8_t>(c, seed);
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
        const auto require_ordered = [&](std::span<const pair> folded) {
          for (const pair& p : folded) {
            cd::require(p.first == 0 && p.last == c.size() - 1 && p.ordered == 1,
                        "ranks were folded out of order");
          }
        };
        for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{1000}}) {
          const std::vector<pair> in(count, pair{c.rank(), c.rank(), 1});
          std::vector<pair> x = in;
          c.all_reduce(std::span(x), join);
          require_ordered(x);
          x = in;
          c.reduce(std::span(x), ranks - 1, join);
          if (c.rank() == ranks - 1) require_ordered(x);
          x = in;
          const std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), 0);
          std::vector<std::size_t> all_to_first = counts;
          all_to_first[0] = count;
          require_ordered(c.reduce_scatter(std::span(x), all_to_first, join));
        }
      });
    });
    add("a barrier holds everyone until the last has come" + on, [=] {
      run(ranks, cd::small_chunks(), [&](comm& c) {
        constexpr std::chrono::milliseconds late(2);
        for (int i = 0; i < 2 * ranks; ++i) {
          // No clock is compared with another rank's: whoever comes late has left the all_reduce
          // after this rank has entered it.
          const auto begin = std::chrono::steady_clock::now();
          std::int32_t x = 1;
          c.all_reduce(std::span(&x, 1));
          if (i % ranks == c.rank()) std::this_thread::sleep_for(late);
          c.barrier();
          cd::require(std::chrono::steady_clock::now() - begin >= late,
                      "left barrier " + std::to_string(i) + " too early");
        }
      });
    });
    if constexpr (transfer_context<context<Transport>>) {
      add("messages between all pairs of ranks come whole and in order" + on,
          [=] { run(ranks, cd::small_chunks(), [&](comm& c) { cd::check_messages(c, seed); }); });
      add("calls and messages that are posted in any order complete" + on,
          [=] { run(ranks, cd::small_chunks(), [&](comm& c) { cd::check_queue(c, seed); }); });
    }
    add("memory that is allocated is summed like any other, and may be written to at once" + on,
        [=] { run(ranks, cd::small_chunks(), [&](comm& c) { cd::check_allocated(c); }); });
    if constexpr (splittable_transport<Transport>) {
      add("groups work side by side, and after the whole has been given up" + on,
          [=] { run(ranks, cd::small_chunks(), [&](comm& c) { cd::check_groups(c); }); });
    }
    if (ranks == 1) continue;

    const auto differs = [=](const std::string& what, const std::string& part,
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
    const auto root_differs = [&](const std::string& what, const std::string& part,
                                  std::function<void(comm&, std::span<float>, int)> call) {
      differs("root of " + what, part, [=](comm& c) {
        // Two blocks a rank, so that they can be a root's or a block to send.
        std::vector<float> x(2 * static_cast<std::size_t>(ranks));
        call(c, x, last(c) ? 0 : 1);
      });
    };
    root_differs("broadcast", "from root",
                 [](comm& c, std::span<float> x, int root) { c.broadcast(x, root); });
    root_differs("reduce", "to root",
                 [](comm& c, std::span<float> x, int root) { c.reduce(x, root); });
    root_differs("gather", "to root", [](comm& c, std::span<float> x, int root) {
      c.gather(c.rank() == root ? x : x.first(2), root);
    });
    root_differs("scatter", "from root", [](comm& c, std::span<float> x, int root) {
      c.scatter(c.rank() == root ? x : x.first(2), root);
    });

    // Uneven collectives: rank 0's block has 4 elements, but the last rank takes it for 5.
    const std::string top = std::to_string(ranks - 1);
    const auto counts_of = [=](comm& c) {
      std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), 3);
      counts[0] = last(c) ? 5 : 4;
      return counts;
    };
    const std::string for_block_0 =
        "for the block of rank 0, rank " + top + " passed 5 elements, rank 0 4";
    differs("counts of an all_gather", for_block_0, [=](comm& c) {
      const std::vector<std::size_t> counts = counts_of(c);
      std::vector<float> x(cd::sum_of(counts, counts.size()));
      c.all_gather(std::span(x), counts);
    });
    differs("counts of a reduce_scatter", for_block_0, [=](comm& c) {
      const std::vector<std::size_t> counts = counts_of(c);
      std::vector<float> x(cd::sum_of(counts, counts.size()));
      c.reduce_scatter(std::span(x), counts);
    });
    differs("counts of a gather",
            "rank 0 sends rank " + top + " 4 elements, rank " + top + " expects 5", [=](comm& c) {
              const std::vector<std::size_t> counts = counts_of(c);
              std::vector<float> x(last(c) ? cd::sum_of(counts, counts.size())
                                           : counts[static_cast<std::size_t>(c.rank())]);
              c.gather(std::span(x), counts, ranks - 1);
            });
    differs("counts of a scatter",
            "rank 0 sends rank " + top + " 3 elements, rank " + top + " expects 5", [=](comm& c) {
              const std::vector<std::size_t> counts = counts_of(c);
              std::vector<float> x(c.rank() == 0 ? cd::sum_of(counts, counts.size())
                                                 : (last(c) ? 5 : 3));
              c.scatter(std::span(x), counts, 0);
            });
    differs("counts of an all_to_all",
            "rank 0 sends rank " + top + " 3 elements, rank " + top + " expects 5", [=](comm& c) {
              const std::vector<std::size_t> send(static_cast<std::size_t>(ranks), 3);
              std::vector<std::size_t> receive = send;
              if (last(c)) receive[0] = 5;
              const std::vector<float> x(cd::sum_of(send, send.size()));
              std::vector<float> y(cd::sum_of(receive, receive.size()));
              c.all_to_all(std::span(x), send, std::span(y), receive);
            });
    add("abort ends every rank's call, and the next names the cause" + on, [=] {
      cd::require_everywhere<aborted_error, Transport>(
          run, ranks, cd::small_chunks(), "enough", [&](comm& c) {
            if (last(c)) c.abort("enough");
            try {
              c.barrier();
            } catch (...) {
              std::string next = "nothing";
              try {
                c.barrier();
              } catch (const aborted_error& e) {
                next = e.what();
              }
              cd::require(next.find("enough") != std::string::npos, "the next call said: " + next);
              throw;
            }
          });
    });
    add("an operator that throws ends every rank's call" + on, [=] {
      cd::require_everywhere<std::runtime_error, Transport>(
          run, ranks, cd::small_chunks(), "my operator", [&](comm& c) {
            std::vector<std::int32_t> x(100, 1);
            const auto add_or_throw = [&](std::int32_t a, std::int32_t b) {
              if (last(c)) throw std::runtime_error("my operator");
              return a + b;
            };
            c.all_reduce(std::span(x), add_or_throw, {.algorithm = algorithm::one_shot});
            c.barrier();
          });
    });
    if (ranks != fewest && ranks != most) continue;
    add("a rank that never arrives is named at the deadline" + on, [=] {
      communicator_options impatient = cd::small_chunks();
      impatient.timeout = std::chrono::milliseconds(300);
      // The last rank comes when the others have given up: it sees that, or, as a process of its
      // own, comes late enough.
      std::atomic<int> done{0};
      cd::require_everywhere<error, Transport>(
          run, ranks, impatient, std::to_string(ranks - 1) + " did not arrive within",
          [&](comm& c) {
            if (last(c) && options.processes) std::this_thread::sleep_for(4 * impatient.timeout);
            while (last(c) && !options.processes && done < ranks - 1) std::this_thread::yield();
            try {
              c.barrier();  // which the last one may complete, with what it finds
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
    if (options.notices_loss) {
      add("a rank that leaves is noticed within a second" + on, [=] {
        run(ranks, cd::small_chunks(), [&](comm& c) {
          if (last(c)) return;
          const auto begin = std::chrono::steady_clock::now();
          std::string found = "nothing";
          try {
            c.barrier();
          } catch (const peer_lost_error& e) {
            found = e.what();
          }
          const auto took = std::chrono::steady_clock::now() - begin;
          cd::require(
              found.find("rank " + std::to_string(ranks - 1) + " left") != std::string::npos,
              "rank " + std::to_string(c.rank()) + " got: " + found);
          cd::require(took < std::chrono::seconds(2), "it took more than a second");
        });
      });
    } else {
      add("skipped, since only deadlines tell: a rank that leaves is noticed" + on, [] {});
    }
  }
  return checks;
}

}  // namespace testing

RANKFOLD_END_NAMESPACE
