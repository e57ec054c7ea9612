// SPDX-License-Identifier: Apache-2.0
// The MPI transport as a message transport. Run by mpirun on 1 to 4 ranks; every rank runs every
// test.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mpi/ranks.hpp"
#include "rankfold/error.hpp"
#include "rankfold/transport/mpi.hpp"
#include "support/catch.hpp"

using namespace rankfold;
using namespace mpi_test;
using request = mpi_transport::request;

namespace {

/// Byte i of the message that `from` sends `to` as its `number`th: different in all four.
std::byte byte_of(int from, int to, int number, std::size_t i) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(from) * 1315423911u +
                               static_cast<std::uint64_t>(to) * 2654435761u +
                               static_cast<std::uint64_t>(number) * 97531u + i * 7919u) *
                              0x9e3779b97f4a7c15;
  return static_cast<std::byte>(mixed >> 56);
}

std::vector<std::byte> message(int from, int to, int number, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_of(from, to, number, i);
  return data;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int next(const mpi_transport& t) { return (t.rank() + 1) % t.size(); }
int previous(const mpi_transport& t) { return (t.rank() + t.size() - 1) % t.size(); }

/// What `f` throws as an E, or "nothing".
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing";
}

/// MPICH 4.0 raises the errors of MPI_Test on MPI_COMM_WORLD, whatever communicator they are of;
/// 4.2 does not.
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200000
constexpr bool test_raises_on_world = true;
#else
constexpr bool test_raises_on_world = false;
#endif

/// While it lives, errors that MPI raises on MPI_COMM_WORLD are returned.
struct world_errors_return {
  world_errors_return() { MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); }
  ~world_errors_return() { MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL); }
};

int errors_handled = 0;
void count_error(MPI_Comm*, int*, ...) { ++errors_handled; }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a transport has MPI's rank and size", "[transport][mpi]") {
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(world().rank() == rank);
  CHECK(world().size() == size);
  CHECK(world().name() == "mpi");
  CHECK(world().workspace_bytes() == 65536);
  CHECK(world().thread_level() == MPI_THREAD_MULTIPLE);
  CHECK(world().state(0) == peer_state::alive);
}

TEST_CASE("messages of a channel arrive in order, of every size", "[transport][mpi]") {
  mpi_transport t = all_ranks();
  const std::vector<std::size_t> sizes = {0,    1,     7,      40,      1024,          4095,
                                          4096, 65536, 262145, 1 << 20, (4 << 20) + 3, 0};
  std::vector<request> requests;
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  for (int peer = 0; peer < t.size(); ++peer) {  // also to itself
    for (std::size_t n = 0; n < sizes.size(); ++n) {
      out.push_back(message(t.rank(), peer, static_cast<int>(n), sizes[n]));
      in.emplace_back(sizes[n], std::byte{0xA5});
    }
  }
  std::size_t at = 0;
  for (int peer = 0; peer < t.size(); ++peer) {
    for (std::size_t n = 0; n < sizes.size(); ++n, ++at) {
      requests.push_back(t.send(peer, 3, out[at].data(), out[at].size()));
      requests.push_back(t.receive(peer, 3, in[at].data(), in[at].size()));
    }
  }
  finish(t, requests);
  at = 0;
  for (int peer = 0; peer < t.size(); ++peer) {
    for (std::size_t n = 0; n < sizes.size(); ++n, ++at) {
      INFO("from " << peer << ", message " << n);
      CHECK(in[at] == message(peer, t.rank(), static_cast<int>(n), sizes[n]));
    }
  }
}

TEST_CASE("channels do not hold each other up", "[transport][mpi]") {
  mpi_transport t = all_ranks();
  const std::size_t bytes = 4096;
  std::vector<std::vector<std::byte>> out;
  std::vector<request> sends;
  for (int channel = 0; channel < mpi_transport::channels; ++channel) {
    out.push_back(message(t.rank(), next(t), channel, bytes));
    sends.push_back(t.send(next(t), channel, out.back().data(), bytes));
  }
  for (int channel = mpi_transport::channels - 1; channel >= 0; --channel) {  // in another order
    std::vector<std::byte> in(bytes);
    request r = t.receive(previous(t), channel, in.data(), bytes);
    finish(t, r);
    CHECK(in == message(previous(t), t.rank(), channel, bytes));
  }
  finish(t, sends);
}

