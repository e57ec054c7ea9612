// SPDX-License-Identifier: Apache-2.0
// A descriptor that tells others when this process has ended, however it ends.
#pragma once

#include <atomic>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <sys/syscall.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Tests set this to take the way of kernels before 5.3 and of sandboxes without pidfd_open.
inline std::atomic<bool> without_pidfd{false};

/// What this process holds, and what it hands to others.
struct process_life {
  private_descriptor held;  // nothing where the kernel itself watches the process
  file_descriptor watched;
};

/// A pidfd of this process: readable when it has ended, works in other pid namespaces, and does not
/// care about its children. Else a pipe whose other end only this process holds.
inline process_life open_process_life() {
  process_life life;
#ifdef SYS_pidfd_open
  if (!without_pidfd.load()) {
    const long fd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
    life.watched = file_descriptor(static_cast<int>(fd));
    if (life.watched) return life;
    if (errno != ENOSYS && errno != EPERM && errno != EACCES && errno != EINVAL) {
      throw_errno("a pidfd of this process cannot be opened", errno);
    }
  }
#endif
  int ends[2] = {-1, -1};
  life.held = private_descriptor::opened_by(
      [&ends] { return ::pipe2(ends, O_CLOEXEC) == 0 ? ends[1] : -1; });
  if (!life.held) throw_errno("a pipe cannot be opened", errno);
  life.watched = file_descriptor(ends[0]);
  return life;
}

/// Whether the process that made `watched` has ended. Does not block.
inline bool has_ended(int watched) noexcept {
  ::pollfd polled = {watched, POLLIN, 0};
  // Readable: a pidfd whose process has ended. Hung up: a pipe nobody holds, or a pidfd whose
  // process has been waited for.
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLIN | POLLHUP)) != 0;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
