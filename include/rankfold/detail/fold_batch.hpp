// SPDX-License-Identifier: Apache-2.0
// The fold in registers. A policy says how a register of elements is loaded, combined and stored;
// one driver runs every policy over any number of inputs. Operators and types that do the same to
// the bits share a policy, and with it the code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rankfold/detail/attributes.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/float16_batch.hpp"
#include "rankfold/detail/float8_batch.hpp"
#include "rankfold/detail/fold_element.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_DETAIL_BEGIN_KERNELS
RANKFOLD_BEGIN_NAMESPACE
namespace detail {

// ---- Policies: value load(bytes), value combine(value, value), bytes store(value) ----
//
// `load` may take a pair of registers of float, and `store` give one, where 16-bit floats would be
// a register of bytes.
//
// All of a policy's members are copied into registers once a call.

template <class Arch, class U>
struct sum_policy {
  using value = simd::batch<Arch, U>;
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return simd::cast<U>(x);
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return a + b;
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return simd::cast<std::uint8_t>(x);
  }
};

template <class Arch, class U>
struct prod_policy : sum_policy<Arch, U> {
  using value = simd::batch<Arch, U>;
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return simd::multiply(a, b);
  }
};

// min and max, signed and unsigned, of one width: `flip` turns the order of the elements into that
// of Key. The sign bit is flipped between signed and unsigned, all bits between max and min.
template <class Arch, class Key>
struct order_policy {
  using value = simd::batch<Arch, Key>;
  Key flip;
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return simd::cast<Key>(x) ^ value(flip);
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return simd::smaller(a, b);
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return simd::cast<std::uint8_t>(x ^ value(flip));
  }
};

// a & b is the complement of ~a | ~b: `flip` is all ones for bit_or, zero for bit_and.
template <class Arch>
struct bit_policy {
  using value = simd::bytes<Arch>;
  std::uint8_t flip;
  RANKFOLD_DETAIL_INLINE value load(const value& x) const noexcept { return x ^ value(flip); }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return a & b;
  }
  RANKFOLD_DETAIL_INLINE value store(const value& x) const noexcept { return x ^ value(flip); }
};

template <class Arch>
struct xor_policy {
  using value = simd::bytes<Arch>;
  RANKFOLD_DETAIL_INLINE value load(const value& x) const noexcept { return x; }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return a ^ b;
  }
  RANKFOLD_DETAIL_INLINE value store(const value& x) const noexcept { return x; }
};

// Truth values, 1 for every element but zero: as above, with `flip` 1 for `or`.
template <class Arch, class U>
struct truth_policy {
  using value = simd::batch<Arch, U>;
  U flip;
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    const value y = simd::cast<U>(x);
    const value of_zero(flip);
    const value one(U{1});
    // The minimum with 1, where there is an instruction for it.
    if constexpr (sizeof(U) == 1 || simd::width_bytes<Arch> == 64) {
      return simd::smaller(y, one) ^ of_zero;
    } else {
      return xsimd::select(y == value(U{0}), of_zero, of_zero ^ one);
    }
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return a & b;
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return simd::cast<std::uint8_t>(x ^ value(flip));
  }
};

template <class Arch>
struct truth_xor_policy : truth_policy<Arch, std::uint8_t> {
  using value = simd::bytes<Arch>;
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return a ^ b;
  }
};

// What `avg` does to a sum; nothing if n is 0. A division by a power of two and the product with
// its inverse round the same number, so that they have the same bits, and the product is faster.
template <class T>
struct average_step {
  enum class kind { none, product, quotient };
  kind how;
  T operand;

  RANKFOLD_DETAIL_INLINE static constexpr average_step of(int n) noexcept {
    if (n == 0) {
      return {kind::none, T{1}};
    }
    if ((n & (n - 1)) == 0) {
      return {kind::product, T{1} / static_cast<T>(n)};
    }
    return {kind::quotient, static_cast<T>(n)};
  }

