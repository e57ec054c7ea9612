// SPDX-License-Identifier: Apache-2.0
// Epilogues that are there: what follows an all_reduce in a transformer.
//
//     comm.all_reduce(x, sum{}, epilogues::add(residual));     // residual += all_reduce(x)
//
// for spans x and residual.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "rankfold/detail/buffers.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/simd.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/kernel/fold.hpp"
#include "rankfold/kernel/rms_norm.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace epilogues {

/// Adds a residual: out[i] = result[i] + residual[i], for every type that has a sum.
///
/// `residual` and `out` are the same or apart. `out` and the input of the all_reduce are, too; the
/// residual may be the input as well.
/// Numerics: the bits of all_reduce and then of a sum of two: the result is rounded to the element
///           type, and the sum once more.
class add {
 public:
  template <class In, std::size_t N, class T, std::size_t M, class Arch = simd::native>
    requires std::same_as<std::remove_const_t<In>, T> && reduction_op<sum, T>
  add(std::span<In, N> residual, std::span<T, M> out)
      : add(residual.data(), out.data(), residual.size(), dtype_of_v<T>,
            kernel::fold_for<T, sum, Arch>()) {
    detail::check_count("epilogues::add", "out", out.size(), residual.size());
  }
  /// In place: residual += all_reduce(x).
  template <class T, std::size_t N, class Arch = simd::native>
    requires reduction_op<sum, T>
  explicit add(std::span<T, N> residual)
      : add(residual.data(), residual.data(), residual.size(), dtype_of_v<T>,
            kernel::fold_for<T, sum, Arch>()) {}

  /// Run-time types: `count` elements. Throws std::invalid_argument for a type that has no sum.
  template <class Arch = simd::native>
  static add of(const void* residual, void* out, std::size_t count, dtype type) {
    return add(residual, out, count, type, kernel::fold_for<Arch>(type, reduction::sum));
  }

  /// Throws std::invalid_argument where the epilogue does not fit a call.
  void check(dtype type, const void* in, std::size_t count) const {
    check_call("epilogues::add", type, in, count, out_);
  }

  void operator()(const void* x, std::size_t first, std::size_t count) const {
    const void* const operands[] = {x, residual_ + first * size_};
    fold_(nullptr, operands, 2, out_ + first * size_, count);
  }

 private:
  friend class add_rms_norm;

  add(const void* residual, void* out, std::size_t count, dtype type, kernel::fold_function fold)
      : fold_(fold),
        residual_(static_cast<const std::byte*>(residual)),
        out_(static_cast<std::byte*>(out)),
        count_(count),
        size_(size_of(type)),
        type_(type) {
    if (residual != out) {
      detail::check_apart("epilogues::add", residual, count * size_, out, count * size_);
    }
  }

  void check_call(const char* name, dtype type, const void* in, std::size_t count,
                  const void* out) const {
    if (type != type_) {
      throw std::invalid_argument(std::string(name) + ": made for elements of type " +
                                  std::string(name_of(type_)) + ", the all_reduce is of " +
                                  std::string(name_of(type)));
    }
    detail::check_count(name, "the all_reduce", count, count_);
    if (in != out) detail::check_apart(name, in, count * size_, out, count * size_);
  }

  kernel::fold_function fold_;
  const std::byte* residual_;
  std::byte* out_;
  std::size_t count_;
  std::size_t size_;
  dtype type_;
};

/// Adds the result to a residual, in place, and normalises its rows: for rows of weight.size()
/// elements,
///
///     residual += result;    out = rms_norm(residual) · weight
///
/// of float32, bfloat16 or float16. A row is normalised as soon as it is complete, while it is in
/// the cache. `out` is apart from `residual` and `weight`; it may be the input of the all_reduce,
/// or be apart from that; `residual` is apart from it. Numerics: the bits of all_reduce, then
/// `add`, then kernel::rms_norm_function row by row.
class add_rms_norm {
 public:
  template <class T, std::size_t N, class In, std::size_t W, std::size_t M,
            class Arch = simd::native>
    requires kernel::has_rms_norm_v<T> && std::same_as<std::remove_const_t<In>, T>
  add_rms_norm(std::span<T, N> residual, std::span<In, W> weight, float eps, std::span<T, M> out)
      : add_rms_norm(of<Arch>(residual.data(), residual.data(), weight.data(), weight.size(), eps,
                              out.data(), residual.size(), dtype_of_v<T>)) {
    detail::check_count(name, "out", out.size(), residual.size());
  }

  /// Run-time types: `count` elements in rows of `width`. The sum goes to `sum`, which is the
  /// residual or apart from it.
  template <class Arch = simd::native>
  static add_rms_norm of(const void* residual, void* sum, const void* weight, std::size_t width,
                         float eps, void* out, std::size_t count, dtype type) {
    return add_rms_norm(add::of<Arch>(residual, sum, count, type), kernel::rms_norm_for<Arch>(type),
                        weight, width, eps, out);
  }

  /// Throws std::invalid_argument where the epilogue does not fit a call.
  void check(dtype type, const void* in, std::size_t count) const {
    sum_.check_call(name, type, in, count, out_);
    apart("residual", "the input", sum_.out_, bytes(), in, bytes());
  }

  void operator()(const void* x, std::size_t first, std::size_t count) {
    sum_(x, first, count);
    if (first == 0) done_ = 0;
    for (; done_ + width_ <= first + count; done_ += width_) {
      norm_(sum_.out_ + done_ * sum_.size_, weight_, eps_, out_ + done_ * sum_.size_, width_);
    }
  }

 private:
  add_rms_norm(const add& sum, kernel::rms_norm_function norm, const void* weight,
               std::size_t width, float eps, void* out)
      : sum_(sum),
        norm_(norm),
        weight_(weight),
        out_(static_cast<std::byte*>(out)),
        width_(width),
        eps_(eps) {
    if (width == 0 || sum.count_ % width != 0) {
      throw std::invalid_argument(std::string(name) + ": residual has " +
                                  std::to_string(sum.count_) + " elements; expected rows of the " +
                                  std::to_string(width) + " elements of weight");
    }
    apart("residual", "out", sum.out_, bytes(), out, bytes());
    apart("residual", "weight", sum.out_, bytes(), weight, width * sum.size_);
    apart("out", "weight", out, bytes(), weight, width * sum.size_);
  }

  static void apart(const char* first, const char* second, const void* a, std::size_t a_bytes,
                    const void* b, std::size_t b_bytes) {
    if (!detail::overlap(a, a_bytes, b, b_bytes)) return;
    throw std::invalid_argument(std::string(name) + ": " + first + " and " + second +
                                " overlap; expected them apart");
  }

  std::size_t bytes() const { return sum_.count_ * sum_.size_; }

  static constexpr const char* name = "epilogues::add_rms_norm";

  add sum_;
  kernel::rms_norm_function norm_;
  const void* weight_;
  std::byte* out_;
  std::size_t width_;
  std::size_t done_ = 0;
  float eps_;
};

}  // namespace epilogues

RANKFOLD_END_NAMESPACE
