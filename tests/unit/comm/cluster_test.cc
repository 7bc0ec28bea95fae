// SPDX-License-Identifier: Apache-2.0
// Processes of an instance over loopback, as objects in one process: each has its own port, links and threads.
#include "comm/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/tcp_socket.h"
#include "comm/stream.h"
#include "support/certificates.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;

std::uint16_t free_port() {
  const auto socket = listen_tcp("127.0.0.1", 0, "a test");
  return bound_port(*socket);
}

Credentials by_secret(const std::string& secret) {
  return *PeerTls::make({.secret = secret, .certificates = {}, .key = {}, .ca = {}});
}
Credentials by_certificate(const test::Pem& pem, const std::string& authority) {
  return *PeerTls::make({.secret = {}, .certificates = pem.certificate, .key = pem.key, .ca = authority});
}

/// A process: its cluster, and a thread that runs steps as a worker does.
class Process {
 public:
  explicit Process(ClusterOptions options) : cluster_(std::move(*Cluster::start(std::move(options)))) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~Process() {
    thread_.request_stop();
    cluster_->stop();
    cluster_->group().wake();
  }

  Cluster& cluster() { return *cluster_; }
  /// A step of our own: `rounds` rounds with messages of `bytes`. What every message must be is checked.
  Result<void> step(int rounds, std::size_t bytes) {
    const auto done = std::make_shared<std::promise<Result<void>>>();  // outlives a step that is given up here
    auto result = done->get_future();
    {
      const std::scoped_lock lock(mutex_);
      work_ = [this, done, rounds, bytes] { done->set_value(one_step(rounds, bytes)); };
    }
    cluster_->group().wake();
    if (result.wait_for(20s) != std::future_status::ready) return Status(Code::kInternal, "the step hangs");
    return result.get();
  }
  /// Waits until steps work.
  Result<void> step_when_up(int rounds, std::size_t bytes) {
    Result<void> last;
    for (int i = 0; i < 100; ++i) {
      last = step(rounds, bytes);
      if (last) return last;
      std::this_thread::sleep_for(50ms);
    }
    return last;
  }
  /// Takes part in nothing from now on, though it lives.
  void get_stuck() {
    stuck = true;
    for (int i = 0; i < 1000 && !is_stuck_; ++i) std::this_thread::sleep_for(5ms);
  }
  int num_taken_part() const { return taken_part_; }
  Status entered() const {
    const std::scoped_lock lock(mutex_);
    return entered_;
  }

  std::atomic<bool> stuck{false};        ///< takes part in nothing while set
  std::atomic<int> rounds_of_others{3};  ///< of a step that another process began
  std::atomic<std::size_t> bytes_of_others{64};

 private:
  void run(const std::stop_token& stop) {
    auto all = cluster_->wait_for_all();
    const Result<void> entered = all ? cluster_->enter() : Result<void>(all.error());
    {
      const std::scoped_lock lock(mutex_);
      entered_ = entered.error();
    }
    if (!entered) return;
    cluster_->serving();
    while (!stop.stop_requested()) {
      std::function<void()> work;
      {
        const std::scoped_lock lock(mutex_);
        work = std::exchange(work_, {});
      }
      if (work) {
        work();
      } else if (stuck) {
        is_stuck_ = true;
        std::this_thread::sleep_for(10ms);
      } else if (cluster_->group().wait_for_others(200ms)) {
        (void)one_step(rounds_of_others, bytes_of_others);
        ++taken_part_;
      }
    }
  }

  Result<void> one_step(int rounds, std::size_t bytes) {
    Group& group = cluster_->group();
    TANDEM_TRY(group.start_step());
    const auto size = static_cast<std::size_t>(group.size());
    for (int round = 0; round < rounds; ++round) {
      const auto text = [round](int from, int to) { return static_cast<std::byte>(16 * from + to + 64 * round); };
      std::vector<std::vector<std::byte>> messages(size);
      std::vector<Bytes> outgoing(size);
      for (std::size_t p = 0; p < size; ++p) {
        messages[p].assign(bytes, text(group.rank(), static_cast<int>(p)));
        outgoing[p] = messages[p];
      }
      TANDEM_TRY(group.begin(outgoing));
      TANDEM_ASSIGN(const auto received, group.finish());
      for (int p = 0; p < group.size(); ++p) {
        const Bytes message = received[static_cast<std::size_t>(p)];
        if (p == group.rank()) continue;
        if (message.size() != bytes_of_others && message.size() != bytes)
          return Status(Code::kInternal, "a message of another length");
        for (const std::byte byte : message)
          if (byte != text(p, group.rank())) return Status(Code::kInternal, "another message");
      }
    }
    return {};
  }

