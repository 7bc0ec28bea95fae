// SPDX-License-Identifier: Apache-2.0
// Instances meeting each other: handshakes that must fail with a reason, peers that are not there, come back, hang or
// talk nonsense, and the wire itself cut, frozen or bent by a proxy in the middle.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <tuple>

#include "base/tcp_socket.h"
#include "contract/tcp_relay.h"
#include "contract/transfer_fixture.h"
#include "support/certificates.h"
#include "transfer/wire.h"

namespace tandem::transfer::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<kv::BlockId> blocks_from(kv::BlockId first, int count) {
  std::vector<kv::BlockId> blocks(static_cast<std::size_t>(count));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

struct Pair {
  explicit Pair(TransportChoice transport, const std::function<void(kv::Layout&)>& change_p = {},
                const std::function<void(TransferOptions&, TransferOptions&)>& change = {}) {
    kv::Layout p_layout = small_layout();
    if (change_p) change_p(p_layout);
    TransferOptions p_options = prefiller_options(transport);
    TransferOptions d_options = decoder_options(transport);
    if (change) change(p_options, d_options);
    p = std::make_unique<Node>(p_options, p_layout);
    d = std::make_unique<Node>(d_options, small_layout());
    p->fill(3);
  }
  std::unique_ptr<Node> p;
  std::unique_ptr<Node> d;
};

/// Fetches one block and returns the error.
Status fetch_error(Pair& pair) {
  const Handover handover = pair.p->lease({1}, 4);
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  const Result<FetchStats>& result = outcome->wait(5s);
  EXPECT_FALSE(result);
  EXPECT_TRUE(untouched(*pair.d, {2}));
  EXPECT_EQ(pair.p->lease_end(handover.lease), LeaseEnd::kDropped)
      << "blocks that cannot be used are given back at once";
  return result ? Status() : result.error();
}

TEST(Handshake, WhatCannotBeExchangedIsRefusedNamingBoth) {
  const auto message = [](const std::function<void(kv::Layout&)>& change) {
    Pair pair(TransportChoice::kTcp, change);
    const Status error = fetch_error(pair);
    EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    return error.message();
  };
  EXPECT_THAT(message([](kv::Layout& l) { l.fingerprint = "other"; }),
              HasSubstr("peer's model fingerprint is other, ours is test-model"));
  EXPECT_THAT(message([](kv::Layout& l) { l.num_layers = 4; }), HasSubstr("peer's num_layers is 4, ours is 3"));
  EXPECT_THAT(message([](kv::Layout& l) { l.head_dim = 32; }), HasSubstr("peer's head_dim is 32, ours is 16"));
  EXPECT_THAT(message([](kv::Layout& l) { l.num_kv_heads = l.total_kv_heads = 4; }),
              HasSubstr("peer's total_kv_heads is 4, ours is 2"));
}

TEST(Handshake, AnotherEngineAtTheAddressIsNamed) {
  Pair pair(TransportChoice::kAuto);
  Handover handover = pair.p->lease({1}, 4);
  handover.engine_id = "prefiller-7";
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  ASSERT_FALSE(outcome->wait());
  EXPECT_THAT(outcome->wait().error().message(), AllOf(HasSubstr("prefiller-7"), HasSubstr("prefiller-0")));
}

TEST(Handshake, SharedMemoryThatCannotBeHadIsAClearError) {
  Pair pair(TransportChoice::kShm, {},
            [](TransferOptions& p, TransferOptions&) { p.transport = TransportChoice::kTcp; });
  const auto outcome = pair.d->fetch(pair.p->lease({1}, 4), {2}, 0, 4);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kFailedPrecondition);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("shared memory was demanded"));
}

