// SPDX-License-Identifier: Apache-2.0
// A transport of one's own: messages over Unix sockets. rankfold/transport.hpp says what it must
// do.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <sys/socket.h>

#include <rankfold/rankfold.hpp>

class socket_transport {
  struct header {  // goes before each message
    int channel;   // -1: a notice to all
    std::uint32_t bytes;
  };
  struct link {  // to one peer
    int socket = -1;
    bool closed = false;
    std::vector<std::byte> out, in;  // bytes on their way
    std::uint64_t queued = 0, sent = 0;
    std::array<std::uint64_t, 16> posted{}, arrived{};
    std::map<std::pair<int, std::uint64_t>, std::vector<std::byte>> messages;
  };
  struct shared {  // at a fixed address, behind a lock: announce() may come from any thread
    std::mutex mutex;
    std::vector<link> links;
    std::vector<std::byte> notice;
    explicit shared(int size) : links(std::size_t(size)) {}
    ~shared() {
      for (link& l : links) ::close(l.socket);
    }
  };

 public:
  static constexpr int channels = 16;
  struct request {
    int peer, channel;     // channel -1: a send
    std::uint64_t number;  // of the message on this channel; for a send, of its last byte
    std::span<std::byte> room = {};
  };

  /// The transports of `size` ranks, each pair joined by two connected sockets.
  static std::vector<socket_transport> create(int size) {
    std::vector<socket_transport> all;
    for (int r = 0; r < size; ++r) all.push_back(socket_transport(r, size));
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < a; ++b) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
          throw rankfold::transport_error("socket: no more sockets");
        all[std::size_t(a)].to(b).socket = ends[0];
        all[std::size_t(b)].to(a).socket = ends[1];
      }
    }
    return all;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return int(state_->links.size()); }
  std::string_view name() const noexcept { return "socket"; }

  request send(int peer, int channel, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(state_->mutex);
    write(to(peer), channel, {data, bytes});
    return {peer, -1, to(peer).queued};
  }
  request receive(int peer, int channel, std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(state_->mutex);
    return {peer, channel, to(peer).posted[std::size_t(channel)]++, {data, bytes}};
  }
  bool done(request& r) {
    const std::lock_guard lock(state_->mutex);
    for (link& l : state_->links) move_on(l);
    if (r.channel < 0) return to(r.peer).sent >= r.number;
    auto& messages = to(r.peer).messages;
    const auto found = messages.find({r.channel, r.number});
    if (found == messages.end()) return false;
    if (found->second.size() > r.room.size()) throw rankfold::transport_error("socket: size");
    std::copy(found->second.begin(), found->second.end(), r.room.begin());
    messages.erase(found);
    return true;
  }
  void abandon(request&&, std::shared_ptr<const void>) noexcept {}  // nothing points to it
  void announce(std::span<const std::byte> notice) noexcept {
    const std::lock_guard lock(state_->mutex);
    for (link& l : state_->links) write(l, -1, notice);
  }
  std::size_t heard(std::span<std::byte> notice) {
    const std::lock_guard lock(state_->mutex);
    for (link& l : state_->links) move_on(l);
    std::copy(state_->notice.begin(), state_->notice.end(), notice.begin());
    return state_->notice.size();
  }
  rankfold::peer_state state(int peer) const noexcept {
    return to(peer).closed ? rankfold::peer_state::left : rankfold::peer_state::alive;
  }

 private:
  socket_transport(int rank, int size) : rank_(rank), state_(new shared(size)) {}
  link& to(int peer) const { return state_->links[std::size_t(peer)]; }
  static void write(link& l, int channel, std::span<const std::byte> data) {
    const header h{channel, std::uint32_t(data.size())};
    const auto bytes = std::as_bytes(std::span(&h, 1));
    l.out.insert(l.out.end(), bytes.begin(), bytes.end());
    l.out.insert(l.out.end(), data.begin(), data.end());
    l.queued += sizeof h + data.size();
    flush(l);
  }
  static void flush(link& l) {
    if (l.out.empty() || l.socket < 0) return;
    const ssize_t n = ::send(l.socket, l.out.data(), l.out.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    l.out.erase(l.out.begin(), l.out.begin() + n);
    l.sent += std::uint64_t(n);
  }
  void move_on(link& l) {
    if (l.socket < 0 || l.closed) return;
    flush(l);
    std::byte chunk[65536];
    const ssize_t n = ::recv(l.socket, chunk, sizeof chunk, 0);
    l.closed = n == 0;
    if (n > 0) l.in.insert(l.in.end(), chunk, chunk + n);
    header h;
    while (l.in.size() >= sizeof h) {
      std::memcpy(&h, l.in.data(), sizeof h);
      if (l.in.size() < sizeof h + h.bytes) break;
      const auto begin = l.in.begin() + sizeof h;
      std::vector<std::byte> data(begin, begin + h.bytes);
      l.in.erase(l.in.begin(), begin + h.bytes);
      const auto number = h.channel < 0 ? 0 : l.arrived[std::size_t(h.channel)]++;
      (h.channel < 0 ? state_->notice : l.messages[{h.channel, number}]) = std::move(data);
    }
  }
  int rank_;
  std::unique_ptr<shared> state_;
};
static_assert(rankfold::message_transport<socket_transport>);