  std::unique_ptr<Cluster> cluster_;
  mutable std::mutex mutex_;
  std::function<void()> work_;                     // guarded by mutex_
  Status entered_{Code::kUnavailable, "not yet"};  // guarded by mutex_
  std::atomic<int> taken_part_{0};
  std::atomic<bool> is_stuck_{false};
  std::jthread thread_;
};

class ClusterTest : public testing::Test {
 protected:
  ClusterOptions options(int process, int num_processes) const {
    ClusterOptions options;
    options.address = "127.0.0.1";
    options.port = port_;
    options.host = "127.0.0.1";
    options.first_rank = 2 * process;
    options.num_ranks = 2;
    options.total_ranks = 2 * num_processes;
    options.properties = {{"model", "a"}};
    options.tls = credentials_;
    options.times = {.heartbeat = 100ms, .silence = 1000ms};
    options.start_timeout = 20s;
    options.round_timeout = 2s;
    return options;
  }
  std::unique_ptr<Process> process(int index, int count) const {
    return std::make_unique<Process>(options(index, count));
  }
  static void wait_until(const std::function<bool()>& done) {
    for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(done());
  }

  const std::uint16_t port_ = free_port();
  Credentials credentials_ = by_secret("sesame");
};

/// What does not depend on how peers prove who they are: these tests also run without proof and with certificates.
class ClusterWays : public ClusterTest, public testing::WithParamInterface<const char*> {
 protected:
  ClusterWays() {
    const std::string way = GetParam();
    if (way == "plain") credentials_ = nullptr;
    if (way == "certificates") credentials_ = by_certificate(authority_.sign("comm-member"), authority_.file());
  }
  test::Authority authority_{"comm-ca"};
};
INSTANTIATE_TEST_SUITE_P(Ways, ClusterWays, testing::Values("plain", "secret", "certificates"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(ClusterWays, ProcessesFindEachOtherInAnyOrderAndRunStepsTogether) {
  std::array<std::unique_ptr<Process>, 3> all;
  all[2] = process(2, 3);
  std::this_thread::sleep_for(50ms);  // before the first one listens
  all[0] = process(0, 3);
  EXPECT_THAT(all[0]->cluster().complete().message(), HasSubstr("waiting for a process with data-parallel ranks"));
  all[1] = process(1, 3);
  ASSERT_TRUE(all[0]->step_when_up(3, 64));
  for (int i = 0; i < 50; ++i) {
    const auto done = all[static_cast<std::size_t>(i % 3)]->step(3, 64);
    ASSERT_TRUE(done) << done.error().message();
  }
  EXPECT_TRUE(all[0]->cluster().complete().ok());
  wait_until([&] { return all[1]->num_taken_part() >= 30 && all[2]->num_taken_part() >= 30; });
  wait_until([&] {
    const auto known = all[0]->cluster().processes();
    return std::all_of(known.begin(), known.end(), [](const auto& one) { return one.present && one.serving; });
  });
}

TEST_P(ClusterWays, MessagesThatFillAllBuffersGoBothWaysAtOnce) {
  auto first = process(0, 2);
  auto second = process(1, 2);
  constexpr std::size_t kLarge = std::size_t{20} << 20;
  first->bytes_of_others = second->bytes_of_others = kLarge;
  const auto done = first->step_when_up(3, kLarge);
  EXPECT_TRUE(done) << done.error().message();
  second->bytes_of_others = 0;  // and of another length each way
  first->bytes_of_others = 0;
  EXPECT_TRUE(first->step(3, kLarge));
}

TEST_F(ClusterTest, AProcessThatEndsFailsTheStepIsNamedAndComesBackInANewEpoch) {
  auto first = process(0, 3);
  auto second = process(1, 3);
  auto third = process(2, 3);
  ASSERT_TRUE(first->step_when_up(3, 64));
  for (int life = 0; life < 2; ++life) {
    third.reset();
    wait_until([&] { return !first->cluster().complete().ok(); });
    const auto begun = std::chrono::steady_clock::now();
    for (Process* one : {first.get(), second.get()}) {
      Result<void> failed;
      wait_until([&] { return !(failed = one->step(3, 64)); });
      EXPECT_EQ(failed.error().scope(), Scope::kPeer);
      EXPECT_THAT(failed.error().message(), HasSubstr("data-parallel ranks 4 to 5"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 3s);
    EXPECT_THAT(first->cluster().complete().message(), HasSubstr("data-parallel ranks 4 to 5"));
    third = process(2, 3);
    const auto again = second->step_when_up(3, 64);
    EXPECT_TRUE(again) << again.error().message();
    EXPECT_TRUE(third->step_when_up(3, 64));
  }
}

TEST_P(ClusterWays, ALossInTheMiddleOfAStepReachesEveryProcess) {
  auto first = process(0, 3);
  auto second = process(1, 3);
  auto third = process(2, 3);
  ASSERT_TRUE(first->step_when_up(3, 64));
  third->get_stuck();  // the others wait for its messages
  second->rounds_of_others = 1000;
  third->rounds_of_others = 1;
  std::thread killer([&] {
    std::this_thread::sleep_for(300ms);
    third.reset();
  });
  const auto failed = first->step(1000, 64);
  killer.join();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().scope(), Scope::kPeer);
  second->rounds_of_others = 3;
  third = process(2, 3);
  EXPECT_TRUE(first->step_when_up(3, 64));
}

TEST_F(ClusterTest, WhoTakesNoPartInARoundEndsItAfterTheDeadline) {
  auto first = process(0, 2);
  auto second = process(1, 2);
  ASSERT_TRUE(first->step_when_up(3, 64));
  second->get_stuck();  // its link says "alive" all the while
  const auto failed = first->step(3, 64);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("took no part in a round for 2 s"));
  EXPECT_THAT(failed.error().message(), HasSubstr("data-parallel ranks 2 to 3"));
  second->stuck = false;
  EXPECT_TRUE(first->step_when_up(3, 64));
}

TEST_F(ClusterTest, DifferentStepsAreNoticed) {
  auto first = process(0, 2);
  auto second = process(1, 2);
  ASSERT_TRUE(first->step_when_up(3, 64));
  second->rounds_of_others = 2;
  // Two rounds are answered; the third never is, but for the first of the next step.
  EXPECT_FALSE(first->step(3, 64));
  second->rounds_of_others = 3;
  EXPECT_TRUE(first->step_when_up(3, 64));
}

TEST_F(ClusterTest, TheFirstProcessMayBeRestartedToo) {
  auto first = process(0, 2);
  auto second = process(1, 2);
  ASSERT_TRUE(second->step_when_up(3, 64));
  first.reset();
  Result<void> failed;
  wait_until([&] { return !(failed = second->step(3, 64)); });
  // As the process that all meet at, or as one of those that run steps: whichever link is found broken first.
  EXPECT_THAT(failed.error().message(), AnyOf(HasSubstr("first process"), HasSubstr("data-parallel ranks 0 to 1")));
  first = process(0, 2);
  const auto again = second->step_when_up(3, 64);
  EXPECT_TRUE(again) << again.error().message();
}

TEST_F(ClusterTest, WhoProvesAnotherThingIsToldAndTheOthersGoOn) {
  test::Authority authority("comm-refusing-ca");
  test::Authority other("comm-other-ca");
  const Credentials member = by_certificate(authority.sign("comm-refusing"), authority.file());
  struct Case {
    Credentials first, stranger;
    const char* why;
  };
  for (const Case& one : std::vector<Case>{
           {by_secret("sesame"), by_secret("other"), "it refuses this side's secret"},
           {by_secret("sesame"), nullptr, "it speaks TLS, and this side does not"},
           {nullptr, by_secret("sesame"), "it does not speak TLS, and this side does"},
           {member, nullptr, "it speaks TLS, and this side does not"},
           {nullptr, member, "it does not speak TLS, and this side does"},
           {member, by_secret("sesame"), "it has certificates and this side a secret"},
           {member, by_certificate(other.sign("comm-stranger"), authority.file()), "refuses this side's certificate"},
           {member, by_certificate(authority.sign("comm-expired", -10), authority.file()), "certificate expired"},
           {member, by_certificate(authority.sign("comm-trusting"), other.file()), "its certificate is refused"}}) {
    SCOPED_TRACE(one.why);
    credentials_ = one.first;
    auto first = process(0, 2);
    ClusterOptions stranger = options(1, 2);
    stranger.tls = one.stranger;
    auto cluster = std::move(*Cluster::start(stranger));
    const auto refused = cluster->wait_for_all();
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr(one.why));
    EXPECT_THAT(refused.error().message(), HasSubstr("127.0.0.1:" + std::to_string(port_)));
    EXPECT_EQ(refused.error().scope(), Scope::kProcess);
    cluster.reset();
    auto second = process(1, 2);
    EXPECT_TRUE(first->step_when_up(3, 64));
  }
}

TEST_F(ClusterTest, AnotherModelIsRefused) {
  auto first = process(0, 2);
  ClusterOptions other = options(1, 2);
  other.properties = {{"model", "b"}};
  auto cluster = std::move(*Cluster::start(other));
  const auto mismatch = cluster->wait_for_all();
  ASSERT_FALSE(mismatch);
  EXPECT_THAT(mismatch.error().message(), HasSubstr("model is b there and a in the first process"));
  EXPECT_FALSE(cluster->failure().ok());
}

TEST_F(ClusterTest, WaitsAtMostAsLongAsItWasTold) {
  ClusterOptions alone = options(1, 2);
  alone.start_timeout = 300ms;
  auto cluster = std::move(*Cluster::start(alone));
  const auto late = cluster->wait_for_all();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.error().message(), HasSubstr("the first process at 127.0.0.1"));
}