TEST(Handshake, AutoTakesSharedMemoryHereAndTcpWhereThereIsNone) {
  Pair shared(TransportChoice::kAuto);
  const auto over_shm = shared.d->fetch(shared.p->lease({1}, 8), {2}, 0, 8);
  ASSERT_TRUE(over_shm->wait());
  EXPECT_EQ(over_shm->wait()->transport, "shm");
  Pair apart(TransportChoice::kAuto, {},
             [](TransferOptions& p, TransferOptions&) { p.transport = TransportChoice::kTcp; });
  const auto over_tcp = apart.d->fetch(apart.p->lease({1}, 8), {2}, 0, 8);
  ASSERT_TRUE(over_tcp->wait());
  EXPECT_EQ(over_tcp->wait()->transport, "tcp");
}

TEST(Addresses, IPv6AndNamesWork) {
  const std::pair<std::string, std::string> hosts[] = {{"::1", "::1"}, {"::1", "[::1]"}, {"127.0.0.1", "localhost"}};
  for (const auto& names : hosts) {
    Pair pair(TransportChoice::kTcp, {}, [&](TransferOptions& p, TransferOptions&) {
      p.bind_host = names.first;
      p.advertised_host = names.second;
    });
    const auto outcome = pair.d->fetch(pair.p->lease({1}, 8), {2}, 0, 8);
    ASSERT_TRUE(outcome->wait()) << names.second << ": " << outcome->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*pair.p, {1}, *pair.d, {2}, 0, 8));
  }
}

TEST(Addresses, APortInUseIsNamed) {
  Pair pair(TransportChoice::kTcp);
  TransferOptions options = pair.p->options;
  ASSERT_NE(options.port, 0);
  auto second = TransferEngine::start(options, *pair.p->memory, pair.p->registry);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("127.0.0.1:" + std::to_string(options.port)));
  EXPECT_THAT(second.error().message(), HasSubstr("in use"));
}

TEST(Unreachable, NobodyThereIsAnErrorWithinTheConnectTimeout) {
  Pair pair(TransportChoice::kAuto);
  Handover handover = pair.p->lease({1}, 4);
  pair.p->kill();
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  ASSERT_FALSE(outcome->wait(2s));
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("127.0.0.1:" + std::to_string(handover.port)));
}

TEST(Unreachable, ASilentListenerIsAnErrorWithinTheConnectTimeout) {
  auto listener = listen_tcp("127.0.0.1", 0, "a test");  // accepts in the kernel, never answers
  ASSERT_TRUE(listener);
  Pair pair(TransportChoice::kAuto, {}, [](TransferOptions&, TransferOptions& d) { d.connect_timeout = 200ms; });
  Handover handover = pair.p->lease({1}, 4);
  handover.port = bound_port(*listener);
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  ASSERT_FALSE(outcome->wait(3s));
  EXPECT_EQ(outcome->wait().error().code(), Code::kUnavailable);
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("within 200 ms"));
}

TEST(Unreachable, HoldAndDropOfASilentPeerNeverBlock) {
  auto listener = listen_tcp("127.0.0.1", 0, "a test");
  ASSERT_TRUE(listener);
  Pair pair(TransportChoice::kAuto);
  Handover handover = pair.p->lease({1}, 4);
  handover.port = bound_port(*listener);
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    pair.d->engine->hold(handover);
    pair.d->engine->drop(handover);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, pair.d->options.connect_timeout / 2);
}

TEST(Holders, ADeadDecoderLosesItsLeasesAfterAThirdOfATerm) {
  Pair pair(TransportChoice::kAuto, {},
            [](TransferOptions& p, TransferOptions& d) { p.lease_term = d.lease_term = 3000ms; });
  // Through a relay, so that the connection breaks without a word as it does when a process is killed.
  TcpRelay relay(pair.p->engine->port());
  Handover handover = pair.p->lease({1}, 4);
  Handover relayed = handover;
  relayed.port = relay.port();
  pair.d->engine->hold(relayed);
  EXPECT_EQ(pair.p->lease_end(handover.lease, 3500ms), std::nullopt) << "held beyond its first term";
  const auto cut = std::chrono::steady_clock::now();
  relay.refuse_new();
  relay.cut_all();
  EXPECT_EQ(pair.p->lease_end(handover.lease), LeaseEnd::kPeerDied);
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 2000ms) << "the last renewal alone would have lasted longer";
}

