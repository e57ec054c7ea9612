// SPDX-License-Identifier: Apache-2.0
// What a launcher tells a process in its environment: which rank of how many it is, and which run
// it belongs to.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

#include <unistd.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/error.hpp"

RANKFOLD_BEGIN_NAMESPACE

/// The place of this process among the ranks of its run, as its launcher tells it.
struct rank_environment {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // among the ranks of this host; -1 when not told
  int local_size = -1;  // -1 when not told
  int hosts = -1;       // -1 when not told
  std::string source;   // the variables that it was read from: "RANK and WORLD_SIZE"
  std::string run;      // the same in all ranks of one run and in no other run at this time
};

namespace detail {

/// The value of a variable; one that is set to nothing counts as not set.
inline const char* environment_variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read at start
  return value != nullptr && *value != '\0' ? value : nullptr;
}

/// Reads a whole number and nothing else: no sign, no blank, nothing after it.
inline int parse_variable(const char* name, std::string_view text, int least, int most) {
  std::int64_t value = text.empty() || text.size() > 18 ? -1 : 0;
  for (const char c : text) {
    if (value < 0) break;
    value = c >= '0' && c <= '9' ? value * 10 + (c - '0') : -1;
  }
  if (value < least || value > most) {
    throw std::invalid_argument("rankfold: the environment variable " + std::string(name) +
                                " is \"" + std::string(text) + "\", expected a whole number from " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int>(value);
}

/// The names under which one family of launchers tells a rank its place; null where it has none.
struct launcher_variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* size_too;  // looked for when `size` is not set
  const char* local_rank;
  const char* local_size;
  const char* hosts;
  const char* hosts_too;
  bool needs_both;  // one of rank and size alone is an error, not another launcher's leftover
};
inline constexpr launcher_variables known_launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr, nullptr,
     true},
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr, true},
    {"MPICH's mpiexec", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     nullptr, nullptr, true},
    // A step knows its own tasks; the allocation around it may have more. salloc sets the number of
    // tasks in a shell that is no task.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", nullptr,
     "SLURM_STEP_NUM_NODES", "SLURM_NNODES", false},
    {"any launcher on one host", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr, "LOCAL_RANK",
     "LOCAL_WORLD_SIZE", nullptr, nullptr, false},
};

/// The variables that are alike in all ranks of a run and differ between runs; those with `id` are
/// enough alone, and so are MASTER_ADDR and MASTER_PORT together.
struct run_variable {
  const char* name;
  bool id;
};
inline constexpr run_variable run_variables[] = {
    {"MASTER_ADDR", false},        {"MASTER_PORT", false},
    {"TORCHELASTIC_RUN_ID", true}, {"TORCHELASTIC_RESTART_COUNT", false},
    {"SLURM_JOB_ID", true},        {"SLURM_STEP_ID", false},
    {"PMIX_NAMESPACE", true},      {"OMPI_MCA_ess_base_jobid", true},
    {"PMI_JOBID", true},           {"FLUX_JOB_ID", true}};