TEST_F(ClusterTest, AProcessThatSaysNothingIsTakenForDead) {
  auto first = process(0, 2);
  const auto deadline = std::chrono::steady_clock::now() + 1s;
  auto second = connect_peer("127.0.0.1", port_, credentials_, deadline);
  ASSERT_TRUE(second);
  ASSERT_TRUE(send_message(*second, Hello{4, {2, 2, "127.0.0.1", 1, ""}, {{"model", "a"}}}, deadline));
  wait_until([&] { return first->cluster().complete().message().find("to load") != std::string::npos; });
  const auto begun = std::chrono::steady_clock::now();
  wait_until([&] {
    return first->cluster().complete().message().find("ranks 2 to 3 at") != std::string::npos &&
           first->cluster().complete().message().find("to join") != std::string::npos;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 3s);
}

TEST_P(ClusterWays, StrangersOnThePortDisturbNobody) {
  auto first = process(0, 2);
  std::vector<Socket> strangers;
  for (int i = 0; i < 20; ++i) {
    auto socket = connect_tcp("127.0.0.1", port_, std::chrono::steady_clock::now() + 1s);
    ASSERT_TRUE(socket);
    // Silent, of another protocol, or stopped in the middle of a TLS handshake.
    const std::string text = i % 3 == 0   ? std::string()
                             : i % 3 == 1 ? std::string(200, 'x')
                                          : std::string("\x16\x03\x01", 3);
    (void)send(socket->fd(), text.data(), text.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(*socket));
  }
  auto second = process(1, 2);
  EXPECT_TRUE(first->step_when_up(3, 64));
}

TEST(PrivateHosts, AreThoseThatTheInternetDoesNotReach) {
  for (const char* host : {"127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "192.0.0.3", "169.254.1.1", "::1",
                           "fe80::1%eth0", "fd00::1"})
    EXPECT_TRUE(is_private_host(host)) << host;
  for (const char* host : {"8.8.8.8", "172.32.0.1", "192.0.1.1", "2001:db8::1", "nonsense", ""})
    EXPECT_FALSE(is_private_host(host)) << host;
}

}  // namespace
}  // namespace tandem::comm
