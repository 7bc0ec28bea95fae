// SPDX-License-Identifier: Apache-2.0
// The reader's end of data connections. A request asks for windows of runs (Pull: each is a credit for the owner) and
// reads the bytes from the socket straight into place, a data frame's payload and the next header in one readv. A
// connection that has served a request is kept for the next one: pieces of a layerwise push are too small to pay for a
// connection each.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/channel.h"
#include "transfer/dialer.h"
#include "transfer/transport.h"

namespace tandem::transfer {
namespace {

constexpr std::uint64_t kPullBytes = std::uint64_t{4} << 20;
constexpr std::size_t kPullsAhead = 2;
constexpr std::uint64_t kBytesPerTurn = std::uint64_t{2} << 20;  // then other sockets and timers get their turn
constexpr std::size_t kMaxVectors = 256;
constexpr std::uint32_t kMaxErrorBytes = 16 * 1024;
constexpr std::size_t kMostIdle = 8;  // connections kept for later

/// A place in the list of copies; moves over run borders.
class Cursor {
 public:
  explicit Cursor(std::span<const Copy> copies) : copies_(copies) {}
  bool end() const { return at_ == copies_.size(); }
  const Copy& copy() const { return copies_[at_]; }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t left_in_run() const { return copies_[at_].length - offset_; }
  void advance(std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t step = std::min(bytes, left_in_run());
      offset_ += step;
      bytes -= step;
      if (offset_ == copies_[at_].length) {
        ++at_;
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const Copy> copies_;
  std::size_t at_ = 0;
  std::uint64_t offset_ = 0;
};

/// Connections to one owner that serve no request now. They are kept for less time than the owner keeps them.
class IdleConnections : public std::enable_shared_from_this<IdleConnections> {
 public:
  IdleConnections(EventLoop& loop, Duration keep) : loop_(loop), keep_(keep) {}

  /// One that is still good, or none.
  Channel take() {
    while (!idle_.empty()) {
      Entry entry = std::move(idle_.back());
      idle_.pop_back();
      std::byte unexpected;
      const ssize_t count = recv(entry.channel.fd(), &unexpected, 1, MSG_PEEK | MSG_DONTWAIT);
      if (entry.until > loop_.now() && count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return std::move(entry.channel);
      }
    }
    return Channel();
  }
  void put(Channel channel) {
    if (idle_.size() >= kMostIdle) return;
    idle_.push_back({std::move(channel), loop_.now() + keep_});
    if (!std::exchange(purging_, true)) purge_later();
  }

 private:
  struct Entry {
    Channel channel;
    TimePoint until;
  };
  void purge_later() {
    loop_.after(keep_, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      std::erase_if(self->idle_, [now = self->loop_.now()](const Entry& entry) { return entry.until <= now; });
      self->purging_ = !self->idle_.empty();
      if (self->purging_) self->purge_later();
    });
  }

  EventLoop& loop_;
  Duration keep_;
  std::vector<Entry> idle_;
  bool purging_ = false;
};

class TcpMove final : public Move, public std::enable_shared_from_this<TcpMove> {
 public:
  TcpMove(EventLoop& loop, std::shared_ptr<const TcpPeer> peer, std::shared_ptr<IdleConnections> idle,
          MoveRequest request)
      : loop_(loop),
        peer_(std::move(peer)),
        idle_(std::move(idle)),
        request_(std::move(request)),
        asked_(request_.copies),
        received_(request_.copies) {}
  ~TcpMove() override { close(); }

  void run() {
    Channel channel = idle_->take();
    if (!channel) return connect();
    reused_ = true;
    attach(std::move(channel));
  }
  void cancel() override { finish(Status(Code::kCancelled, "read over TCP cancelled", Scope::kTransfer)); }

 private:
  void connect() {
    timer_ = loop_.after(peer_->connect_timeout, [self = shared_from_this()] {
      self->finish(Status(
          Code::kUnavailable,
          fmt::format("no data connection to {} within {} ms", self->peer_->name, self->peer_->connect_timeout.count()),
          Scope::kPeer));
    });
    timing_ = true;
    dialer_ = Dialer::start(loop_, peer_->addresses, [this](Result<Socket> socket) {
      const auto self = shared_from_this();
      if (finished_) return;
      stop_timer();
      if (!socket) {
        return finish(Status(Code::kUnavailable,
                             fmt::format("no data connection to {}: {}", peer_->name, socket.error().message()),
                             Scope::kPeer));
      }
      tune(*socket, peer_->connect_timeout * 2);
      attach(Channel(std::move(*socket), peer_->tls, Channel::Side::kClient));
    });
  }

