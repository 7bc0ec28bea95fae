// SPDX-License-Identifier: Apache-2.0
#include "support/net_support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace tandem::test {
namespace {

constexpr std::chrono::milliseconds kPatience{10'000};

std::size_t header_length(std::string_view head) {
  std::string lower(head);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto at = lower.find("content-length: ");
  return at == std::string::npos ? 0 : std::strtoul(lower.c_str() + at + 16, nullptr, 10);
}

bool is_chunked(std::string_view head) {
  std::string lower(head);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower.find("transfer-encoding: chunked") != std::string::npos;
}

}  // namespace

RawClient::RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd_ < 0 || ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect to port " + std::to_string(port));
  }
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

RawClient::~RawClient() { close(); }

void RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the peer closed; what it said is still to be read
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void RawClient::shutdown_send() { ::shutdown(fd_, SHUT_WR); }

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close();
}

bool RawClient::fill(std::chrono::milliseconds within) {
  if (peer_closed_ || fd_ < 0) return false;
  pollfd poll_for{fd_, POLLIN, 0};
  if (::poll(&poll_for, 1, static_cast<int>(within.count())) <= 0) return false;
  char chunk[65536];
  const auto got = ::recv(fd_, chunk, sizeof(chunk), 0);
  if (got <= 0) {
    peer_closed_ = true;
    return false;
  }
  buffer_.append(chunk, static_cast<std::size_t>(got));
  return true;
}

std::string RawClient::read_until(std::string_view text) {
  for (;;) {
    if (const auto at = buffer_.find(text); at != std::string::npos) {
      std::string out = buffer_.substr(0, at + text.size());
      buffer_.erase(0, out.size());
      return out;
    }
    if (!fill(kPatience)) return std::exchange(buffer_, {});
  }
}

std::string RawClient::read_all() {
  while (fill(kPatience)) {
  }
  return std::exchange(buffer_, {});
}

std::string RawClient::read_some(std::chrono::milliseconds within) {
  if (buffer_.empty()) fill(within);
  return std::exchange(buffer_, {});
}

std::string RawClient::read_response() {
  std::string out = read_until("\r\n\r\n");
  if (is_chunked(out)) {
    const auto head = out.size();
    while (out.size() < 5 || out.compare(out.size() - 5, 5, "0\r\n\r\n") != 0 || out.size() == head) {
      const std::string more = read_until("\r\n\r\n");
      if (more.empty()) break;
      out += more;
      if (peer_closed_ && buffer_.empty()) break;
    }
    return out;
  }
  const std::size_t length = header_length(out);
  while (buffer_.size() < length && fill(kPatience)) {
  }
  out += buffer_.substr(0, length);
  buffer_.erase(0, std::min(length, buffer_.size()));
  return out;
}

const std::string ScriptedPeer::kClose("\x01");
const std::string ScriptedPeer::kReadAndClose("\x01");
const std::string ScriptedPeer::kPause("\x02");
const std::string ScriptedPeer::kHang("\x03");
const std::string ScriptedPeer::kDrip("\x04");

ScriptedPeer::ScriptedPeer(std::vector<std::vector<std::string>> scripts)
    : listener_(::socket(AF_INET, SOCK_STREAM, 0)), scripts_(std::move(scripts)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("the scripted peer cannot listen");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] {
    std::size_t next = 0;
    while (!stopping_) {
      pollfd poll_for{listener_, POLLIN, 0};
      if (::poll(&poll_for, 1, 20) <= 0) continue;
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      ++num_connections_;
      if (next < scripts_.size()) serve(fd, scripts_[next++]);
      ::close(fd);
      ++num_closed_;
    }
  });
}

ScriptedPeer::~ScriptedPeer() {
  stopping_ = true;
  thread_.join();
  ::close(listener_);
}

std::vector<std::string> ScriptedPeer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void ScriptedPeer::serve(int fd, const std::vector<std::string>& script) {
  std::string input;
  const auto whole_request = [&input]() -> std::size_t {
    const auto end = input.find("\r\n\r\n");
    if (end == std::string::npos) return 0;
    const auto size = end + 4 + header_length(input.substr(0, end + 2));
    return input.size() >= size ? size : 0;
  };
  for (const auto& answer : script) {
    std::size_t size = 0;
    while ((size = whole_request()) == 0) {
      if (stopping_) return;
      pollfd poll_for{fd, POLLIN, 0};
      if (::poll(&poll_for, 1, 20) <= 0) continue;
      char chunk[4096];
      const auto got = ::recv(fd, chunk, sizeof(chunk), 0);
      if (got <= 0) return;
      input.append(chunk, static_cast<std::size_t>(got));
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(input.substr(0, size));
    }
    input.erase(0, size);
    if (!send_answer(fd, answer)) return;
  }
  wait_for_close(fd, false);
}

bool ScriptedPeer::send_answer(int fd, std::string_view answer) {
  while (!answer.empty()) {
    const auto plain = answer.substr(0, answer.find_first_of("\x01\x02\x03\x04"));
    if (!plain.empty() && ::send(fd, plain.data(), plain.size(), MSG_NOSIGNAL) <= 0) return false;
    answer.remove_prefix(plain.size());
    if (answer.empty()) break;
    const char mark = answer.front();
    answer.remove_prefix(1);
    if (mark == '\x01') return false;
    if (mark == '\x02') std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (mark == '\x03' || mark == '\x04') {
      ++num_hanging_;
      wait_for_close(fd, mark == '\x04');
      return false;
    }
  }
  return true;
}

void ScriptedPeer::wait_for_close(int fd, bool drip) {
  while (!stopping_) {
    if (drip && ::send(fd, ".", 1, MSG_NOSIGNAL) <= 0) return;
    pollfd poll_for{fd, POLLIN, 0};
    if (::poll(&poll_for, 1, 50) <= 0) continue;
    char chunk[4096];
    if (::recv(fd, chunk, sizeof(chunk), 0) <= 0) return;
  }
}

std::string post_text(std::string_view path, std::string_view body, std::string_view extra_headers) {
  std::string out = "POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n";
  out += extra_headers;
  out += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  out += body;
  return out;
}

int status_of(std::string_view response) {
  return response.size() > 12 ? std::atoi(std::string(response.substr(9, 3)).c_str()) : 0;
}

std::string body_of(std::string_view response) {
  const auto at = response.find("\r\n\r\n");
  if (at == std::string_view::npos) return {};
  const auto body = response.substr(at + 4);
  return is_chunked(response.substr(0, at)) ? dechunk(body) : std::string(body);
}

std::string head_of(std::string_view response) {
  return std::string(response.substr(0, response.find("\r\n\r\n") + 2));
}

std::string dechunk(std::string_view framed) {
  std::string out;
  while (!framed.empty()) {
    const auto line = framed.find("\r\n");
    if (line == std::string_view::npos) break;
    const auto size = std::strtoul(std::string(framed.substr(0, line)).c_str(), nullptr, 16);
    if (size == 0) break;
    framed.remove_prefix(line + 2);
    out += framed.substr(0, size);
    framed.remove_prefix(std::min<std::size_t>(framed.size(), size + 2));
  }
  return out;
}

}  // namespace tandem::test
