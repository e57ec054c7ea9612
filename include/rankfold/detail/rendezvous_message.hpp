// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other at start: whole messages over a unix socket of type SOCK_SEQPACKET,
// so that none is ever read or written in part, with descriptors beside them.
//
//     peer                      rank 0
//     hello              →                      who I am and what I expect
//                        ←      welcome         you are in, so far these are missing
//                        ←      other_key       not the run that you look for: look further
//                        ←      refused         you cannot take part, and why
//                        ←      waiting         these are still missing
//                        ←      create          all are here: make your segment
//     segment            →                      here it is, and the descriptor that tells my life
//                        ←      table           the segments of the others, some at a time
//     ready              →                      I have mapped them all
//                        ←      go              so have all others
//     failed             ↔      failed          I cannot go on, and why
//
// The prefix, the hello and the refusal are the same in all versions to come: two versions must be
// able to tell each other that they differ.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/file_descriptor.hpp"
#include "rankfold/detail/segment_layout.hpp"
#include "rankfold/version.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

inline constexpr std::uint64_t rendezvous_magic = 0x7672646C666B6E72;  // "rnkfldrv" in memory
inline constexpr std::uint32_t rendezvous_protocol = 1;
inline constexpr std::size_t max_message_bytes = 8192;
inline constexpr std::size_t max_key_bytes = 2048;
inline constexpr std::size_t max_message_descriptors = 252;  // the kernel's own limit is 253

enum class message_kind : std::uint32_t {
  hello = 1,
  welcome,
  other_key,
  refused,
  waiting,
  create,
  segment,
  table,
  ready,
  go,
  failed,
};

struct message_prefix {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t protocol = rendezvous_protocol;
  std::uint32_t kind = 0;
};
static_assert(std::is_trivially_copyable_v<message_prefix> && sizeof(message_prefix) == 16);

/// After the prefix; the key follows.
struct hello_message {
  std::uint32_t version = RANKFOLD_VERSION;
  std::uint32_t abi = RANKFOLD_DETAIL_ABI;
  std::uint32_t layout = layout_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t key_bytes = 0;
  std::uint64_t segment_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<hello_message> && sizeof(hello_message) == 32);

struct received_message {
  enum class status { nothing, message, closed, garbage } what = status::nothing;
  message_kind kind{};
  std::uint32_t protocol = 0;
  std::string body;
  std::vector<file_descriptor> descriptors;
  bool lost_descriptors = false;  // this process may not open as many
};

/// Whose process is at the other end: of a connection, or of a listener that was connected to.
inline std::optional<::ucred> peer_credentials(int socket) {
  ::ucred credentials{};
  ::socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return credentials;
}

/// An address: a path, or where there is none, a name in the abstract namespace.
struct socket_address {
  ::sockaddr_un address{};
  ::socklen_t size = 0;

  static socket_address abstract(const std::string& name) {
    socket_address made;
    made.address.sun_family = AF_UNIX;
    std::memcpy(made.address.sun_path + 1, name.data(), name.size());
    made.size = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
    return made;
  }
  static socket_address path(const std::string& name) {
    socket_address made;
    made.address.sun_family = AF_UNIX;
    std::memcpy(made.address.sun_path, name.data(), name.size());
    made.size = sizeof made.address;
    return made;
  }
  static constexpr std::size_t max_path_bytes = sizeof(::sockaddr_un::sun_path) - 1;

  const ::sockaddr* get() const noexcept { return reinterpret_cast<const ::sockaddr*>(&address); }
};

/// One end of a connection; non-blocking.
class message_socket {
 public:
  message_socket() = default;
  explicit message_socket(private_descriptor fd) noexcept : fd_(std::move(fd)) {}

  static message_socket unconnected() {
    message_socket made(private_descriptor::opened_by(
        [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
    if (!made) throw_errno("a unix socket cannot be opened", errno);
    return made;
  }

  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

  enum class send_result { sent, full, closed };

  send_result send(message_kind kind, std::string_view body = {},
                   std::span<const int> descriptors = {}) const {
    message_prefix prefix;
    prefix.kind = static_cast<std::uint32_t>(kind);
    ::iovec parts[2] = {{&prefix, sizeof prefix},
                        {const_cast<char*>(body.data()), body.size()}};  // only read
    ::msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    control_buffer control;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
      ::cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    }
    for (;;) {
      if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
        return send_result::sent;
      }
      switch (errno) {
        case EINTR:
          continue;
        // Too many references: this user's descriptors under way, in all processes together, are
        // as many as one process may open. They get fewer as others receive.
        case EAGAIN:
        case ETOOMANYREFS:
        case ENOBUFS:
          return send_result::full;
        case EPIPE:
        case ECONNRESET:
        case ENOTCONN:
          return send_result::closed;
        default:
          throw_errno("a message to another rank cannot be sent", errno);
      }
    }
  }

  received_message receive() const {
    using status = received_message::status;
    received_message result;
    std::array<char, max_message_bytes> buffer;
    control_buffer control;
    ::iovec part = {buffer.data(), buffer.size()};
    ::msghdr message{};
    ::ssize_t got = -1;
    bool reset = false;
    for (;;) {
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (got >= 0) break;
      if (errno == EINTR) continue;
      // A peer that closed before it had read all: reported before the last thing that it said.
      if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
      result.what = errno == EAGAIN ? status::nothing : status::closed;
      return result;
    }
    for (::cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      result.descriptors.reserve(result.descriptors.size() + count);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
        result.descriptors.emplace_back(fd);
      }
    }
    result.lost_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
    message_prefix prefix;
    if (got == 0) {
      result.what = status::closed;
      return result;
    }
    result.what = status::garbage;
    if ((message.msg_flags & MSG_TRUNC) != 0 || static_cast<std::size_t>(got) < sizeof prefix) {
      return result;
    }
    std::memcpy(&prefix, buffer.data(), sizeof prefix);
    if (prefix.magic != rendezvous_magic) return result;
    result.what = status::message;
    result.kind = static_cast<message_kind>(prefix.kind);
    result.protocol = prefix.protocol;
    result.body.assign(buffer.data() + sizeof prefix,
                       static_cast<std::size_t>(got) - sizeof prefix);
    return result;
  }

 private:
  struct control_buffer {
    alignas(::cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * 253)> bytes;
    void* data() noexcept { return bytes.data(); }
    std::size_t size() const noexcept { return bytes.size(); }
  };

  private_descriptor fd_;
};

template <class T>
std::string bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A T at the start of `bytes`, which it is cut off from; nothing where there are too few.
template <class T>
std::optional<T> take(std::string_view& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

}  // namespace detail

RANKFOLD_END_NAMESPACE