TEST(Holders, U020OneBrokenConnectionCostsNoLease) {
  Pair pair(TransportChoice::kAuto, {},
            [](TransferOptions& p, TransferOptions& d) { p.lease_term = d.lease_term = 3000ms; });
  TcpRelay relay(pair.p->engine->port());
  Handover handover = pair.p->lease({1, 2}, 16);
  handover.port = relay.port();
  pair.d->engine->hold(handover);
  ASSERT_TRUE(eventually([&] { return relay.num_accepted() == 1; }));
  std::this_thread::sleep_for(50ms);
  relay.cut_all();
  EXPECT_EQ(pair.p->lease_end(handover.lease, 3500ms), std::nullopt) << "the decoder reconnects and renews";
  const auto outcome = pair.d->fetch(handover, {3, 4}, 0, 16);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_EQ(pair.p->lease_end(handover.lease), LeaseEnd::kDone);
}

TEST(Holders, AStoppedDecoderGivesItsLeasesBackAtOnce) {
  Pair pair(TransportChoice::kAuto);
  const Handover handover = pair.p->lease({1}, 4);
  pair.d->engine->hold(handover);
  const auto fetched = pair.d->fetch(pair.p->lease({2}, 4), {3}, 0, 4);
  ASSERT_TRUE(fetched->wait());
  pair.d->engine->stop();
  EXPECT_EQ(pair.p->lease_end(handover.lease, 8s), LeaseEnd::kDropped);
}

TEST(Holders, U016ARestartedDecoderIsANewOne) {
  Pair pair(TransportChoice::kAuto);
  const auto first = pair.d->fetch(pair.p->lease({1}, 8), {2}, 0, 8);
  ASSERT_TRUE(first->wait());
  pair.d->restart();
  const auto second = pair.d->fetch(pair.p->lease({3}, 8), {4}, 0, 8);
  ASSERT_TRUE(second->wait()) << second->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*pair.p, {3}, *pair.d, {4}, 0, 8));
}

TEST(Engine, StopEndsFetchesAndLeasesAndSaysSo) {
  Pair pair(TransportChoice::kAuto);
  Faults stall;
  stall.stall_after = 0;
  pair.d->faults->set(stall);
  const Handover handover = pair.p->lease({1}, 4);
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  pair.d->engine->stop();
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kCancelled);
  const auto late = pair.d->fetch(handover, {2}, 0, 4);
  ASSERT_FALSE(late->wait());
  EXPECT_EQ(late->wait().error().code(), Code::kCancelled);
  const Handover open = pair.p->lease({5}, 4);
  pair.p->engine->stop();
  EXPECT_EQ(pair.p->lease_end(open.lease), LeaseEnd::kRevoked);
  pair.p->engine->stop();
}

TEST(Engine, OneInstanceCanBeBothSides) {
  TransferOptions options = prefiller_options(TransportChoice::kAuto);
  options.consumer = true;
  Node node(options, small_layout());
  node.fill(5);
  const Handover handover = node.lease({1, 2}, 16);
  const auto outcome = node.fetch(handover, {10, 11}, 0, 16);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(node, {1, 2}, node, {10, 11}, 0, 16));
  EXPECT_EQ(node.lease_end(handover.lease), LeaseEnd::kDone);
}

TEST(Engine, AFetchByAnInstanceThatIsNoConsumerIsAnError) {
  Pair pair(TransportChoice::kAuto);
  const auto outcome = pair.p->fetch(pair.p->lease({1}, 4), {2}, 0, 4);
  ASSERT_FALSE(outcome->wait());
  EXPECT_EQ(outcome->wait().error().code(), Code::kFailedPrecondition);
}

