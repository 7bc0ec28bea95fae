// SPDX-License-Identifier: Apache-2.0
// Microseconds of a round (each process sends each other one message) by the size of the messages, and of a plain
// TCP exchange between the first two: both send, then both receive, with blocking calls on one connection.
//
//   comm_rounds PROCESS NUM_PROCESSES ADDRESS_OF_FIRST OWN_ADDRESS [SECRET]      (PROCESS 0 prints; rounds over TLS)
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/cluster.h"
#include "comm/stream.h"

namespace tandem::bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 5964;
constexpr std::size_t kSizes[] = {0, 256, 4096, 65536, 1U << 20, 8U << 20};
constexpr int kRepetitions = 5;

int rounds_of(std::size_t bytes) { return bytes >= (1U << 20) ? 20 : 1000; }

double microseconds(Clock::duration duration, int count) {
  return std::chrono::duration<double, std::micro>(duration).count() / count;
}

/// Best of several: others use the machine too.
template <class Run>
double best(int count, Run run) {
  double least = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto begun = Clock::now();
    for (int round = 0; round < count; ++round) run();
    least = std::min(least, microseconds(Clock::now() - begun, count));
  }
  return least;
}

void check(const Result<void>& result) {
  if (result) return;
  log::error("{}", result.error().message());
  std::exit(1);
}

double time_rounds(comm::Group& group, std::size_t bytes) {
  const std::vector<std::byte> message(bytes);
  const std::vector<comm::Bytes> outgoing(static_cast<std::size_t>(group.size()), message);
  check(group.start_step());
  return best(rounds_of(bytes), [&] {
    check(group.begin(outgoing));
    const auto received = group.finish();
    if (!received) check(received.error());
  });
}

void move(bool out, int fd, std::byte* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = out ? send(fd, bytes, size, MSG_NOSIGNAL) : recv(fd, bytes, size, MSG_WAITALL);
    if (count <= 0) std::exit(1);
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

/// Large messages go in turns, as they would otherwise wait for each other.
double time_plain(const Socket& socket, bool first, std::size_t bytes) {
  std::vector<std::byte> out(std::max<std::size_t>(bytes, 1));
  std::vector<std::byte> in(out.size());
  return best(rounds_of(bytes), [&] {
    if (first) move(true, socket.fd(), out.data(), out.size());
    move(false, socket.fd(), in.data(), in.size());
    if (!first) move(true, socket.fd(), out.data(), out.size());
  });
}

Socket plain_connection(bool first, const std::string& address) {
  const auto deadline = Clock::now() + 20s;
  Socket socket;
  if (first) {
    const auto listener = listen_tcp(address, kPort + 1, "a measurement");
    while (listener && !socket && Clock::now() < deadline)
      if (comm::readable(*listener, 100ms)) socket = Socket(accept(listener->fd(), nullptr, nullptr));
  }
  while (!first && !socket && Clock::now() < deadline) {
    if (auto made = comm::connect_tcp(address, kPort + 1, deadline)) socket = std::move(*made);
  }
  if (!socket) std::exit(1);
  tune(socket, 10s);
  fcntl(socket.fd(), F_SETFL, 0);  // blocking
  return socket;
}

int run(int process, int count, const std::string& address, const std::string& own, const std::string& secret) {
  comm::ClusterOptions options;
  options.address = address;
  options.port = kPort;
  options.host = own;
  options.first_rank = process;
  options.total_ranks = count;
  auto tls = PeerTls::make({.secret = secret, .certificates = {}, .key = {}, .ca = {}});
  if (!tls) check(tls.error());
  options.tls = *tls;
  auto cluster = comm::Cluster::start(options);
  if (!cluster) check(cluster.error());
  if (const auto all = (*cluster)->wait_for_all(); !all) check(all.error());
  check((*cluster)->enter());
  const Socket plain = process < 2 ? plain_connection(process == 0, address) : Socket();
  if (process == 0) fmt::print("{:>10} {:>12} {:>12} {:>8}\n", "bytes", "round us", "plain us", "ratio");
  for (const std::size_t bytes : kSizes) {
    const double round = time_rounds((*cluster)->group(), bytes);
    if (process > 1) continue;
    const double exchange = time_plain(plain, process == 0, bytes);
    if (process == 0) fmt::print("{:>10} {:>12.1f} {:>12.1f} {:>8.2f}\n", bytes, round, exchange, round / exchange);
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    fmt::print(stderr, "usage: comm_rounds PROCESS NUM_PROCESSES ADDRESS_OF_FIRST OWN_ADDRESS [SECRET]\n");
    return 2;
  }
  tandem::log::configure(tandem::log::Level::kWarning, "");
  return tandem::bench::run(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argv[4], argc > 5 ? argv[5] : "");
}
