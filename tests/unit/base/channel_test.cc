// SPDX-License-Identifier: Apache-2.0
// Both ends of a channel in one process: bytes of all sizes, both directions, and every way in which two ends do not
// fit, seen from both sides.
#include "base/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/certificates.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using Credentials = std::shared_ptr<const PeerTls>;
using Bytes = std::vector<std::byte>;

Credentials by_secret(const std::string& secret, std::uint64_t records_per_key = PeerTls::kRecordsPerKey) {
  return *PeerTls::make({.secret = secret, .certificates = {}, .key = {}, .ca = {}}, records_per_key);
}
Credentials by_certificate(const test::Pem& pem, const std::string& authority) {
  auto made = PeerTls::make({.secret = {}, .certificates = pem.certificate, .key = pem.key, .ca = authority});
  EXPECT_TRUE(made) << made.error().message();
  return *made;
}

std::pair<Socket, Socket> socket_pair() {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  return {Socket(pair[0]), Socket(pair[1])};
}

struct Ends {
  Ends(const Credentials& of_client, const Credentials& of_server) {
    auto [a, b] = socket_pair();
    client = Channel(std::move(a), of_client, Channel::Side::kClient);
    server = Channel(std::move(b), of_server, Channel::Side::kServer);
  }
  Channel client, server;
};

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

/// One end of an exchange: has some bytes to send, in parts of `part`, and takes what comes in pieces of `piece`.
struct Talker {
  Channel& channel;
  const Bytes& out;
  std::size_t part;
  std::size_t piece;
  std::size_t sent = 0;
  Bytes in = {};

  bool blocked() const { return errno == EAGAIN || errno == EWOULDBLOCK; }
  void step() {
    if (sent < out.size()) {
      std::vector<iovec> parts;
      for (std::size_t at = sent; at < out.size() && parts.size() < 200; at += part)
        parts.push_back({const_cast<std::byte*>(out.data()) + at, std::min(part, out.size() - at)});
      const ssize_t count = channel.send(std::span<const iovec>(parts));
      ASSERT_TRUE(count >= 0 || blocked()) << channel.error().message();
      if (count > 0) sent += static_cast<std::size_t>(count);
    }
    Bytes buffer(piece);
    const std::size_t half = piece / 2;
    const iovec parts[] = {{buffer.data(), half}, {buffer.data() + half, piece - half}};
    const ssize_t count = channel.receive(std::span<const iovec>(parts));
    ASSERT_TRUE(count >= 0 || blocked()) << channel.error().message();
    if (count > 0) in.insert(in.end(), buffer.begin(), buffer.begin() + count);
  }
};

