// SPDX-License-Identifier: Apache-2.0
// Prints which kernels are in use, and a hash of what every built-in operator makes of every type
// over three ranks.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rankfold/testing/run_ranks.hpp"

namespace {

using namespace rankfold;

constexpr std::size_t size = 1208;  // bytes: vectors, four at a time and one, and a tail

std::uint64_t hash_of_results(int rank, auto& comm) {
  std::vector<std::byte> in(size);
  std::vector<std::byte> out(size);
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  unsigned state = static_cast<unsigned>(rank) + 1;
  for (int d = 1; d <= 15; ++d) {
    for (int r = 1; r <= 10; ++r) {
      const auto type = static_cast<dtype>(d);
      const auto operation = static_cast<reduction>(r);
      if (!supports(operation, type)) continue;
      for (std::byte& byte : in) {
        byte = static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24);
      }
      comm.all_reduce(in.data(), out.data(), size / size_of(type), type, operation);
      for (const std::byte byte : out) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211U;
      }
    }
  }
  return hash;
}

}  // namespace

int main() {
  try {
    std::printf("isa %s\n", std::string(kernel::isa()).c_str());
    std::uint64_t hashes[3] = {};
    testing::run_ranks(
        3, [&](auto& comm) { hashes[comm.rank()] = hash_of_results(comm.rank(), comm); });
    for (const std::uint64_t hash : hashes) {
      std::printf("bits %016llx\n", static_cast<unsigned long long>(hash));
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
    return 1;
  }
}
