// SPDX-License-Identifier: Apache-2.0
// A mixture of experts, one expert a rank: each token goes to the expert that its router picks
// (dispatch) and comes back with that expert's answer (combine), by two uneven all_to_all. Who gets
// how many tokens changes with every batch. Start it once a rank, as 01_all_reduce.cpp says.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <numeric>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>

constexpr std::size_t width = 64;  // numbers a token

/// What expert `e` makes of a token: any function that is another one for each expert.
void expert(int e, std::span<float> token) {
  for (float& x : token) x = std::tanh(x * static_cast<float>(e + 1)) + static_cast<float>(e);
}

/// Token t of a rank: so many numbers between -1 and 1.
std::vector<float> make_token(int rank, std::size_t t) {
  std::vector<float> token(width);
  for (std::size_t i = 0; i < width; ++i) {
    token[i] = std::sin(static_cast<float>(i + 7 * t) + static_cast<float>(rank));
  }
  return token;
}

/// The router: the expert of a token.
int pick(const std::vector<float>& token, int experts) {
  const float score = std::abs(token[0] * 10 + token[1] * 3);
  return static_cast<int>(score) % experts;
}

int main() try {
  auto comm = rankfold::communicator{rankfold::shm_transport::from_environment()};
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t tokens = 50 + 30 * static_cast<std::size_t>(comm.rank());

  // Sort the tokens by expert: `order[k]` is the token that is sent as the k-th.
  std::vector<std::vector<float>> mine;
  std::vector<int> expert_of;
  for (std::size_t t = 0; t < tokens; ++t) {
    mine.push_back(make_token(comm.rank(), t));
    expert_of.push_back(pick(mine.back(), comm.size()));
  }
  std::vector<std::size_t> order(tokens);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return expert_of[a] < expert_of[b]; });

  // How many numbers go where; the receivers learn it by an even all_to_all.
  std::vector<std::size_t> sends(ranks, 0);
  for (const int e : expert_of) sends[static_cast<std::size_t>(e)] += width;
  std::vector<std::size_t> receives(ranks);
  comm.all_to_all(std::span<const std::size_t>(sends), std::span(receives));

  // Dispatch.
  std::vector<float> out;
  for (const std::size_t t : order) out.insert(out.end(), mine[t].begin(), mine[t].end());
  std::vector<float> work(std::accumulate(receives.begin(), receives.end(), std::size_t{0}));
  comm.all_to_all(std::span<const float>(out), std::span<const std::size_t>(sends), std::span(work),
                  std::span<const std::size_t>(receives));

  for (std::size_t at = 0; at < work.size(); at += width) {
    expert(comm.rank(), std::span(work).subspan(at, width));
  }

  // Combine: the same way back.
  comm.all_to_all(std::span<const float>(work), std::span<const std::size_t>(receives),
                  std::span(out), std::span<const std::size_t>(sends));

  // As if all experts were here.
  std::size_t wrong = 0;
  for (std::size_t k = 0; k < tokens; ++k) {
    std::vector<float> wanted = mine[order[k]];
    expert(expert_of[order[k]], std::span(wanted));
    wrong += !std::equal(wanted.begin(), wanted.end(), out.begin() + std::ptrdiff_t(k * width));
  }
  std::printf("rank %d: %zu tokens sent, %zu answered here; %zu came back wrong\n", comm.rank(),
              tokens, work.size() / width, wrong);
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
