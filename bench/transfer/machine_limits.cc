// SPDX-License-Identifier: Apache-2.0
#include "machine_limits.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/tcp_socket.h"
#include "transfer/crc32c.h"

namespace tandem::bench {
namespace {

void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  char part[4096];
  for (std::size_t count; (count = std::fread(part, 1, sizeof part, pipe)) > 0;) output.append(part, count);
  return pclose(pipe) == 0 ? output : "";
}

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double best_rate(int rounds, double bytes, double (*clock)(), const std::function<void()>& body) {
  double best = 0.0;
  for (int i = 0; i < rounds; ++i) {
    const double start = clock();
    body();
    best = std::max(best, bytes / (clock() - start) / 1e9);
  }
  return best;
}

double memcpy_rate(int rounds, std::span<const std::byte> from, std::span<std::byte> to, int threads) {
  const auto bytes = static_cast<double>(from.size());
  if (threads == 1) {
    return best_rate(rounds, bytes, thread_seconds, [&] { std::memcpy(to.data(), from.data(), from.size()); });
  }
  return best_rate(rounds, bytes, now_seconds, [&] {
    std::vector<std::jthread> team;
    const std::size_t share = from.size() / static_cast<std::size_t>(threads);
    for (std::size_t i = 0; i < static_cast<std::size_t>(threads); ++i) {
      team.emplace_back([&, i] { std::memcpy(to.data() + i * share, from.data() + i * share, share); });
    }
  });
}

double crc_rate(int rounds, std::span<const std::byte> data, bool portable) {
  volatile std::uint32_t sum = 0;  // keeps the sums alive
  return best_rate(rounds, static_cast<double>(data.size()), thread_seconds, [&] {
    for (std::size_t at = 0; at < data.size(); at += 4096) {
      const auto piece = data.subspan(at, std::min<std::size_t>(4096, data.size() - at));
      sum = sum ^ (portable ? transfer::crc32c_portable(piece) : transfer::crc32c(piece));
    }
  });
}

double plain_tcp_rate(int rounds, std::span<const std::byte> from, std::span<std::byte> to) {
  auto listener = listen_tcp("127.0.0.1", 0, "a measurement");
  if (!listener) fail("listen");
  auto addresses = resolve("127.0.0.1", bound_port(*listener));
  const Socket sender(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address& address = addresses->front();
  if (connect(sender.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) fail("connect");
  const Socket receiver(accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
  return best_rate(rounds, static_cast<double>(from.size()), now_seconds, [&] {
    std::jthread sending([&] {
      for (std::size_t at = 0; at < from.size();) {
        const ssize_t count =
            send(sender.fd(), from.data() + at, std::min<std::size_t>(256 << 10, from.size() - at), 0);
        if (count < 0) fail("send");
        at += static_cast<std::size_t>(count);
      }
    });
    for (std::size_t at = 0; at < from.size();) {
      const ssize_t count = recv(receiver.fd(), to.data() + at, from.size() - at, 0);
      if (count <= 0) fail("recv");
      at += static_cast<std::size_t>(count);
    }
  });
}

std::optional<double> iperf3_rate() {
  if (output_of("command -v iperf3").empty()) return std::nullopt;
  std::uint16_t port = 0;
  {
    auto probe = listen_tcp("127.0.0.1", 0, "a measurement");
    if (!probe) fail("listen");
    port = bound_port(*probe);
  }
  std::jthread server([port] { (void)output_of(fmt::format("timeout 20 iperf3 -s -1 -p {} 2>&1", port)); });
  std::string answer;
  for (int attempt = 0; attempt < 50 && answer.empty(); ++attempt) {  // the server needs a moment to listen
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    answer = output_of(fmt::format("iperf3 -c 127.0.0.1 -p {} -t 2 -J 2>/dev/null", port));
  }
  const std::size_t sum = answer.find("\"sum_received\"");
  const std::size_t rate = sum == std::string::npos ? sum : answer.find("\"bits_per_second\":", sum);
  if (rate == std::string::npos) return std::nullopt;
  return std::strtod(answer.c_str() + rate + std::strlen("\"bits_per_second\":"), nullptr) / 8e9;
}

}  // namespace tandem::bench
