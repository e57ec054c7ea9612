// SPDX-License-Identifier: Apache-2.0
// Groups: four ranks as a grid, two tensor-parallel by two data-parallel. Each row of the grid
// holds one copy of a layer y = W x, its columns shared out among the row; each column of the grid
// holds the same part of W and averages its gradients. Start it once a rank, as 01_all_reduce.cpp
// says, with WORLD_SIZE=4.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>

namespace {

constexpr std::size_t inputs = 6;
constexpr std::size_t outputs = 4;

float weight(std::size_t row, std::size_t column) { return static_cast<float>(row + 10 * column); }

/// What copy `d` of the layer is given: each sees other data.
float input(int d, std::size_t i) { return static_cast<float>(d + 1) * static_cast<float>(i); }

}  // namespace

int main() try {
  auto world = rankfold::communicator{rankfold::shm_transport::from_environment()};
  constexpr int width = 2;  // ranks that share one copy of the layer
  if (world.size() % width != 0) {
    std::fprintf(stderr, "%d ranks do not make a grid of rows of %d\n", world.size(), width);
    return 1;
  }

  // The row a rank is in, and the column. Both are used side by side below.
  auto tensor_parallel = world.split(world.rank() / width, world.rank());
  auto data_parallel = world.split(world.rank() % width, world.rank());
  const int copy = data_parallel.rank();
  const std::size_t part = inputs / width;
  const std::size_t begin = static_cast<std::size_t>(tensor_parallel.rank()) * part;

  // Forward: each rank has some columns of W; the row adds up what they contribute.
  std::vector<float> y(outputs);
  for (std::size_t row = 0; row < outputs; ++row) {
    for (std::size_t i = begin; i < begin + part; ++i) y[row] += weight(row, i) * input(copy, i);
  }
  tensor_parallel.all_reduce(std::span(y));

  // Backward, of the sum of y: the gradient of W[row][i] is x[i]. The copies average theirs.
  std::vector<float> gradient(outputs * part);
  for (std::size_t row = 0; row < outputs; ++row) {
    for (std::size_t i = 0; i < part; ++i) gradient[row * part + i] = input(copy, begin + i);
  }
  data_parallel.all_reduce(std::span(gradient), rankfold::avg{});

  // The same on one rank alone.
  bool right = true;
  for (std::size_t row = 0; row < outputs; ++row) {
    float whole = 0;
    for (std::size_t i = 0; i < inputs; ++i) whole += weight(row, i) * input(copy, i);
    right = right && y[row] == whole;
    for (std::size_t i = 0; i < part; ++i) {
      float mean = 0;
      for (int d = 0; d < data_parallel.size(); ++d) mean += input(d, begin + i);
      right = right && gradient[row * part + i] == mean / static_cast<float>(data_parallel.size());
    }
  }
  std::printf(
      "rank %d: row %d of %d, column %d of %d: y[1] = %g, gradient of its last weight %g, %s\n",
      world.rank(), data_parallel.rank(), data_parallel.size(), tensor_parallel.rank(),
      tensor_parallel.size(), y[1], gradient.back(), right ? "as on one rank alone" : "WRONG");
  return right ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
