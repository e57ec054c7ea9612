// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, for tests: each runs a function in a child of its own, and what it says and
// how it ends is collected. No test hangs: what is left after the time limit is killed.
//
//     forked_ranks ranks(2, [](int rank, const rank_voice& voice) {
//       voice.say("hello");                    // one line; the parent can wait for it
//       return std::string("result");          // or nothing
//     });
//     ranks.wait_for_line(1, "hello");
//     ranks.kill(1, SIGKILL);
//     const std::vector<rank_outcome>& outcomes = ranks.join();
//
// An exception ends a rank with status 1, its text behind the name of its type. No Catch2 macro in
// the children: they look at nothing, they report.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include "rankfold/error.hpp"

/// How a rank ended.
struct rank_outcome {
  bool returned = false;   // the function returned, and `text` is what it returned
  bool threw = false;      // `error` is the exception's type, `text` its text
  bool timed_out = false;  // killed at the time limit
  int signal = 0;          // that ended it, else 0
  int status = 0;          // what it exited with
  std::string error;
  std::string text;
  std::vector<std::string> lines;  // what it said meanwhile
};

/// A child's way to its parent.
class rank_voice {
 public:
  explicit rank_voice(int fd) : fd_(fd) {}

  /// Says a line, whole or not at all where it is short (a pipe keeps what is under 4 KiB
  /// together).
  void say(std::string_view line) const { write('l', line); }

  /// Kind, length in 8 digits, text: the frame of everything that a child says.
  void write(char kind, std::string_view text) const {
    std::string length = std::to_string(text.size());
    std::string frame = kind + std::string(8 - length.size(), '0') + length + std::string(text);
    std::string_view rest = frame;
    while (!rest.empty()) {
      const ::ssize_t written = ::write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) ::_exit(3);
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  }

 private:
  int fd_;
};

/// A set of children, one a rank. Make it, and end it, on the main thread of a process with no
/// others.
class forked_ranks {
 public:
  static constexpr std::chrono::seconds default_limit{60};

  template <class F>
  forked_ranks(int count, F function, std::chrono::milliseconds limit = default_limit)
      : deadline_(std::chrono::steady_clock::now() + limit) {
    for (int rank = 0; rank < count; ++rank) {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed in forked_ranks");
      const ::pid_t parent = ::getpid();
      const ::pid_t pid = ::fork();
      if (pid < 0) throw std::runtime_error("fork failed in forked_ranks");
      if (pid == 0) {
        // Not to outlive a parent that is killed; nor to keep the pipes of its siblings.
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        // 0: the parent is outside of this child's pid namespace.
        if (::getppid() != parent && ::getppid() != 0) ::_exit(4);
        ::close(ends[0]);
        for (const child& sibling : children_) ::close(sibling.pipe);
        run(function, rank, rank_voice(ends[1]));
      }
      ::close(ends[1]);
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
      children_.push_back({pid, ends[0], false, {}, {}});
    }
  }
  forked_ranks(const forked_ranks&) = delete;
  forked_ranks& operator=(const forked_ranks&) = delete;
  ~forked_ranks() {
    for (std::size_t rank = 0; rank < children_.size(); ++rank)
      kill(static_cast<int>(rank), SIGKILL);
    join();
  }

  ::pid_t pid(int rank) const { return at(rank).pid; }
  bool ended(int rank) {
    pump(std::chrono::milliseconds(0));
    return at(rank).pipe < 0;
  }

  void kill(int rank, int signal) {
    if (!at(rank).reaped) ::kill(at(rank).pid, signal);
  }

  /// What a rank has said so far.
  const std::vector<std::string>& lines(int rank) const { return at(rank).outcome.lines; }

  /// Waits until a rank has said a line, or ended; false when it has not said it by then.
  bool wait_for_line(int rank, std::string_view line) {
    for (;;) {
      const child& c = at(rank);
      if (std::find(c.outcome.lines.begin(), c.outcome.lines.end(), line) !=
          c.outcome.lines.end()) {
        return true;
      }
      if (c.pipe < 0 || expired()) return false;
      pump(std::chrono::milliseconds(50));
    }
  }

  /// Waits for all ranks to end.
  std::vector<rank_outcome> join() {
    while (std::any_of(children_.begin(), children_.end(),
                       [](const child& c) { return c.pipe >= 0; })) {
      if (expired()) break;
      pump(std::chrono::milliseconds(50));
    }
    std::vector<rank_outcome> outcomes;
    for (child& c : children_) {
      reap(c);
      outcomes.push_back(c.outcome);
    }
    return outcomes;
  }