  void attach(Channel channel) {
    channel_ = std::move(channel);
    interest_ = channel_.events(false);
    watch_ = loop_.watch(channel_.fd(), interest_, [this](std::uint32_t events) { handle(events); });
    wire::append_frame(wire::Attach{peer_->incarnation, request_.token}, output_);
    ask();
  }

  void handle(std::uint32_t events) {
    const auto self = shared_from_this();
    if ((events & EPOLLOUT) != 0) flush();
    if (!finished_ && channel_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive();
    if (!finished_ && channel_) update_interest();  // a step of a handshake may have changed what is waited for
  }

  /// Sends Pulls until enough bytes are on their way.
  void ask() {
    while (pulls_.size() < kPullsAhead && !asked_.end()) {
      wire::Pull pull;
      std::uint64_t bytes = 0;
      while (!asked_.end() && bytes < kPullBytes && pull.runs.size() < wire::kMaxRuns) {
        const std::uint64_t length =
            std::min({asked_.left_in_run(), kPullBytes - bytes, std::uint64_t{wire::kMaxRunBytes}});
        pull.runs.push_back({asked_.copy().source_offset + asked_.offset(), static_cast<std::uint32_t>(length)});
        asked_.advance(length);
        bytes += length;
      }
      pulls_.push_back(bytes);
      owed_ += bytes;
      wire::append_frame(pull, output_);
    }
    flush();
  }

  void flush() {
    while (sent_ < output_.size()) {
      const ssize_t count = channel_.send(std::span(output_).subspan(sent_));
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        return lost(channel_.error().message());
      }
      sent_ += static_cast<std::size_t>(count);
    }
    if (sent_ == output_.size()) {
      output_.clear();
      sent_ = 0;
    }
    update_interest();
  }

  void update_interest() {
    const std::uint32_t wanted = channel_.events(!output_.empty());
    if (wanted != interest_) loop_.change(watch_, channel_.fd(), interest_ = wanted);
  }

  void receive() {
    std::uint64_t moved = 0;
    while (!finished_ && channel_ && moved < kBytesPerTurn && !received_.end()) {
      const ssize_t count = payload_left_ > 0 && !in_message_ ? read_payload(moved) : read_small();
      if (count == 0) return lost("closed by the peer");
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        return lost(channel_.error().message());
      }
    }
    if (moved > 0 && !finished_) request_.on_progress(moved);
    if (received_.end() && !finished_) return finish({});
    // Decrypted already: epoll would not tell. (After EAGAIN it is no whole record, and epoll does.)
    if (!finished_ && moved >= kBytesPerTurn && channel_.has_buffered())
      loop_.post([self = shared_from_this()] { self->handle(EPOLLIN); });
  }

  /// Payload into place, and what follows into the header buffer.
  ssize_t read_payload(std::uint64_t& moved) {
    std::array<iovec, kMaxVectors + 1> vectors;
    std::size_t used = 0;
    std::uint64_t planned = 0;
    for (Cursor at = received_; planned < payload_left_ && used < kMaxVectors;) {
      const std::uint64_t length = std::min(at.left_in_run(), payload_left_ - planned);
      vectors[used++] = {request_.destination + at.copy().destination_offset + at.offset(), length};
      planned += length;
      at.advance(length);
    }
    const bool whole = planned == payload_left_;
    if (whole) vectors[used++] = {header_.data(), header_.size()};
    const ssize_t count = channel_.receive(std::span<const iovec>(vectors).first(used));
    if (count <= 0) return count;
    reused_ = false;
    const std::uint64_t taken = std::min<std::uint64_t>(static_cast<std::uint64_t>(count), planned);
    received_.advance(taken);
    payload_left_ -= taken;
    moved += taken;
    settle_pulls(taken);
    header_have_ = static_cast<std::size_t>(count) - taken;
    if (!finished_ && header_have_ == header_.size()) on_header();
    return count;
  }

  /// A header, or an owner's error message.
  ssize_t read_small() {
    std::byte* to = in_message_ ? message_.data() + message_have_ : header_.data() + header_have_;
    const std::size_t room = in_message_ ? message_.size() - message_have_ : header_.size() - header_have_;
    const ssize_t count = channel_.receive(std::span(to, room));
    if (count <= 0) return count;
    reused_ = false;
    (in_message_ ? message_have_ : header_have_) += static_cast<std::size_t>(count);
    if (in_message_ && message_have_ == message_.size()) on_message();
    if (!in_message_ && !finished_ && header_have_ == header_.size()) on_header();
    return count;
  }

