// SPDX-License-Identifier: Apache-2.0
// Multi-rank code in one process, for tests: every rank is a thread.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "rankfold/communicator.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport/threads.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace testing {

/// Options of run_ranks.
struct run_options {
  communicator_options communicator = {};
  threads_options threads = {};
};

/// What run_ranks throws for an exception that is not a rankfold::error; the original is nested in
/// it (std::rethrow_if_nested).
class rank_failure : public std::runtime_error, public std::nested_exception {
 public:
  rank_failure(int rank, const std::string& text)
      : std::runtime_error("rank " + std::to_string(rank) + ": " + text), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

namespace detail {

/// Rethrows what is being handled, with its rank in front of the text and its type kept.
[[noreturn]] inline void rethrow_with_rank(int rank) {
  const auto text = [rank](const std::exception& e) {
    return "rank " + std::to_string(rank) + ": " + e.what();
  };
  try {
    throw;
  } catch (const timeout_error& e) {
    throw timeout_error(text(e));
  } catch (const peer_lost_error& e) {
    throw peer_lost_error(text(e));
  } catch (const mismatch_error& e) {
    throw mismatch_error(text(e));
  } catch (const rendezvous_error& e) {
    throw rendezvous_error(text(e));
  } catch (const transport_error& e) {
    throw transport_error(text(e));
  } catch (const aborted_error& e) {
    throw aborted_error(text(e));
  } catch (const std::exception& e) {
    throw rank_failure(rank, e.what());
  } catch (...) {
    throw rank_failure(rank, "an exception of unknown type");
  }
}

/// Whether the exception that is being handled tells of another rank's: what that rank threw
/// counts.
inline bool is_aborted_error() noexcept {
  try {
    throw;
  } catch (const aborted_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace detail

/// Runs `f(communicator<threads_transport>&)` on `ranks` ranks, each a thread of its own, and waits
/// for all. Returns what they return, in rank order (nothing for void).
///
/// If ranks throw, rethrows what was thrown first, with its rank in the text: a rankfold::error as
/// the type it was, anything else as rank_failure. The others see the failed rank leave and end,
/// too. Assertion macros that are not thread-safe (Catch2's) belong after run_ranks, on what it
/// returns.
template <class F>
auto run_ranks(int ranks, F&& f, const run_options& options = {}) {
  using comm = communicator<threads_transport>;
  using result = std::invoke_result_t<F&, comm&>;
  using slot = std::conditional_t<std::is_void_v<result>, char, std::optional<result>>;

  std::vector<threads_transport> transports = threads_transport::create(ranks, options.threads);
  std::vector<slot> results(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::exception_ptr first;
  int first_rank = -1;
  bool first_is_echo = false;
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    const auto start = [&](int r) {
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        std::optional<comm> c;
        try {
          c.emplace(std::move(transports[i]), options.communicator);
          if constexpr (std::is_void_v<result>) {
            f(*c);
          } else {
            results[i].emplace(f(*c));
          }
        } catch (...) {
          const bool echo = detail::is_aborted_error();
          const std::lock_guard lock(mutex);
          if (first_rank < 0 || (first_is_echo && !echo)) {
            first = std::current_exception();
            first_rank = r;
            first_is_echo = echo;
          }
        }
      });
    };
    try {
      for (int r = 0; r < ranks; ++r) start(r);
    } catch (...) {
      transports.clear();  // no thread for this rank: the others see it leave
      throw;
    }
  }
  if (first_rank >= 0) {
    try {
      std::rethrow_exception(first);
    } catch (...) {
      detail::rethrow_with_rank(first_rank);
    }
  }
  if constexpr (!std::is_void_v<result>) {
    std::vector<result> values;
    values.reserve(results.size());
    for (slot& s : results) values.push_back(std::move(*s));
    return values;
  }
}

}  // namespace testing

RANKFOLD_END_NAMESPACE