/// "4711 started 8842": MPICH's process manager tells its ranks no id of the run, so the nearest
/// ancestor that is its proxy stands for it. Empty where there is none.
inline std::string hydra_proxy() {
  int pid = static_cast<int>(::getppid());
  for (int generation = 0; pid > 1 && generation < 32; ++generation) {
    // 4711 (name) S parent … the 22nd field is the start time; the name may hold anything.
    const auto stat = read_small_file("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t open = stat ? stat->find('(') : std::string::npos;
    const std::size_t close = stat ? stat->rfind(')') : std::string::npos;
    if (open == std::string::npos || close == std::string::npos || close + 4 > stat->size()) break;
    const std::string_view name = std::string_view(*stat).substr(open + 1, close - open - 1);
    std::string_view fields = std::string_view(*stat).substr(close + 4);
    const std::string_view parent = cut(fields, ' ');
    if (name == "hydra_pmi_proxy") {
      for (int skipped = 4; skipped < 21; ++skipped) cut(fields, ' ');
      return std::to_string(pid) + " started " + std::string(cut(fields, ' '));
    }
    pid = static_cast<int>(leading_number(parent).value_or(0));
  }
  return {};
}

/// The text that tells this run from others, and whether it is enough to do so.
struct run_text {
  std::string text;
  bool enough = false;
};
inline run_text run_of_environment() {
  run_text run;
  for (const run_variable& variable : run_variables) {
    if (const char* value = environment_variable(variable.name)) {
      run.text += (run.text.empty() ? "" : " ") + std::string(variable.name) + "=" + value;
      run.enough = run.enough || variable.id;
    }
  }
  const char* port = environment_variable("MASTER_PORT");
  if (port != nullptr) parse_variable("MASTER_PORT", port, 0, 65535);
  run.enough = run.enough || (port != nullptr && environment_variable("MASTER_ADDR") != nullptr);
  if (!run.enough) {
    if (const std::string proxy = hydra_proxy(); !proxy.empty()) {
      run.text += (run.text.empty() ? "" : " ") + ("hydra_pmi_proxy=" + proxy);
      run.enough = true;
    }
  }
  return run;
}

inline std::string launchers_text() {
  std::string text;
  for (const launcher_variables& known : known_launchers) {
    text += (text.empty() ? "" : ", ") + std::string(known.rank) + " and " + known.size;
    if (known.size_too != nullptr) text += std::string(" or ") + known.size_too;
    text += std::string(" (") + known.launcher + ")";
  }
  return text;
}

/// The number of a communicator among those that this process makes under one label, to go into its
/// key: the same on all ranks, which make them in the same order. One that fails is not counted, so
/// that ranks which try again, some more often than others, still meet.
class communicator_number {
 public:
  explicit communicator_number(const std::string& label) : label_(label) {
    const std::lock_guard lock(counts().mutex);
    value_ = counts().next[label_]++;
  }
  communicator_number(const communicator_number&) = delete;
  communicator_number& operator=(const communicator_number&) = delete;
  ~communicator_number() {
    if (kept_) return;
    const std::lock_guard lock(counts().mutex);
    unsigned& next = counts().next[label_];
    if (next == value_ + 1) next = value_;
  }

  unsigned value() const noexcept { return value_; }
  void keep() noexcept { kept_ = true; }

 private:
  struct all_counts {
    std::mutex mutex;
    std::map<std::string, unsigned> next;
  };
  static all_counts& counts() {
    static all_counts* const all = new all_counts;  // never destroyed: used at exit too
    return *all;
  }

  std::string label_;
  unsigned value_ = 0;
  bool kept_ = false;
};

/// Throws where the launcher says that the ranks are on more than one host.
inline void check_one_host(const rank_environment& place) {
  std::string told;
  if (place.local_size > 0 && place.local_size < place.size) {
    told = std::to_string(place.local_size) + " of the " + std::to_string(place.size) + " ranks";
  } else if (place.hosts > 1) {
    told = "only some of the " + std::to_string(place.size) + " ranks, on 1 of " +
           std::to_string(place.hosts) + " hosts,";
  }
  if (told.empty()) return;
  throw rendezvous_error(
      "rankfold: the shm transport needs all ranks on one host, but the launcher says (" +
      place.source + ", LOCAL_WORLD_SIZE or its like) that " + told +
      " are on this one: use a transport between hosts (transport/mpi.hpp, or hierarchical), or "
      "shm_transport::connect with a key, rank and size of the ranks of each host");
}

}  // namespace detail

