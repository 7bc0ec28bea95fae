// SPDX-License-Identifier: Apache-2.0
#include "comm/links.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tandem::comm {
namespace {

/// Small messages come with their header in one read, and perhaps with the next round's.
constexpr std::size_t kStagedBytes = std::size_t{32} << 10;
/// A header alone takes no memory: a message's buffer grows as it comes.
constexpr std::size_t kGrowth = std::size_t{16} << 20;

}  // namespace

Links::Links(std::vector<Channel> channels, std::int32_t own, std::uint64_t epoch)
    : links_(channels.size()), epoch_(epoch), received_(channels.size()) {
  for (std::size_t p = 0; p < channels.size(); ++p) {
    if (static_cast<std::int32_t>(p) == own) continue;
    links_[p].channel = std::move(channels[p]);
    links_[p].active = true;
    links_[p].staged.resize(kStagedBytes);
  }
}

void Links::begin(std::span<const Bytes> outgoing) {
  TANDEM_ASSERT(!under_way_ && outgoing.size() == links_.size(), "a round has one message for each process");
  under_way_ = true;
  for (std::size_t p = 0; p < links_.size(); ++p) {
    Link& link = links_[p];
    if (!link.active) continue;
    link.out_header = {epoch_, round_, outgoing[p].size()};
    link.out = outgoing[p];
    link.sent = 0;
    link.in_header_bytes = link.in_bytes = 0;
    link.sending = link.receiving = true;
    num_open_ += 2;
  }
  for (std::size_t p = 0; p < links_.size() && !failed_; ++p)
    if (links_[p].active) send_some(p);
}

bool Links::advance() {
  bool moved = false;
  for (std::size_t p = 0; p < links_.size(); ++p) {
    if (failed_) return true;
    if (links_[p].sending && send_some(p)) moved = true;
    if (failed_) return true;
    if (links_[p].receiving && receive_some(p)) moved = true;
  }
  return moved || failed_;
}

std::span<const Bytes> Links::received() {
  TANDEM_ASSERT(under_way_ && done(), "the round is over");
  under_way_ = false;
  ++round_;
  for (std::size_t p = 0; p < links_.size(); ++p) received_[p] = Bytes(links_[p].in.data(), links_[p].in_bytes);
  return received_;
}

bool Links::wait(int event_fd, TimePoint deadline) {
  std::vector<pollfd> entries{{event_fd, POLLIN, 0}};
  for (const Link& link : links_) {
    if (!link.active) continue;
    short events = 0;
    if (link.receiving || !under_way_) events |= POLLIN;
    if (link.sending) events |= POLLOUT;
    // One that has all it wants is not looked at: its next message would wake us again and again.
    entries.push_back({events == 0 ? -1 : link.channel.fd(), events, 0});
  }
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  (void)poll(entries.data(), entries.size(), static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 60'000)));
  return (entries.front().revents & POLLIN) != 0;
}

bool Links::others_began() {
  TANDEM_ASSERT(!under_way_, "asked between rounds");
  for (std::size_t p = 0; p < links_.size() && !failed_; ++p) {
    Link& link = links_[p];
    if (!link.active) continue;
    if (link.has_staged()) return true;
    link.staged_at = link.staged_end = 0;
    std::size_t got = 0;
    if (read_into(p, link.staged.data(), link.staged.size(), got) && got > 0) {
      link.staged_end = got;
      return true;
    }
  }
  return false;
}

std::int32_t Links::awaited() const {
  const auto found = std::find_if(links_.begin(), links_.end(), [](const Link& link) { return link.receiving; });
  const auto other = std::find_if(links_.begin(), links_.end(), [](const Link& link) { return link.sending; });
  return static_cast<std::int32_t>(std::min(found, other) - links_.begin());
}

bool Links::send_some(std::size_t process) {
  Link& link = links_[process];
  constexpr std::size_t kHeader = sizeof(RoundHeader);
  bool moved = false;
  while (link.sent < kHeader + link.out.size()) {
    iovec parts[2];
    std::size_t count = 0;
    if (link.sent < kHeader)
      parts[count++] = {reinterpret_cast<std::byte*>(&link.out_header) + link.sent, kHeader - link.sent};
    const std::size_t done = link.sent < kHeader ? 0 : link.sent - kHeader;
    if (done < link.out.size())
      parts[count++] = {const_cast<std::byte*>(link.out.data()) + done, link.out.size() - done};
    const ssize_t sent = link.channel.send(std::span<const iovec>(parts, count));
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) fail(process, link.channel.error().message());
      return moved;
    }
    link.sent += static_cast<std::size_t>(sent);
    moved = true;
  }
  finish_one(link.sending);
  return true;
}

