// SPDX-License-Identifier: Apache-2.0
#include "transfer/connection.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <cerrno>
#include <span>
#include <utility>

namespace tandem::transfer {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr int kReadsPerTurn = 16;  // so that one talkative peer does not keep the others waiting

Status lost(const std::string& peer, std::string_view why, Code code = Code::kUnavailable) {
  return Status(code, fmt::format("connection to {} lost: {}", peer, why), Scope::kPeer);
}

}  // namespace

Status as_unreachable(const Status& why) {
  return why.code() == Code::kFailedPrecondition ? Status(Code::kUnavailable, why.message(), Scope::kPeer) : why;
}

Connection::Connection(EventLoop& loop, Channel channel, std::string peer)
    : loop_(loop), channel_(std::move(channel)), peer_(std::move(peer)) {}

Connection::~Connection() { close(); }

void Connection::start(std::function<void(wire::Message)> on_message, std::function<void(Status)> on_closed) {
  on_message_ = std::move(on_message);
  on_closed_ = std::move(on_closed);
  interest_ = channel_.events(false);
  watch_ = loop_.watch(channel_.fd(), interest_, [this](std::uint32_t events) { handle(events); });
}

void Connection::want_writable(bool want) {
  want_writable_ = want;
  update_interest();
}

void Connection::send(const wire::Message& message) {
  if (!open()) return;
  wire::append_frame(message, output_);
  if (unsent_bytes() > kMaxOutput) {
    fail(lost(peer_, fmt::format("it does not take the {} bytes that wait for it", unsent_bytes())));
    return;
  }
  flush();
}

void Connection::close() {
  if (!open()) return;
  if (watch_ != 0) loop_.unwatch(watch_, channel_.fd());
  watch_ = 0;
  if (unsent_bytes() > 0) (void)channel_.send(std::span(output_).subspan(sent_));
  channel_.close();
}

void Connection::fail(Status why) {
  if (!open()) return;
  close();
  // Later, so that a caller in the middle of its own bookkeeping is not surprised.
  loop_.post([self = shared_from_this(), why = std::move(why)] {
    const std::function<void(Status)> callback = std::exchange(self->on_closed_, nullptr);
    if (callback) callback(why);
  });
}

void Connection::handle(std::uint32_t events) {
  const auto self = shared_from_this();  // callbacks may let go of us
  const bool handshake = (events & EPOLLOUT) != 0 && unsent_bytes() == 0 && !want_writable_;  // nobody else wants it
  if (handshake || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some();
  if (open() && (events & EPOLLOUT) != 0) {
    flush();
    if (open() && unsent_bytes() == 0 && on_writable_) on_writable_();
  }
  update_interest();  // a step of a handshake may have changed what is waited for
}

Status Connection::broken() const {
  const Status why = channel_.error();
  return lost(peer_, why.message(), why.code());
}

void Connection::read_some() {
  std::byte chunk[kReadBytes];
  for (int turn = 0; turn < kReadsPerTurn && open(); ++turn) {
    const ssize_t count = channel_.receive(chunk);
    if (count == 0) return fail(lost(peer_, "closed by the peer"));
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      return fail(broken());
    }
    reader_.append({chunk, static_cast<std::size_t>(count)});
    while (open()) {
      auto message = reader_.next();
      if (!message) {
        const Status& error = message.error();
        send(wire::Refused{error.code(), error.message()});
        return fail(error.context(peer_));
      }
      if (!message->has_value()) break;
      on_message_(std::move(**message));
    }
  }
  // Decrypted already: epoll would not tell.
  if (open() && channel_.has_buffered()) loop_.post([self = shared_from_this()] { self->handle(EPOLLIN); });
}

void Connection::flush() {
  while (open() && unsent_bytes() > 0) {
    const ssize_t count = channel_.send(std::span(output_).subspan(sent_));
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EINTR) continue;
      return fail(broken());
    }
    sent_ += static_cast<std::size_t>(count);
  }
  if (unsent_bytes() == 0) {
    output_.clear();
    sent_ = 0;
  } else if (sent_ > (std::size_t{1} << 20)) {
    output_.erase(output_.begin(), output_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  update_interest();
}

void Connection::update_interest() {
  if (!open() || watch_ == 0) return;
  const std::uint32_t wanted = channel_.events(want_writable_ || unsent_bytes() > 0);
  if (wanted == interest_) return;
  interest_ = wanted;
  loop_.change(watch_, channel_.fd(), interest_);
}

}  // namespace tandem::transfer