  template <class XsimdArch>
  RANKFOLD_DETAIL_INLINE xsimd::batch<T, XsimdArch> operator()(
      const xsimd::batch<T, XsimdArch>& x) const noexcept {
    const xsimd::batch<T, XsimdArch> y(operand);
    return how == kind::quotient ? x / y : x * y;
  }
};

// float and double. A policy with `settle` has NaNs that this makes canonical, before `store`;
// `any_nan` tells whether one of four values needs it.
template <class Arch, class Op, class T>
struct float_policy {
  using value = simd::batch<Arch, T>;
  average_step<T> finish;
  RANKFOLD_DETAIL_INLINE bool is_average() const noexcept {
    return finish.how != average_step<T>::kind::none;
  }
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return simd::cast<T>(x);
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    if constexpr (std::is_same_v<Op, sum>) {
      return a + b;
    } else {
      return a * b;
    }
  }
  RANKFOLD_DETAIL_INLINE bool any_nan(const value& a, const value& b, const value& c,
                                      const value& d) const noexcept {
    return simd::any_nan(a, b, c, d);
  }
  RANKFOLD_DETAIL_INLINE value settle(const value& x) const noexcept { return canonical_nan(x); }
  RANKFOLD_DETAIL_INLINE value average(const value& x) const noexcept
    requires std::is_same_v<Op, sum>
  {
    return finish(x);
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return simd::cast<std::uint8_t>(x);
  }
};

// min of float and double, and max as the negative of the min of the negatives.
template <class Arch, class T>
struct float_order_policy {
  using value = simd::batch<Arch, T>;
  T flip;  // −0 for max, +0 for min: what `xor` does to the sign
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return simd::cast<T>(x) ^ value(flip);
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return simd::smaller(a, b);
  }
  RANKFOLD_DETAIL_INLINE bool any_nan(const value& a, const value& b, const value& c,
                                      const value& d) const noexcept {
    return simd::any_nan(a, b, c, d);
  }
  RANKFOLD_DETAIL_INLINE value settle(const value& x) const noexcept {
    return canonical_nan(x ^ value(flip)) ^ value(flip);
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return simd::cast<std::uint8_t>(x ^ value(flip));
  }
};

// The 16-bit floats, in registers of float: what does not depend on where they come from and go to.
template <class Arch, class Op>
struct half_arithmetic {
  using value = float_pair<Arch>;
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    if constexpr (std::is_same_v<Op, sum>) {
      return {a.first + b.first, a.second + b.second};
    } else {
      return {a.first * b.first, a.second * b.second};
    }
  }
  RANKFOLD_DETAIL_INLINE bool any_nan(const value& a, const value& b, const value& c,
                                      const value& d) const noexcept {
    return simd::any_nan(a.first, b.first, c.first, d.first) ||
           simd::any_nan(a.second, b.second, c.second, d.second);
  }
  RANKFOLD_DETAIL_INLINE value settle(const value& x) const noexcept {
    return {canonical_nan(x.first), canonical_nan(x.second)};
  }
};

// From 16-bit floats to 16-bit floats.
template <class Arch, class Op, class Half>
struct half_policy : half_arithmetic<Arch, Op> {
  using value = float_pair<Arch>;
  using half = half_batch<Arch, Half>;
  average_step<float> finish;
  RANKFOLD_DETAIL_INLINE bool is_average() const noexcept {
    return finish.how != average_step<float>::kind::none;
  }
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return half::unpack(x);
  }
  RANKFOLD_DETAIL_INLINE value average(const value& x) const noexcept
    requires std::is_same_v<Op, sum>
  {
    return {finish(x.first), finish(x.second)};
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    return half::pack(x);
  }
};

