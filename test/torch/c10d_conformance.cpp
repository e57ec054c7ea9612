// SPDX-License-Identifier: Apache-2.0
// What test_c10d.py runs in each of its processes: ops that take the name of a process group, the
// kind of transport ("c10d" or "hierarchical") and the name of the host that this rank is on, or ""
// for the real one.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "rankfold/communicator.hpp"
#include "rankfold/hierarchical_context.hpp"
#include "rankfold/testing/conformance.hpp"
#include "rankfold/torch/c10d.hpp"
#include "rankfold/transport/shm.hpp"

using namespace rankfold;

namespace {

constexpr std::size_t workspace = 65536;

c10d_options options_of(const std::string& host, double seconds) {
  c10d_options options;
  options.workspace_bytes = workspace;
  options.timeout = std::chrono::milliseconds(static_cast<int>(seconds * 1000));
  options.host = host;
  return options;
}

template <class Transport>
Transport make(const std::string& group, const std::string& host, double seconds = 60) {
  if constexpr (std::is_same_v<Transport, c10d_transport>) {
    return c10d_transport::from(group, options_of(host, seconds));
  } else {
    return c10d_hierarchical(group, options_of(host, seconds));
  }
}

/// Calls `f<Transport>()` for that kind.
template <class F>
auto with_kind(std::string_view kind, F&& f) {
  if (kind == "c10d") return f.template operator()<c10d_transport>();
  TORCH_CHECK(kind == "hierarchical", "no such kind");
  return f.template operator()<c10d_hierarchical_transport>();
}

std::string kind_of(const std::exception& e) {
  const auto is = [&]<class Error>() { return dynamic_cast<const Error*>(&e) != nullptr; };
  if (is.operator()<timeout_error>()) return "timeout_error: ";
  if (is.operator()<peer_lost_error>()) return "peer_lost_error: ";
  if (is.operator()<mismatch_error>()) return "mismatch_error: ";
  if (is.operator()<rendezvous_error>()) return "rendezvous_error: ";
  if (is.operator()<transport_error>()) return "transport_error: ";
  if (is.operator()<aborted_error>()) return "aborted_error: ";
  return "another error: ";
}

// --- conformance(str kind, str group, str host, int[] ranks) -> str[]

template <class Transport>
std::vector<std::string> run_conformance(const std::string& group, const std::string& host,
                                         std::vector<int> ranks, std::int64_t seed,
                                         const std::string& part) {
  // Of all ranks a new transport each time; of fewer a group of one that stays.
  std::optional<Transport> base(make<Transport>(group, host));
  int groups = 0;
  const auto run = [&](int size, const communicator_options& options,
                       const std::function<void(communicator<Transport>&)>& f) {
    ++groups;
    if (base->rank() >= size) return;
    if (size == base->size()) {
      communicator<Transport> comm(make<Transport>(group, host), options);
      f(comm);
      return;
    }
    std::vector<int> members;
    for (int r = 0; r < size; ++r) members.push_back(r);
    std::string key = std::to_string(groups);
    key = std::string(32 - key.size(), '0') + key;
    communicator<Transport> comm(base->child(members, base->rank(), key, {}), options);
    f(comm);
  };
  std::vector<std::string> failures;
  int held = 0;
  for (const auto& check :
       testing::conformance_checks<Transport>(run, {.ranks = std::move(ranks),
                                                    .seed = static_cast<std::uint64_t>(seed),
                                                    .processes = true,
                                                    .notices_loss = true})) {
    if (check.name.find(part) == std::string::npos) continue;
    try {
      check.body();
      ++held;
    } catch (const std::exception& e) {
      failures.push_back(check.name + ": " + kind_of(e) + e.what());
    }
  }
  failures.insert(failures.begin(), std::to_string(held) + " checks held");
  return failures;
}

// --- same_as_shm(...): all_reduce over both gives the same bits

template <class T, class Transport>
void compare(communicator<Transport>& comm, communicator<shm_transport>& shm,
             std::vector<std::string>& found) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{9}, std::size_t{1000},
                                  std::size_t{4097}, std::size_t{100003}}) {
    // Random bits: of all magnitudes, with NaN, infinities and denormals among them, and zeros.
    std::mt19937_64 random(count * 64 + static_cast<std::uint64_t>(comm.rank()));
    std::vector<T> data(count);
    for (T& x : data) {
      const std::uint64_t bits = random();
      std::memcpy(static_cast<void*>(&x), &bits, sizeof x);
      if (bits % 16 == 0) x = T{};
    }
    std::vector<T> over_shm = data;
    shm.all_reduce(std::span(over_shm));
    comm.all_reduce(std::span(data));
    if (std::memcmp(data.data(), over_shm.data(), count * sizeof(T)) != 0) {
      found.push_back(std::to_string(count) + " of " + std::to_string(sizeof(T)) + " bytes");
    }
  }
}

