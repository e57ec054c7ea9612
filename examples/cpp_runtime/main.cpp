// SPDX-License-Identifier: Apache-2.0
// Runs the packages of export.py without Python: two processes, a rank each, joined by a key.
//
//     cpp_runtime EXTENSION FOLDER
//
// EXTENSION is the library with the ops that export.py used, FOLDER holds rank0.pt2 and rank1.pt2.
// Prints the lines that export.py printed. The library is loaded, and the group is joined, before
// the package runs: the graph names the op and the group.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/string_view.h>
#include <sys/wait.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

namespace {

constexpr int ranks = 2;
constexpr std::int64_t hidden = 64;

using text = c10::string_view;  // std::string_view, before torch 2.7 a type of torch's own

at::Tensor inputs(std::int64_t rows) {
  return at::arange(rows * hidden).mul(37).remainder(101).sub(50).div(64).reshape({rows, hidden});
}

void print(int rank, const at::Tensor& x) {
  const at::Tensor y = x.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(y.const_data_ptr());
  std::uint64_t digest = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < y.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3u;
  float first = 0;
  std::memcpy(&first, bytes, sizeof first);
  std::printf("rank %d batch %lld: first %+.6f, digest %016llx\n", rank,
              static_cast<long long>(y.size(0)), static_cast<double>(first),
              static_cast<unsigned long long>(digest));
}

template <class Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("rankfold_example::") + name).c_str(), "")
      .typed<Signature>();
}

void run(int rank, const char* extension, const std::string& folder) {
  if (::dlopen(extension, RTLD_NOW) == nullptr) throw std::runtime_error(::dlerror());
  at::set_num_threads(1);  // the digest is of one order of additions
  const std::string group = "rank" + std::to_string(rank);
  const std::string key = "cpp_runtime " + std::to_string(::getppid());
  op<std::optional<at::Tensor>(text, std::int64_t, std::int64_t, text, double)>("init").call(
      group, rank, ranks, key, 60);
  torch::inductor::AOTIModelPackageLoader package(folder + "/" + group + ".pt2");
  for (const std::int64_t rows : {1, 7}) print(rank, package.run({inputs(rows)}).at(0));
  op<void(text)>("finalize").call(group);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: %s EXTENSION FOLDER\n", arguments[0]);
    return 2;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();  // before torch has started a thread
    if (child == -1) {
      std::perror("fork");
      return 1;
    }
    if (child == 0) {
      int code = 0;
      try {
        run(rank, arguments[1], arguments[2]);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        code = 1;
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}