TEST(HostilePeers, NonsenseOnThePortIsSurvived) {
  Pair pair(TransportChoice::kAuto);
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'),
                                  std::string("TKV\x01\x01\x02", 6), std::string("\x16\x03\x01\x00\xc8", 5)}) {
    auto addresses = resolve("127.0.0.1", pair.p->engine->port());
    ASSERT_TRUE(addresses);
    const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&(*addresses)[0].storage), (*addresses)[0].size),
              0);
    ASSERT_EQ(send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  const auto outcome = pair.d->fetch(pair.p->lease({1}, 8), {2}, 0, 8);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
}

/// Welcomes the first reader that comes, then says until `over` that its fetches 1 to 8 have failed.
void end_fetches_of_others(const Socket& listener, std::uint64_t incarnation, const std::atomic<bool>& over) {
  pollfd ready{listener.fd(), POLLIN, 0};
  if (poll(&ready, 1, 5000) != 1) return;
  const Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  wire::Welcome welcome;
  welcome.identity.engine_id = "other";
  welcome.identity.incarnation = incarnation;
  welcome.identity.ranks = {small_layout()};
  welcome.lease_term_ms = 30'000;
  std::vector<std::byte> bytes;
  wire::append_frame(welcome, bytes);
  while (!over && send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    bytes.clear();
    for (std::uint64_t fetch = 1; fetch <= 8; ++fetch) {
      wire::append_frame(wire::FetchError{fetch, Code::kInternal, "not mine to say"}, bytes);
    }
    std::this_thread::sleep_for(10ms);
  }
}

TEST(HostilePeers, APrefillerCannotEndFetchesFromAnother) {
  auto silent = listen_tcp("127.0.0.1", 0, "a test");
  auto hostile = listen_tcp("127.0.0.1", 0, "a test");
  ASSERT_TRUE(silent && hostile);
  Pair pair(TransportChoice::kTcp, {}, [](TransferOptions&, TransferOptions& d) { d.connect_timeout = 500ms; });
  std::atomic<bool> over{false};
  std::jthread peer([&] { end_fetches_of_others(*hostile, 77, over); });
  Handover other;
  other.engine_id = "other";
  other.host = "127.0.0.1";
  other.port = bound_port(*hostile);
  other.lease = {77, 1};
  pair.d->engine->hold(other);
  Handover handover = pair.p->lease({1}, 4);
  handover.port = bound_port(*silent);
  const auto outcome = pair.d->fetch(handover, {2}, 0, 4);
  EXPECT_FALSE(outcome->wait());
  EXPECT_THAT(outcome->wait().error().message(), HasSubstr("within 500 ms"));
  over = true;
}

class CutWire : public ::testing::TestWithParam<std::tuple<int, Way>> {};

/// The TCP stream itself is cut at many places, of the control as well as of the data connection: always an error or a
/// right answer, never other bytes, and the pair recovers.
TEST_P(CutWire, AnErrorOrTheRightBytes) {
  Pair pair(TransportChoice::kTcp, {}, [](TransferOptions& p, TransferOptions& d) {
    d.fetch_timeout = 700ms;
    d.connect_timeout = 700ms;
    p.lease_term = d.lease_term = 5s;
    p.tls = d.tls = tls_of(std::get<1>(GetParam()));
  });
  const int fault = std::get<0>(GetParam());
  TcpRelay relay(pair.p->engine->port());
  int errors = 0;
  for (int round = 0; round < 9; ++round) {
    const auto at = static_cast<std::uint64_t>(30 + round * 1300);
    if (fault == 0) relay.cut_after(at);
    if (fault == 1) relay.freeze_after(at);
    if (fault == 2) relay.flip_at(at);
    std::memset(pair.d->alias, 0, small_layout().total_bytes());
    Handover handover = pair.p->lease(blocks_from(0, 4), 32);
    handover.port = relay.port();
    const auto outcome = pair.d->fetch(handover, blocks_from(8, 4), 0, 32);
    const Result<FetchStats>& result = outcome->wait();
    if (result) {
      EXPECT_TRUE(same_tokens(*pair.p, blocks_from(0, 4), *pair.d, blocks_from(8, 4), 0, 32)) << round;
    } else {
      ++errors;
      const std::vector<std::byte> snapshot = block_bytes(*pair.d, blocks_from(8, 4));
      std::this_thread::sleep_for(5ms);
      EXPECT_EQ(block_bytes(*pair.d, blocks_from(8, 4)), snapshot) << "written after done, round " << round;
    }
    relay.heal();
  }
  EXPECT_GE(errors, 4);
  std::memset(pair.d->alias, 0, small_layout().total_bytes());
  Handover handover = pair.p->lease(blocks_from(0, 4), 32);
  handover.port = relay.port();
  const auto outcome = pair.d->fetch(handover, blocks_from(8, 4), 0, 32);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  EXPECT_TRUE(same_tokens(*pair.p, blocks_from(0, 4), *pair.d, blocks_from(8, 4), 0, 32));
  EXPECT_TRUE(eventually([&] { return pair.p->metric("tandem:kv_leases_open") == 0.0; }));
}

