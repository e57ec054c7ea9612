// SPDX-License-Identifier: Apache-2.0
// How a program with the MPI transport begins and ends, one scenario a run; test_life.py says what
// each must print and how the job must end. What a rank prints begins with its rank.
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <sys/wait.h>

#include "rankfold/communicator.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport/mpi.hpp"

using namespace rankfold;
using namespace std::chrono_literals;

namespace {

int rank_here = -1;

void say(const std::string& text) {
  const std::string line = "rank " + std::to_string(rank_here) + ": " + text + "\n";
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
}

/// What `f` throws, with its type in front.
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const timeout_error& e) {
    return std::string("timeout_error: ") + e.what();
  } catch (const rendezvous_error& e) {
    return std::string("rendezvous_error: ") + e.what();
  } catch (const transport_error& e) {
    return std::string("transport_error: ") + e.what();
  } catch (const mismatch_error& e) {
    return std::string("mismatch_error: ") + e.what();
  } catch (const peer_lost_error& e) {
    return std::string("peer_lost_error: ") + e.what();
  } catch (const aborted_error& e) {
    return std::string("aborted_error: ") + e.what();
  } catch (const std::exception& e) {
    return std::string("exception: ") + e.what();
  }
  return "no error";
}

void init(int level) {
  int given = 0;
  MPI_Init_thread(nullptr, nullptr, level, &given);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_here);
  say(std::string("MPI gives ") + detail::mpi_level_name(given));
}

mpi_transport world(mpi_options options = {.workspace_bytes = 65536}) {
  mpi_transport t = mpi_transport::world(std::move(options));
  rank_here = t.rank();
  return t;
}

void reduce(communicator<mpi_transport>& comm) {
  std::vector<int> x(5000, comm.rank() + 1);
  comm.all_reduce(std::span(x));
  say("sum " + std::to_string(x[4321]));
}

communicator_options within(std::chrono::milliseconds timeout) {
  communicator_options options;
  options.timeout = timeout;
  return options;
}

