// SPDX-License-Identifier: Apache-2.0
// An element type and an operator of one's own: where is the largest value of all ranks? The ranks
// are threads of this process, so that it runs without a launcher, as in a test.
#include <cstdio>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>
#include <rankfold/testing/run_ranks.hpp>

struct place {
  float value;
  int rank;
};

int main() {
  const std::vector<int> owners = rankfold::testing::run_ranks(4, [](auto& comm) {
    std::vector<place> logits(3);
    for (int i = 0; i < 3; ++i) {
      logits[static_cast<std::size_t>(i)] = {static_cast<float>((comm.rank() * 7 + i * 3) % 10),
                                             comm.rank()};
    }
    comm.all_reduce(std::span(logits), [](const place& a, const place& b) {
      return b.value > a.value ? b : a;  // of equals, the lower rank's: folds keep the ranks' order
    });
    return logits[0].rank;
  });
  std::printf("the largest first value is rank %d's\n", owners[0]);
  for (const int owner : owners) {
    if (owner != owners[0]) return 1;
  }
}
