// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: asked before it is taken, because beyond a cgroup's
// limit, or the machine's, the kernel kills instead of failing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/text.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

struct memory_limit {
  std::uint64_t available = (std::numeric_limits<std::uint64_t>::max)();
  std::string set_by = "nothing";  // what leaves no more than that
};

/// A whole small file, or nothing where it cannot be read.
inline std::optional<std::string> read_small_file(const std::string& path) {
  const file_descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::string text;
  char chunk[4096];
  for (;;) {
    const ::ssize_t got = ::read(file.get(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(chunk, static_cast<std::size_t>(got));
  }
}

/// Cuts the text before `separator` off `rest`; the whole where there is none.
inline std::string_view cut(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view head = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return head;
}

/// The digits at the start of `text`, saturating; nothing where there are none ("max").
inline std::optional<std::uint64_t> leading_number(std::string_view text) {
  constexpr std::uint64_t most = (std::numeric_limits<std::uint64_t>::max)();
  std::optional<std::uint64_t> value;
  for (const char c : text) {
    if (c < '0' || c > '9') break;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    const std::uint64_t before = value.value_or(0);
    value = before > (most - digit) / 10 ? most : before * 10 + digit;
  }
  return value;
}

/// The number after `key` and blanks at the start of a line ("inactive_file 4096").
inline std::uint64_t number_of_key(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = cut(text, '\n');
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    if (line.find_first_of(" :") != 0) continue;
    line.remove_prefix((std::min)(line.find_first_not_of(" :\t"), line.size()));
    return leading_number(line).value_or(0);
  }
  return 0;
}

/// The names of one cgroup version's files.
struct cgroup_files {
  const char* limit;
  const char* usage;
  const char* reclaimable[3];  // in memory.stat: caches that the kernel drops before it kills
  const char* swap_limit;      // v2 only: swap beside memory
  const char* swap_usage;
};
inline constexpr cgroup_files cgroup_v2_files = {
    "memory.max",
    "memory.current",
    {"active_file", "inactive_file", "slab_reclaimable"},
    "memory.swap.max",
    "memory.swap.current"};
inline constexpr cgroup_files cgroup_v1_files = {"memory.limit_in_bytes",
                                                 "memory.usage_in_bytes",
                                                 {"total_active_file", "total_inactive_file", ""},
                                                 nullptr,
                                                 nullptr};

/// What the cgroup in `folder` leaves, swap of the machine included; nothing where it sets no
/// limit.
inline std::optional<std::uint64_t> cgroup_available(const std::string& folder,
                                                     const cgroup_files& files,
                                                     std::uint64_t free_swap) {
  const auto number = [&](const char* file) -> std::optional<std::uint64_t> {
    const auto text = read_small_file(folder + "/" + file);
    return text ? leading_number(*text) : std::nullopt;
  };
  const auto limit = number(files.limit);
  const auto usage = number(files.usage);
  // Version 1 has no word for "no limit", only a number too large to mean anything.
  if (!limit || !usage || *limit > (std::uint64_t{1} << 60)) return std::nullopt;
  std::uint64_t left = *limit - (std::min)(*limit, *usage);
  if (const auto stat = read_small_file(folder + "/memory.stat")) {
    for (const char* key : files.reclaimable) {
      if (*key != '\0') left += number_of_key(*stat, key);
    }
  }
  if (free_swap > 0 && files.swap_limit != nullptr) {
    const std::uint64_t most = number(files.swap_limit).value_or(free_swap);
    left += (std::min)(free_swap, most - (std::min)(most, number(files.swap_usage).value_or(0)));
  }
  return (std::min)(left, *limit);
}

/// A path in /proc/self/mountinfo has blanks written as \040.
inline std::string unescape_mount_path(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      path += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                (text[i + 3] - '0'));
      i += 3;
    } else {
      path += text[i];
    }
  }
  return path;
}

/// The path of this process in the hierarchy of a controller ("memory"), or of version 2 ("").
inline std::optional<std::string> cgroup_path(std::string_view self_cgroup,
                                              std::string_view controller) {
  while (!self_cgroup.empty()) {
    std::string_view line = cut(self_cgroup, '\n');
    cut(line, ':');  // the hierarchy's number
    std::string_view controllers = cut(line, ':');
    if (controllers.empty() && controller.empty()) return std::string(line);
    while (!controllers.empty()) {
      if (cut(controllers, ',') == controller) return std::string(line);
    }
  }
  return std::nullopt;
}

/// The least that the machine and the cgroups from this process's up to the root leave. Best
/// effort: what cannot be read sets no limit. `root` goes before all paths (for tests).
inline memory_limit available_memory(const std::string& root = "") {
  memory_limit least;
  const auto lower = [&](std::uint64_t available, const std::string& set_by) {
    if (available < least.available) least = {available, set_by};
  };

  std::uint64_t free_swap = 0;
  if (const auto meminfo = read_small_file(root + "/proc/meminfo")) {
    free_swap = number_of_key(*meminfo, "SwapFree") * 1024;
    if (const std::uint64_t kib = number_of_key(*meminfo, "MemAvailable")) {
      lower(kib * 1024 + free_swap, "the machine (MemAvailable and SwapFree of /proc/meminfo)");
    }
  }

  const auto self_cgroup = read_small_file(root + "/proc/self/cgroup");
  const auto mountinfo = read_small_file(root + "/proc/self/mountinfo");
  if (!self_cgroup || !mountinfo) return least;
  std::string_view mounts = *mountinfo;
  while (!mounts.empty()) {
    // 36 35 0:32 /root /mount/point rw,… tags - type source options
    std::string_view line = cut(mounts, '\n');
    for (int skipped = 0; skipped < 3; ++skipped) cut(line, ' ');
    const std::string mount_root = unescape_mount_path(cut(line, ' '));
    const std::string mount_point = unescape_mount_path(cut(line, ' '));
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    line.remove_prefix(dash + 3);
    const std::string_view type = cut(line, ' ');
    cut(line, ' ');
    const bool v2 = type == "cgroup2";
    if (!v2 && (type != "cgroup" ||
                ("," + std::string(line) + ",").find(",memory,") == std::string::npos)) {
      continue;
    }
    const cgroup_files& files = v2 ? cgroup_v2_files : cgroup_v1_files;
    std::string below = cgroup_path(*self_cgroup, v2 ? "" : "memory").value_or("");
    // In a container the mount may begin at its own cgroup; a path outside of it is not visible.
    if (mount_root != "/") {
      const bool inside = below.starts_with(mount_root) &&
                          (below.size() == mount_root.size() || below[mount_root.size()] == '/');
      below = inside ? below.substr(mount_root.size()) : "";
    }
    if (below == "/" || below.starts_with("/..")) below.clear();
    for (;;) {
      const std::string folder = mount_point + below;
      if (const auto left = cgroup_available(root + folder, files, free_swap)) {
        lower(*left, std::string(files.limit) + " of " + folder);
      }
      const std::size_t slash = below.rfind('/');
      if (slash == std::string::npos) break;
      below.resize(slash);
    }
  }
  return least;
}

/// Throws a `transport_error` with need and have unless `need` bytes can be taken.
inline void check_memory(std::uint64_t need, const std::string& what,
                         const std::string& root = "") {
  const memory_limit limit = available_memory(root);
  if (need > limit.available) {
    throw transport_error(
        "rankfold: no memory for " + what + ": need " + bytes_text(need) + ", have " +
        bytes_text(limit.available) + ", a limit set by " + limit.set_by +
        "; ask for less (workspace_bytes, or what is allocated) or raise the limit");
  }
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