/// The barrier's error, and how long it took.
void fail_in_barrier(communicator<mpi_transport>& comm) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = error_of([&] { comm.barrier(); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  say(text);
  say("took " + std::to_string(took.count()) + " s");
}

void finished() {
  int flag = 0;
  MPI_Finalized(&flag);
  say(flag != 0 ? "finalized" : "not finalized");
}

// --- scenarios
// -----------------------------------------------------------------------------------

/// The program knows nothing of MPI.
int plain() {
  // Runs after rankfold's own handler, which is registered later.
  std::atexit(finished);
  communicator comm(world());
  reduce(comm);
  return 0;
}

/// The communicator is a static object.
int lasting() {
  std::atexit(finished);
  static communicator comm(world());
  reduce(comm);
  return 0;
}

/// The program initialises and finalises MPI itself.
int user() {
  init(MPI_THREAD_MULTIPLE);
  std::atexit(finished);
  {
    communicator comm(world());
    reduce(comm);
  }
  finished();
  MPI_Finalize();
  return 0;
}

/// The program finalises MPI, and still has a communicator.
int after_finalize() {
  init(MPI_THREAD_MULTIPLE);
  mpi_transport t = world();
  communicator comm(world());
  reduce(comm);
  MPI_Finalize();
  std::byte data{};
  say(error_of([&] { (void)t.send(0, 0, &data, 1); }));
  say(error_of([&] { comm.barrier(); }));
  say(error_of([&] { (void)mpi_transport::world(); }));
  t.announce({});
  return 0;
}

/// MPI was finalised before rankfold was first used.
int late() {
  init(MPI_THREAD_SINGLE);
  MPI_Finalize();
  say(error_of([&] { (void)mpi_transport::world(); }));
  return 0;
}

/// Only the main thread may call MPI.
int funneled() {
  init(MPI_THREAD_FUNNELED);
  {
    mpi_transport t = world();
    std::byte data{};
    const std::string notice = "from a thread";
    std::thread([&] {
      say(error_of([&] { (void)t.send(0, 0, &data, 1); }));
      say(error_of([&] { (void)mpi_transport::world(); }));
      if (t.rank() == 0) t.announce(std::as_bytes(std::span(notice)));
    }).join();
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    std::array<std::byte, max_notice> room{};
    if (t.rank() == 0) {
      (void)t.heard(room);  // the owner's next call sends it
    } else {
      std::size_t bytes = 0;
      while ((bytes = t.heard(room)) == 0 && std::chrono::steady_clock::now() < deadline) {
      }
      say("heard " + std::string(reinterpret_cast<const char*>(room.data()), bytes));
    }
    communicator comm(std::move(t));
    reduce(comm);
    // Given to another thread to destroy: what is left to do is done later.
    std::thread([moved = std::make_unique<mpi_transport>(world())]() mutable {
      moved.reset();
    }).join();
  }
  MPI_Finalize();
  return 0;
}

/// Threads may call MPI one at a time: rankfold's take turns.
int serialized() {
  init(MPI_THREAD_SERIALIZED);
  {
    std::vector<communicator<mpi_transport>> comms;
    for (int i = 0; i < 3; ++i) comms.emplace_back(world());
    std::vector<std::thread> threads;
    for (auto& comm : comms) {
      threads.emplace_back([&comm] {
        for (int i = 0; i < 20; ++i) {
          std::vector<int> x(5000, comm.rank() + i);
          comm.all_reduce(std::span(x));
          const int p = comm.size();
          if (x[17] != p * (p - 1) / 2 + p * i) say("wrong");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    reduce(comms[0]);
  }
  MPI_Finalize();
  return 0;
}

/// The last rank makes no transport.
int absent() {
  init(MPI_THREAD_MULTIPLE);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank_here == size - 1) {
    std::this_thread::sleep_for(3s);
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  say(error_of([&] { (void)mpi_transport::world({.timeout = 1s}); }));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  say("took " + std::to_string(took.count()) + " s");
  std::this_thread::sleep_for(1s);
  return 0;
}

/// The last rank makes one call fewer. It stays until the others have told what they got.
int missing() {
  communicator comm(world(), within(1s));
  reduce(comm);
  if (comm.rank() == comm.size() - 1) {
    std::this_thread::sleep_for(3s);
    say(error_of([&] { comm.barrier(); }));
  } else {
    fail_in_barrier(comm);
    say(error_of([&] { comm.barrier(); }));
    std::this_thread::sleep_for(3s);
  }
  return 0;
}

/// The last rank is killed.
int killed() {
  std::signal(SIGUSR1, SIG_IGN);  // by which Hydra tells of it, where it lets the others live
  communicator comm(world(), within(2s));
  reduce(comm);
  if (comm.rank() == comm.size() - 1) {
    std::this_thread::sleep_for(200ms);
    std::raise(SIGKILL);
  }
  fail_in_barrier(comm);
  std::this_thread::sleep_for(500ms);  // all have told
  return 0;
}

/// Ranks ask for different things: an error everywhere, after which MPI is not finalised.
int mismatch() {
  std::atexit(finished);
  communicator comm(world());
  reduce(comm);
  std::vector<int> x(comm.rank() == 0 ? 3 : 4);
  say(error_of([&] {
    comm.all_reduce(std::span(x));
    comm.barrier();
  }));
  std::this_thread::sleep_for(500ms);  // all have told
  return 0;
}

/// The same in a program that finalises MPI itself, as it may where it knows that all ranks live.
int mismatch_user() {
  init(MPI_THREAD_MULTIPLE);
  mismatch();
  MPI_Finalize();
  return 0;
}

/// A child after fork() is left alone: its transport throws, its exit does not finalise.
int forked() {
  communicator comm(world());
  reduce(comm);
  const pid_t child = ::fork();
  if (child == 0) {
    say("child: " + error_of([&] { comm.barrier(); }));
    say("child: " + error_of([&] { (void)mpi_transport::world(); }));
    std::exit(7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  say("child ended with " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1));
  reduce(comm);
  return 0;
}

/// A host is cut off: each rank tells what it got in a file, since the launcher no longer hears
/// all.
int cut() {
  const char* folder = std::getenv("RANKFOLD_TEST_FOLDER");
  communicator comm(world(), within(2s));
  const std::string name = std::string(folder) + "/rank" + std::to_string(comm.rank());
  const auto write = [&](const std::string& text) {
    std::FILE* file = std::fopen((name + ".new").c_str(), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
    std::rename((name + ".new").c_str(), name.c_str());
  };
  std::chrono::steady_clock::time_point begin;
  const std::string text = error_of([&] {
    for (int i = 0;; ++i) {
      begin = std::chrono::steady_clock::now();
      comm.barrier();
      if (i == 100) write("runs");
    }
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  write(text + "\ntook " + std::to_string(took.count()) + " s\n");
  return 1;
}

/// Who is on whose host.
int marks() {
  mpi_transport t = world();
  std::string text = "marks";
  for (const int mark : t.host_marks()) text += " " + std::to_string(mark);
  say(text);
  return 0;
}

/// A program error while a communicator is there: the others are told, the job ends.
int thrown() {
  communicator comm(world(), within(20s));
  reduce(comm);
  try {
    communicator<mpi_transport> other(world(), within(20s));
    if (other.rank() == 0) throw std::runtime_error("of the program");
    fail_in_barrier(other);
  } catch (const std::runtime_error& e) {
    say(e.what());
  }
  std::this_thread::sleep_for(500ms);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {
      {"plain", plain},       {"lasting", lasting},
      {"user", user},         {"after_finalize", after_finalize},
      {"late", late},         {"marks", marks},
      {"funneled", funneled}, {"serialized", serialized},
      {"absent", absent},     {"cut", cut},
      {"missing", missing},   {"killed", killed},
      {"mismatch", mismatch}, {"mismatch_user", mismatch_user},
      {"forked", forked},     {"thrown", thrown},
  };
  const auto found = scenarios.find(argc == 2 ? argv[1] : "");
  if (found == scenarios.end()) {
    std::fputs("usage: life SCENARIO\n", stderr);
    return 2;
  }
  try {
    return found->second();
  } catch (const std::exception& e) {
    say(std::string("ended by ") + e.what());
    return 1;
  }
}
