// SPDX-License-Identifier: Apache-2.0
// One program of two translation units, one of them compiled for AVX2: each must run kernels for
// its own flags, though the linker keeps only one function of each name.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>

#include "kernels.hpp"

const void* kernel_of_base();
const void* kernel_of_avx2();
kernel_list kernels_of_base();
kernel_list kernels_of_avx2();

namespace {

std::string function_at(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "no known function";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : info.dli_sname;
}

int failures = 0;

void check(bool right, const std::string& what) {
  if (!right) {
    std::printf("wrong: %s\n", what.c_str());
    ++failures;
  }
}

void check_call() {
  const std::string base = function_at(kernel_of_base());
  const std::string avx2 = function_at(kernel_of_avx2());
  std::printf("base: %s\navx2: %s\n", base.c_str(), avx2.c_str());
  check(base.find("avx") == std::string::npos, "all_reduce of base.cpp");
  check(avx2.find("avx2") != std::string::npos, "all_reduce of avx2.cpp");
}

void check_kernels() {
  const kernel_list base = kernels_of_base();
  const kernel_list avx2 = kernels_of_avx2();
  constexpr std::size_t size = 8 * 77;
  constexpr int n = 7;
  std::vector<std::vector<std::byte>> data;
  std::vector<const void*> in;
  unsigned state = 1;
  for (int k = 0; k < n; ++k) {
    auto& bytes = data.emplace_back(size);
    std::generate(bytes.begin(), bytes.end(), [&] {
      return static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24);
    });
    in.push_back(bytes.data());
  }
  const smaller_magnitude op;
  const std::size_t element[] = {4, 8, 2, 2, 1, 1, 1, 4};
  for (std::size_t i = 0; i < base.folds.size(); ++i) {
    check(base.folds[i] != avx2.folds[i], "fold " + std::to_string(i) + " is one function");
    std::vector<std::byte> a(size);
    std::vector<std::byte> b(size);
    base.folds[i](&op, in.data(), n, a.data(), size / element[i]);
    avx2.folds[i](&op, in.data(), n, b.data(), size / element[i]);
    check(a == b, "fold " + std::to_string(i) + " differs");
  }
  for (std::size_t i = 0; i < base.conversions.size(); ++i) {
    check(base.conversions[i] != avx2.conversions[i],
          "conversion " + std::to_string(i) + " is one function");
    std::vector<std::byte> a(2 * size);
    std::vector<std::byte> b(2 * size);
    base.conversions[i](in[0], a.data(), size / 4);
    avx2.conversions[i](in[0], b.data(), size / 4);
    check(a == b, "conversion " + std::to_string(i) + " differs");
  }
  for (std::size_t i = 0; i < base.partials.size(); ++i) {
    const auto& x = base.partials[i];
    const auto& y = avx2.partials[i];
    const std::string name = " of partial_reducer " + std::to_string(i);
    check(x.fold != y.fold, "fold" + name + " is one function");
    check(x.combine != y.combine, "combine" + name + " is one function");
    check(x.finish != y.finish, "finish" + name + " is one function");
    std::vector<std::byte> a(2 * size);
    std::vector<std::byte> b(2 * size);
    x.fold(nullptr, in.data(), n, a.data(), size / 2);
    y.fold(nullptr, in.data(), n, b.data(), size / 2);
    check(a == b, "fold" + name + " differs");
    x.finish(nullptr, in.data(), n, 2 * n, a.data(), size / 4);
    y.finish(nullptr, in.data(), n, 2 * n, b.data(), size / 4);
    check(a == b, "finish" + name + " differs");
  }
  for (std::size_t i = 0; i < base.norms.size(); ++i) {
    check(base.norms[i] != avx2.norms[i], "norm " + std::to_string(i) + " is one function");
    // Numbers whose squares are rounded, and whose sums would be others if they were not.
    std::vector<float> x(size / 4, 1.1F);
    std::vector<std::byte> a(size);
    std::vector<std::byte> b(size);
    base.norms[i](x.data(), in[1], 1e-5F, a.data(), size / 4);
    avx2.norms[i](x.data(), in[1], 1e-5F, b.data(), size / 4);
    check(a == b, "norm " + std::to_string(i) + " differs");
  }
  check(base.scalar != avx2.scalar, "the scalar fold is one function");
}

}  // namespace

int main() {
  if (__builtin_cpu_supports("avx2") == 0) return 77;  // skipped
  check_call();
  check_kernels();
  return failures == 0 ? 0 : 1;
}
