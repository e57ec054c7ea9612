// SPDX-License-Identifier: Apache-2.0
// What a rank asks for in a collective call: the names of collectives and algorithms, the options
// of a call, and the 16 bytes by which ranks notice that they do not ask for the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/reduction.hpp"

RANKFOLD_BEGIN_NAMESPACE

enum class collective : std::uint8_t {
  barrier = 1,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  reduce_scatter_uneven,
  all_gather_uneven,
  gather_uneven,
  scatter_uneven,
  all_to_all_uneven,
  send_recv,
  split,
  tune,
  allocate,
};

/// How a collective is carried out. `automatic` picks by size; the others are for measurements and
/// tests. The result does not depend on it.
///
/// - `inline_line`: the payload travels in the flag's cache line; 40 bytes at most.
/// - `one_shot`: every rank stages its data, every rank that needs them reads them.
/// - `two_shot`: each rank reduces a slice and the others fetch it; pipelined (all_reduce and
///   reduce only).
/// - `two_level`: inside each host over memory, between hosts over messages; pipelined (all_reduce
///   over several hosts only).
enum class algorithm : std::uint8_t { automatic, inline_line, one_shot, two_shot, two_level };

constexpr std::string_view name_of(collective c) noexcept {
  switch (c) {
    case collective::barrier:
      return "barrier";
    case collective::all_reduce:
      return "all_reduce";
    case collective::reduce_scatter:
      return "reduce_scatter";
    case collective::all_gather:
      return "all_gather";
    case collective::broadcast:
      return "broadcast";
    case collective::reduce:
      return "reduce";
    case collective::gather:
      return "gather";
    case collective::scatter:
      return "scatter";
    case collective::all_to_all:
      return "all_to_all";
    case collective::reduce_scatter_uneven:
      return "reduce_scatter (uneven)";
    case collective::all_gather_uneven:
      return "all_gather (uneven)";
    case collective::gather_uneven:
      return "gather (uneven)";
    case collective::scatter_uneven:
      return "scatter (uneven)";
    case collective::all_to_all_uneven:
      return "all_to_all (uneven)";
    case collective::send_recv:
      return "send/recv";
    case collective::split:
      return "split";
    case collective::tune:
      return "tune";
    case collective::allocate:
      return "allocate";
  }
  return "unknown operation";
}

constexpr std::string_view name_of(algorithm a) noexcept {
  switch (a) {
    case algorithm::automatic:
      return "automatic";
    case algorithm::inline_line:
      return "inline_line";
    case algorithm::one_shot:
      return "one_shot";
    case algorithm::two_shot:
      return "two_shot";
    case algorithm::two_level:
      return "two_level";
  }
  return "unknown algorithm";
}

/// Whether blocks may differ in size, so that no one count describes a call.
constexpr bool is_uneven(collective c) noexcept {
  return c >= collective::reduce_scatter_uneven && c <= collective::all_to_all_uneven;
}

/// Whether elements are folded, not only moved.
constexpr bool is_reduction(collective c) noexcept {
  return c == collective::all_reduce || c == collective::reduce ||
         c == collective::reduce_scatter || c == collective::reduce_scatter_uneven;
}

/// " from root " where one rank sends to all, " to root " where all send to one, else nothing.
constexpr std::string_view role_of_root(collective c) noexcept {
  switch (c) {
    case collective::broadcast:
    case collective::scatter:
    case collective::scatter_uneven:
      return " from root ";
    case collective::reduce:
    case collective::gather:
    case collective::gather_uneven:
      return " to root ";
    default:
      return "";
  }
}

/// Options of one call; equal on all ranks.
struct call_options {
  rankfold::algorithm algorithm = algorithm::automatic;
  /// Tells apart calls that are alike in every other field, 0 to 1,048,575: ranks that pass
  /// different tags get a mismatch_error instead of each other's data.
  std::uint32_t tag = 0;
  /// Tells types apart that the library does not know, in calls that only move elements: any number
  /// below 2^31; ranks that pass different ones get a mismatch_error. 0: nothing is told.
  std::uint32_t type_id = 0;
};

/// The fields that must agree between ranks, packed:
///   word 0: count (48 bits; of bytes for a user's type; for an uneven collective 0, or the size of
///           an element of a user's type), collective (5), dtype (6), algorithm (5)
///   word 1: operator, or type_id where elements are only moved (32), root (12), tag (20)
struct fingerprint {
  std::uint64_t words[2] = {0, 0};

