// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/cpu_set.hpp"

#include <thread>

#include <sched.h>

#include "support/catch.hpp"

using namespace rankfold::detail;

TEST_CASE("a mask counts its CPUs and joins another", "[cpu_set]") {
  cpu_mask a;
  CHECK(a.count() == 0);
  a.words[0] = 5;
  cpu_mask b;
  b.words[0] = 4;
  b.words[15] = std::uint64_t{1} << 63;
  a |= b;
  CHECK(a.count() == 3);
}

TEST_CASE("allowed CPUs follow this thread's affinity", "[cpu_set]") {
  const cpu_mask all = allowed_cpus();
  CHECK(all.count() >= 1);
  int pinned_count = 0;
  bool pinned_inside = false;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t cpu = 0; cpu < 1024; ++cpu) {
      if ((all.words[cpu / 64] >> (cpu % 64) & 1) != 0) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    if (sched_setaffinity(0, sizeof one, &one) == 0) {
      const cpu_mask mask = allowed_cpus();
      pinned_count = mask.count();
      cpu_mask both = all;
      both |= mask;
      pinned_inside = both.count() == all.count();
    }
  }).join();
  CHECK(pinned_count == 1);
  CHECK(pinned_inside);
}

TEST_CASE("the quota is at least one CPU", "[cpu_set]") { CHECK(cpu_quota() >= 1); }