// From 16-bit floats to float, unrounded.
template <class Arch, class Op, class Half>
struct half_widening_policy : half_arithmetic<Arch, Op> {
  using value = float_pair<Arch>;
  using half = half_batch<Arch, Half>;
  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return half::unpack(x);
  }
  RANKFOLD_DETAIL_INLINE value store(value x) const noexcept {
    if constexpr (half::in_pairs) {
      simd::interleave(x.first, x.second);
    }
    return x;
  }
};

// From float to 16-bit floats. The lanes stay in order until they are packed.
template <class Arch, class Op, class Half>
struct half_narrowing_policy : half_policy<Arch, Op, Half> {
  using value = float_pair<Arch>;
  using half = half_batch<Arch, Half>;
  RANKFOLD_DETAIL_INLINE value load(const value& x) const noexcept { return x; }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(value x) const noexcept {
    if constexpr (half::in_pairs) {
      simd::deinterleave(x.first, x.second);
    }
    return half::pack(x);
  }
};

// min and max of the 16-bit and the 8-bit floats, on their bits: as integers in the order NaNs,
// −inf, …, −0, +0, …, +inf. For max, the signs are flipped before and after. Key is std::int16_t or
// std::uint8_t: SSE2 has the minimum of these.
template <class Arch, class Key>
struct small_order_policy {
  using value = simd::batch<Arch, Key>;
  Key flip;
  Key wrap;   // added, takes the NaNs above +inf around to the lower end
  Key least;  // −inf after all that
  Key nan;

  template <class T>
  RANKFOLD_DETAIL_INLINE static constexpr small_order_policy of(bool is_max) noexcept {
    using layout = float_layout<T>;
    constexpr int nans = layout::sign - 1 - layout::infinity;  // of one sign
    constexpr int lowest = std::is_signed_v<Key> ? layout::sign : 0;
    return {static_cast<Key>(is_max ? layout::sign : 0),
            static_cast<Key>(lowest + layout::sign + nans), static_cast<Key>(lowest + 2 * nans),
            static_cast<Key>(layout::quiet_nan)};
  }

  RANKFOLD_DETAIL_INLINE value load(const simd::bytes<Arch>& x) const noexcept {
    return monotonic(simd::cast<Key>(x) ^ value(flip)) + value(wrap);
  }
  RANKFOLD_DETAIL_INLINE value combine(const value& a, const value& b) const noexcept {
    return simd::smaller(a, b);
  }
  RANKFOLD_DETAIL_INLINE simd::bytes<Arch> store(const value& x) const noexcept {
    const value number = monotonic(x - value(wrap)) ^ value(flip);
    return simd::cast<std::uint8_t>(simd::select_less(x, value(least), value(nan), number));
  }

 private:
  // From sign and magnitude to two's complement, less one for negative numbers; its own inverse.
  RANKFOLD_DETAIL_INLINE static value monotonic(const value& x) noexcept {
    if constexpr (sizeof(Key) == 2) {
      return x ^ ((x >> 15) & value(Key{0x7FFF}));
    } else {
      // There is no shift of bytes. As no byte of the difference borrows, lanes of 32 bits will do.
      using lanes = simd::batch<Arch, std::uint32_t>;
      const lanes sign = simd::cast<std::uint32_t>(x & value(Key{0x80}));
      return x ^ simd::cast<Key>(sign - (sign >> 7));
    }
  }
};

// ---- Driver ----
//
// Sizes and offsets count the bytes of the smaller one of the two types; a pair of registers of
// float has twice as many.

template <class Arch, class Policy>
inline constexpr bool loads_pair_v =
    requires(const Policy& policy, const float_pair<Arch>& x) { policy.load(x); };

/// The value of the register at `offset`.
template <class Arch, class Policy>
RANKFOLD_DETAIL_INLINE typename Policy::value load_at(const Policy& policy, const std::byte* from,
                                                      std::size_t offset) noexcept {
  if constexpr (loads_pair_v<Arch, Policy>) {
    const std::byte* const pair = from + 2 * offset;
    return policy.load({simd::cast<float>(simd::load<Arch>(pair)),
                        simd::cast<float>(simd::load<Arch>(pair + simd::width_bytes<Arch>))});
  } else {
    return policy.load(simd::load<Arch>(from + offset));
  }
}

