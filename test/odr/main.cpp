// SPDX-License-Identifier: Apache-2.0
// One program of two translation units, one of them compiled for AVX2: each must run kernels for its
// own flags, though the linker keeps only one function of each name.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <cxxabi.h>
#include <dlfcn.h>

const void* kernel_of_base();
const void* kernel_of_avx2();

namespace {

std::string function_at(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "no known function";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : info.dli_sname;
}

}  // namespace

int main() {
  if (__builtin_cpu_supports("avx2") == 0) return 77;  // skipped
  const std::string base = function_at(kernel_of_base());
  const std::string avx2 = function_at(kernel_of_avx2());
  std::printf("base: %s\navx2: %s\n", base.c_str(), avx2.c_str());
  return base.find("sse2") != std::string::npos && avx2.find("avx2") != std::string::npos ? 0 : 1;
}
