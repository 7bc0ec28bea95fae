// SPDX-License-Identifier: Apache-2.0
#include "base/channel.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
/// Of one call; then the other direction's thread and other sockets get their turn.
constexpr std::size_t kSendBytes = std::size_t{1} << 20;
/// Content types of TLS records: change_cipher_spec, alert, handshake, application_data.
constexpr unsigned char kFirstRecordType = 20;
constexpr unsigned char kLastRecordType = 23;
constexpr std::byte kAlert{21};
constexpr std::byte kHandshake{22};
constexpr std::byte kMajorVersion{3};
/// A fatal handshake_failure, for a peer that does not speak TLS but knows its refusal when it sees one.
constexpr unsigned char kRefusal[] = {21, 3, 3, 0, 2, 2, SSL_AD_HANDSHAKE_FAILURE};

Status misfit(std::string why) { return Status(Code::kFailedPrecondition, std::move(why), Scope::kPeer); }

/// The socket under the TLS library, which would raise SIGPIPE by itself, and what happened there last.
struct Wire {
  int fd = -1;
  bool heard = false;    ///< the peer said something
  bool not_tls = false;  ///< something else than TLS
  bool eof = false;
  int error = 0;  ///< an errno
};

int wire_read(BIO* bio, char* to, int size) {
  auto& wire = *static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  ssize_t count = 0;
  do {
    count = recv(wire.fd, to, static_cast<std::size_t>(size), MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    const auto type = static_cast<unsigned char>(*to);
    wire.not_tls = !std::exchange(wire.heard, true) && (type < kFirstRecordType || type > kLastRecordType);
    return wire.not_tls ? -1 : static_cast<int>(count);
  }
  if (count == 0) {
    wire.eof = true;
    return 0;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    BIO_set_retry_read(bio);
  else
    wire.error = errno;
  return -1;
}

int wire_write(BIO* bio, const char* from, int size) {
  auto& wire = *static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  ssize_t count = 0;
  do {
    count = ::send(wire.fd, from, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count >= 0) return static_cast<int>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    BIO_set_retry_write(bio);
  else
    wire.error = errno;
  return -1;
}

long wire_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  return command == BIO_CTRL_EOF && static_cast<Wire*>(BIO_get_data(bio))->eof ? 1 : 0;
}

BIO* make_bio(Wire& wire) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "a peer's socket");
    TANDEM_ASSERT(made != nullptr && BIO_meth_set_read(made, wire_read) == 1 &&
                      BIO_meth_set_write(made, wire_write) == 1 && BIO_meth_set_ctrl(made, wire_control) == 1,
                  "the TLS library takes a transport of our own");
    return made;
  }();
  BIO* bio = BIO_new(method);
  TANDEM_ASSERT(bio != nullptr, "the TLS library makes a transport");
  BIO_set_data(bio, &wire);
  BIO_set_init(bio, 1);
  return bio;
}

/// What the peer said of us in a TLS alert.
Status refused_by_peer(PeerTls::Way way, int alert) {
  const char* text = SSL_alert_desc_string_long(alert);
  if (way == PeerTls::Way::kSecret)
    return misfit(fmt::format("it refuses this side's secret ({}); {}", text, kSameCredentials));
  return misfit(
      fmt::format("it refuses this side's certificate ({}); --peer-certfile must be valid, and signed by the CA in its "
                  "--peer-ca-certs",
                  text));
}

/// What the TLS library found wrong.
Status explain(SSL* ssl, PeerTls::Way way, unsigned long error) {
  const int reason = ERR_GET_REASON(error);
  const bool by_secret = way == PeerTls::Way::kSecret;
  if (ERR_GET_LIB(error) == ERR_LIB_SSL) {
    if (reason >= SSL_AD_REASON_OFFSET) return refused_by_peer(way, reason - SSL_AD_REASON_OFFSET);
    switch (reason) {
      case SSL_R_BINDER_DOES_NOT_VERIFY:
        return misfit("it has another secret; TANDEM_CLUSTER_SECRET must be the same on both sides");
      case SSL_R_CERTIFICATE_VERIFY_FAILED: {
        if (by_secret) return misfit(fmt::format("it has certificates and this side a secret; {}", kSameCredentials));
        return misfit(
            fmt::format("its certificate is refused: {}; expected a valid one that the CA in --peer-ca-certs "
                        "signed",
                        X509_verify_cert_error_string(SSL_get_verify_result(ssl))));
      }
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return misfit(fmt::format("it shows no certificate; {}", kSameCredentials));
      case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
      case SSL_R_NO_SHARED_CIPHER:
        if (by_secret) return misfit(fmt::format("it does not prove the secret; {}", kSameCredentials));
        break;
      default:
        break;
    }
  }
  const char* text = ERR_reason_error_string(error);
  return misfit(fmt::format("TLS failed: {}", text != nullptr ? text : "unknown reason"));
}

}  // namespace

