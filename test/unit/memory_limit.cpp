// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/memory_limit.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

#include <stdlib.h>
#include <unistd.h>

#include <sys/stat.h>

#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"

namespace detail = rankfold::detail;

namespace {

/// A folder with files as the kernel shows them, removed at the end.
class fake_system {
 public:
  fake_system() {
    char name[] = "/tmp/rankfold-test-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  fake_system(const fake_system&) = delete;
  fake_system& operator=(const fake_system&) = delete;
  ~fake_system() { (void)!std::system(("rm -rf " + root_).c_str()); }

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) {
    for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      ::mkdir((root_ + path.substr(0, slash)).c_str(), 0755);
    }
    std::FILE* file = std::fopen((root_ + path).c_str(), "w");
    REQUIRE(file != nullptr);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }

 private:
  std::string root_;
};

constexpr std::uint64_t mib = 1 << 20;

void write_machine(fake_system& system, int swap_kib = 0) {
  system.write("/proc/meminfo",
               "MemTotal:       16000000 kB\nMemFree:          100000 kB\n"
               "MemAvailable:    8000000 kB\nSwapFree:       " +
                   std::to_string(swap_kib) + " kB\n");
}

}  // namespace

TEST_CASE("without a cgroup the machine sets the limit", "[detail][memory_limit]") {
  fake_system system;
  write_machine(system, 1000);
  const auto limit = detail::available_memory(system.root());
  CHECK(limit.available == 8001000ULL * 1024);
  CHECK(contains(limit.set_by, "the machine"));
}

TEST_CASE("where nothing can be read nothing is limited", "[detail][memory_limit]") {
  const auto limit = detail::available_memory("/no/such/folder");
  CHECK(limit.available == ~std::uint64_t{0});
  CHECK_NOTHROW(detail::check_memory(std::uint64_t{1} << 60, "a test", "/no/such/folder"));
}

TEST_CASE("cgroup v2: the least of all levels counts, caches that can be dropped added",
          "[detail][memory_limit]") {
  fake_system system;
  write_machine(system);
  system.write("/proc/self/cgroup", "0::/user.slice/job 1\n");
  system.write("/proc/self/mountinfo",
               "22 27 0:21 / /proc rw - proc proc rw\n"
               "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  const std::string top = "/sys/fs/cgroup/user.slice";
  system.write(top + "/job 1/memory.max", "max\n");
  system.write(top + "/job 1/memory.current", "5000000\n");
  system.write(top + "/memory.max", std::to_string(100 * mib) + "\n");
  system.write(top + "/memory.current", std::to_string(90 * mib) + "\n");
  CHECK(detail::available_memory(system.root()).available == 10 * mib);
  CHECK(detail::available_memory(system.root()).set_by ==
        "memory.max of /sys/fs/cgroup/user.slice");

  SECTION("page cache is room") {
    system.write(top + "/memory.stat", "anon 1\ninactive_file " + std::to_string(20 * mib) +
                                           "\nactive_file " + std::to_string(30 * mib) +
                                           "\nslab_reclaimable " + std::to_string(mib) +
                                           "\ninactive_file_x 77777777777\n");
    CHECK(detail::available_memory(system.root()).available == 61 * mib);
  }
  SECTION("the leaf can be the least") {
    system.write(top + "/job 1/memory.max", std::to_string(6 * mib) + "\n");
    CHECK(detail::available_memory(system.root()).available == 6 * mib - 5000000);
    CHECK(contains(detail::available_memory(system.root()).set_by, "job 1"));
  }
  SECTION("beyond the limit there is nothing, not a large number") {
    system.write(top + "/memory.current", std::to_string(101 * mib) + "\n");
    CHECK(detail::available_memory(system.root()).available == 0);
  }
  SECTION("swap is room as far as the cgroup may use it") {
    write_machine(system, 50 * 1024);
    CHECK(detail::available_memory(system.root()).available == 60 * mib);
    system.write(top + "/memory.swap.max", std::to_string(8 * mib) + "\n");
    system.write(top + "/memory.swap.current", std::to_string(3 * mib) + "\n");
    CHECK(detail::available_memory(system.root()).available == 15 * mib);
  }
  SECTION("an error says need, have and whose limit it is") {
    CHECK_NOTHROW(detail::check_memory(10 * mib, "2 segments", system.root()));
    try {
      detail::check_memory(10 * mib + 1, "2 segments", system.root());
      FAIL("more than there is was granted");
    } catch (const rankfold::transport_error& e) {
      INFO(e.what());
      CHECK(contains(e.what(), "no memory for 2 segments: need 10.0 MiB, have 10.0 MiB"));
      CHECK(contains(e.what(), "memory.max of /sys/fs/cgroup/user.slice"));
    }
  }
}

TEST_CASE("cgroup v2 in a container: the root of the mount is this process's cgroup",
          "[detail][memory_limit]") {
  fake_system system;
  write_machine(system);
  system.write("/proc/self/mountinfo",
               "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  system.write("/sys/fs/cgroup/memory.max", std::to_string(64 * mib));
  system.write("/sys/fs/cgroup/memory.current", "0");
  for (const char* path : {"0::/\n", "0::/docker/abc\n", "0::/docker/abcdef\n", "0::/../other\n"}) {
    INFO(path);
    system.write("/proc/self/cgroup", path);
    CHECK(detail::available_memory(system.root()).available == 64 * mib);
  }
  // One level below the mount's root.
  system.write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  system.write("/sys/fs/cgroup/inner/memory.max", std::to_string(32 * mib));
  system.write("/sys/fs/cgroup/inner/memory.current", "0");
  CHECK(detail::available_memory(system.root()).available == 32 * mib);
}

TEST_CASE("cgroup v1: the memory controller's files, whatever it is mounted with",
          "[detail][memory_limit]") {
  fake_system system;
  write_machine(system);
  system.write("/proc/self/cgroup", "9:cpuset:/elsewhere\n4:hugetlb,memory:/job\n0::/\n");
  system.write("/proc/self/mountinfo",
               "35 31 0:32 / /sys/fs/cgroup/with\\040blank rw - cgroup cgroup rw,hugetlb,memory\n"
               "36 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
               "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string job = "/sys/fs/cgroup/with blank/job";
  system.write(job + "/memory.limit_in_bytes", std::to_string(16 * mib));
  system.write(job + "/memory.usage_in_bytes", std::to_string(12 * mib));
  system.write(job + "/memory.stat", "inactive_file 99999999\ntotal_inactive_file 1048576\n");
  system.write("/sys/fs/cgroup/with blank/memory.limit_in_bytes", "9223372036854771712");
  system.write("/sys/fs/cgroup/with blank/memory.usage_in_bytes", "9");
  const auto limit = detail::available_memory(system.root());
  CHECK(limit.available == 5 * mib);
  CHECK(limit.set_by == "memory.limit_in_bytes of /sys/fs/cgroup/with blank/job");
}

TEST_CASE("numbers are read as far as they go, and never overflow", "[detail][memory_limit]") {
  CHECK_FALSE(detail::leading_number("max").has_value());
  CHECK_FALSE(detail::leading_number("").has_value());
  CHECK(detail::leading_number("12 kB") == 12);
  CHECK(detail::leading_number("18446744073709551615") == ~std::uint64_t{0});
  CHECK(detail::leading_number("18446744073709551616") == ~std::uint64_t{0});
  CHECK(detail::leading_number("99999999999999999999999") == ~std::uint64_t{0});
}