 private:
  struct child {
    ::pid_t pid;
    int pipe;  // -1 when the child has closed it, by ending
    bool reaped;
    std::string bytes;
    rank_outcome outcome;
  };

  template <class F>
  [[noreturn]] static void run(F& function, int rank, const rank_voice& voice) {
    const auto threw = [&voice](const char* type, const std::exception& e) {
      voice.write('e', std::string(type) + '\n' + e.what());
      ::_exit(1);
    };
    try {
      if constexpr (std::is_void_v<decltype(function(rank, voice))>) {
        function(rank, voice);
        voice.write('r', "");
      } else {
        voice.write('r', function(rank, voice));
      }
      ::_exit(0);
    } catch (const rankfold::timeout_error& e) {
      threw("timeout_error", e);
    } catch (const rankfold::peer_lost_error& e) {
      threw("peer_lost_error", e);
    } catch (const rankfold::mismatch_error& e) {
      threw("mismatch_error", e);
    } catch (const rankfold::rendezvous_error& e) {
      threw("rendezvous_error", e);
    } catch (const rankfold::transport_error& e) {
      threw("transport_error", e);
    } catch (const rankfold::aborted_error& e) {
      threw("aborted_error", e);
    } catch (const std::invalid_argument& e) {
      threw("invalid_argument", e);
    } catch (const std::exception& e) {
      threw(typeid(e).name(), e);
    } catch (...) {
      voice.write('e', "unknown\nnot a std::exception");
    }
    ::_exit(1);
  }

  const child& at(int rank) const { return children_.at(static_cast<std::size_t>(rank)); }
  bool expired() const { return std::chrono::steady_clock::now() >= deadline_; }

  /// Reads what the children have said.
  void pump(std::chrono::milliseconds time) {
    std::vector<::pollfd> polled;
    for (const child& c : children_) polled.push_back({c.pipe, POLLIN, 0});  // less than 0: skipped
    if (::poll(polled.data(), polled.size(), static_cast<int>(time.count())) <= 0) return;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (polled[i].revents == 0) continue;
      child& c = children_[i];
      char buffer[4096];
      ::ssize_t got = 0;
      while ((got = ::read(c.pipe, buffer, sizeof buffer)) > 0) {
        c.bytes.append(buffer, static_cast<std::size_t>(got));
      }
      parse(c);
      if (got == 0) {
        ::close(c.pipe);
        c.pipe = -1;
      }
    }
  }

  static void parse(child& c) {
    while (c.bytes.size() >= 9) {
      const std::size_t length = std::stoul(c.bytes.substr(1, 8));
      if (c.bytes.size() < 9 + length) return;
      const std::string text = c.bytes.substr(9, length);
      switch (c.bytes[0]) {
        case 'l':
          c.outcome.lines.push_back(text);
          break;
        case 'r':
          c.outcome.returned = true;
          c.outcome.text = text;
          break;
        default:
          c.outcome.threw = true;
          c.outcome.error = text.substr(0, text.find('\n'));
          c.outcome.text = text.substr(text.find('\n') + 1);
      }
      c.bytes.erase(0, 9 + length);
    }
  }

  void reap(child& c) {
    if (c.reaped) return;
    if (c.pipe >= 0) {
      // Still alive, or someone it has started holds the pipe.
      c.outcome.timed_out = true;
      ::kill(c.pid, SIGKILL);
      ::close(c.pipe);
      c.pipe = -1;
    }
    int status = 0;
    // It has closed its pipe, so it is ending; one that closed it by hand is not waited for.
    while (::waitpid(c.pid, &status, WNOHANG) == 0) {
      if (expired()) ::kill(c.pid, SIGKILL);
      ::poll(nullptr, 0, 1);
    }
    c.reaped = true;
    if (WIFSIGNALED(status)) c.outcome.signal = WTERMSIG(status);
    if (WIFEXITED(status)) c.outcome.status = WEXITSTATUS(status);
  }

  std::vector<child> children_;
  std::chrono::steady_clock::time_point deadline_;
};

/// Runs `function(rank, voice)` in `count` children and waits for them.
template <class F>
std::vector<rank_outcome> fork_ranks(
    int count, F function, std::chrono::milliseconds limit = forked_ranks::default_limit) {
  return forked_ranks(count, std::move(function), limit).join();
}
