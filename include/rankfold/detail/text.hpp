// SPDX-License-Identifier: Apache-2.0
// Words for error messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// "3.5 GiB".
inline std::string bytes_text(unsigned long long bytes) {
  static constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  unsigned long long rest = 0;
  while (bytes >= 1024 && unit < 4) {
    rest = bytes % 1024;
    bytes /= 1024;
    ++unit;
  }
  std::string text = std::to_string(bytes);
  if (unit > 0) text += "." + std::to_string(rest * 10 / 1024);
  return text + " " + units[unit];
}

/// "rank 2", "ranks 1, 3 and 5"; of more than 16 only the first.
inline std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == most) return text + " and " + std::to_string(ranks.size() - most) + " more";
    if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// "2.5 s".
inline std::string duration_text(std::chrono::milliseconds time) {
  std::string text = std::to_string(time.count() / 1000);
  if (const auto rest = time.count() % 1000; rest != 0) {
    text += "." + std::to_string(1000 + rest).substr(1);
    text.resize(text.find_last_not_of('0') + 1);
  }
  return text + " s";
}

/// What the exception says that is being handled.
inline std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

/// `text` without "rankfold: " in front, to become part of another message.
inline std::string inner_text(std::string text) {
  const std::string prefix = "rankfold: ";
  return text.compare(0, prefix.size(), prefix) == 0 ? text.substr(prefix.size()) : text;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
