// SPDX-License-Identifier: Apache-2.0
// The layout of a rank's segment: fixed constants only, shared between processes.
//
//     0      segment_header: who it belongs to, whether its owner left        (written by the
//     owner) 64     sleepers: how many ranks sleep on this rank's flag lines          (written by
//     all) 128    abort_record: rank 0's is the one of the host                     (first failing
//     rank) 4096   flag lines: max_lanes × 2 lines, 128 bytes apart                  (written by
//     the owner,
//                                                       marked by a rank that aborts)
//     20480  workspace: two halves, used in turn, step by step                 (written by the
//     owner)
//
// Fields that several ranks touch are plain integers here and are accessed through std::atomic_ref.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/cpu_set.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

// A lock in place of a lock-free atomic would be one lock a process, which is none between
// processes.
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free &&
              std::atomic_ref<std::uint64_t>::required_alignment <= 8 &&
              std::atomic_ref<std::uint32_t>::is_always_lock_free);

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;
inline constexpr std::size_t max_lanes = 64;
inline constexpr std::size_t inline_capacity = 40;
inline constexpr std::uint64_t segment_magic = 0x31646C6F666B6E72;  // "rnkfold1" in memory
inline constexpr std::uint32_t layout_version = 1;

struct segment_header {
  std::uint64_t magic;
  std::uint32_t layout;
  std::uint32_t life;  // 0 joined, 1 left; atomic
  std::int32_t rank;
  std::int32_t size;
  std::uint64_t tuning_hash;  // written before the owner's first step, read after it
  std::byte reserved[32];
};
static_assert(std::is_standard_layout_v<segment_header> && sizeof(segment_header) == cache_line);

struct sleepers_line {
  std::uint32_t count;  // atomic
  std::byte reserved[60];
};
static_assert(sizeof(sleepers_line) == cache_line);

/// What made the communicator fail first. `state`: 0 free, 1 being written, 2 complete; atomic.
struct abort_record {
  std::uint32_t state;
  std::uint32_t kind;
  std::int32_t rank;
  std::uint32_t text_size;
  char text[1008];
};
static_assert(std::is_standard_layout_v<abort_record> && sizeof(abort_record) == 1024);

/// One of a rank's two flags. `word` is step·2 + mark, atomic; its low 32 bits are the futex.
struct flag_line {
  std::uint64_t word;
  std::uint64_t fingerprint[2];
  std::byte payload[inline_capacity];
  std::byte pad[64];  // the next line of the pair that a prefetcher fetches together
};
static_assert(std::is_standard_layout_v<flag_line> && sizeof(flag_line) == 2 * cache_line);
static_assert(offsetof(flag_line, payload) + inline_capacity == cache_line);

inline constexpr std::size_t sleepers_offset = 64;
inline constexpr std::size_t abort_offset = 128;
inline constexpr std::size_t cpus_offset = abort_offset + sizeof(abort_record);
inline constexpr std::size_t flags_offset = page;
inline constexpr std::size_t workspace_offset = flags_offset + max_lanes * 2 * sizeof(flag_line);
static_assert(cpus_offset + sizeof(cpu_mask) <= flags_offset && workspace_offset % page == 0);

/// The size of a segment whose two halves hold `workspace_bytes` together, in whole pages.
constexpr std::size_t segment_bytes(std::size_t workspace_bytes) {
  return workspace_offset + (workspace_bytes + 2 * page - 1) / (2 * page) * (2 * page);
}

inline segment_header& header_of(std::byte* segment) {
  return *reinterpret_cast<segment_header*>(segment);
}
inline sleepers_line& sleepers_of(std::byte* segment) {
  return *reinterpret_cast<sleepers_line*>(segment + sleepers_offset);
}
inline abort_record& abort_of(std::byte* segment) {
  return *reinterpret_cast<abort_record*>(segment + abort_offset);
}
inline cpu_mask& cpus_of(std::byte* segment) {
  return *reinterpret_cast<cpu_mask*>(segment + cpus_offset);
}
inline flag_line* flags_of(std::byte* segment) {
  return reinterpret_cast<flag_line*>(segment + flags_offset);
}

/// Fills the header of one's own segment, before any peer can see it.
inline void init_segment(std::byte* segment, int rank, int size) {
  segment_header& header = header_of(segment);
  header.magic = segment_magic;
  header.layout = layout_version;
  header.rank = rank;
  header.size = size;
}

/// Says to the peers that this rank left in order. Pairs with the acquire load in `has_left`.
inline void mark_left(std::byte* segment) noexcept {
  std::atomic_ref<std::uint32_t>(header_of(segment).life).store(1, std::memory_order_release);
}

/// Whether the segment's owner left. Pairs with the release store in `mark_left`.
inline bool has_left(std::byte* segment) noexcept {
  return std::atomic_ref<std::uint32_t>(header_of(segment).life).load(std::memory_order_acquire) !=
         0;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