bool begins_like_tls(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && (bytes[0] == kAlert || bytes[0] == kHandshake) && bytes[1] == kMajorVersion;
}

Status speaks_tls_error() { return misfit(fmt::format("it speaks TLS, and this side does not; {}", kSameCredentials)); }

/// One TLS connection. Everything is behind a lock, which is free unless two threads use the channel.
struct Channel::Tls {
  /// What a call waits for against its direction.
  enum class Need { kNothing, kReceive, kSend };

  Tls(int fd, const std::shared_ptr<const PeerTls>& with, Side on) : credentials(with), side(on) {
    wire.fd = fd;
    ssl = SSL_new(credentials->context());
    TANDEM_ASSERT(ssl != nullptr, "the TLS library makes a connection");
    BIO* bio = make_bio(wire);
    SSL_set_bio(ssl, bio, bio);
    side == Side::kClient ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  }
  ~Tls() {
    if (established && failure.ok()) (void)SSL_shutdown(ssl);
    SSL_free(ssl);
    ERR_clear_error();
  }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // All with the lock.
  bool ready();
  ssize_t receive(std::span<const iovec> to);
  ssize_t send(std::span<const iovec> parts);
  ssize_t take_failure(int result, Need against);
  void hear_last_word();
  void renew_key();

  const std::shared_ptr<const PeerTls> credentials;
  const Side side;
  mutable std::mutex mutex;
  Wire wire;
  SSL* ssl = nullptr;
  bool established = false;
  Need need = Need::kNothing;
  Status failure;                   ///< for good
  std::uint64_t records = 0;        ///< sent with the current key
  bool record_waits = false;        ///< encrypted, and not all of it taken by the kernel
  std::vector<std::byte> gathered;  ///< small parts in one record; empty until there are some
};

/// -1 and errno, or 0 for the end of the stream. `against`: the direction that the call does not have.
ssize_t Channel::Tls::take_failure(int result, Need against) {
  const int kind = SSL_get_error(ssl, result);
  need = Need::kNothing;
  if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
    const Need wanted = kind == SSL_ERROR_WANT_READ ? Need::kReceive : Need::kSend;
    if (!established || wanted == against) need = wanted;
    errno = EAGAIN;
    return -1;
  }
  if (established && (kind == SSL_ERROR_ZERO_RETURN || wire.eof)) return 0;
  if (wire.not_tls) {
    failure = misfit(fmt::format("it does not speak TLS, and this side does; {}", kSameCredentials));
    if (side == Side::kServer) (void)!::send(wire.fd, kRefusal, sizeof kRefusal, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else if (wire.eof) {
    failure = Status(Code::kUnavailable, "it closed the connection in the TLS handshake", Scope::kPeer);
  } else if (wire.error != 0) {
    failure = Status(Code::kUnavailable, std::strerror(wire.error), Scope::kPeer);
  } else {
    failure = explain(ssl, credentials->way(), ERR_peek_error());
  }
  ERR_clear_error();
  errno = EPROTO;
  return -1;
}

/// Whether bytes can be moved; if not, errno says why.
bool Channel::Tls::ready() {
  errno = EPROTO;
  if (!failure.ok()) return false;
  ERR_clear_error();
  if (established) return true;
  const int result = SSL_do_handshake(ssl);
  if (result != 1) {
    if (take_failure(result, Need::kNothing) == 0) errno = EPROTO;
    return false;
  }
  // No way round the secret: a handshake without it cannot come to its end, and if it did it would not count.
  if (credentials->way() == PeerTls::Way::kSecret && SSL_session_reused(ssl) != 1) {
    failure = misfit("it does not prove the secret");
    errno = EPROTO;
    return false;
  }
  established = true;
  need = Need::kNothing;
  return true;
}

ssize_t Channel::Tls::receive(std::span<const iovec> to) {
  if (!ready()) return -1;
  ssize_t total = 0;
  for (const iovec& part : to) {
    for (std::size_t have = 0; have < part.iov_len;) {
      std::size_t count = 0;
      const int result = SSL_read_ex(ssl, static_cast<std::byte*>(part.iov_base) + have, part.iov_len - have, &count);
      if (result != 1) {
        const ssize_t end = take_failure(result, Need::kSend);
        return total > 0 ? total : end;
      }
      need = Need::kNothing;
      have += count;
      total += static_cast<ssize_t>(count);
    }
  }
  return total;
}

/// A pipe that is broken for senders may hold an alert that says why. The error that errno stands for stays.
void Channel::Tls::hear_last_word() {
  const int reason = errno;
  std::byte unread;
  std::size_t count = 0;
  ERR_clear_error();
  if (SSL_peek_ex(ssl, &unread, 1, &count) != 1 && ERR_GET_REASON(ERR_peek_error()) >= SSL_AD_REASON_OFFSET)
    failure = explain(ssl, credentials->way(), ERR_peek_error());
  ERR_clear_error();
  errno = reason;
}

/// Before a key has encrypted too much; the peer hears of it in the stream.
void Channel::Tls::renew_key() {
  if (records < credentials->records_per_key() || record_waits) return;
  if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) records = 0;
}