std::string fault_name(const ::testing::TestParamInfo<CutWire::ParamType>& info) {
  const int fault = std::get<0>(info.param);
  return std::string(way_name(std::get<1>(info.param))) + (fault == 0 ? "_cut" : fault == 1 ? "_frozen" : "_flipped");
}
INSTANTIATE_TEST_SUITE_P(Faults, CutWire,
                         ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Values(Way::kTcp, Way::kTls)),
                         fault_name);

std::shared_ptr<const PeerTls> by_certificate(const tandem::test::Pem& pem, const std::string& authority) {
  return *PeerTls::make({.secret = {}, .certificates = pem.certificate, .key = pem.key, .ca = authority});
}

TEST(Proof, WhoDoesNotFitIsAPeerThatCannotBeReachedAndOthersAreServed) {
  tandem::test::Authority authority("kv-ca");
  tandem::test::Authority other("kv-other-ca");
  const auto member = by_certificate(authority.sign("kv-member"), authority.file());
  struct Case {
    std::shared_ptr<const PeerTls> p, d;
    const char* why;
  };
  for (const Case& one : std::vector<Case>{
           {by_secret("a"), nullptr, "it speaks TLS, and this side does not"},
           {nullptr, by_secret("a"), "it does not speak TLS, and this side does"},
           {by_secret("a"), by_secret("b"), "it refuses this side's secret"},
           {member, by_secret("a"), "it has certificates and this side a secret"},
           {member, by_certificate(other.sign("kv-stranger"), authority.file()), "it refuses this side's certificate"},
           {member, by_certificate(authority.sign("kv-expired", -10), authority.file()), "certificate expired"},
           {member, by_certificate(authority.sign("kv-trusting"), other.file()), "its certificate is refused"}}) {
    SCOPED_TRACE(one.why);
    Pair pair(TransportChoice::kTcp, {}, [&](TransferOptions& p, TransferOptions& d) {
      p.tls = one.p;
      d.tls = one.d;
    });
    const auto refused = pair.d->fetch(pair.p->lease({1}, 4), {2}, 0, 4);
    const Result<FetchStats>& result = refused->wait(4s);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
    EXPECT_EQ(result.error().scope(), Scope::kPeer);
    EXPECT_THAT(result.error().message(), HasSubstr(one.why));
    EXPECT_THAT(result.error().message(), HasSubstr("127.0.0.1:" + std::to_string(pair.p->engine->port())));
    EXPECT_TRUE(untouched(*pair.d, {2}));
    TransferOptions fitting = decoder_options(TransportChoice::kTcp);
    fitting.tls = one.p;
    Node friendly(fitting, small_layout());
    const auto served = friendly.fetch(pair.p->lease({1}, 8), {2}, 0, 8);
    ASSERT_TRUE(served->wait()) << served->wait().error().to_string();
    EXPECT_TRUE(same_tokens(*pair.p, {1}, friendly, {2}, 0, 8));
  }
}