/// The same of `size` bytes, 0 < size <= width.
template <class Arch, class Policy>
RANKFOLD_DETAIL_INLINE typename Policy::value load_tail_at(const Policy& policy,
                                                           const std::byte* from,
                                                           std::size_t offset,
                                                           std::size_t size) noexcept {
  if constexpr (loads_pair_v<Arch, Policy>) {
    return policy.load(load_pair_up_to<Arch>(from + 2 * offset, 2 * size));
  } else {
    return policy.load(load_up_to<Arch>(from + offset, size));
  }
}

template <class Arch>
RANKFOLD_DETAIL_INLINE void store_at(std::byte* to, std::size_t offset,
                                     const simd::bytes<Arch>& x) noexcept {
  simd::store<Arch>(to + offset, x);
}
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_at(std::byte* to, std::size_t offset,
                                     const float_pair<Arch>& x) noexcept {
  std::byte* const pair = to + 2 * offset;
  simd::store<Arch>(pair, simd::cast<std::uint8_t>(x.first));
  simd::store<Arch>(pair + simd::width_bytes<Arch>, simd::cast<std::uint8_t>(x.second));
}

/// Of `size` bytes, 0 < size <= width.
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_tail_at(std::byte* to, std::size_t offset,
                                          const simd::bytes<Arch>& x, std::size_t size) noexcept {
  store_up_to<Arch>(to + offset, x, size);
}
template <class Arch>
RANKFOLD_DETAIL_INLINE void store_tail_at(std::byte* to, std::size_t offset,
                                          const float_pair<Arch>& x, std::size_t size) noexcept {
  store_pair_up_to<Arch>(to + 2 * offset, x, 2 * size);
}

/// The tree over the elements at `offset` of N inputs, N at most 4, in one register.
template <class Arch, int N, class Policy>
RANKFOLD_DETAIL_INLINE typename Policy::value fold_at(const Policy& policy,
                                                      const std::byte* const* in,
                                                      std::size_t offset) noexcept {
  if constexpr (N == 1) {
    return load_at<Arch>(policy, in[0], offset);
  } else {
    constexpr int left = N > 2 ? 2 : 1;
    return policy.combine(fold_at<Arch, left>(policy, in, offset),
                          fold_at<Arch, N - left>(policy, in + left, offset));
  }
}

/// The same for the `size` elements' bytes that do not fill a register.
template <class Arch, int N, class Policy>
RANKFOLD_DETAIL_INLINE typename Policy::value fold_tail_at(const Policy& policy,
                                                           const std::byte* const* in,
                                                           std::size_t offset,
                                                           std::size_t size) noexcept {
  if constexpr (N == 1) {
    return load_tail_at<Arch>(policy, in[0], offset, size);
  } else {
    constexpr int left = N > 2 ? 2 : 1;
    return policy.combine(fold_tail_at<Arch, left>(policy, in, offset, size),
                          fold_tail_at<Arch, N - left>(policy, in + left, offset, size));
  }
}

/// What is to be stored of the result in one register.
template <class Arch, class Policy>
RANKFOLD_DETAIL_INLINE auto finish_one(const Policy& policy, typename Policy::value x) noexcept {
  if constexpr (requires { policy.settle(x); }) {
    x = policy.settle(x);
  }
  if constexpr (requires { policy.average(x); }) {
    if (policy.is_average()) {
      x = policy.average(x);
    }
  }
  return policy.store(x);
}

