// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankfold/kernel/rms_norm.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/rms_norm_reference.hpp"
#include "support/values.hpp"

using namespace rankfold;

namespace {

/// The first width at which the kernel of `Arch` gives other bits than the reference; 0 if none.
template <class Arch, class T>
std::size_t wrong_width(bool hostile) {
  std::vector<std::size_t> widths(130);
  for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = i + 1;
  for (const std::size_t more : {512U, 2048U, 4099U}) widths.push_back(more);
  for (const std::size_t width : widths) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{3}}) {  // an odd address
      std::vector<std::byte> x(width * sizeof(T) + shift);
      std::vector<std::byte> w(width * sizeof(T) + shift);
      if (hostile) {
        values::fill_hostile<T>(x.data() + shift, width, 0, values::seed() + width);
        values::fill_hostile<T>(w.data() + shift, width, 1, values::seed() + width);
      } else {  // sums of many magnitudes
        values::random_bits random(width);
        for (std::size_t i = 0; i < width; ++i) {
          const auto number = [&] {
            return static_cast<float>(random.below(2'000'001)) * 1e-6F - 1.0F;
          };
          reference::write<T>(x.data() + shift + i * sizeof(T), number());
          reference::write<T>(w.data() + shift + i * sizeof(T), number());
        }
      }
      std::vector<std::byte> wanted(width * sizeof(T));
      reference::rms_norm<T>(x.data() + shift, w.data() + shift, 1e-5F, wanted.data(), width);
      std::vector<std::byte> out(width * sizeof(T) + shift + 1, std::byte{0xA5});
      kernel::rms_norm_for<Arch>(dtype_of_v<T>)(x.data() + shift, w.data() + shift, 1e-5F,
                                                out.data() + shift, width);
      const bool kept =
          out.back() == std::byte{0xA5} && (shift == 0 || out[shift - 1] == std::byte{0xA5});
      if (!kept || !std::equal(wanted.begin(), wanted.end(), out.data() + shift)) return width;
    }
  }
  return 0;
}

template <class T>
void check_type() {
  for (const bool hostile : {false, true}) {
    INFO(name_of(dtype_of_v<T>) << (hostile ? ", hostile" : "") << ", seed " << values::seed());
    CHECK(wrong_width<simd::native, T>(hostile) == 0);
    CHECK(wrong_width<simd::scalar, T>(hostile) == 0);
  }
}

}  // namespace

TEST_CASE("rms_norm gives the documented bits for every type, width and alignment",
          "[kernel][rms_norm]") {
  check_type<float>();
  check_type<bfloat16>();
  check_type<float16>();
}

TEST_CASE("rms_norm is the norm, as far as float32 goes", "[kernel][rms_norm]") {
  constexpr std::size_t width = 4096;
  std::vector<float> x(width);
  std::vector<float> w(width);
  std::vector<float> out(width);
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) {
    x[i] = std::sin(static_cast<float>(i)) * 3;
    w[i] = 1 + static_cast<float>(i) / width;
    squares += double{x[i]} * double{x[i]};
  }
  kernel::rms_norm_for(dtype::float32)(x.data(), w.data(), 1e-6F, out.data(), width);
  double worst = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const double exact = x[i] / std::sqrt(squares / width + 1e-6) * double{w[i]};
    worst = (std::max)(worst, std::fabs(out[i] - exact));
  }
  CHECK(worst < 1e-6);
}

TEST_CASE("rms_norm of a type that has none is refused", "[kernel][rms_norm]") {
  CHECK_THROWS_AS(kernel::rms_norm_for(dtype::float64), std::invalid_argument);
  CHECK_THROWS_AS(kernel::rms_norm_for(dtype::int32), std::invalid_argument);
}