template <class Transport>
std::vector<std::string> same_as_shm(const std::string& group, const std::string& host,
                                     const std::string& key) {
  communicator<Transport> comm(make<Transport>(group, host));
  communicator<shm_transport> shm(
      shm_transport::connect(key, comm.rank(), comm.size(), {.workspace_bytes = workspace}));
  std::vector<std::string> found;
  compare<float>(comm, shm, found);
  compare<bfloat16>(comm, shm, found);
  compare<float16>(comm, shm, found);
  return found;
}

// --- call_until_error(...): (the error, how many calls were made, ms that the last one took)

template <class Transport>
std::pair<std::string, std::vector<std::int64_t>> call_until_error(const std::string& group,
                                                                   const std::string& host,
                                                                   std::int64_t count,
                                                                   double seconds) {
  using clock = std::chrono::steady_clock;
  communicator_options options;
  options.timeout = std::chrono::milliseconds(static_cast<int>(seconds * 1000));
  communicator<Transport> comm(make<Transport>(group, host), options);
  std::vector<float> data(static_cast<std::size_t>(count), 1.0F);
  std::int64_t calls = 0;
  clock::time_point begin;
  try {
    for (;;) {
      begin = clock::now();
      comm.all_reduce(std::span(data), max{});
      ++calls;
    }
  } catch (const error& e) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - begin);
    return {kind_of(e) + e.what(), {calls, took.count()}};
  }
}

/// Why a transport of the group cannot be made.
template <class Transport>
std::string error_of_start(const std::string& group, const std::string& host, double seconds) {
  try {
    make<Transport>(group, host, seconds);
  } catch (const std::invalid_argument& e) {
    return std::string("invalid_argument: ") + e.what();
  } catch (const std::exception& e) {
    return kind_of(e) + e.what();
  }
  return "";
}

// --- messages(...): what the transport itself does, between two ranks

constexpr std::size_t frame = rankfold::detail::c10d_frame::most_bytes;

std::vector<std::byte> bytes_of(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(size);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

template <class Ready>
void wait_until(Ready&& ready) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!ready()) {
    if (std::chrono::steady_clock::now() > until) throw timeout_error("20 s are over");
    std::this_thread::yield();
  }
}

/// Messages of all sizes around a frame go both ways, each on a channel of its own, in an order
/// that is not that of their receives: the first to be asked for is the last to come.
std::vector<std::string> messages(const std::string& group) {
  c10d_transport t = make<c10d_transport>(group, "");
  const int peer = 1 - t.rank();
  const std::vector<std::size_t> sizes{40 * frame + 1, 0,         1,          frame - 1, frame,
                                       frame + 1,      2 * frame, 16 * frame, 17 * frame};
  std::vector<std::string> wrong;
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<std::vector<std::byte>> out;
    std::vector<c10d_transport::request> sends;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(bytes_of(sizes[i], 100 * round + i));
      sends.push_back(t.send(peer, static_cast<int>(i), out[i].data(), sizes[i]));
    }
    for (std::size_t i = sizes.size(); i-- > 0;) {
      std::vector<std::byte> in(sizes[i]);
      auto receive = t.receive(peer, static_cast<int>(i), in.data(), sizes[i]);
      wait_until([&] { return t.done(receive); });
      if (in != out[i]) wrong.push_back(std::to_string(sizes[i]) + " bytes");
    }
    for (auto& send : sends) wait_until([&] { return t.done(send); });
  }
  return wrong;
}

/// Receives that are given up take their message with them, and nothing of the next one.
std::vector<std::string> abandoned_messages(const std::string& group) {
  c10d_transport t = make<c10d_transport>(group, "");
  const int peer = 1 - t.rank();
  const std::vector<std::byte> first = bytes_of(20 * frame, 1);
  const std::vector<std::byte> second = bytes_of(20 * frame, 2);
  auto memory = std::make_shared<std::vector<std::byte>>(first);
  t.abandon(t.send(peer, 0, memory->data(), memory->size()), memory);
  const std::weak_ptr<const void> kept = memory;
  memory.reset();
  std::vector<std::byte> in(20 * frame);
  t.abandon(t.receive(peer, 0, in.data(), in.size()), nullptr);
  std::vector<std::string> wrong;
  if (kept.expired()) wrong.push_back("the memory of a send that goes on is gone");
  auto send = t.send(peer, 0, second.data(), second.size());
  auto receive = t.receive(peer, 0, in.data(), in.size());
  wait_until([&] { return t.done(receive); });
  if (in != second) wrong.push_back("not the second message");
  wait_until([&] { return t.done(send); });
  if (!kept.expired()) wrong.push_back("the memory of a send that is over is kept");
  return wrong;
}