TEST_CASE("a message that is larger than what is received is MPI's error", "[transport][mpi]") {
  const world_errors_return guard;
  mpi_transport t = all_ranks();
  std::array<std::byte, 64> out{};
  std::array<std::byte, 16> in{};
  request s = t.send(next(t), 0, out.data(), out.size());
  request r = t.receive(previous(t), 0, in.data(), in.size());
  const std::string text = error_of<transport_error>([&] { finish(t, r); });
  INFO(text);
  CHECK(contains(text, "MPI_Irecv with rank " + std::to_string(previous(t)) + " on rank " +
                           std::to_string(t.rank()) + " of " + std::to_string(t.size())));
  CHECK((contains(text, "truncate")));
  finish(t, s);
}

TEST_CASE("a message may be smaller than what it is received in", "[transport][mpi]") {
  mpi_transport t = all_ranks();
  const std::vector<std::byte> out = message(t.rank(), next(t), 0, 16);
  std::vector<std::byte> in(48, std::byte{0xee});
  request s = t.send(next(t), 0, out.data(), out.size());
  request r = t.receive(previous(t), 0, in.data(), in.size());
  finish(t, r);
  std::vector<std::byte> wanted = message(previous(t), t.rank(), 0, 16);
  wanted.resize(in.size(), std::byte{0xee});
  CHECK(in == wanted);
  finish(t, s);
}

TEST_CASE("an abandoned receive still takes its message, and lets its memory go",
          "[transport][mpi]") {
  mpi_transport t = all_ranks();
  auto memory = std::make_shared<std::array<std::byte, 32>>();
  const std::weak_ptr<std::array<std::byte, 32>> watch = memory;
  request first = t.receive(previous(t), 0, memory->data(), memory->size());
  t.abandon(std::move(first), memory);
  memory.reset();
  CHECK_FALSE(watch.expired());

  const std::vector<std::byte> one = message(t.rank(), next(t), 1, 32);
  const std::vector<std::byte> two = message(t.rank(), next(t), 2, 32);
  std::vector<std::byte> in(32);
  std::vector<request> requests;
  requests.push_back(t.send(next(t), 0, one.data(), 32));
  requests.push_back(t.send(next(t), 0, two.data(), 32));
  requests.push_back(t.receive(previous(t), 0, in.data(), 32));
  finish(t, requests);
  CHECK(in == message(previous(t), t.rank(), 2, 32));
  // Looked at now and then, by any call.
  request unmet = t.receive(previous(t), 1, in.data(), 32);
  wait_until([&] { return t.done(unmet) || watch.expired(); });
  CHECK(watch.expired());
  t.abandon(std::move(unmet), nullptr);
}

TEST_CASE("a receive that nobody meets is cancelled with its transport", "[transport][mpi]") {
  auto memory = std::make_shared<std::array<std::byte, 32>>();
  const std::weak_ptr<std::array<std::byte, 32>> watch = memory;
  {
    mpi_transport t = all_ranks();
    t.abandon(t.receive(previous(t), 0, memory->data(), memory->size()), memory);
    memory.reset();
    CHECK_FALSE(watch.expired());
  }
  CHECK(watch.expired());
}

TEST_CASE("an abandoned send keeps its memory until it is received", "[transport][mpi]") {
  if (world().size() == 1) return;
  mpi_transport t = all_ranks();
  mpi_transport when = all_ranks();
  constexpr std::size_t bytes = std::size_t{8} << 20;  // not sent before it is asked for
  using data = std::vector<std::byte>;
  auto memory = std::make_shared<data>(message(t.rank(), next(t), 0, bytes));
  const std::weak_ptr<data> watch = memory;
  t.abandon(t.send(next(t), 0, memory->data(), bytes), memory);
  memory.reset();
  CHECK_FALSE(watch.expired());

  std::vector<request> requests;  // nobody receives before the check above
  std::byte go{};
  std::byte come{};
  requests.push_back(when.send(next(t), 0, &go, 1));
  requests.push_back(when.receive(previous(t), 0, &come, 1));
  finish(when, requests);

  data in(bytes);
  request r = t.receive(previous(t), 0, in.data(), bytes);
  finish(t, r);
  request unmet = t.receive(previous(t), 1, &come, 1);  // any call looks at it now and then
  wait_until([&] { return t.done(unmet) || watch.expired(); });
  t.abandon(std::move(unmet), nullptr);
  CHECK(in == message(previous(t), t.rank(), 0, bytes));
}

