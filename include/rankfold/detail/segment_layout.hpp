// SPDX-License-Identifier: Apache-2.0
// The layout of a rank's segment: fixed constants only, shared between processes.
//
//     0      segment_header: who it belongs to, whether its owner left        (the owner)
//     64     sleepers: how many ranks sleep on this rank's flag lines         (all)
//     128    abort_record: rank 0's is the one of the host                    (first failing rank)
//     1152   which CPUs the owner may use                                     (the owner)
//     4032   bell: what the owner sleeps on while it sends and receives       (all)
//     4096   flag lines: max_lanes × 32, 128 bytes apart    (the owner; who aborts marks them)
//     20480  workspace: two halves, used in turn, step by step                (the owner)
//     then   for each rank: lines of packets to it, and what is acknowledged of its own
//                                                                             (the owner)
//     then   for each peer: a ring of data to it                              (the owner)
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
inline constexpr std::size_t max_lanes = 4;
/// The flag lines of a rank, used in turn, step by step.
inline constexpr std::size_t flag_lines = 32;
/// How many steps a rank may be ahead of another; docs/memory-model.md says why not more.
inline constexpr std::size_t max_lead = flag_lines / 2;
inline constexpr std::size_t inline_capacity = 40;
inline constexpr std::uint64_t segment_magic = 0x31646C6F666B6E72;  // "rnkfold1" in memory
inline constexpr std::uint32_t layout_version = 3;

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

/// One of a rank's flags. `word` is step·2 + mark, atomic; its low 32 bits are the futex.
struct flag_line {
  std::uint64_t word;
  std::uint64_t fingerprint[2];
  std::byte payload[inline_capacity];
  std::byte pad[64];  // the next line of the pair that a prefetcher fetches together
};
static_assert(std::is_standard_layout_v<flag_line> && sizeof(flag_line) == 2 * cache_line);
static_assert(offsetof(flag_line, payload) + inline_capacity == cache_line);

/// What a rank sleeps on while it waits for packets and acknowledgements, of whatever peer. Both
/// are atomic; `count` is the futex.
struct bell_line {
  std::uint32_t count;     // raised by whoever wakes the owner
  std::uint32_t sleepers;  // how many threads of the owner sleep on it, or are about to
  std::byte reserved[56];
};
static_assert(sizeof(bell_line) == cache_line);

/// A packet from the owner to one peer. `word` is its number, from 1, atomic; what does not fit in
/// `payload` is in the slot of the ring with the same index.
struct packet_line {
  std::uint64_t word;
  std::uint64_t fingerprint[2];
  std::byte payload[inline_capacity];
};
static_assert(std::is_standard_layout_v<packet_line> && sizeof(packet_line) == cache_line);

/// How many packets of one peer the owner has taken out; atomic.
struct packet_ack {
  std::uint64_t word;
  std::byte reserved[56];
};
static_assert(sizeof(packet_ack) == cache_line);

inline constexpr std::size_t packet_slots = 4;  // packets of a pair under way
inline constexpr std::size_t max_ring_bytes = std::size_t{256} << 10;
inline constexpr std::size_t pair_bytes = packet_slots * sizeof(packet_line) + sizeof(packet_ack);

inline constexpr std::size_t sleepers_offset = 64;
inline constexpr std::size_t abort_offset = 128;
inline constexpr std::size_t cpus_offset = abort_offset + sizeof(abort_record);
inline constexpr std::size_t bell_offset = page - cache_line;
inline constexpr std::size_t flags_offset = page;
inline constexpr std::size_t workspace_offset =
    flags_offset + max_lanes * flag_lines * sizeof(flag_line);
static_assert(cpus_offset + sizeof(cpu_mask) <= bell_offset && workspace_offset % page == 0);

/// Where the parts of a segment of `bytes` bytes lie, in a world of `size` ranks.
struct segment_map {
  std::size_t half_bytes = 0;    // 0: the segment is too small
  std::size_t pairs_offset = 0;  // a line of each slot for each rank, then an ack for each rank
  std::size_t rings_offset = 0;
  std::size_t ring_bytes = 0;  // of each peer; whole pages

  static constexpr std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page - 1) / page * page;
  }
  static constexpr std::size_t control_bytes(int size) {
    return size == 1 ? 0 : whole_pages(static_cast<std::size_t>(size) * pair_bytes);
  }
  /// All rings together are a quarter of the workspace at most, but for a page each at least.
  static constexpr std::size_t ring_for(std::size_t all_rings, int size) {
    if (size == 1) return 0;
    const std::size_t ring = all_rings / static_cast<std::size_t>(size - 1) / page * page;
    return ring < page ? page : ring > max_ring_bytes ? max_ring_bytes : ring;
  }

  static constexpr segment_map of(std::size_t bytes, int size) {
    const auto peers = static_cast<std::size_t>(size - 1);
    const std::size_t fixed = workspace_offset + control_bytes(size);
    segment_map map;
    if (bytes < fixed + (peers + 2) * page) return map;
    map.ring_bytes = ring_for((bytes - fixed) / 5, size);
    map.half_bytes = (bytes - fixed - peers * map.ring_bytes) / (2 * page) * page;
    map.pairs_offset = workspace_offset + 2 * map.half_bytes;
    map.rings_offset = map.pairs_offset + control_bytes(size);
    return map;
  }
};

/// The size of a segment whose two halves hold `workspace_bytes` together, in a world of `size`
/// ranks; in whole pages.
constexpr std::size_t segment_bytes(std::size_t workspace_bytes, int size) {
  const std::size_t halves = (workspace_bytes + 2 * page - 1) / (2 * page) * (2 * page);
  return workspace_offset + halves + segment_map::control_bytes(size) +
         static_cast<std::size_t>(size - 1) * segment_map::ring_for(halves / 4, size);
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
inline bell_line& bell_of(std::byte* segment) {
  return *reinterpret_cast<bell_line*>(segment + bell_offset);
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
