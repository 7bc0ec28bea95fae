// SPDX-License-Identifier: Apache-2.0
// A connected, non-blocking stream socket, plain or TLS (peer_tls.h): the one seam at which bytes between instances and
// between processes are encrypted. It keeps the convention of the system calls, so that whoever waits in poll or epoll
// reads and writes both kinds alike; plain ones are one branch away from the system call.
//
// The TLS handshake happens by itself in the first calls. Whoever polls asks events() what for, and
// has_buffered() before it waits for bytes that may be here already.
//
// Threads: one may receive while another sends. Everything else, also moving it, is for one thread at a time.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/peer_tls.h"
#include "base/status.h"
#include "base/tcp_socket.h"

namespace tandem {

/// What to do about peers of which one speaks TLS and the other does not, or not by the same means.
inline constexpr std::string_view kSameCredentials =
    "give both sides the same TANDEM_CLUSTER_SECRET, or certificates (--peer-certfile, --peer-ca-certs)";
/// Whether bytes that came where a plain protocol was expected are a TLS handshake's, or its refusal. Two are enough.
bool begins_like_tls(std::span<const std::byte> bytes);
/// The error for them, at the plain side.
Status speaks_tls_error();

class Channel {
 public:
  enum class Side { kClient, kServer };  ///< who connected, who listened

  Channel();
  explicit Channel(Socket socket);  ///< plain
  /// Plain if `tls` is nullptr.
  Channel(Socket socket, const std::shared_ptr<const PeerTls>& tls, Side side);
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.fd(); }
  const Socket& socket() const { return socket_; }

  /// As recv, readv, send and sendmsg: bytes moved (perhaps fewer than asked for), 0 if the peer closed, -1 and errno;
  /// EAGAIN: nothing now. What was not taken by send() must be offered first at the next call, perhaps with more
  /// behind.
  ssize_t receive(std::span<std::byte> to);
  ssize_t receive(std::span<const iovec> to);
  ssize_t send(std::span<const std::byte> bytes);
  ssize_t send(std::span<const iovec> parts);
  /// Why the last call of this thread said -1, if not for EAGAIN or EINTR. kFailedPrecondition: the two do not fit, and
  /// will not later (one is plain, another secret, a certificate that is not accepted); kUnavailable: anything else.
  Status error() const;

  /// POLLIN and perhaps POLLOUT (epoll's flags are the same): what to wait for in order to receive and, if `to_send`,
  /// to send. Also while a handshake makes senders wait for the peer's bytes.
  std::uint32_t events(bool to_send) const;
  /// Bytes are here that no poll will tell of.
  bool has_buffered() const;
  /// One step of the handshake: ok and true once it is over. A plain channel has none.
  Result<bool> handshake();

  /// Says goodbye and closes.
  void close();

 private:
  struct Tls;
  Socket socket_;
  std::unique_ptr<Tls> tls_;  ///< nullptr: plain. Behind socket_: it says goodbye when it goes
};

}  // namespace tandem