/// Stores four registers; NaNs are rare enough to look for them in all at once.
template <class Arch, class Policy>
RANKFOLD_DETAIL_INLINE void store_four(const Policy& policy, std::byte* to, std::size_t offset,
                                       typename Policy::value a, typename Policy::value b,
                                       typename Policy::value c,
                                       typename Policy::value d) noexcept {
  constexpr std::size_t width = simd::width_bytes<Arch>;
  if constexpr (requires { policy.settle(a); }) {
    if (policy.any_nan(a, b, c, d)) [[unlikely]] {
      a = policy.settle(a);
      b = policy.settle(b);
      c = policy.settle(c);
      d = policy.settle(d);
    }
  }
  if constexpr (requires { policy.average(a); }) {
    if (policy.is_average()) {
      a = policy.average(a);
      b = policy.average(b);
      c = policy.average(c);
      d = policy.average(d);
    }
  }
  store_at<Arch>(to, offset, policy.store(a));
  store_at<Arch>(to, offset + width, policy.store(b));
  store_at<Arch>(to, offset + 2 * width, policy.store(c));
  store_at<Arch>(to, offset + 3 * width, policy.store(d));
}

/// N inputs, N small: everything stays in registers.
template <class Arch, int N, class Policy>
[[gnu::noinline]] void fold_few(const Policy& shared_policy, const void* const* in, void* out,
                                std::size_t size) noexcept {
  constexpr std::size_t width = simd::width_bytes<Arch>;
  const Policy policy = shared_policy;  // a copy that no store can change
  const std::byte* from[N];
  for (int k = 0; k < N; ++k) {
    from[k] = static_cast<const std::byte*>(in[k]);
  }
  auto* const to = static_cast<std::byte*>(out);
  std::size_t i = 0;
  for (; size - i >= 4 * width; i += 4 * width) {
    store_four<Arch>(policy, to, i, fold_at<Arch, N>(policy, from, i),
                     fold_at<Arch, N>(policy, from, i + width),
                     fold_at<Arch, N>(policy, from, i + 2 * width),
                     fold_at<Arch, N>(policy, from, i + 3 * width));
  }
  for (; size - i >= width; i += width) {
    store_at<Arch>(to, i, finish_one<Arch>(policy, fold_at<Arch, N>(policy, from, i)));
  }
  if (i < size) {
    const auto last = fold_tail_at<Arch, N>(policy, from, i, size - i);
    store_tail_at<Arch>(to, i, finish_one<Arch>(policy, last), size - i);
  }
}

/// Calls f(0), …, f(N − 1), unrolled at every level of optimisation.
template <int N, class F>
RANKFOLD_DETAIL_INLINE void unroll(const F& f) noexcept {
  f(0);
  if constexpr (N == 4) {
    f(1);
    f(2);
    f(3);
  } else {
    static_assert(N == 1);
  }
}

/// Any number of inputs, by pairs: their results go onto a stack, where trees of equal size are
/// merged as a binary counter carries; what is left at the end is merged from the right. That makes
/// the canonical tree.
///
/// `Lanes` registers are folded side by side, into `top`; `load` gives register `lane` of input k.
template <int Lanes, class Policy, class Load>
RANKFOLD_DETAIL_INLINE void fold_stack(const Policy& policy, int n, const Load& load,
                                       typename Policy::value (&top)[Lanes]) noexcept {
  typename Policy::value stack[32][Lanes];  // one for each bit of n
  int depth = 0;
  const auto merge = [&]() RANKFOLD_DETAIL_INLINE_LAMBDA {
    --depth;
    unroll<Lanes>([&](int lane) RANKFOLD_DETAIL_INLINE_LAMBDA {
      top[lane] = policy.combine(stack[depth][lane], top[lane]);
    });
  };
  for (int k = 0;;) {
    if (k + 1 == n) {
      unroll<Lanes>([&](int lane) RANKFOLD_DETAIL_INLINE_LAMBDA { top[lane] = load(k, lane); });
      break;
    }
    unroll<Lanes>([&](int lane) RANKFOLD_DETAIL_INLINE_LAMBDA {
      top[lane] = policy.combine(load(k, lane), load(k + 1, lane));
    });
    for (int carry = k / 2; (carry & 1) != 0; carry >>= 1) {
      merge();
    }
    k += 2;
    if (k == n) {
      break;
    }
    unroll<Lanes>([&](int lane) RANKFOLD_DETAIL_INLINE_LAMBDA { stack[depth][lane] = top[lane]; });
    ++depth;
  }
  while (depth > 0) {
    merge();
  }
}

