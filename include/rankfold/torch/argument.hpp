// SPDX-License-Identifier: Apache-2.0
// What ops ask of their arguments, whatever a tensor is: torch's C++ class or the stable ABI's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// Throws what torch turns into RuntimeError; its text is `parts`, one after the other.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

inline std::string text_of(std::span<const std::int64_t> numbers) {
  std::string text = "[";
  for (const std::int64_t n : numbers) {
    text.append(text.size() > 1 ? ", " : "").append(std::to_string(n));
  }
  return text + "]";
}

/// `name` is a tensor whose elements are of no type of rankfold's.
template <class Where>
[[noreturn]] void refuse_dtype(const char* name, const auto& found, Where&& where) {
  refuse(where(), ": ", name, " has dtype ", found,
         ", expected float32, float64, bfloat16, float16, float8_e4m3fn, float8_e5m2, bool or an "
         "integer type");
}

/// `out` cannot take what `x` holds.
template <class Where>
[[noreturn]] void refuse_out_dtype(const auto& found, const auto& expected, Where&& where) {
  refuse(where(), ": out has dtype ", found, ", expected ", expected, ", that of x");
}

/// Checks that `out` has the shape of a result.
template <class Where>
void check_out_sizes(std::span<const std::int64_t> sizes, std::span<const std::int64_t> shape,
                     Where&& where) {
  if (std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end())) return;
  refuse(where(), ": out has sizes ", text_of(sizes), ", expected ", text_of(shape));
}

/// The tensor given as order token is something else; `device` ends what was found.
template <class Where>
[[noreturn]] void refuse_order(std::int64_t count, const auto& found, const auto& device,
                               Where&& where) {
  refuse(where(), ": order is a tensor of ", count, " elements of dtype ", found, " on ", device,
         ", expected the order token that init() returned");
}

inline constexpr reduction reductions[] = {
    reduction::sum,         reduction::prod,      reduction::min,    reduction::max,
    reduction::avg,         reduction::bit_and,   reduction::bit_or, reduction::bit_xor,
    reduction::logical_and, reduction::logical_or};

/// The operator of that name. `where()` begins the message if there is none.
template <class Where>
reduction parse_reduction(std::string_view name, Where&& where) {
  for (const reduction r : reductions) {
    if (name == name_of(r)) return r;
  }
  std::string all;
  for (const reduction r : reductions) all.append(all.empty() ? "" : ", ").append(name_of(r));
  refuse(where(), ": op is \"", name, "\", expected one of ", all);
}

/// For messages: what an operator is defined for.
constexpr std::string_view types_of(reduction op) noexcept {
  switch (op) {
    case reduction::sum:
    case reduction::prod:
      return "a floating or integer type";
    case reduction::avg:
      return "a floating type";
    case reduction::min:
    case reduction::max:
      return "any type";
    default:
      return "an integer type or bool";
  }
}

/// Checks that the operator is defined for the element type.
template <class Where>
void check_operator(reduction op, dtype type, Where&& where) {
  if (supports(op, type)) return;
  refuse(where(), ": op ", name_of(op), " is not defined for dtype ", name_of(type), ", expected ",
         types_of(op));
}

template <class Where>
std::uint32_t check_tag(std::int64_t tag, Where&& where) {
  if (tag < 0 || tag > std::int64_t{fingerprint::max_tag}) {
    refuse(where(), ": tag is ", tag, ", expected 0 to ", fingerprint::max_tag);
  }
  return static_cast<std::uint32_t>(tag);
}

/// The order token is only there to be written, for compilers to see; it counts the collectives.
inline void step_order(std::int64_t& token) {
  // relaxed: no other memory depends on it. Atomic: threads may share a token.
  std::atomic_ref(token).fetch_add(1, std::memory_order_relaxed);
}

namespace strides {

/// Whether two indices of a tensor can be one place in memory. Not called for contiguous tensors.
inline bool overlaps(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  struct dimension {
    std::int64_t stride;
    std::int64_t size;
  };
  std::vector<dimension> dims;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] > 1) dims.push_back({strides[d], sizes[d]});
  }
  std::sort(dims.begin(), dims.end(),
            [](const dimension& a, const dimension& b) { return a.stride < b.stride; });
  std::int64_t extent = 0;  // the last place that the dimensions so far reach
  bool apart = true;
  for (const dimension& d : dims) {
    apart = apart && d.stride > extent;
    extent += (d.size - 1) * d.stride;
  }
  if (apart) return false;
  // The dimensions interleave, which as_strided alone can make: look at every place.
  std::vector<bool> taken(static_cast<std::size_t>(extent) + 1);
  std::vector<std::int64_t> index(dims.size(), 0);
  for (std::int64_t place = 0;;) {
    if (taken[static_cast<std::size_t>(place)]) return true;
    taken[static_cast<std::size_t>(place)] = true;
    std::size_t d = 0;
    for (; d < dims.size(); ++d) {
      place += dims[d].stride;
      if (++index[d] < dims[d].size) break;
      place -= dims[d].stride * dims[d].size;
      index[d] = 0;
    }
    if (d == dims.size()) return false;
  }
}

}  // namespace strides

/// Checks that a tensor that is not contiguous can be written to.
template <class Where>
void check_apart(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                 const char* name, Where&& where) {
  if (!strides::overlaps(sizes, strides)) return;
  refuse(where(), ": ", name, " has sizes ", text_of(sizes), " and strides ", text_of(strides),
         ", so that elements share memory, expected a tensor that does not overlap itself (as ",
         "expand() makes one); call clone() first");
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