  void on_header() {
    header_have_ = 0;
    auto header = wire::parse_header(header_);
    if (!header) return finish(header.error().context(peer_->name));
    if (header->type == wire::kDataType) {
      if (header->length == 0 || header->length > owed_) {
        return lost(fmt::format("it sent {} bytes where {} were asked for", header->length, owed_));
      }
      payload_left_ = header->length;
      owed_ -= header->length;
      return;
    }
    if (header->length == 0 || header->length > kMaxErrorBytes) return lost("it sent an unexpected message");
    header_type_ = header->type;
    message_.resize(header->length);
    message_have_ = 0;
    in_message_ = true;
  }

  void on_message() {
    in_message_ = false;
    auto message = wire::parse_payload(header_type_, message_);
    if (!message) return finish(message.error().context(peer_->name));
    if (const auto* error = std::get_if<wire::FetchError>(&*message)) {
      return finish(Status(error->code, error->message, Scope::kTransfer));
    }
    if (const auto* refused = std::get_if<wire::Refused>(&*message)) {
      return finish(Status(refused->code, refused->message, Scope::kTransfer));
    }
    lost("it sent an unexpected message");
  }

  void settle_pulls(std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t step = std::min(bytes, pulls_.front());
      pulls_.front() -= step;
      bytes -= step;
      if (pulls_.front() > 0) continue;
      pulls_.pop_front();
      ask();
      if (finished_) return;
    }
  }

  void lost(std::string_view why) {
    if (std::exchange(reused_, false)) return start_anew();
    finish(Status(Code::kUnavailable, fmt::format("data connection to {} lost: {}", peer_->name, why), Scope::kPeer));
  }
  /// The owner closed the kept connection before it knew of this request: nothing has come yet.
  void start_anew() {
    close();
    asked_ = Cursor(request_.copies);
    output_.clear();
    sent_ = 0;
    pulls_.clear();
    owed_ = 0;
    connect();
  }
  bool clean() const {
    return pulls_.empty() && payload_left_ == 0 && header_have_ == 0 && !in_message_ && output_.empty() &&
           !channel_.has_buffered();
  }
  void stop_timer() {
    if (std::exchange(timing_, false)) loop_.cancel(timer_);
  }
  void close() {
    stop_timer();
    dialer_.reset();
    if (channel_) loop_.unwatch(watch_, channel_.fd());
    channel_ = Channel();
  }
  void finish(Status status) {
    if (std::exchange(finished_, true)) return;
    if (status.ok() && clean()) {
      loop_.unwatch(watch_, channel_.fd());
      idle_->put(std::move(channel_));
    }
    close();
    loop_.post([self = shared_from_this(), status = std::move(status)] {
      const std::function<void(Status)> done = std::exchange(self->request_.on_done, nullptr);
      done(status);
    });
  }

  EventLoop& loop_;
  std::shared_ptr<const TcpPeer> peer_;
  std::shared_ptr<IdleConnections> idle_;
  MoveRequest request_;
  Cursor asked_;
  Cursor received_;
  std::shared_ptr<Dialer> dialer_;
  Channel channel_;
  EventLoop::WatchId watch_ = 0;
  std::uint32_t interest_ = 0;
  EventLoop::TimerId timer_;
  bool timing_ = false;
  bool reused_ = false;  ///< an idle connection, and nothing has come over it yet
  bool finished_ = false;
  std::vector<std::byte> output_;
  std::size_t sent_ = 0;
  std::deque<std::uint64_t> pulls_;  ///< bytes still to come of each Pull
  std::uint64_t owed_ = 0;           ///< asked for, and not announced by a data header yet
  std::uint64_t payload_left_ = 0;   ///< of the data frame under way
  wire::HeaderBytes header_{};
  std::size_t header_have_ = 0;
  bool in_message_ = false;
  std::uint8_t header_type_ = 0;
  std::vector<std::byte> message_;
  std::size_t message_have_ = 0;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(EventLoop& loop, TcpPeer peer)
      : loop_(loop),
        peer_(std::make_shared<const TcpPeer>(std::move(peer))),
        idle_(std::make_shared<IdleConnections>(loop, peer_->connect_timeout / 2)) {}
  std::string_view name() const override { return "tcp"; }
  std::shared_ptr<Move> start(MoveRequest request) override {
    auto move = std::make_shared<TcpMove>(loop_, peer_, idle_, std::move(request));
    move->run();
    return move;
  }

 private:
  EventLoop& loop_;
  std::shared_ptr<const TcpPeer> peer_;
  std::shared_ptr<IdleConnections> idle_;
};

}  // namespace

std::shared_ptr<Transport> make_tcp_transport(EventLoop& loop, TcpPeer peer) {
  return std::make_shared<TcpTransport>(loop, std::move(peer));
}

}  // namespace tandem::transfer