void exchange(Ends& ends, const Bytes& forth, const Bytes& back, std::size_t part, std::size_t piece) {
  Talker client{ends.client, forth, part, piece};
  Talker server{ends.server, back, part, piece};
  for (int turn = 0; turn < 2'000'000 && (client.in.size() < back.size() || server.in.size() < forth.size()); ++turn) {
    client.step();
    server.step();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(server.in == forth);
  EXPECT_TRUE(client.in == back);
}

class ChannelTest : public testing::Test {
 protected:
  test::Authority authority_{"channel-ca"};
  std::vector<std::pair<const char*, std::pair<Credentials, Credentials>>> ways() {
    return {{"plain", {nullptr, nullptr}},
            {"secret", {by_secret("sesame"), by_secret("sesame")}},
            {"certificates",
             {by_certificate(authority_.sign("channel-a"), authority_.file()),
              by_certificate(authority_.sign("channel-b"), authority_.file())}}};
  }
};

TEST_F(ChannelTest, BytesOfAllSizesArriveBothWaysAtOnce) {
  for (const auto& [name, credentials] : ways()) {
    SCOPED_TRACE(name);
    for (const auto& [forth, back, part, piece] :
         {std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>{1, 0, 1, 1},
          {3, 5000, 1, 2},
          {16384, 16385, 12, 7},
          {100'000, 33, 100, 65536},
          {9'000'000, 9'000'000, 65536, 100'000}}) {
      Ends ends(credentials.first, credentials.second);
      exchange(ends, pattern(forth), pattern(back), part, piece);
      exchange(ends, pattern(back), pattern(forth), piece, part + 1);  // on a connection that stands
    }
  }
}

TEST_F(ChannelTest, AWriteThatIsCutShortGoesOnWithMoreBehindIt) {
  for (const auto& [name, credentials] : ways()) {
    SCOPED_TRACE(name);
    Ends ends(credentials.first, credentials.second);
    const int small = 4096;
    ASSERT_EQ(setsockopt(ends.client.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    const Bytes all = pattern(300'000);
    Bytes received;
    std::size_t sent = 0;
    std::size_t known = 1000;  // what the sender has by now
    bool blocked = false;
    for (int turn = 0; turn < 100'000 && received.size() < all.size(); ++turn) {
      const ssize_t count = ends.client.send(std::span(all).first(known).subspan(sent));
      if (count > 0) sent += static_cast<std::size_t>(count);
      blocked = blocked || (count < 0 && errno == EAGAIN);
      ASSERT_TRUE(count >= 0 || errno == EAGAIN) << ends.client.error().message();
      known = std::min(all.size(), known + 700);
      if (turn % 20 != 0) continue;
      std::byte buffer[5000];
      const ssize_t got = ends.server.receive(buffer);
      if (got > 0) received.insert(received.end(), buffer, buffer + got);
    }
    EXPECT_TRUE(blocked);
    EXPECT_TRUE(received == all);
  }
}

TEST_F(ChannelTest, BytesThatAreHereAlreadyAreKnownOf) {
  Ends ends(by_secret("a"), by_secret("a"));
  exchange(ends, pattern(10), pattern(10), 10, 10);
  ASSERT_EQ(ends.client.send(pattern(1000)), 1000);
  std::byte buffer[600];
  EXPECT_FALSE(ends.server.has_buffered());
  ASSERT_EQ(ends.server.receive(std::span(buffer, 10)), 10);
  pollfd entry{ends.server.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0) << "the kernel has nothing";
  EXPECT_TRUE(ends.server.has_buffered());
  ASSERT_EQ(ends.server.receive(buffer), 600);
  ASSERT_EQ(ends.server.receive(buffer), 390);
  EXPECT_FALSE(ends.server.has_buffered());
}

TEST_F(ChannelTest, WhoSendsFirstWaitsForThePeersHandshakeAndDoesNotSpin) {
  Ends ends(by_secret("a"), by_secret("a"));
  EXPECT_EQ(ends.client.send(pattern(10)), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ends.client.events(true), static_cast<std::uint32_t>(POLLIN));
  std::byte buffer[64];
  EXPECT_EQ(ends.server.receive(buffer), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ends.client.receive(buffer), -1);
  EXPECT_EQ(ends.client.events(true), static_cast<std::uint32_t>(POLLIN | POLLOUT));
  EXPECT_EQ(ends.client.send(pattern(10)), 10);
  EXPECT_EQ(ends.server.receive(buffer), 10);
}

TEST_F(ChannelTest, KeysAreRenewedWhileBothSidesSend) {
  Ends ends(by_secret("a", 3), by_secret("a", 5));
  for (int i = 0; i < 20; ++i) exchange(ends, pattern(200'000), pattern(100'000), 1000, 70'000);
  // That it happens at all shows in what goes over the wire.
  const auto wire_bytes = [](std::uint64_t records_per_key) {
    Ends counted(by_secret("a", records_per_key), by_secret("a"));
    exchange(counted, pattern(1), pattern(1), 1, 1);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(counted.client.send(pattern(1)), 1);
    int waiting = 0;
    EXPECT_EQ(ioctl(counted.server.fd(), FIONREAD, &waiting), 0);
    return waiting;
  };
  EXPECT_GT(wire_bytes(4), wire_bytes(1000) + 10 * 20);
}

TEST_F(ChannelTest, OneThreadReceivesWhileAnotherSends) {
  for (const auto& [name, credentials] : ways()) {
    SCOPED_TRACE(name);
    Ends ends(credentials.first, credentials.second);
    const Bytes all = pattern(3'000'000);
    Bytes at_client, at_server;
    const auto wait = [](Channel& channel, bool to_send) {
      pollfd entry{channel.fd(), static_cast<short>(channel.events(to_send)), 0};
      (void)poll(&entry, 1, 100);
    };
    const auto send = [&](Channel& channel) {
      for (std::size_t sent = 0; sent < all.size();) {
        const ssize_t count =
            channel.send(std::span(all).subspan(sent, std::min<std::size_t>(5000, all.size() - sent)));
        if (count > 0) sent += static_cast<std::size_t>(count);
        if (count < 0 && errno != EAGAIN) return;
        if (count < 0) wait(channel, true);
      }
    };
    const auto receive = [&](Channel& channel, Bytes& in) {
      std::byte buffer[7000];
      while (in.size() < all.size()) {
        const ssize_t count = channel.receive(buffer);
        if (count > 0) in.insert(in.end(), buffer, buffer + count);
        if (count == 0 || (count < 0 && errno != EAGAIN)) return;
        if (count < 0) wait(channel, false);
      }
    };
    {
      const std::jthread threads[] = {std::jthread([&] { send(ends.client); }),
                                      std::jthread([&] { send(ends.server); }),
                                      std::jthread([&] { receive(ends.client, at_client); }),
                                      std::jthread([&] { receive(ends.server, at_server); })};
    }
    EXPECT_TRUE(at_client == all);
    EXPECT_TRUE(at_server == all);
  }
}

/// Drives both ends until each has an error or no more comes of it; a plain end says something, as protocols do.
std::pair<Status, Status> shake(Channel& client, Channel& server) {
  Status ends[2];
  Channel* channels[] = {&client, &server};
  for (int turn = 0; turn < 50; ++turn) {
    for (int i = 0; i < 2; ++i) {
      if (!ends[i].ok()) continue;
      if (turn == 0 && i == 0) (void)channels[i]->send(pattern(20));
      std::byte buffer[1024];
      const ssize_t count = channels[i]->receive(buffer);
      if (count > 0 && begins_like_tls(std::span(buffer, static_cast<std::size_t>(count)))) {
        ends[i] = speaks_tls_error();
        (void)channels[i]->send(std::as_bytes(std::span("refused")));
      }
      if (count < 0 && errno != EAGAIN) ends[i] = channels[i]->error();
    }
  }
  return {ends[0], ends[1]};
}

TEST_F(ChannelTest, EndsThatDoNotFitSayWhyOnBothSides) {
  test::Authority other("channel-other-ca");
  const auto member = by_certificate(authority_.sign("channel-member"), authority_.file());
  const auto stranger = by_certificate(other.sign("channel-stranger"), other.file());
  // Trusts the cluster's CA, so that it is the other side that refuses.
  const auto pretender = by_certificate(other.sign("channel-pretender"), authority_.file());
  const auto expired = by_certificate(authority_.sign("channel-expired", -10), authority_.file());
  const auto secret = by_secret("sesame");
  const auto another = by_secret("another");
  struct Case {
    const char* name;
    Credentials client, server;
    const char* at_client;
    const char* at_server;
  };
  for (const Case& one : std::vector<Case>{
           {"plain to secret", nullptr, secret, "it speaks TLS, and this side does not", "it does not speak TLS"},
           {"plain to certificates", nullptr, member, "it speaks TLS, and this side does not", "it does not speak TLS"},
           {"secret to plain", secret, nullptr, "it does not speak TLS", "it speaks TLS, and this side does not"},
           {"certificates to plain", member, nullptr, "it does not speak TLS", "it speaks TLS, and this side does not"},
           {"another secret", another, secret, "refuses this side's secret", "has another secret"},
           {"secret to certificates", secret, member, "it has certificates and this side a secret",
            "refuses this side's certificate"},
           {"certificates to secret", member, secret, "refuses this side's certificate", "does not prove the secret"},
           {"of another CA", stranger, member, "its certificate is refused", "refuses this side's certificate"},
           {"a client that is not signed", pretender, member, "refuses this side's certificate",
            "its certificate is refused"},
           {"a server that is not signed", member, pretender, "its certificate is refused",
            "refuses this side's certificate"},
           {"an expired client", expired, member, "refuses this side's certificate (certificate expired)",
            "its certificate is refused: certificate has expired"},
           {"an expired server", member, expired, "its certificate is refused: certificate has expired",
            "refuses this side's certificate (certificate expired)"}}) {
    SCOPED_TRACE(one.name);
    Ends ends(one.client, one.server);
    const auto [client, server] = shake(ends.client, ends.server);
    EXPECT_THAT(client.message(), HasSubstr(one.at_client));
    EXPECT_THAT(server.message(), HasSubstr(one.at_server));
    EXPECT_EQ(client.code(), Code::kFailedPrecondition);
    EXPECT_EQ(server.code(), Code::kFailedPrecondition);
    EXPECT_EQ(client.scope(), Scope::kPeer);
  }
}

TEST_F(ChannelTest, WhoWritesOnAfterARefusalLearnsTheReason) {
  test::Authority other("channel-late-ca");
  auto pretender = by_certificate(other.sign("channel-late"), authority_.file());
  Ends ends(pretender, by_certificate(authority_.sign("channel-server"), authority_.file()));
  std::byte buffer[64];
  // In TLS 1.3 the client is done before the server has seen its certificate.
  while (true) {
    const auto done = ends.client.handshake();
    ASSERT_TRUE(done) << done.error().message();
    if (*done) break;
    (void)ends.server.receive(buffer);
  }
  EXPECT_EQ(ends.server.receive(buffer), -1);
  EXPECT_THAT(ends.server.error().message(), HasSubstr("its certificate is refused"));
  ends.server.close();
  while (ends.client.send(pattern(100)) >= 0) {
  }
  EXPECT_THAT(ends.client.error().message(), HasSubstr("refuses this side's certificate"));
}

TEST_F(ChannelTest, TheEndOfTheStreamIsAnEndWithAndWithoutGoodbye) {
  for (const bool goodbye : {true, false}) {
    Ends ends(by_secret("a"), by_secret("a"));
    exchange(ends, pattern(10), pattern(10), 10, 10);
    ASSERT_EQ(ends.client.send(pattern(10)), 10);
    if (goodbye)
      ends.client.close();
    else
      shutdown(ends.client.fd(), SHUT_WR);
    std::byte buffer[64];
    EXPECT_EQ(ends.server.receive(buffer), 10) << "what came before counts";
    EXPECT_EQ(ends.server.receive(buffer), 0);
    EXPECT_EQ(ends.server.receive(buffer), 0);
  }
}

TEST_F(ChannelTest, APeerThatStopsOrClosesInTheHandshake) {
  auto [a, b] = socket_pair();
  Channel server(std::move(b), by_secret("a"), Channel::Side::kServer);
  const unsigned char start_of_hello[] = {22, 3, 1, 0, 200, 1, 0};
  ASSERT_EQ(send(a.fd(), start_of_hello, sizeof start_of_hello, 0), 7);
  auto done = server.handshake();
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_FALSE(*done);
  EXPECT_EQ(server.events(true), static_cast<std::uint32_t>(POLLIN));
  a = Socket();
  done = server.handshake();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kUnavailable);
  EXPECT_THAT(done.error().message(), HasSubstr("closed the connection in the TLS handshake"));
  std::byte buffer[8];
  EXPECT_EQ(server.receive(buffer), -1);
  EXPECT_EQ(server.send(buffer), -1);
}

TEST_F(ChannelTest, ABitThatChangesOnTheWayIsNoByte) {
  auto [a, client_socket] = socket_pair();
  auto [b, server_socket] = socket_pair();
  Channel client(std::move(client_socket), by_secret("a"), Channel::Side::kClient);
  Channel server(std::move(server_socket), by_secret("a"), Channel::Side::kServer);
  const auto carry = [](const Socket& from, const Socket& to, bool change) {
    unsigned char buffer[4096];
    const ssize_t count = recv(from.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count <= 0) return;
    if (change) buffer[count - 3] ^= 1;
    (void)send(to.fd(), buffer, static_cast<std::size_t>(count), MSG_NOSIGNAL);
  };
  std::byte buffer[64];
  for (int turn = 0; turn < 5; ++turn) {
    (void)client.handshake();
    carry(a, b, false);
    (void)server.handshake();
    carry(b, a, false);
  }
  ASSERT_EQ(client.send(pattern(20)), 20);
  carry(a, b, true);
  EXPECT_EQ(server.receive(buffer), -1);
  EXPECT_NE(errno, EAGAIN);
  EXPECT_THAT(server.error().message(), HasSubstr("TLS failed"));
}

TEST_F(ChannelTest, FilesThatAreNoneAreNamed) {
  const test::Pem pem = authority_.sign("channel-files");
  const test::Pem other = authority_.sign("channel-other-key");
  const auto error = [](const PeerCredentials& credentials) {
    auto made = PeerTls::make(credentials);
    EXPECT_FALSE(made);
    return made.error().message();
  };
  EXPECT_THAT(error({{}, "/nowhere.crt", pem.key, authority_.file()}), HasSubstr("peer certificate /nowhere.crt: "));
  EXPECT_THAT(error({{}, pem.certificate, other.key, authority_.file()}),
              HasSubstr(other.key + ": key values mismatch"));
  EXPECT_THAT(error({{}, pem.certificate, {}, authority_.file()}), HasSubstr("peer key " + pem.certificate));
  EXPECT_THAT(error({{}, pem.certificate, pem.key, "/nowhere.crt"}), HasSubstr("peer CA /nowhere.crt: No such file"));
  EXPECT_EQ(*PeerTls::make({}), nullptr);
}

}  // namespace
}  // namespace tandem
