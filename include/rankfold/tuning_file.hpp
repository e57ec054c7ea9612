// SPDX-License-Identifier: Apache-2.0
// Tunings in a file, for later runs: each for one kind of machine, number of ranks, transport and
// version of rankfold.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/error.hpp"
#include "rankfold/tuning.hpp"
#include "rankfold/version.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// What the system calls this machine's processors: "AMD EPYC"; on Arm, which has no name for them,
/// the numbers of implementer and part. "unknown" where it tells nothing.
inline std::string cpu_model(const char* path = "/proc/cpuinfo") {
  std::string model;
  if (std::FILE* const file = std::fopen(path, "re")) {
    char line[512];
    // Of the first processor: a file of hundreds takes milliseconds to read.
    while (std::fgets(line, sizeof line, file) != nullptr && line[0] != '\n') {
      std::string_view value = line;
      std::string_view name = cut(value, ':');
      name = name.substr(0, name.find_last_not_of(" \t") + 1);
      value.remove_prefix((std::min)(value.find_first_not_of(" \t"), value.size()));
      value = value.substr(0, value.find_last_not_of(" \t\n") + 1);
      if (name == "model name" || name == "cpu model" || name == "cpu") {
        model = value;
        break;
      }
      if (name == "CPU implementer" || name == "CPU part") {
        model.append(model.empty() ? "" : " ").append(name.substr(4)).append(" ").append(value);
      }
    }
    std::fclose(file);
  }
  return model.empty() ? "unknown" : model;
}

}  // namespace detail

/// What a tuning is for.
struct tuning_key {
  std::string transport;
  int ranks = 1;
  int hosts = 1;
  std::string cpu = detail::cpu_model();  // of rank 0's host
  std::string version = std::to_string(RANKFOLD_VERSION_MAJOR) + '.' +
                        std::to_string(RANKFOLD_VERSION_MINOR) + '.' +
                        std::to_string(RANKFOLD_VERSION_PATCH);

  /// As in the file: "rankfold 0.1.0, shm, 2 ranks, 1 host, AMD EPYC".
  std::string text() const {
    const auto counted = [](int n, const char* what) {
      return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
    };
    return "rankfold " + version + ", " + transport + ", " + counted(ranks, "rank") + ", " +
           counted(hosts, "host") + ", " + cpu;
  }
};

namespace detail {

/// The tunings of a file. Lines are empty, comments that begin with '#', keys in brackets, and
/// below a key one field each, such as "chunk_bytes = 524288".
class tuning_file {
 public:
  /// A file that does not exist has no tunings.
  ///
  /// Throws: `error` with the path, and the line where one cannot be understood.
  explicit tuning_file(std::string path) : path_(std::move(path)) {
    std::string text;
    {
      const file_descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
      if (!file) {
        if (errno == ENOENT) return;
        fail("cannot be opened: " + errno_text(errno));
      }
      char piece[4096];
      for (;;) {
        const ::ssize_t got = ::read(file.get(), piece, sizeof piece);
        if (got < 0 && errno != EINTR) fail("cannot be read: " + errno_text(errno));
        if (got == 0) break;
        if (got > 0) text.append(piece, static_cast<std::size_t>(got));
      }
    }
    parse(text);
  }

