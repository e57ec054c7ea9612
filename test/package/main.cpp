// SPDX-License-Identifier: Apache-2.0
// What someone else's project builds against the installed tree.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <rankfold/rankfold.hpp>

int main() {
  rankfold::communicator comm{rankfold::self_transport{}};
  std::vector<float> x(1000, 2.0F);
  comm.all_reduce(std::span(x), rankfold::avg{});
  std::printf("%d of %d: %g, %s\n", comm.rank(), comm.size(), x[999],
              std::string(rankfold::kernel::isa()).c_str());
  return x[999] == 2.0F ? 0 : 1;
}
