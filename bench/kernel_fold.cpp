// SPDX-License-Identifier: Apache-2.0
// Throughput of the fold kernels on one core: every type and operator, for 2, 4 and 8 inputs,
// beside memcpy and beside the loop that one would write by hand. GB/s count each byte that is read
// or written once. Build with -O2; run it pinned, on an otherwise idle machine.
//
//   kernel_fold [bytes of one buffer, default 32768] [part of a name, default all]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rankfold/detail/fp_environment.hpp"
#include "rankfold/kernel/dispatch.hpp"
#include "rankfold/kernel/fold.hpp"

namespace {

using namespace rankfold;

// The loop by hand, for two inputs and sum, as well as the compiler can.
#if defined(__GNUC__) && !defined(__clang__)
#  define NAIVE [[gnu::noinline, gnu::optimize("O3")]]
#else
#  define NAIVE [[gnu::noinline]]
#endif
template <class T>
NAIVE void naive_sum(const T* a, const T* b, T* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (!std::is_same_v<accumulator_t<T>, T>) {
      out[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
    } else {
      out[i] = static_cast<T>(a[i] + b[i]);
    }
  }
}

/// Best time of one call, in seconds: the minimum of many, since every disturbance adds.
template <class F>
double best_seconds(const F& call) {
  using clock = std::chrono::steady_clock;
  double best = 1.0;
  const auto until = clock::now() + std::chrono::milliseconds(60);
  int repeat = 1;
  for (int round = 0; round < 7 || clock::now() < until; ++round) {
    const auto start = clock::now();
    for (int i = 0; i < repeat; ++i) {
      call();
    }
    const double all = std::chrono::duration<double>(clock::now() - start).count();
    best = std::min(best, all / repeat);
    if (all < 20e-6) {
      repeat *= 2;
    }
  }
  return best;
}

double gigabytes_per_second(std::size_t size, double seconds) {
  return static_cast<double>(size) / seconds * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t size = argc > 1 ? std::strtoull(argv[1], nullptr, 0) / 64 * 64 : 32768;
  const std::string wanted = argc > 2 ? argv[2] : "";
  constexpr std::size_t most = 8;

  // Each buffer starts in a set of the cache of its own.
  std::vector<std::byte> memory((most + 2) * (size + 4096 + 320));
  std::vector<std::byte*> buffers;
  for (std::size_t k = 0; k < most + 2; ++k) {
    auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + k * (size + 4096 + 256);
    buffers.push_back(memory.data() +
                      ((address + 63) / 64 * 64 - reinterpret_cast<std::uintptr_t>(memory.data())));
  }
  std::byte* const out = buffers[most];
  std::byte* const check = buffers[most + 1];

  std::printf("buffers of %zu bytes, kernels for %s; GB/s of bytes read and written\n", size,
              std::string(kernel::isa()).c_str());
  const double copy = best_seconds([&] {
    std::memcpy(out, buffers[0], size);
    asm volatile("" : : "r"(out) : "memory");
  });
  std::printf("%-24s %8.1f\n", "memcpy", gigabytes_per_second(2 * size, copy));
  std::printf("%-24s %8s %8s %8s   %s\n", "", "n = 2", "n = 4", "n = 8", "by hand, n = 2");

  const detail::fp_environment guard;
  for (int d = 1; d <= 15; ++d) {
    const auto type = static_cast<dtype>(d);
    const std::size_t count = size / size_of(type);
    visit(type, [&]<class T>() {
      for (std::size_t k = 0; k < most; ++k) {
        for (std::size_t i = 0; i < count; ++i) {
          const auto small = static_cast<int>((i * 7 + k * 3) % 5 + 1);
          T x{};
          if constexpr (!std::is_same_v<accumulator_t<T>, T>) {
            x = T(static_cast<float>(small));
          } else {
            x = static_cast<T>(small);
          }
          std::memcpy(buffers[k] + i * sizeof(T), static_cast<const void*>(&x), sizeof(T));
        }
      }
    });
    for (int r = 1; r <= 10; ++r) {
      const auto operation = static_cast<reduction>(r);
      const std::string name = std::string(name_of(type)) + " " + std::string(name_of(operation));
      if (!supports(operation, type) || name.find(wanted) == std::string::npos) {
        continue;
      }
      const auto fold = kernel::fold_for(type, operation);
      const auto scalar = kernel::fold_for<simd::scalar>(type, operation);
      const std::vector<const void*> in(buffers.begin(), buffers.begin() + most);
      std::printf("%-24s", name.c_str());
      for (const int n : {2, 4, 8}) {
        fold(nullptr, in.data(), n, out, count);
        scalar(nullptr, in.data(), n, check, count);
        if (std::memcmp(out, check, count * size_of(type)) != 0) {
          std::printf("\nwrong result\n");
          return 1;
        }
        const double seconds = best_seconds([&] { fold(nullptr, in.data(), n, out, count); });
        std::printf(" %8.1f",
                    gigabytes_per_second((static_cast<std::size_t>(n) + 1) * size, seconds));
      }
      if (operation == reduction::sum) {
        visit(type, [&]<class T>() {
          const double seconds = best_seconds([&] {
            naive_sum(reinterpret_cast<const T*>(buffers[0]),
                      reinterpret_cast<const T*>(buffers[1]), reinterpret_cast<T*>(out), count);
            asm volatile("" : : "r"(out) : "memory");
          });
          std::printf("   %8.1f", gigabytes_per_second(3 * size, seconds));
        });
      }
      std::printf("\n");
    }
  }
  return 0;
}