/// A message that is larger than its receive: what the transport says.
std::string message_of_another_size(const std::string& group) {
  c10d_transport t = make<c10d_transport>(group, "");
  const int peer = 1 - t.rank();
  std::vector<std::byte> out(5000);
  std::vector<std::byte> in(4000);
  auto send = t.send(peer, 3, out.data(), out.size());
  auto receive = t.receive(peer, 3, in.data(), in.size());
  std::string text;
  try {
    wait_until([&] { return t.done(receive); });
  } catch (const std::exception& e) {
    text = kind_of(e) + e.what();
  }
  t.abandon(std::move(send), nullptr);
  t.abandon(std::move(receive), nullptr);
  return text;
}

/// Of each size how long a message and its answer take: fastest and median of 100, in us.
std::vector<std::vector<double>> round_trips(const std::string& group,
                                             const std::vector<std::int64_t>& sizes) {
  using clock = std::chrono::steady_clock;
  c10d_transport t = make<c10d_transport>(group, "");
  const int peer = 1 - t.rank();
  std::vector<std::vector<double>> found;
  for (const std::int64_t size : sizes) {
    std::vector<std::byte> in(static_cast<std::size_t>(size));
    const std::vector<std::byte> out(in.size());
    std::vector<double> took;
    for (int i = 0; i < 100; ++i) {
      const clock::time_point begin = clock::now();
      auto receive = t.receive(peer, 1, in.data(), in.size());
      c10d_transport::request send;
      if (t.rank() == 0) send = t.send(peer, 1, out.data(), out.size());
      wait_until([&] { return t.done(receive); });
      if (t.rank() != 0) send = t.send(peer, 1, out.data(), out.size());
      wait_until([&] { return t.done(send); });
      took.push_back(std::chrono::duration<double, std::micro>(clock::now() - begin).count());
    }
    std::sort(took.begin(), took.end());
    found.push_back({took.front(), took[took.size() / 2]});
  }
  return found;
}

/// A transport that stays while the process group goes.
std::optional<communicator<c10d_transport>> kept;

TORCH_LIBRARY(rankfold_c10d_test, m) {
  m.def("conformance", [](std::string kind, std::string group, std::string host,
                          std::vector<std::int64_t> ranks, std::int64_t seed, std::string part) {
    return with_kind(kind, [&]<class Transport>() {
      return run_conformance<Transport>(group, host, {ranks.begin(), ranks.end()}, seed, part);
    });
  });
  m.def("same_as_shm", [](std::string kind, std::string group, std::string host, std::string key) {
    return with_kind(kind,
                     [&]<class Transport>() { return same_as_shm<Transport>(group, host, key); });
  });
  m.def("call_until_error", [](std::string kind, std::string group, std::string host,
                               std::int64_t count, double seconds) {
    auto result = with_kind(kind, [&]<class Transport>() {
      return call_until_error<Transport>(group, host, count, seconds);
    });
    return std::make_tuple(result.first, result.second);
  });
  m.def("error_of_start",
        [](std::string kind, std::string group, std::string host, double seconds) {
          return with_kind(kind, [&]<class Transport>() {
            return error_of_start<Transport>(group, host, seconds);
          });
        });
  m.def("messages", messages);
  m.def("abandoned_messages", abandoned_messages);
  m.def("message_of_another_size", message_of_another_size);
  m.def("round_trips", round_trips);
  m.def("keep", [](std::string group) { kept.emplace(make<c10d_transport>(group, "")); });
  m.def("sum_over_kept", [](std::int64_t value) {
    std::vector<std::int64_t> data(5000, value);
    kept->all_reduce(std::span(data));
    return data.back();
  });
  m.def("drop_kept", [] { kept.reset(); });
  m.def("layout", [](std::string group, std::string host) {
    const auto transport = make<c10d_hierarchical_transport>(group, host);
    const std::vector<int>& hosts = transport.layout().host_of;
    return std::vector<std::int64_t>(hosts.begin(), hosts.end());
  });
}

}  // namespace
