// SPDX-License-Identifier: Apache-2.0
// The sizes at which algorithms change, and the chunks in which they work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/segment_layout.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// Run-time parameters of a communicator's algorithms. They change speed, never a result, and must
/// be the same on every rank: the first exchange with a peer checks that (mismatch_error).
struct tuning {
  /// Up to this many bytes travel inside the flag's own cache line; at most 40.
  std::size_t inline_max_bytes = detail::inline_capacity;
  /// An all_reduce among more than two ranks is one-shot while a rank reads up to this many bytes
  /// from its peers, P - 1 times the vector; above it two-shot.
  std::size_t one_shot_max_bytes = 256 * 1024;
  /// How many bytes a rank stages in one step at most, as far as the workspace has room.
  std::size_t chunk_bytes = 512 * 1024;
  /// The same for all_gather, all_to_all and reduce_scatter, whose buffers pass through the cache
  /// beside what is staged.
  std::size_t exchange_chunk_bytes = 256 * 1024;
  /// The same for broadcast, gather, reduce and scatter, where what one rank stages another reads
  /// at the same time, a step behind; a quarter of a message of less than four such chunks, but no
  /// less than a quarter of a chunk.
  std::size_t rooted_chunk_bytes = 128 * 1024;

  /// From this many bytes on, ranks that have memory from communicator::allocate tell each other
  /// whether the inputs of an all_reduce lie in it; what is shorter is staged wherever it lies.
  std::size_t symmetric_min_bytes = 16 * 1024;
  /// From this many bytes on, an all_reduce that would be one-shot and is in place on some rank
  /// reads such inputs where they lie, in two shots.
  std::size_t symmetric_in_place_min_bytes = 1024 * 1024;

  /// Over several hosts, each rank exchanges up to this many bytes as a whole with the ranks of its
  /// place on the other hosts (where not all hosts have as many ranks, one rank a host does, for
  /// all); above it a slice.
  std::size_t whole_rail_max_bytes = 8 * 1024;

  friend bool operator==(const tuning&, const tuning&) = default;

  /// What ranks compare; never 0.
  std::uint64_t hash() const noexcept;
};

/// A field of a tuning, and its name in files and messages.
struct tuning_field {
  std::string_view name;
  std::size_t tuning::* value;
};
inline constexpr tuning_field tuning_fields[] = {
    {"inline_max_bytes", &tuning::inline_max_bytes},
    {"one_shot_max_bytes", &tuning::one_shot_max_bytes},
    {"chunk_bytes", &tuning::chunk_bytes},
    {"exchange_chunk_bytes", &tuning::exchange_chunk_bytes},
    {"rooted_chunk_bytes", &tuning::rooted_chunk_bytes},
    {"symmetric_min_bytes", &tuning::symmetric_min_bytes},
    {"symmetric_in_place_min_bytes", &tuning::symmetric_in_place_min_bytes},
    {"whole_rail_max_bytes", &tuning::whole_rail_max_bytes},
};
static_assert(sizeof(tuning) == std::size(tuning_fields) * sizeof(std::size_t),
              "every field of tuning belongs into the list");

inline std::uint64_t tuning::hash() const noexcept {
  std::uint64_t h = 0xcbf29ce484222325;  // FNV-1a over the fields
  for (const tuning_field& field : tuning_fields) {
    for (int byte = 0; byte < 8; ++byte) {
      h = (h ^ ((static_cast<std::uint64_t>(this->*field.value) >> (8 * byte)) & 0xff)) *
          0x100000001b3;
    }
  }
  return h | 1;
}

RANKFOLD_END_NAMESPACE