  static constexpr std::size_t max_count = (std::size_t{1} << 48) - 1;
  static constexpr std::uint32_t max_tag = (1u << 20) - 1;
  static constexpr std::uint32_t max_type_id = (1u << 31) - 1;
  static constexpr int max_ranks = 1 << 12;

  friend constexpr bool operator==(const fingerprint&, const fingerprint&) = default;

  static constexpr fingerprint of(collective what, std::size_t count, dtype type,
                                  std::uint32_t operator_id, algorithm how, int root,
                                  std::uint32_t tag) noexcept {
    return {{std::uint64_t{count} | std::uint64_t{static_cast<std::uint8_t>(what)} << 48 |
                 std::uint64_t{static_cast<std::uint8_t>(type)} << 53 |
                 std::uint64_t{static_cast<std::uint8_t>(how)} << 59,
             std::uint64_t{operator_id} | std::uint64_t{static_cast<std::uint32_t>(root)} << 32 |
                 std::uint64_t{tag} << 44}};
  }

  constexpr collective what() const noexcept {
    return static_cast<collective>(words[0] >> 48 & 0x1f);
  }
  constexpr std::size_t count() const noexcept { return words[0] & max_count; }
  constexpr dtype type() const noexcept { return static_cast<dtype>(words[0] >> 53 & 0x3f); }
  constexpr std::uint32_t tag() const noexcept {
    return static_cast<std::uint32_t>(words[1] >> 44);
  }

  /// For messages: "all_reduce of 64 × float32 by sum, algorithm one_shot, tag 3".
  std::string describe() const {
    const dtype type = this->type();
    const auto how = static_cast<algorithm>(words[0] >> 59);
    const auto operator_id = static_cast<std::uint32_t>(words[1]);
    const auto root = words[1] >> 32 & 0xfff;
    std::string text(name_of(what()));
    if (what() == collective::tune) {
      return text.append(
          " (when the communicator is made, as tuner_options, RANKFOLD_TUNE or "
          "RANKFOLD_TUNING_FILE ask for: alike on all ranks)");
    }
    if (is_uneven(what())) {
      // Of its counts, which ranks need not know of each other, there is only a user's size.
      text.append(" of ");
      text.append(type == dtype::user
                      ? "a user's type of " + std::to_string(count()) + " bytes an element"
                      : std::string(name_of(type)));
    } else if (what() != collective::barrier && what() != collective::split) {
      text.append(" of ").append(std::to_string(count()));
      text.append(type == dtype::user ? " bytes of a user's type"
                                      : " × " + std::string(name_of(type)));
    }
    if (operator_id != 0 && !is_reduction(what())) {
      text.append(" (type ").append(std::to_string(operator_id)).append(")");
    } else if (operator_id >= 1u << 31) {
      text.append(" by user operator ").append(std::to_string(operator_id));
    } else if (operator_id != 0) {
      text.append(" by ").append(name_of(static_cast<reduction>(operator_id)));
    }
    if (const std::string_view root_is = role_of_root(what()); !root_is.empty()) {
      text.append(root_is).append(std::to_string(root));
    }
    if (how != algorithm::automatic) text.append(", algorithm ").append(name_of(how));
    return text.append(", tag ").append(std::to_string(tag()));
  }
};
static_assert(sizeof(fingerprint) == 16);

namespace detail {

[[noreturn, gnu::cold]] inline void throw_call(std::string_view name, std::size_t count,
                                               const call_options& options) {
  if (options.type_id > fingerprint::max_type_id) {
    throw std::invalid_argument(std::string(name) + ": type_id " + std::to_string(options.type_id) +
                                "; ids of types go from 0 to 2147483647");
  }
  if (count > fingerprint::max_count) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(count) +
                                " elements; at most 2^48 - 1 are possible");
  }
  throw std::invalid_argument(std::string(name) + ": tag " + std::to_string(options.tag) +
                              "; tags go from 0 to 1048575");
}

/// Checks what a fingerprint cannot hold.
inline void check_call(std::string_view name, std::size_t count, const call_options& options) {
  if (count > fingerprint::max_count || options.tag > fingerprint::max_tag ||
      options.type_id > fingerprint::max_type_id) [[unlikely]]
    throw_call(name, count, options);
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