bool Links::receive_some(std::size_t process) {
  Link& link = links_[process];
  bool moved = false;
  while (link.receiving && !failed_) {
    if (link.has_staged()) {
      moved = take_staged(process) || moved;
      continue;
    }
    const bool in_message = link.in_header_bytes == sizeof(RoundHeader);
    const std::size_t missing = in_message ? link.in_header.num_bytes - link.in_bytes : 0;
    std::size_t got = 0;
    if (missing >= kStagedBytes) {
      // Large: straight to its place.
      const std::size_t part = std::min(missing, kGrowth);
      if (link.in.size() < link.in_bytes + part) link.in.resize(link.in_bytes + part);
      if (!read_into(process, link.in.data() + link.in_bytes, part, got)) return moved;
      link.in_bytes += got;
      if (link.in_bytes == link.in_header.num_bytes) finish_one(link.receiving);
    } else {
      link.staged_at = link.staged_end = 0;
      if (!read_into(process, link.staged.data(), link.staged.size(), got)) return moved;
      link.staged_end = got;
    }
    moved = true;
  }
  return moved;
}

/// What was read ahead, into header and message. False if there was nothing to take.
bool Links::take_staged(std::size_t process) {
  Link& link = links_[process];
  const auto take = [&](std::byte* to, std::size_t most) {
    const std::size_t count = std::min(most, link.staged_end - link.staged_at);
    if (count > 0) std::memcpy(to, link.staged.data() + link.staged_at, count);
    link.staged_at += count;
    return count;
  };
  if (link.in_header_bytes < sizeof(RoundHeader)) {
    auto* header = reinterpret_cast<std::byte*>(&link.in_header);
    link.in_header_bytes += take(header + link.in_header_bytes, sizeof(RoundHeader) - link.in_header_bytes);
    if (link.in_header_bytes < sizeof(RoundHeader)) return true;
    if (const Status fits = check_round_header(link.in_header, epoch_, round_); !fits.ok()) {
      fail(process, fits.message());
      return true;
    }
  }
  const std::size_t missing = link.in_header.num_bytes - link.in_bytes;
  const std::size_t part = std::min(missing, link.staged_end - link.staged_at);
  if (link.in.size() < link.in_bytes + part) link.in.resize(link.in_bytes + part);
  link.in_bytes += take(link.in.data() + link.in_bytes, part);
  if (link.in_bytes == link.in_header.num_bytes) {
    finish_one(link.receiving);
  }
  return true;
}

/// False if nothing is there now or the link failed.
bool Links::read_into(std::size_t process, std::byte* buffer, std::size_t size, std::size_t& got) {
  while (true) {
    const ssize_t count = links_[process].channel.receive(std::span(buffer, size));
    if (count > 0) {
      got = static_cast<std::size_t>(count);
      return true;
    }
    if (count == 0)
      fail(process, "it closed the link");
    else if (errno == EINTR)
      continue;
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
      fail(process, links_[process].channel.error().message());
    return false;
  }
}

void Links::fail(std::size_t process, std::string why) {
  if (std::exchange(failed_, true)) return;
  failure_ = {static_cast<std::int32_t>(process), std::move(why)};
}

void Links::finish_one(bool& flag) {
  flag = false;
  --num_open_;
}

}  // namespace tandem::comm