/// Reads the place of this process from the first launcher found: torchrun (RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT), Open MPI, MPICH, Slurm, or LOCAL_RANK and LOCAL_WORLD_SIZE alone.
///
/// Throws: `rendezvous_error` naming the variables when none is found, or only half of one, or
///         nothing tells this run from another; `std::invalid_argument` for one that is malformed,
///         saying what it is and what was expected.
/// Thread-safety: none may change the environment meanwhile.
inline rank_environment read_environment() {
  using detail::environment_variable;
  using detail::parse_variable;
  constexpr int most = (std::numeric_limits<int>::max)();
  for (const detail::launcher_variables& known : detail::known_launchers) {
    const char* rank = environment_variable(known.rank);
    const char* size_name = known.size;
    const char* size = environment_variable(size_name);
    if (size == nullptr && known.size_too != nullptr) {
      size_name = known.size_too;
      size = environment_variable(size_name);
    }
    if (rank == nullptr || size == nullptr) {
      if (known.needs_both && (rank != nullptr || size != nullptr)) {
        throw rendezvous_error("rankfold: the environment variable " +
                               std::string(rank != nullptr ? known.rank : size_name) + " is \"" +
                               (rank != nullptr ? rank : size) + "\" but " +
                               (rank != nullptr ? size_name : known.rank) +
                               " is not set, expected both (as " + known.launcher +
                               " sets them) or neither; looked for " + detail::launchers_text());
      }
      continue;
    }

    rank_environment found;
    found.source = std::string(known.rank) + " and " + size_name;
    found.size = parse_variable(size_name, size, 1, most);
    found.rank = parse_variable(known.rank, rank, 0, found.size - 1);
    const auto optional = [](const char* name, int least, int upper) {
      const char* value = name == nullptr ? nullptr : environment_variable(name);
      return value == nullptr ? -1 : parse_variable(name, value, least, upper);
    };
    found.local_size = optional(known.local_size, 1, found.size);
    found.local_rank =
        optional(known.local_rank, 0, (found.local_size > 0 ? found.local_size : found.size) - 1);
    found.hosts = optional(known.hosts, 1, most);
    if (found.hosts < 0) found.hosts = optional(known.hosts_too, 1, most);

    const detail::run_text run = detail::run_of_environment();
    if (!run.enough && found.size > 1) {
      const bool address = environment_variable("MASTER_ADDR") != nullptr;
      const bool port = environment_variable("MASTER_PORT") != nullptr;
      throw rendezvous_error(
          "rankfold: " + found.source + " say rank " + std::to_string(found.rank) + " of " +
          std::to_string(found.size) + ", but " +
          (address ? "MASTER_PORT is"
           : port  ? "MASTER_ADDR is"
                   : "MASTER_ADDR and MASTER_PORT are") +
          " not set, nor the id of a run (TORCHELASTIC_RUN_ID, SLURM_JOB_ID, PMIX_NAMESPACE, "
          "PMI_JOBID, FLUX_JOB_ID): expected MASTER_ADDR and MASTER_PORT, or an id, the same in "
          "all "
          "ranks, to tell this run from others on this host");
    }
    found.run = run.text;
    return found;
  }
  throw rendezvous_error("rankfold: no launcher found in the environment: looked for " +
                         detail::launchers_text() +
                         ". Start the program with torchrun, mpirun, mpiexec or srun; or set RANK, "
                         "WORLD_SIZE, MASTER_ADDR and MASTER_PORT; or use shm_transport::connect "
                         "with a key, a rank and a size");
}

/// The time that RANKFOLD_TIMEOUT allows a call or the start: seconds, a decimal ("2.5"), or five
/// minutes where it is not set.
///
/// Throws: `std::invalid_argument` when it is set to anything else, or to nothing above zero.
inline std::chrono::milliseconds default_timeout() {
  const char* text = detail::environment_variable("RANKFOLD_TIMEOUT");
  if (text == nullptr) return std::chrono::minutes(5);
  constexpr std::int64_t most = std::int64_t{1'000'000'000} * 1000;
  std::int64_t total = 0;
  std::int64_t unit = 1000;  // of the next digit, in milliseconds
  bool fraction = false;
  bool rest = false;  // a digit below a millisecond
  bool valid = true;
  for (const char c : std::string_view(text)) {
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (c < '0' || c > '9' || total > most) {
      valid = false;
      break;
    } else if (!fraction) {
      total = total * 10 + (c - '0') * 1000;
    } else {
      unit /= 10;
      total += (c - '0') * unit;
      rest = rest || (unit == 0 && c != '0');
    }
  }
  if (rest) ++total;  // never to zero what was more
  if (!valid || total == 0 || total > most) {
    throw std::invalid_argument("rankfold: the environment variable RANKFOLD_TIMEOUT is \"" +
                                std::string(text) +
                                "\", expected seconds as a decimal number above 0 and up to "
                                "1000000000, such as 2.5");
  }
  return std::chrono::milliseconds(total);
}

RANKFOLD_END_NAMESPACE
