// SPDX-License-Identifier: Apache-2.0
// The oracle of kernel/rms_norm.hpp: docs/numerics.md in scalar code that shares none with it.
#pragma once

#include <cmath>
#include <cstddef>

#include "support/reference.hpp"

namespace reference {

/// What the kernel must write, bit by bit.
template <class T>
inline void rms_norm(const std::byte* x, const std::byte* weight, float eps, std::byte* out,
                     std::size_t width) {
  const auto product = [](float a, float b) {
    const volatile float rounded = a * b;  // contracted with no sum
    return float{rounded};
  };
  const auto at = [](const std::byte* data, std::size_t i) {
    return read<T>(data + i * sizeof(T));
  };
  const auto sum_of = [&](const auto& self, std::size_t k, std::size_t n) -> float {
    if (n == 32) {
      float sum = 0;
      for (std::size_t i = k; i < width; i += 32) sum = sum + product(at(x, i), at(x, i));
      return sum;
    }
    return self(self, k, 2 * n) + self(self, k + n, 2 * n);
  };
  const float s = sum_of(sum_of, 0, 1);
  const float r = 1 / std::sqrt(s / static_cast<float>(width) + eps);
  for (std::size_t i = 0; i < width; ++i) {
    write<T>(out + i * sizeof(T), product(product(at(x, i), r), at(weight, i)));
  }
}

}  // namespace reference