ssize_t Channel::Tls::send(std::span<const iovec> parts) {
  if (!ready()) return -1;
  std::size_t total = 0;
  std::size_t at = 0;      // part
  std::size_t offset = 0;  // in it
  while (at < parts.size() && total < kSendBytes) {
    const auto* bytes = static_cast<const std::byte*>(parts[at].iov_base) + offset;
    std::size_t size = std::min(parts[at].iov_len - offset, kRecordBytes);
    // Where a part ends, what follows goes into the same record.
    for (std::size_t next = at + 1; size < kRecordBytes && next < parts.size(); ++next) {
      gathered.resize(kRecordBytes);
      if (next == at + 1) std::copy_n(bytes, size, gathered.data());
      bytes = gathered.data();
      const std::size_t more = std::min(parts[next].iov_len, kRecordBytes - size);
      std::copy_n(static_cast<const std::byte*>(parts[next].iov_base), more, gathered.data() + size);
      size += more;
    }
    if (size == 0) break;
    renew_key();
    std::size_t count = 0;
    const int result = SSL_write_ex(ssl, bytes, size, &count);
    record_waits = result != 1;
    if (result != 1) {
      const ssize_t end = take_failure(result, Need::kReceive);
      if (!failure.ok()) hear_last_word();
      if (total > 0) return static_cast<ssize_t>(total);
      if (end == 0) errno = EPIPE;
      return -1;
    }
    need = Need::kNothing;
    ++records;
    total += count;
    for (std::size_t left = count; left > 0;) {
      const std::size_t step = std::min(left, parts[at].iov_len - offset);
      offset += step;
      left -= step;
      if (offset == parts[at].iov_len) ++at, offset = 0;
    }
  }
  return static_cast<ssize_t>(total);
}

Channel::Channel() = default;
Channel::Channel(Socket socket) : socket_(std::move(socket)) {}
Channel::Channel(Socket socket, const std::shared_ptr<const PeerTls>& tls, Side side) : socket_(std::move(socket)) {
  if (tls) tls_ = std::make_unique<Tls>(socket_.fd(), tls, side);
}
Channel::Channel(Channel&& other) noexcept = default;
Channel& Channel::operator=(Channel&& other) noexcept {
  if (this == &other) return *this;
  tls_ = std::move(other.tls_);  // says goodbye before its socket goes
  socket_ = std::move(other.socket_);
  return *this;
}
Channel::~Channel() = default;

ssize_t Channel::receive(std::span<std::byte> to) {
  if (!tls_) return recv(socket_.fd(), to.data(), to.size(), MSG_DONTWAIT);
  const iovec part{to.data(), to.size()};
  const std::scoped_lock lock(tls_->mutex);
  return tls_->receive({&part, 1});
}

ssize_t Channel::receive(std::span<const iovec> to) {
  if (!tls_) return readv(socket_.fd(), to.data(), static_cast<int>(to.size()));
  const std::scoped_lock lock(tls_->mutex);
  return tls_->receive(to);
}

ssize_t Channel::send(std::span<const std::byte> bytes) {
  if (!tls_) return ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // iovec is for reading and writing, hence not const; sending only reads.
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  const std::scoped_lock lock(tls_->mutex);
  return tls_->send({&part, 1});
}

ssize_t Channel::send(std::span<const iovec> parts) {
  if (!tls_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const std::scoped_lock lock(tls_->mutex);
  return tls_->send(parts);
}

Status Channel::error() const {
  const int reason = errno;
  if (tls_) {
    const std::scoped_lock lock(tls_->mutex);
    if (!tls_->failure.ok()) return tls_->failure;
  }
  return Status(Code::kUnavailable, std::strerror(reason), Scope::kPeer);
}

std::uint32_t Channel::events(bool to_send) const {
  constexpr std::uint32_t kIn = POLLIN;
  constexpr std::uint32_t kOut = POLLOUT;
  if (tls_) {
    const std::scoped_lock lock(tls_->mutex);
    if (tls_->need == Tls::Need::kReceive) return kIn;
    if (tls_->need == Tls::Need::kSend) return kIn | kOut;
  }
  return to_send ? kIn | kOut : kIn;
}

bool Channel::has_buffered() const {
  if (!tls_) return false;
  const std::scoped_lock lock(tls_->mutex);
  return SSL_has_pending(tls_->ssl) == 1;
}

Result<bool> Channel::handshake() {
  if (!tls_) return true;
  const std::scoped_lock lock(tls_->mutex);
  if (tls_->ready()) return true;
  if (!tls_->failure.ok()) return tls_->failure;
  return false;
}

void Channel::close() {
  tls_.reset();
  if (socket_) (void)shutdown(socket_.fd(), SHUT_WR);
  socket_ = Socket();
}

}  // namespace tandem
