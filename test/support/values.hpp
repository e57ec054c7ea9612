// SPDX-License-Identifier: Apache-2.0
// Test data: hostile bit patterns for every element type, and small numbers with known sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "rankfold/dtype.hpp"

namespace values {

/// A small generator of random bits (splitmix64).
class random_bits {
 public:
  explicit random_bits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>((*this)() % bound); }

 private:
  std::uint64_t state_;
};

/// The seed of this run: RANKFOLD_TEST_SEED, or a fixed one. Print it with INFO.
inline std::uint64_t seed() {
  const char* const text = std::getenv("RANKFOLD_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20261130U;
}

/// The unsigned type of the size of T.
template <class T>
using bits_of = std::conditional_t<
    sizeof(T) == 1, std::uint8_t,
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

/// Patterns of a binary float with F fraction bits out of S bits in all: zeros, subnormals, the
/// ends of the normal range, infinities, quiet and signalling NaNs with payloads, numbers around 1
/// whose sums are ties for rounding; each with both signs.
template <class Bits, int S, int F>
inline std::vector<Bits> float_patterns() {
  const std::uint64_t one_unit = 1;
  const std::uint64_t hidden = one_unit << F;
  const std::uint64_t infinity = ((one_unit << (S - 1 - F)) - 1) << F;
  const std::uint64_t one = (((one_unit << (S - 2 - F)) - 1)) << F;
  std::vector<std::uint64_t> magnitudes = {
      0,
      1,
      2,
      hidden / 2,
      hidden - 1,  // largest subnormal
      hidden,      // smallest normal
      hidden + 1,
      2 * hidden - 1,
      one - 1,
      one,
      one + 1,
      one + hidden / 2,
      one + hidden - 1,
      one + hidden,      // 2
      one - hidden,      // 1/2
      one - F * hidden,  // half a unit in the last place of 1 … 2
      one - (F + 1) * hidden,
      one - (F + 1) * hidden + 1,
      one + (F + 1) * hidden,
      one + 3 * hidden - 1,
      infinity - 1,       // largest finite
      infinity - hidden,  // half of the next power
      infinity - hidden - 1,
      infinity,
      infinity + 1,  // signalling NaNs
      infinity + hidden / 4,
      infinity + hidden / 2 - 1,
      infinity + hidden / 2,  // quiet NaNs
      infinity + hidden / 2 + 1,
      infinity + hidden - 1,
  };
  std::vector<Bits> patterns;
  for (const std::uint64_t m : magnitudes) {
    patterns.push_back(static_cast<Bits>(m));
    patterns.push_back(static_cast<Bits>(m | one_unit << (S - 1)));
  }
  return patterns;
}

/// The patterns at which arithmetic on T has its edges.
template <class T>
inline std::vector<bits_of<T>> special_patterns() {
  using bits = bits_of<T>;
  if constexpr (std::is_same_v<T, float>) {
    auto all = float_patterns<bits, 32, 23>();
    // Around the edges of the small floats, too: their folds are rounded from float.
    for (const bits more :
         {0x38800000U, 0x387FFFFFU, 0x33000000U, 0x33000001U, 0x477FE000U, 0x477FEFFFU, 0x477FF000U,
          0x7F7F7FFFU, 0x7F7F8000U, 0x3F808000U, 0x3F818000U, 0x3F801000U, 0x3F803000U,
          // of 8 bits: 448, 464, 480, 57344, 61440, halves of the smallest, ties above 1
          0x43E00000U, 0x43E7FFFFU, 0x43E80000U, 0x43E80001U, 0x43F00000U, 0x47600000U, 0x476FFFFFU,
          0x47700000U, 0x3A800000U, 0x3A800001U, 0x37000000U, 0x37000001U, 0x3F880000U, 0x3F980000U,
          0x3F900000U, 0x3FB00000U}) {
      all.push_back(more);
    }
    return all;
  } else if constexpr (std::is_same_v<T, double>) {
    return float_patterns<bits, 64, 52>();
  } else if constexpr (std::is_same_v<T, rankfold::bfloat16>) {
    return float_patterns<bits, 16, 7>();
  } else if constexpr (std::is_same_v<T, rankfold::float16>) {
    return float_patterns<bits, 16, 10>();
  } else if constexpr (rankfold::is_float8_v<T>) {  // few enough: all of them
    std::vector<bits> all(256);
    std::iota(all.begin(), all.end(), bits{0});
    return all;
  } else if constexpr (std::is_same_v<T, bool>) {
    return {0, 1};
  } else {
    constexpr bits top = static_cast<bits>(bits{1} << (8 * sizeof(T) - 1));
    constexpr bits ones = static_cast<bits>(~bits{0});
    return {0,
            1,
            2,
            3,
            5,
            static_cast<bits>(ones / 3),  // 0x5555…
            static_cast<bits>(ones / 255 * 0xA0),
            static_cast<bits>(top - 1),
            top,
            static_cast<bits>(top + 1),
            static_cast<bits>(ones - 1),
            ones};
  }
}

/// Writes `count` elements that are hard on kernels: about half are edge patterns, some are close
/// to each other over the ranks (so that sums cancel), the others are random bits.
template <class T>
inline void fill_hostile(std::byte* to, std::size_t count, int rank,
                         std::uint64_t run_seed = seed()) {
  using bits = bits_of<T>;
  const std::vector<bits> special = special_patterns<T>();
  random_bits own(run_seed * 1009 + static_cast<std::uint64_t>(rank) + 1);
  random_bits shared(run_seed * 1013);  // the same on every rank
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t common = shared();
    const std::uint64_t mine = own();
    bits x = 0;
    switch (own.below(8)) {
      case 0:
      case 1:
      case 2:
      case 3:
        x = special[own.below(special.size())];
        break;
      case 4:  // close to the other ranks' number, of either sign
        x = static_cast<bits>((common ^ (mine & 7U)) ^ (mine >> 63) << (8 * sizeof(T) - 1));
        break;
      case 5:  // a moderate number of the common magnitude
        x = static_cast<bits>(special[common % special.size()] + (mine & 3U));
        break;
      default:
        x = static_cast<bits>(mine);
    }
    if constexpr (std::is_same_v<T, bool>) {
      x = own.below(4) == 0 ? static_cast<bits>(common & 1U) : static_cast<bits>(x & 1U);
    }
    std::memcpy(to + i * sizeof(T), &x, sizeof(T));
  }
}

