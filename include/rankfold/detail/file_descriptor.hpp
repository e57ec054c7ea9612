// SPDX-License-Identifier: Apache-2.0
// File descriptors that close themselves, and those that a forked child must not keep.
#pragma once

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <sys/resource.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/fork_generation.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// "Too many open files (errno 24)": for error messages.
inline std::string errno_text(int code) {
  return std::error_code(code, std::generic_category()).message() + " (errno " +
         std::to_string(code) + ")";
}

/// The soft limit of open files, "1024" or "unlimited".
inline std::string open_file_limit_text() {
  ::rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return std::to_string(limit.rlim_cur);
}

[[noreturn]] inline void throw_errno(const std::string& what, int code) {
  std::string text = "rankfold: " + what + ": " + errno_text(code);
  if (code == EMFILE) {
    text += "; this process may have " + open_file_limit_text() +
            " open files, raise that with ulimit -n";
  }
  throw transport_error(text);
}

/// Throws a `transport_error` unless `count` more descriptors can be opened.
inline void check_open_file_limit(std::size_t count, const std::string& who) {
  ::rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::size_t used = 0;
  if (::DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) ++used;
    used -= std::min<std::size_t>(used, 3);  // ".", ".." and the folder itself
    ::closedir(folder);
  } else if (errno == EMFILE) {
    used = limit.rlim_cur;
  }
  if (used + count > limit.rlim_cur) {
    throw transport_error("rankfold: " + who + " needs " + std::to_string(count) +
                          " more open files, but " + std::to_string(used) + " of " +
                          std::to_string(limit.rlim_cur) +
                          " allowed are in use: raise the limit with ulimit -n");
  }
}

/// A descriptor, closed by its destructor.
class file_descriptor {
 public:
  file_descriptor() = default;
  explicit file_descriptor(int fd) noexcept : fd_(fd) {}
  file_descriptor(file_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    file_descriptor taken(std::move(other));
    std::swap(fd_, taken.fd_);
    return *this;
  }
  ~file_descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The descriptors that are closed in a forked child before fork() returns there. A lock is held
/// over fork and over each change, so that a child never has one that its parent did not note.
class fork_closed_set {
 public:
  static fork_closed_set& instance() {
    // Never destroyed: objects of static storage may close their descriptors at exit.
    static fork_closed_set* const set = new fork_closed_set;
    return *set;
  }

  template <class Opener>
  int open(Opener opener) {
    const std::lock_guard lock(mutex_);
    descriptors_.reserve(descriptors_.size() + 1);
    const int fd = opener();
    if (fd >= 0) descriptors_.push_back(fd);
    return fd;
  }

  void close(int fd) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(descriptors_, fd);
    ::close(fd);
  }

 private:
  fork_closed_set() {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] {
                       for (const int fd : instance().descriptors_) ::close(fd);
                       instance().descriptors_.clear();
                       instance().mutex_.unlock();
                     });
  }

  std::mutex mutex_;
  std::vector<int> descriptors_;
};

/// A descriptor of this process alone: neither exec nor fork hands it on, so that what is at its
/// other end sees a hang-up when this process ends, whatever children it has.
class private_descriptor {
 public:
  private_descriptor() = default;
  private_descriptor(private_descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  private_descriptor& operator=(private_descriptor&& other) noexcept {
    private_descriptor taken(std::move(other));
    std::swap(fd_, taken.fd_);
    std::swap(generation_, taken.generation_);
    return *this;
  }
  ~private_descriptor() {
    // In a forked child it is closed already, and the number may be another's.
    if (fd_ >= 0 && generation_ == fork_generation()) fork_closed_set::instance().close(fd_);
  }

  /// What `opener` opens (close-on-exec), or nothing, with errno set, where it returns less than 0.
  template <class Opener>
  static private_descriptor opened_by(Opener opener) {
    private_descriptor made;
    made.generation_ = fork_generation();
    made.fd_ = fork_closed_set::instance().open(opener);
    return made;
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
  unsigned generation_ = 0;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