template <class Arch, class Policy>
[[gnu::noinline]] void fold_many(const Policy& shared_policy, const void* const* in, int n,
                                 void* out, std::size_t size) noexcept {
  using value = typename Policy::value;
  constexpr std::size_t width = simd::width_bytes<Arch>;
  const Policy policy = shared_policy;
  auto* const to = static_cast<std::byte*>(out);
  std::size_t i = 0;
  for (; size - i >= 4 * width; i += 4 * width) {
    value top[4];
    fold_stack<4>(
        policy, n,
        [&](int k, int lane) RANKFOLD_DETAIL_INLINE_LAMBDA {
          return load_at<Arch>(policy, static_cast<const std::byte*>(in[k]),
                               i + static_cast<std::size_t>(lane) * width);
        },
        top);
    store_four<Arch>(policy, to, i, top[0], top[1], top[2], top[3]);
  }
  while (i < size) {
    const std::size_t step = size - i < width ? size - i : width;
    value top[1];
    fold_stack<1>(
        policy, n,
        [&](int k, int) RANKFOLD_DETAIL_INLINE_LAMBDA {
          return load_tail_at<Arch>(policy, static_cast<const std::byte*>(in[k]), i, step);
        },
        top);
    store_tail_at<Arch>(to, i, finish_one<Arch>(policy, top[0]), step);
    i += step;
  }
}

template <class Arch, class Policy>
RANKFOLD_DETAIL_INLINE void fold_batches(const Policy& policy, const void* const* in, int n,
                                         void* out, std::size_t size) noexcept {
  switch (n) {
    case 2:
      return fold_few<Arch, 2>(policy, in, out, size);
    case 4:
      return fold_few<Arch, 4>(policy, in, out, size);
    default:
      return fold_many<Arch>(policy, in, n, out, size);
  }
}

// ---- From operator and type to policy ----