TEST_CASE("a notice is heard by every peer, also one from another thread", "[transport][mpi]") {
  for (const bool other_thread : {false, true}) {
    mpi_transport t = all_ranks();
    const std::string said = "rank 0 says " +
                             std::string(other_thread ? "from a thread" : "it itself") +
                             std::string(900, '.');
    std::array<std::byte, max_notice> room{};
    if (t.rank() == 0) {
      const auto tell = [&] { t.announce(std::as_bytes(std::span(said))); };
      if (other_thread) {
        std::thread thread(tell);
        for (int i = 0; i < 100; ++i) CHECK(t.heard(room) == 0);
        thread.join();
      } else {
        tell();
      }
      std::byte unused{};
      std::vector<request> all;  // until everybody has heard
      for (int peer = 1; peer < t.size(); ++peer) all.push_back(t.receive(peer, 0, &unused, 1));
      finish(t, all);
      CHECK(t.heard(room) == 0);  // not by itself
    } else {
      std::size_t bytes = 0;
      wait_until([&] { return (bytes = t.heard(room)) != 0; });
      CHECK(text_of(std::span(room).first(bytes)) == said);
      std::byte unused{};
      request r = t.send(0, 0, &unused, 1);
      finish(t, r);
    }
  }
}

TEST_CASE("a notice that has no room is cut", "[transport][mpi]") {
  mpi_transport t = all_ranks();
  const std::string said = "0123456789";
  if (t.rank() == 0) return t.announce(std::as_bytes(std::span(said)));
  std::array<std::byte, 4> room{};
  std::size_t bytes = 0;
  wait_until([&] { return (bytes = t.heard(room)) != 0; });
  CHECK(text_of(std::span(room).first(bytes)) == "0123");
}

TEST_CASE("groups have ranks, messages and notices of their own", "[transport][mpi]") {
  mpi_transport parent = all_ranks();
  std::vector<int> members;  // those of this parity, from the highest down
  for (int r = parent.size() - 1; r >= 0; --r) {
    if (r % 2 == parent.rank() % 2) members.push_back(r);
  }
  int rank = 0;
  while (members[static_cast<std::size_t>(rank)] != parent.rank()) ++rank;
  const std::string odd = fresh_key();
  const std::string even = fresh_key();
  mpi_transport t = parent.child(members, rank, parent.rank() % 2 == 0 ? even : odd);
  CHECK(t.rank() == rank);
  CHECK(t.size() == static_cast<int>(members.size()));
  CHECK(t.workspace_bytes() == parent.workspace_bytes());
  CHECK(t.context_key() != parent.context_key());

  int in_parent = -1;
  int in_group = -1;
  std::vector<request> requests;
  const int parent_says = 100 + parent.rank();
  const int group_says = 200 + t.rank();
  requests.push_back(t.receive(previous(t), 0, reinterpret_cast<std::byte*>(&in_group), 4));
  requests.push_back(
      parent.send(next(parent), 0, reinterpret_cast<const std::byte*>(&parent_says), 4));
  requests.push_back(
      parent.receive(previous(parent), 0, reinterpret_cast<std::byte*>(&in_parent), 4));
  requests.push_back(t.send(next(t), 0, reinterpret_cast<const std::byte*>(&group_says), 4));
  finish(t, requests);
  CHECK(in_parent == 100 + previous(parent));
  CHECK(in_group == 200 + previous(t));

  {
    const mpi_transport gone = std::move(parent);
  }  // a group outlives it
  std::array<std::byte, max_notice> room{};
  if (t.rank() == 0) {
    t.announce(std::as_bytes(std::span("group")));
  } else {
    wait_until([&] { return t.heard(room) != 0; });
  }
  CHECK(world().heard(room) == 0);

  // A group of a group: its first rank alone.
  const std::string key = fresh_key();
  if (t.rank() == 0) {
    const std::array<int, 1> first = {0};
    mpi_transport one = t.child(first, 0, key);
    CHECK(one.size() == 1);
    int got = 0;
    std::vector<request> own;
    own.push_back(one.send(0, 1, reinterpret_cast<const std::byte*>(&group_says), 4));
    own.push_back(one.receive(0, 1, reinterpret_cast<std::byte*>(&got), 4));
    finish(one, own);
    CHECK(got == group_says);
  }
}