  /// Throws: `error` where there is an entry for `key` that lacks a field, or has one that is not
  ///         known. Other entries may be of a version with other fields.
  std::optional<tuning> find(const std::string& key) const {
    const auto it = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const entry& e) { return e.key == key; });
    if (it == entries_.end()) return std::nullopt;
    tuning found;
    for (const tuning_field& known : tuning_fields) {
      const auto is_it = [&](const field& f) { return f.name == known.name; };
      if (std::none_of(it->fields.begin(), it->fields.end(), is_it)) {
        fail("has no " + std::string(known.name) + " below [" + key + "], line " +
             std::to_string(it->line));
      }
    }
    for (const field& f : it->fields) {
      const auto known = std::find_if(std::begin(tuning_fields), std::end(tuning_fields),
                                      [&](const tuning_field& k) { return k.name == f.name; });
      if (known == std::end(tuning_fields)) fail_at(f.line, f.name + " is no field of a tuning");
      found.*known->value = f.value;
    }
    return found;
  }

  void set(const std::string& key, const tuning& tune) {
    std::erase_if(entries_, [&](const entry& e) { return e.key == key; });
    entry& made = entries_.emplace_back(entry{key, 0, {}});
    for (const tuning_field& f : tuning_fields) {
      made.fields.push_back({std::string(f.name), tune.*f.value, 0});
    }
  }

  /// Replaces the file as a whole, by rename: whoever reads it meanwhile finds all of one of the
  /// two. Throws: `error` with the path.
  void write() const {
    std::string text = "# Tunings that rankfold has measured; docs/performance.md says how.\n";
    for (const entry& e : entries_) {
      text += "\n[" + e.key + "]\n";
      for (const field& f : e.fields) text += f.name + " = " + std::to_string(f.value) + '\n';
    }
    std::uint8_t random[16];
    fill_random(random);
    const std::string beside = path_ + '.' + hex_text(random);
    const auto give_up = [&](int code) {
      ::unlink(beside.c_str());
      fail("cannot be written: " + errno_text(code));
    };
    {
      const file_descriptor file(
          ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!file) fail("cannot be written: " + errno_text(errno));
      for (std::string_view rest = text; !rest.empty();) {
        const ::ssize_t written = ::write(file.get(), rest.data(), rest.size());
        if (written < 0 && errno != EINTR) give_up(errno);
        if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
      }
    }
    if (::rename(beside.c_str(), path_.c_str()) != 0) give_up(errno);
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const entry& e : entries_) all.push_back(e.key);
    return all;
  }

 private:
  struct field {
    std::string name;
    std::size_t value;
    int line;
  };
  struct entry {
    std::string key;
    int line;
    std::vector<field> fields;
  };

  void parse(std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      std::string_view line = cut(text, '\n');
      line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
      if (line.empty() || line.front() == '#') continue;
      if (line.front() == '[' && line.back() == ']') {
        const std::string key(line.substr(1, line.size() - 2));
        for (const entry& e : entries_) {
          if (e.key == key) fail_at(number, "line " + std::to_string(e.line) + " has the same key");
        }
        entries_.push_back({key, number, {}});
        continue;
      }
      const std::size_t equals = line.find(" = ");
      const std::string_view digits =
          equals == std::string_view::npos ? std::string_view{} : line.substr(equals + 3);
      if (entries_.empty() || digits.empty() || digits.size() > 15 ||
          digits.find_first_not_of("0123456789") != std::string_view::npos) {
        fail_at(number, "expected [a key], or below one a field such as chunk_bytes = 524288");
      }
      const std::string name(line.substr(0, equals));
      for (const field& f : entries_.back().fields) {
        if (f.name == name) fail_at(number, "line " + std::to_string(f.line) + " has " + name);
      }
      entries_.back().fields.push_back(
          {name, static_cast<std::size_t>(*leading_number(digits)), number});
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw error("rankfold: the tuning file \"" + path_ + "\" " + what);
  }
  [[noreturn]] void fail_at(int line, const std::string& what) const {
    fail("is broken in line " + std::to_string(line) + ": " + what +
         "; mend that or delete the file");
  }

  std::string path_;
  std::vector<entry> entries_;
};

}  // namespace detail

/// The tuning for `key` in the file at `path`; nothing where there is no such file, or none for
/// `key` in it.
///
/// Throws: `error` with the path, and the line where one is broken.
inline std::optional<tuning> load_tuning(const std::string& path, const tuning_key& key) {
  return detail::tuning_file(path).find(key.text());
}

/// Writes the tuning for `key` into the file at `path`, which is made where there is none; what it
/// has for other keys stays. Of two that do this at the same time, one entry may be lost, but the
/// file is whole at any time.
///
/// Throws: as load_tuning, and where the file cannot be written.
inline void save_tuning(const std::string& path, const tuning_key& key, const tuning& tune) {
  detail::tuning_file file(path);
  file.set(key.text(), tune);
  file.write();
}

RANKFOLD_END_NAMESPACE