/// The policy object of `Op` from elements of `From` to elements of `To`: the same type, or a
/// 16-bit float and float. Of the 8-bit floats, min and max only. `avg` divides by `divisor`.
template <class Arch, class Op, class From, class To>
RANKFOLD_DETAIL_INLINE auto fold_policy([[maybe_unused]] int divisor) noexcept {
  using T = To;
  constexpr bool is_max = std::is_same_v<Op, max>;
  constexpr bool is_order = is_max || std::is_same_v<Op, min>;
  constexpr bool is_avg = std::is_same_v<Op, avg>;
  if constexpr (sizeof(From) < sizeof(To)) {
    return half_widening_policy<Arch, Op, From>{};
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    if constexpr (is_order) {
      return float_order_policy<Arch, T>{is_max ? -T{0} : T{0}};
    } else {
      using step = std::conditional_t<is_avg, sum, Op>;
      return float_policy<Arch, step, T>{average_step<T>::of(is_avg ? divisor : 0)};
    }
  } else if constexpr (is_floating_v<T>) {
    if constexpr (is_order) {
      using key = std::conditional_t<sizeof(T) == 2, std::int16_t, std::uint8_t>;
      return small_order_policy<Arch, key>::template of<T>(is_max);
    } else {
      using step = std::conditional_t<is_avg, sum, Op>;
      const half_policy<Arch, step, T> policy{{}, average_step<float>::of(is_avg ? divisor : 0)};
      if constexpr (std::is_same_v<From, To>) {
        return policy;
      } else {
        return half_narrowing_policy<Arch, step, T>{policy};
      }
    }
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<Op, logical_and> ||
                       std::is_same_v<Op, logical_or>) {
    constexpr bool is_and =
        std::is_same_v<Op, bit_and> || std::is_same_v<Op, logical_and> || std::is_same_v<Op, min>;
    using bits = unsigned_of_t<T>;
    if constexpr (std::is_same_v<Op, bit_xor>) {
      return truth_xor_policy<Arch>{};
    } else {
      return truth_policy<Arch, bits>{is_and ? bits{0} : bits{1}};
    }
  } else if constexpr (is_order) {
    // Unsigned where SSE2 has the instruction, else signed.
    using key = std::conditional_t<
        sizeof(T) == 1, std::uint8_t,
        std::conditional_t<sizeof(T) == 2, std::int16_t,
                           std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>>>;
    using bits = unsigned_of_t<T>;
    constexpr auto sign = static_cast<bits>(bits{1} << (8 * sizeof(T) - 1));
    constexpr bits order = std::is_signed_v<T> == std::is_signed_v<key> ? bits{0} : sign;
    return order_policy<Arch, key>{static_cast<key>(is_max ? static_cast<bits>(~order) : order)};
  } else if constexpr (std::is_same_v<Op, sum>) {
    return sum_policy<Arch, unsigned_of_t<T>>{};
  } else if constexpr (std::is_same_v<Op, prod>) {
    return prod_policy<Arch, unsigned_of_t<T>>{};
  } else if constexpr (std::is_same_v<Op, bit_xor>) {
    return xor_policy<Arch>{};
  } else {
    static_assert(std::is_same_v<Op, bit_and> || std::is_same_v<Op, bit_or>);
    return bit_policy<Arch>{static_cast<std::uint8_t>(std::is_same_v<Op, bit_and> ? 0 : 0xFF)};
  }
}

/// Whether `Arch` has the registers that the policy of `T` works in. For floats, registers of
/// double are asked for, too: the one architecture with float only, 32-bit NEON, flushes
/// subnormals.
template <class Arch, class T>
inline constexpr bool folds_in_batches_v =
    simd::has_batch_v<Arch, std::uint8_t> && (!is_floating_v<T> || simd::has_batch_v<Arch, double>);

// ---- sum, prod and avg of the 8-bit floats ----
//
// Block by block, by the fold of float, between two conversions: so that they bring few kernels of
// their own, however many types and operators there are.

/// The fold of float under Op; a sum if `divisor` is 0 where Op is avg.
template <class Arch, class Op>
void fold_floats(const void* const* in, int n, int divisor, void* out, std::size_t count) noexcept {
  fold_batches<Arch>(fold_policy<Arch, Op, float, float>(divisor), in, n, out,
                     count * sizeof(float));
}

/// From which elements to which. Null: they are floats.
struct block_fold {
  void (*fold)(const void* const* in, int n, int divisor, void* out, std::size_t count) noexcept;
  void (*widen)(const void* in, void* out, std::size_t count) noexcept;
  void (*widen_two)(const void* a, const void* b, void* out, std::size_t count) noexcept;
  void (*narrow)(const void* in, void* out, std::size_t count) noexcept;
};

inline constexpr std::size_t block_elements = 512;
inline constexpr int most_operands = 8;

