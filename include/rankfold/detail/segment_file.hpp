// SPDX-License-Identifier: Apache-2.0
// Segments as files without a name, which one rank makes and hands to others.
#pragma once

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Memory that begins with a segment_header: of one rank of `size`, `bytes` long on all of them.
struct segment_file {
  int size;
  std::size_t bytes;

  /// Makes that of `rank` and maps it at `segment`; all its memory is taken. Rank 0 comes first and
  /// looks for all: each alone would find room that the next one needs, too.
  file_descriptor create(int rank, mapping& segment) const {
    if (rank == 0) {
      check_memory(bytes * static_cast<std::size_t>(size),
                   std::to_string(size) + " segments of " + bytes_text(bytes));
    } else {
      check_memory(bytes, "a segment");
    }
    file_descriptor memory = make();
    segment = map(memory);
    reserve(memory, segment);
    init_segment(segment.data(), rank, size);
    if (::fcntl(memory.get(), F_ADD_SEALS, wanted_seals) != 0) {
      throw_errno("a segment cannot be sealed", errno);
    }
    return memory;
  }

  /// Maps, on rank `own`, what `rank` has handed over, at `place(rank)`, which is empty until then.
  template <class Place>
  void adopt(int own, int rank, const file_descriptor& memory, Place&& place) const {
    const std::string who =
        "rankfold: rank " + std::to_string(own) + ": the memory of rank " + std::to_string(rank);
    if (rank < 0 || rank >= size || place(rank).data() != nullptr) {
      throw rendezvous_error(who + " was not expected");
    }
    struct ::stat status{};
    if (::fstat(memory.get(), &status) != 0) throw_errno("a segment cannot be looked at", errno);
    if (!S_ISREG(status.st_mode) || status.st_size != static_cast<::off_t>(bytes)) {
      throw rendezvous_error(who + " has " + std::to_string(status.st_size) + " bytes, expected " +
                             std::to_string(bytes));
    }
    // Without them its owner could cut it short and make every access here a SIGBUS.
    const int seals = ::fcntl(memory.get(), F_GET_SEALS);
    if (seals < 0 || (seals & wanted_seals) != wanted_seals) {
      throw rendezvous_error(who + " has seals " + std::to_string(seals) + ", expected at least " +
                             std::to_string(wanted_seals) + " (not to shrink nor to grow)");
    }
    mapping found = map(memory);
    const segment_header& header = header_of(found.data());
    if (header.magic != segment_magic || header.layout != layout_version || header.rank != rank ||
        header.size != size) {
      throw rendezvous_error(
          who + " says rank " + std::to_string(header.rank) + " of " + std::to_string(header.size) +
          ", layout " + std::to_string(header.layout) + ", expected rank " + std::to_string(rank) +
          " of " + std::to_string(size) + ", layout " + std::to_string(layout_version));
    }
    place(rank) = std::move(found);
  }

 private:
  static constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

  file_descriptor make() const {
    // Larger files would be answered with a signal.
    ::rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
      throw transport_error("rankfold: no memory for a segment: need " + bytes_text(bytes) +
                            ", have " + bytes_text(limit.rlim_cur) +
                            ", a limit set by ulimit -f (file size)");
    }
    constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    constexpr unsigned never_executed = 8;  // MFD_NOEXEC_SEAL, Linux 6.3
    file_descriptor memory(::memfd_create("rankfold", flags | never_executed));
    if (!memory && errno == EINVAL) memory = file_descriptor(::memfd_create("rankfold", flags));
    if (!memory) throw_errno("a segment cannot be made (memfd_create)", errno);
    if (::ftruncate(memory.get(), static_cast<::off_t>(bytes)) != 0) {
      throw_errno("a segment cannot be given " + bytes_text(bytes), errno);
    }
    return memory;
  }

  mapping map(const file_descriptor& memory) const {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (address == MAP_FAILED) {
      throw_errno("no address space for a segment of " + bytes_text(bytes) + " (mmap)", errno);
    }
    return {address, bytes};
  }

  /// Takes all the memory now, by its owner and so near to it; what cannot be had is an error here
  /// and never a SIGBUS later.
  static void reserve(const file_descriptor& memory, const mapping& segment) {
    // Best effort, and first: where the system allows huge pages, they come with the first touch.
    constexpr std::size_t huge_page = std::size_t{2} << 20;
    constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
    if (segment.size() >= huge_page) ::madvise(segment.data(), segment.size(), MADV_HUGEPAGE);
    ::madvise(segment.data(), segment.size(), populate_write);
    while (::fallocate(memory.get(), 0, 0, static_cast<::off_t>(segment.size())) != 0) {
      if (errno == EINTR) continue;
      const int code = errno;
      const memory_limit limit = available_memory();
      throw transport_error("rankfold: no memory for a segment: need " +
                            bytes_text(segment.size()) + ", have " + bytes_text(limit.available) +
                            " (" + limit.set_by + "), fallocate says " + errno_text(code));
    }
  }
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