TEST(Proof, AnOfferToADecoderThatDoesNotFitSaysWhy) {
  for (const auto& [p_tls, d_tls, why] :
       {std::tuple{by_secret("a"), by_secret("b"), "it refuses this side's secret"},
        std::tuple{by_secret("a"), std::shared_ptr<const PeerTls>(), "it does not speak TLS"},
        std::tuple{std::shared_ptr<const PeerTls>(), by_secret("a"), "it speaks TLS, and this side does not"}}) {
    SCOPED_TRACE(why);
    TransferOptions options = decoder_options(TransportChoice::kTcp);
    options.receiver = true;
    options.bind_host = "127.0.0.1";
    options.tls = d_tls;
    Node d(options, small_layout());
    options = prefiller_options(TransportChoice::kTcp);
    options.tls = p_tls;
    Node p(options, small_layout());
    const auto [id, delivery] = d.engine->receive({{1}, 0, 8, 8, 5}, [](FetchId, const Result<FetchStats>&) {});
    std::promise<Status> told;
    p.engine->offer(delivery, p.engine->open_growing_lease(8, 5), [&](Status status) { told.set_value(status); });
    auto future = told.get_future();
    ASSERT_EQ(future.wait_for(4s), std::future_status::ready);
    const Status status = future.get();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_THAT(status.message(), HasSubstr("decoder 'decoder-0' at 127.0.0.1:"));
  }
}

TEST(Proof, LargeFetchesComeWholeAndTheKeptConnectionServesThemAll) {
  tandem::test::Authority authority("kv-large-ca");
  kv::Layout layout = small_layout();
  layout.num_layers = 8;
  layout.block_size = 16;
  layout.total_kv_heads = layout.num_kv_heads = 8;
  layout.head_dim = 128;
  TransferOptions options = prefiller_options(TransportChoice::kTcp);
  options.tls = by_certificate(authority.sign("kv-large-p"), authority.file());
  Node p(options, layout);
  p.fill(9);
  options = decoder_options(TransportChoice::kTcp);
  options.tls = by_certificate(authority.sign("kv-large-d"), authority.file());
  Node d(options, layout);
  for (int round = 0; round < 3; ++round) {
    const auto outcome = d.fetch(p.lease(blocks_from(0, 30), 30 * 16), blocks_from(32, 30), 0, 30 * 16);
    ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
    EXPECT_GT(outcome->wait()->bytes, std::uint64_t{8} << 20);
    EXPECT_TRUE(same_tokens(p, blocks_from(0, 30), d, blocks_from(32, 30), 0, 30 * 16));
    std::memset(d.alias, 0, layout.total_bytes());
  }
}

TEST(Proof, WhoStopsInTheHandshakeIsLetGoOfInTime) {
  Pair pair(TransportChoice::kTcp, {}, [](TransferOptions& p, TransferOptions& d) {
    p.tls = d.tls = by_secret("a");
    p.connect_timeout = 300ms;
  });
  auto addresses = resolve("127.0.0.1", pair.p->engine->port());
  ASSERT_TRUE(addresses);
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&(*addresses)[0].storage), (*addresses)[0].size), 0);
  const unsigned char start_of_hello[] = {22, 3, 1, 0, 200, 1, 0};
  ASSERT_EQ(send(socket.fd(), start_of_hello, sizeof start_of_hello, MSG_NOSIGNAL), 7);
  const auto served = pair.d->fetch(pair.p->lease({1}, 8), {2}, 0, 8);
  ASSERT_TRUE(served->wait()) << "others do not wait for it";
  pollfd entry{socket.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 5000), 1);
  char byte = 0;
  EXPECT_LE(recv(socket.fd(), &byte, 1, 0), 0) << "closed";
}

}  // namespace
}  // namespace tandem::transfer::test
