// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/cpu_extensions.hpp"

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "support/catch.hpp"

#ifdef __x86_64__

namespace {

using namespace rankfold::detail;
namespace ext = extension;

constexpr std::uint32_t all = 0xFFFF'FFFFU;

/// A processor with everything, under a system that saves the registers of `xcr0`.
constexpr cpu_words processor(std::uint32_t xcr0) { return {all, all, all, all, all, xcr0}; }

constexpr unsigned of_ymm = ext::avx | ext::avx2 | ext::fma | ext::f16c;
constexpr unsigned of_zmm = ext::avx512f | ext::avx512vl | ext::avx512dq | ext::avx512bw |
                            ext::avx512vbmi | ext::avx512vbmi2 | ext::avx512fp16 | ext::avx512cd;
constexpr unsigned everything = (ext::avx512cd << 1) - 1;

}  // namespace

TEST_CASE("an extension whose registers the system does not save is not there", "[kernel][cpu]") {
  STATIC_REQUIRE(extensions_of(processor(0xE7)) == everything);
  STATIC_REQUIRE(extensions_of(processor(0)) == (everything & ~(of_ymm | of_zmm)));
  STATIC_REQUIRE(extensions_of(processor(0x3)) == (everything & ~(of_ymm | of_zmm)));
  STATIC_REQUIRE(extensions_of(processor(0x7)) == (everything & ~of_zmm));
  STATIC_REQUIRE(extensions_of(processor(0x27)) == (everything & ~of_zmm));
  STATIC_REQUIRE(extensions_of(processor(0xE0)) == (everything & ~(of_ymm | of_zmm)));
  STATIC_REQUIRE(extensions_of({0, 0, 0, 0, 0, 0xE7}) == 0);
}

TEST_CASE("the machine's extensions are those that the kernel tells", "[kernel][cpu]") {
  const std::map<std::string, unsigned> names{{"pni", ext::sse3},
                                              {"ssse3", ext::ssse3},
                                              {"sse4_1", ext::sse4_1},
                                              {"sse4_2", ext::sse4_2},
                                              {"avx", ext::avx},
                                              {"avx2", ext::avx2},
                                              {"fma", ext::fma},
                                              {"f16c", ext::f16c},
                                              {"bmi1", ext::bmi},
                                              {"bmi2", ext::bmi2},
                                              {"abm", ext::lzcnt},
                                              {"popcnt", ext::popcnt},
                                              {"movbe", ext::movbe},
                                              {"avx512f", ext::avx512f},
                                              {"avx512vl", ext::avx512vl},
                                              {"avx512dq", ext::avx512dq},
                                              {"avx512bw", ext::avx512bw},
                                              {"avx512vbmi", ext::avx512vbmi},
                                              {"avx512cd", ext::avx512cd},
                                              {"avx512_vbmi2", ext::avx512vbmi2},
                                              {"avx512_fp16", ext::avx512fp16}};
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  if (!line.starts_with("flags")) LEAVE_OUT("no flags in /proc/cpuinfo");
  std::istringstream words(line);
  unsigned expected = 0;
  for (std::string word; words >> word;) {
    if (const auto found = names.find(word); found != names.end()) expected |= found->second;
  }
  CHECK(names.size() == 21);
  CHECK(machine_extensions() == expected);
  CHECK((compiled_extensions & ~machine_extensions()) == 0);
}

#endif