/// The canonical tree over the block of `count` elements from element `begin` on, as floats, of up
/// to `most_operands` inputs.
template <class Arch>
[[gnu::noinline]] void fold_few_blocks(const block_fold& how, const void* const* in, int n,
                                       int divisor, std::size_t begin, std::size_t count,
                                       void* out) noexcept {
  const void* operands[most_operands];
  const auto from = [&](int k, std::size_t size) {
    return static_cast<const std::byte*>(in[k]) + begin * size;
  };
  if (how.widen == nullptr) {
    for (int k = 0; k < n; ++k) {
      operands[k] = from(k, sizeof(float));
    }
    how.fold(operands, n, divisor, out, count);
    return;
  }
  if (n == 2 && divisor == 0 && how.narrow != nullptr) {  // which takes any NaN
    how.widen_two(from(0, 1), from(1, 1), out, count);
    return;
  }
  // Two inputs at a time, so that they take half the memory.
  alignas(64) float widened[(most_operands + 1) / 2][block_elements];
  const int pairs = (n + 1) / 2;
  for (int k = 0; k < pairs; ++k) {
    if (2 * k + 1 < n) {
      how.widen_two(from(2 * k, 1), from(2 * k + 1, 1), widened[k], count);
    } else {
      how.widen(from(2 * k, 1), widened[k], count);
    }
    operands[k] = widened[k];
  }
  how.fold(operands, pairs, divisor, out, count);
}

/// The same of any number of inputs.
template <class Arch>
void fold_block(const block_fold& how, const void* const* in, int n, int divisor, std::size_t begin,
                std::size_t count, void* out) noexcept {
  if (n <= most_operands) {
    fold_few_blocks<Arch>(how, in, n, divisor, begin, count, out);
    return;
  }
  int left = most_operands;
  while (left < n - left) {
    left *= 2;
  }
  alignas(64) float right[block_elements];
  fold_block<Arch>(how, in, left, 0, begin, count, out);
  fold_block<Arch>(how, in + left, n - left, 0, begin, count, right);
  const void* const operands[] = {out, right};
  how.fold(operands, 2, divisor, out, count);
}

template <class Arch>
void fold_blocks(const block_fold& how, const void* const* in, int n, int divisor, void* out,
                 std::size_t count) noexcept {
  auto* const to = static_cast<std::byte*>(out);
  for (std::size_t begin = 0; begin < count; begin += block_elements) {
    const std::size_t left = count - begin;
    const std::size_t now = left < block_elements ? left : block_elements;
    if (how.narrow != nullptr) {
      alignas(64) float result[block_elements];
      fold_block<Arch>(how, in, n, divisor, begin, now, result);
      how.narrow(result, to + begin, now);
    } else {
      fold_block<Arch>(how, in, n, divisor, begin, now, to + begin * sizeof(float));
    }
  }
}

template <class Arch, class Op, class From, class To>
constexpr block_fold block_fold_of() noexcept {
  block_fold how{&fold_floats<Arch, std::conditional_t<std::is_same_v<Op, prod>, prod, avg>>,
                 nullptr, nullptr, nullptr};
  if constexpr (is_float8_v<From>) {
    how.widen = &widen_float8<Arch, From>;
    how.widen_two = &widen_two_float8<Arch, From, std::is_same_v<Op, prod>>;
  }
  if constexpr (is_float8_v<To>) {
    how.narrow = &narrow_float8<Arch, To>;
  }
  return how;
}

/// The fold of a built-in operator in whatever way `Arch` has; see `fold_policy`.
template <class Arch, class Op, class From, class To>
RANKFOLD_DETAIL_INLINE void fold_builtin(const void* const* in, int n, int divisor, void* out,
                                         std::size_t count) noexcept {
  constexpr bool is_order = std::is_same_v<Op, min> || std::is_same_v<Op, max>;
  if constexpr (folds_in_batches_v<Arch, To> && (is_float8_v<From> || is_float8_v<To>) &&
                !is_order) {
    fold_blocks<Arch>(block_fold_of<Arch, Op, From, To>(), in, n,
                      std::is_same_v<Op, avg> ? divisor : 0, out, count);
  } else if constexpr (folds_in_batches_v<Arch, To>) {
    constexpr std::size_t size = sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To);
    fold_batches<Arch>(fold_policy<Arch, Op, From, To>(divisor), in, n, out, count * size);
  } else {
    fold_elements<Arch, Op, From, To>(in, n, divisor, out, count);
  }
}

}  // namespace detail
RANKFOLD_END_NAMESPACE
RANKFOLD_DETAIL_END_KERNELS
