// SPDX-License-Identifier: Apache-2.0
// Which CPUs this thread may use, and how many of them at a time: what decides whether waiting
// ranks may spin.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#  include <sched.h>
#endif

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// A set of up to 1,024 CPUs, as it lies in a segment.
struct cpu_mask {
  std::array<std::uint64_t, 16> words{};

  int count() const noexcept {
    int n = 0;
    for (const std::uint64_t word : words) n += std::popcount(word);
    return n;
  }
  cpu_mask& operator|=(const cpu_mask& other) noexcept {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] |= other.words[i];
    return *this;
  }
};
static_assert(sizeof(cpu_mask) == 128);

/// The CPUs that the calling thread may run on.
inline cpu_mask allowed_cpus() noexcept {
  cpu_mask mask;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t cpu = 0; cpu < 1024; ++cpu) {
      if (CPU_ISSET(cpu, &set)) mask.words[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
    }
  }
#endif
  if (mask.count() == 0) mask.words[0] = 1;
  return mask;
}

/// How many CPUs' worth of time the cgroups of this process grant it, rounded down, at least 1; a
/// large number where nothing limits it. Reads cgroup v2 and v1 files; never fails.
inline int cpu_quota() noexcept {
  int quota = 1 << 20;
#if defined(__linux__)
  const auto limit = [&quota](double max, double period) {
    if (max > 0 && period > 0)
      quota = (std::min)(quota, (std::max)(1, static_cast<int>(max / period)));
  };
  char line[1024];
  if (std::FILE* groups = std::fopen("/proc/self/cgroup", "re")) {
    while (std::fgets(line, sizeof line, groups) != nullptr) {
      line[std::strcspn(line, "\n")] = 0;
      char* controllers = std::strchr(line, ':');
      char* group = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
      if (group == nullptr) continue;
      *group++ = 0;
      const bool v2 = controllers[1] == 0;
      if (!v2 && std::strstr(controllers + 1, "cpu") == nullptr) continue;
      // Every level up to the root may set a limit.
      for (std::size_t length = std::strlen(group);;) {
        char path[1200];
        double max = 0;
        double period = 0;
        const auto read = [&path](const char* format, double* a, double* b) {
          if (std::FILE* file = std::fopen(path, "re")) {
            const int found =
                b != nullptr ? std::fscanf(file, format, a, b) : std::fscanf(file, format, a);
            std::fclose(file);
            return found;
          }
          return 0;
        };
        if (v2) {
          std::snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/cpu.max", static_cast<int>(length),
                        group);
          if (read("%lf %lf", &max, &period) == 2) limit(max, period);
        } else {
          std::snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%.*s/cpu.cfs_quota_us",
                        static_cast<int>(length), group);
          read("%lf", &max, nullptr);
          std::snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%.*s/cpu.cfs_period_us",
                        static_cast<int>(length), group);
          read("%lf", &period, nullptr);
          limit(max, period);
        }
        if (length == 0) break;
        do {
          --length;
        } while (length > 0 && group[length] != '/');
      }
    }
    std::fclose(groups);
  }
#endif
  return quota;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