TEST_CASE("ranks of one host are told by MPI", "[transport][mpi]") {
  // All of them, here; test_hosts.py has several.
  mpi_transport early = mpi_transport::world();
  const std::vector<int> me = {early.rank()};
  mpi_transport alone = early.child(me, 0, fresh_key());
  CHECK(contains(error_of<std::logic_error>([&] { (void)alone.host_marks(); }),
                 "of all ranks first"));
  CHECK(early.host_marks() == std::vector<int>(static_cast<std::size_t>(early.size()), 0));
  CHECK(early.host_marks() == std::vector<int>(static_cast<std::size_t>(early.size()), 0));
  CHECK(alone.host_marks() == std::vector<int>{0});
}

TEST_CASE("a group's arguments are checked", "[transport][mpi]") {
  mpi_transport t = all_ranks();
  const std::string key = fresh_key();
  const std::vector<int> me = {t.rank()};
  const std::vector<int> nobody = {t.size()};
  const std::vector<int> other = {(t.rank() + 1) % (t.size() + 1) == t.size() ? 0 : next(t)};
  using bad = std::invalid_argument;
  CHECK(contains(error_of<bad>([&] { (void)t.child(me, 1, key); }), "rank is 1"));
  CHECK(contains(error_of<bad>([&] { (void)t.child({}, 0, key); }), "world size is 0"));
  CHECK(contains(error_of<bad>([&] { (void)t.child(nobody, 0, key); }), "is no rank of the"));
  if (t.size() > 1) {
    CHECK(contains(error_of<bad>([&] { (void)t.child(other, 0, key); }), "but this is rank"));
  }
}

TEST_CASE("a user's communicator will do, and is left as it is", "[transport][mpi]") {
  // What the program has set: nothing of it may change.
  errors_handled = 0;
  MPI_Errhandler mine = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(count_error, &mine);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, mine);
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, nullptr);
  int value = 42;
  MPI_Comm_set_attr(MPI_COMM_WORLD, key, &value);

  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  MPI_Comm_set_errhandler(half, MPI_ERRORS_ARE_FATAL);
  {
    mpi_transport t = mpi_transport::from(half);
    mpi_transport second = mpi_transport::from(half);
    int half_rank = -1;
    int half_size = -1;
    MPI_Comm_rank(half, &half_rank);
    MPI_Comm_size(half, &half_size);
    CHECK(t.rank() == half_rank);
    CHECK(t.size() == half_size);
    // The program's own messages on it, of the same tag, do not mix with the transport's.
    int of_mpi = -1;
    MPI_Request own[2];
    const int say = rank;
    MPI_Irecv(&of_mpi, 1, MPI_INT, previous(t), 0, half, &own[0]);
    int of_t = -1;
    int of_second = -1;
    const int in_t = 1000 + rank;
    const int in_second = 2000 + rank;
    std::vector<request> requests;
    requests.push_back(second.send(next(t), 0, reinterpret_cast<const std::byte*>(&in_second), 4));
    requests.push_back(t.send(next(t), 0, reinterpret_cast<const std::byte*>(&in_t), 4));
    requests.push_back(t.receive(previous(t), 0, reinterpret_cast<std::byte*>(&of_t), 4));
    requests.push_back(second.receive(previous(t), 0, reinterpret_cast<std::byte*>(&of_second), 4));
    finish(t, requests);
    MPI_Isend(&say, 1, MPI_INT, next(t), 0, half, &own[1]);
    MPI_Waitall(2, own, MPI_STATUSES_IGNORE);
    CHECK(of_t - 1000 == of_mpi);
    CHECK(of_second - 2000 == of_mpi);

    // An error of the transport's goes to nobody's handler, as far as MPI keeps to that.
    std::array<std::byte, 64> data{};
    request s = t.send(next(t), 0, data.data(), 32);
    request r = t.receive(previous(t), 0, data.data() + 32, 8);
    CHECK(error_of<transport_error>([&] { finish(t, r); }) != "nothing");
    finish(t, s);
  }
  CHECK(errors_handled == (test_raises_on_world ? 1 : 0));
  MPI_Errhandler now = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
  CHECK(now == mine);
  MPI_Errhandler_free(&now);
  MPI_Comm_get_errhandler(half, &now);
  CHECK(now == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&now);
  void* found = nullptr;
  int there = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, key, &found, &there);
  CHECK((there != 0 && found == &value));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
  MPI_Comm_free_keyval(&key);
  MPI_Errhandler_free(&mine);
  MPI_Comm_free(&half);
}