/// The same for a type known at run time.
inline void fill_hostile(rankfold::dtype type, std::byte* to, std::size_t count, int rank,
                         std::uint64_t run_seed = seed()) {
  rankfold::visit(type, [&]<class T>() { fill_hostile<T>(to, count, rank, run_seed); });
}

template <class T>
inline std::vector<T> hostile(std::size_t count, int rank, std::uint64_t run_seed = seed()) {
  std::vector<T> data(count);
  fill_hostile<T>(reinterpret_cast<std::byte*>(data.data()), count, rank, run_seed);
  return data;
}

/// A small whole number: (rank + 1) · (index mod 7 + 1).
template <class T>
inline T counting(int rank, std::size_t index) {
  const auto x = static_cast<std::size_t>(rank + 1) * (index % 7 + 1);
  if constexpr (!std::is_same_v<rankfold::accumulator_t<T>, T>) {  // converts explicitly only
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// The sum of `counting` over `ranks` ranks; exact in every type up to 8 ranks (modulo 2^8 in
/// int8).
template <class T>
inline T counting_sum(int ranks, std::size_t index) {
  const auto x = static_cast<std::size_t>(ranks * (ranks + 1) / 2) * (index % 7 + 1);
  if constexpr (!std::is_same_v<rankfold::accumulator_t<T>, T>) {  // converts explicitly only
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
inline std::vector<T> counting(int rank, std::size_t first, std::size_t count) {
  std::vector<T> data(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = counting<T>(rank, first + i);
  }
  return data;
}

}  // namespace values
