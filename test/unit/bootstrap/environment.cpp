// SPDX-License-Identifier: Apache-2.0
#include "rankfold/bootstrap/environment.hpp"

#include <chrono>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stdlib.h>
#include <unistd.h>

#include <sys/prctl.h>

#include "rankfold/error.hpp"
#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/fork_ranks.hpp"

using rankfold::read_environment;
using variables = std::map<std::string, std::string>;

namespace {

/// The launchers' variables are just these while it lives.
class environment {
 public:
  explicit environment(const variables& set) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_JOBID",
                             "FLUX_JOB_ID",
                             "PMIX_NAMESPACE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_NNODES",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "RANKFOLD_TIMEOUT"}) {
      const char* value = ::getenv(name);
      before_.emplace_back(name, value != nullptr ? value : "");
      ::unsetenv(name);
    }
    for (const auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
  }
  environment(const environment&) = delete;
  environment& operator=(const environment&) = delete;
  ~environment() {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        ::unsetenv(name.c_str());
      } else {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

rankfold::rank_environment read(const variables& set) {
  const environment guard(set);
  return read_environment();
}

/// "rendezvous_error: text", "invalid_argument: text" or "".
std::string error_of(const variables& set) {
  try {
    read(set);
  } catch (const rankfold::rendezvous_error& e) {
    return std::string("rendezvous_error: ") + e.what();
  } catch (const std::invalid_argument& e) {
    return std::string("invalid_argument: ") + e.what();
  }
  return "";
}

const variables torchrun = {{"RANK", "1"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"}};

variables with(variables set, const std::string& name, const std::string& value) {
  set[name] = value;
  return set;
}
variables without(variables set, const std::string& name) {
  set.erase(name);
  return set;
}

}  // namespace

TEST_CASE("the place is read as each launcher tells it", "[bootstrap][environment]") {
  auto place = read(torchrun);
  CHECK(place.rank == 1);
  CHECK(place.size == 4);
  CHECK(place.local_rank == 1);
  CHECK(place.local_size == 4);
  CHECK(place.source == "RANK and WORLD_SIZE");
  CHECK(place.run ==
        "MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none "
        "TORCHELASTIC_RESTART_COUNT=0");

  place = read({{"OMPI_COMM_WORLD_RANK", "2"},
                {"OMPI_COMM_WORLD_SIZE", "3"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                {"PMIX_NAMESPACE", "110297089"}});
  CHECK(place.rank == 2);
  CHECK(place.size == 3);
  CHECK(place.local_size == 3);
  CHECK(place.run == "PMIX_NAMESPACE=110297089");

  place =
      read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "j"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK(place.rank == 0);
  CHECK(place.size == 2);
  CHECK(place.local_rank == -1);
  CHECK(place.local_size == 2);

  // A step of two tasks in an allocation of eight.
  place = read({{"SLURM_PROCID", "1"},
                {"SLURM_NTASKS", "8"},
                {"SLURM_STEP_NUM_TASKS", "2"},
                {"SLURM_LOCALID", "1"},
                {"SLURM_NNODES", "3"},
                {"SLURM_STEP_NUM_NODES", "1"},
                {"SLURM_JOB_ID", "77"},
                {"SLURM_STEP_ID", "3"}});
  CHECK(place.rank == 1);
  CHECK(place.size == 2);
  CHECK(place.hosts == 1);
  CHECK(place.run == "SLURM_JOB_ID=77 SLURM_STEP_ID=3");
  place = read({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}});
  CHECK(place.size == 8);
  CHECK(place.source == "SLURM_PROCID and SLURM_NTASKS");

  place = read(
      {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}});
  CHECK(place.rank == 0);
  CHECK(place.size == 2);
}

TEST_CASE("RANK and WORLD_SIZE go before what other launchers say", "[bootstrap][environment]") {
  variables set = torchrun;
  set["OMPI_COMM_WORLD_RANK"] = "0";
  set["OMPI_COMM_WORLD_SIZE"] = "2";
  set["SLURM_PROCID"] = "0";
  set["SLURM_NTASKS"] = "2";
  CHECK(read(set).rank == 1);
  CHECK(read(set).size == 4);
}

TEST_CASE("no launcher is an error that names what was looked for", "[bootstrap][environment]") {
  const std::string error = error_of({});
  INFO(error);
  CHECK(contains(error, "rendezvous_error"));
  for (const char* name :
       {"RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
        "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "torchrun", "shm_transport::connect"}) {
    CHECK(contains(error, name));
  }
  // A shell of salloc has tasks and is none.
  CHECK(contains(error_of({{"SLURM_NTASKS", "4"}}), "no launcher found"));
  CHECK(contains(error_of({{"RANK", ""}, {"WORLD_SIZE", ""}}), "no launcher found"));
}

TEST_CASE("half of what a launcher says is an error that names the other half",
          "[bootstrap][environment]") {
  const std::string no_size = error_of(without(torchrun, "WORLD_SIZE"));
  INFO(no_size);
  CHECK(contains(no_size, "rendezvous_error"));
  CHECK(contains(no_size, "RANK is \"1\" but WORLD_SIZE is not set"));
  CHECK(contains(error_of(without(torchrun, "RANK")), "WORLD_SIZE is \"4\" but RANK is not set"));
  const std::string no_port = error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}});
  INFO(no_port);
  CHECK(contains(no_port, "rendezvous_error"));
  CHECK(contains(no_port, "MASTER_PORT is not set"));
  CHECK(contains(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}),
                 "MASTER_ADDR is not set"));
  CHECK(contains(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
                 "MASTER_ADDR and MASTER_PORT are not set"));
  // One rank alone needs not be told from others.
  CHECK(error_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).empty());
}