TEST_CASE("what is no intracommunicator is refused", "[transport][mpi]") {
  using bad = std::invalid_argument;
  CHECK(contains(error_of<bad>([] { (void)mpi_transport::from(MPI_COMM_NULL); }), "is null"));
  CHECK(contains(error_of<bad>([] { (void)mpi_transport::world({.workspace_bytes = 0}); }),
                 "workspace_bytes is 0"));
  if (world().size() == 1) return;
  const int side = world().rank() == 0 ? 0 : 1;
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm inter = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, side, 0, &group);
  MPI_Intercomm_create(group, 0, MPI_COMM_WORLD, 1 - side, 5, &inter);
  CHECK(contains(error_of<bad>([&] { (void)mpi_transport::from(inter); }), "MPI_Intercomm_merge"));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&group);
}

TEST_CASE("transports of several threads work at the same time", "[transport][mpi]") {
  std::vector<mpi_transport> transports;
  for (int i = 0; i < 3; ++i) transports.push_back(all_ranks());
  std::array<std::string, 3> failures;
  {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        try {
          mpi_transport& t = transports[i];
          for (int n = 0; n < 200; ++n) {
            const std::vector<std::byte> out = message(t.rank(), static_cast<int>(i), n, 300);
            std::vector<std::byte> in(300);
            std::vector<request> requests;
            requests.push_back(t.send(next(t), 0, out.data(), 300));
            requests.push_back(t.receive(previous(t), 0, in.data(), 300));
            finish(t, requests);
            if (in != message(previous(t), static_cast<int>(i), n, 300)) failures[i] = "wrong data";
          }
        } catch (const std::exception& e) {
          failures[i] = e.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::string& failure : failures) CHECK(failure == "");
}

TEST_CASE("more bytes than an int counts are one element of a type of their own",
          "[transport][mpi]") {
  const std::size_t block = 64;
  for (const std::size_t bytes : {3 * block, 3 * block + 5}) {
    const detail::mpi_large_type type(bytes, block);
    const std::vector<std::byte> out = message(0, 0, 0, bytes);
    std::vector<std::byte> in(bytes + 1, std::byte{0xA5});
    MPI_Status status;
    MPI_Sendrecv(out.data(), static_cast<int>(bytes), MPI_BYTE, 0, 0, in.data(), 1, type.get(), 0,
                 0, MPI_COMM_SELF, &status);
    CHECK(std::memcmp(in.data(), out.data(), bytes) == 0);
    CHECK(in.back() == std::byte{0xA5});
    MPI_Count counted = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &counted);
    CHECK(static_cast<std::size_t>(counted) == bytes);
  }
}

TEST_CASE("a transport that was moved from owns nothing", "[transport][mpi]") {
  mpi_transport a = all_ranks();
  mpi_transport b = all_ranks();
  a = std::move(b);
  const mpi_transport c = std::move(a);
  CHECK(c.size() == world().size());
}