TEST_CASE("a malformed variable is an error with its name, its value and what was expected",
          "[bootstrap][environment]") {
  for (const std::string value :
       {"x", "-1", "+1", " 1", "1 ", "1.0", "0x1", "4", "99999999999999999999"}) {
    const std::string error = error_of(with(torchrun, "RANK", value));
    INFO(error);
    CHECK(contains(error, "invalid_argument"));
    CHECK(contains(error, "RANK is \"" + value + "\", expected a whole number from 0 to 3"));
  }
  for (const std::string value : {"0", "two", "-4"}) {
    const std::string error = error_of(with(torchrun, "WORLD_SIZE", value));
    INFO(error);
    CHECK(contains(error, "invalid_argument"));
    CHECK(contains(error, "WORLD_SIZE is \"" + value + "\", expected a whole number from 1 to"));
  }
  CHECK(contains(error_of(with(torchrun, "MASTER_PORT", "70000")),
                 "MASTER_PORT is \"70000\", expected a whole number from 0 to 65535"));
  CHECK(contains(error_of(with(torchrun, "LOCAL_WORLD_SIZE", "5")),
                 "LOCAL_WORLD_SIZE is \"5\", expected a whole number from 1 to 4"));
  CHECK(contains(error_of(with(torchrun, "LOCAL_RANK", "4")),
                 "LOCAL_RANK is \"4\", expected a whole number from 0 to 3"));
}

TEST_CASE("ranks on more than one host are an error that says so", "[bootstrap][environment]") {
  const auto error = [](const variables& set) -> std::string {
    try {
      rankfold::detail::check_one_host(read(set));
    } catch (const rankfold::rendezvous_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error(torchrun).empty());
  CHECK(error(without(torchrun, "LOCAL_WORLD_SIZE")).empty());
  const std::string two_hosts = error(with(torchrun, "LOCAL_WORLD_SIZE", "2"));
  INFO(two_hosts);
  CHECK(contains(two_hosts, "2 of the 4 ranks are on this one"));
  CHECK(contains(two_hosts, "transport/mpi.hpp"));
  CHECK(contains(two_hosts, "LOCAL_WORLD_SIZE"));
  CHECK(contains(error({{"SLURM_PROCID", "1"},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_NNODES", "2"},
                        {"SLURM_JOB_ID", "77"}}),
                 "1 of 2 hosts"));
}

TEST_CASE("a run of MPICH's mpiexec is told from others by its process manager",
          "[bootstrap][environment]") {
  // The oracle is a process of that name between this one and the ranks, and a shell between them.
  const environment guard({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  const auto managers = fork_ranks(2, [](int, const rank_voice&) {
    ::prctl(PR_SET_NAME, "hydra_pmi_proxy");
    std::string own = "hydra_pmi_proxy=" + std::to_string(::getpid()) + " started ";
    // The 22nd word: this name has no blanks.
    std::FILE* stat = std::fopen("/proc/self/stat", "re");
    char word[64] = {};
    for (int i = 0; i < 22; ++i) (void)!std::fscanf(stat, "%63s", word);
    std::fclose(stat);
    own += word;
    const auto ranks = fork_ranks(2, [](int, const rank_voice&) {
      ::prctl(PR_SET_NAME, "a (shell) S 1");
      return fork_ranks(1, [](int, const rank_voice&) { return read_environment().run; })[0].text;
    });
    const bool alike = ranks[0].text == own && ranks[1].text == own;
    return (alike ? "same " : "other ") + ranks[0].text + " / " + ranks[1].text;
  });
  INFO(managers[0].text << "; " << managers[1].text);
  CHECK(contains(managers[0].text, "same hydra"));
  CHECK(contains(managers[1].text, "same hydra"));
  CHECK(managers[0].text != managers[1].text);
  // Without one, nothing tells two runs apart.
  CHECK_THROWS_AS(read_environment(), rankfold::rendezvous_error);
}

TEST_CASE("RANKFOLD_TIMEOUT is seconds, a decimal", "[bootstrap][environment]") {
  using std::chrono::milliseconds;
  const auto timeout = [](const std::string& text) {
    const environment guard({{"RANKFOLD_TIMEOUT", text}});
    return rankfold::default_timeout();
  };
  CHECK(timeout("") == milliseconds(300'000));
  CHECK(timeout("30") == milliseconds(30'000));
  CHECK(timeout("2.5") == milliseconds(2500));
  CHECK(timeout(".25") == milliseconds(250));
  CHECK(timeout("1.") == milliseconds(1000));
  CHECK(timeout("0.0001") == milliseconds(1));
  CHECK(timeout("1.0010") == milliseconds(1001));
  CHECK(timeout("1000000000") == milliseconds(1'000'000'000'000));
  for (const std::string bad : {"0", "0.0", "-1", "1s", "1e3", ".", "1.2.3", " 1", "1 ", "five",
                                "inf", "1000000001", "99999999999999999999999999"}) {
    INFO(bad);
    try {
      timeout(bad);
      FAIL("taken");
    } catch (const std::invalid_argument& e) {
      INFO(e.what());
      CHECK(contains(e.what(), "RANKFOLD_TIMEOUT is \"" + bad + "\", expected seconds"));
    }
  }
}

TEST_CASE("communicators are numbered by label, and one that fails is not counted",
          "[bootstrap][environment]") {
  using rankfold::detail::communicator_number;
  const auto kept = [](const std::string& label) {
    communicator_number number(label);
    number.keep();
    return number.value();
  };
  CHECK(kept("numbers") == 0);
  CHECK(kept("numbers") == 1);
  CHECK(kept("other numbers") == 0);
  {
    const communicator_number failed("numbers");
  }
  CHECK(kept("numbers") == 2);
  {
    // Two at a time: the first that fails must not give the number of the second away.
    communicator_number first("numbers");
    communicator_number second("numbers");
    CHECK(second.value() == first.value() + 1);
    second.keep();
  }
  CHECK(kept("numbers") == 5);
}
