// SPDX-License-Identifier: Apache-2.0
#include "comm/cluster.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "comm/acceptor.h"
#include "comm/member.h"
#include "comm/stream.h"
#include "comm/tcp_group.h"

namespace tandem::comm {
namespace {

using namespace std::chrono_literals;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  TANDEM_ASSERT(RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof number) == 1,
                "the system gives random bytes");
  return number;
}

class ClusterImpl final : public Cluster {
 public:
  ClusterImpl(ClusterOptions options, Socket listener) : options_(std::move(options)) {
    if (first()) {
      Assembly::Options assembly;
      assembly.total_ranks = options_.total_ranks;
      assembly.properties = options_.properties;
      assembly.links = options_.links;
      // The upper half, so that epochs never become 0, which means "none".
      assembly.first_epoch = (random_number() >> 1) | 1;
      coordinator_.emplace(std::move(assembly), options_.times,
                           options_.changed ? options_.changed : std::function<void()>([] {}));
    }
    acceptor_.emplace(std::move(listener), options_.tls,
                      [this](Channel channel, const Message& message, const std::stop_token& stop) {
                        on_connection(std::move(channel), message, stop);
                      });
    MemberOptions member;
    member.address = options_.address;
    member.port = first() ? acceptor_->port() : options_.port;
    member.hello.total_ranks = options_.total_ranks;
    member.hello.process = {options_.first_rank, options_.num_ranks, options_.host, acceptor_->port(),
                            options_.details};
    member.hello.properties = options_.properties;
    member.credentials = options_.tls;
    member.times = options_.times;
    member.start_timeout = options_.start_timeout;
    member_.emplace(std::move(member));
    group_.emplace(*member_, inbox_, options_.tls, options_.round_timeout);
  }

  Result<std::vector<ProcessInfo>> wait_for_all() override {
    TANDEM_ASSIGN(auto all, member_->wait_for_roster());
    const auto own = std::find_if(all.begin(), all.end(),
                                  [&](const ProcessInfo& one) { return one.first_rank == options_.first_rank; });
    TANDEM_ASSERT(own != all.end(), "who was let in is in the roster");
    group_->place(static_cast<int>(own - all.begin()), static_cast<int>(all.size()));
    return all;
  }

  Result<void> enter() override {
    const TimePoint deadline = std::chrono::steady_clock::now() + options_.start_timeout;
    while (true) {
      TANDEM_TRY(member_->wait_until_formed());
      (void)group_->wait_for_others(0ms);  // links up
      const Result<void> step = group_->start_step();
      if (step) return {};
      if (std::chrono::steady_clock::now() >= deadline) return step.error().with_scope(Scope::kProcess);
    }
  }

  void loaded() override { member_->ready(); }
  void serving() override { member_->serving(); }
  void stop() override { member_->stop(); }
  Group& group() override { return *group_; }
  Status failure() const override { return member_->failure(); }

  std::vector<Process> processes() const override {
    TANDEM_ASSERT(coordinator_, "asked in the first process");
    std::vector<Process> processes;
    for (const Assembly::Seat& seat : coordinator_->seats())
      processes.push_back({seat.process, seat.link.has_value(), seat.serving});
    return processes;
  }

  Status complete() const override {
    TANDEM_ASSERT(coordinator_, "asked in the first process");
    if (coordinator_->up()) return {};
    return Status(Code::kUnavailable,
                  fmt::format("the instance is not complete: waiting for {}", coordinator_->waiting_for()),
                  Scope::kPeer);
  }

 private:
  bool first() const { return options_.first_rank == 0; }

  void on_connection(Channel channel, const Message& message, const std::stop_token& stop) {
    if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && coordinator_)
      coordinator_->serve(std::move(channel), *hello, stop);
    else if (const auto* link = std::get_if<LinkHello>(&message))
      inbox_.put(*link, std::move(channel));
    else
      log::warning("a process of the instance connected to the wrong one; check --data-parallel-address");
  }

  const ClusterOptions options_;
  LinkInbox inbox_;
  std::optional<Coordinator> coordinator_;  ///< first process only
  std::optional<Acceptor> acceptor_;
  std::optional<Member> member_;
  std::optional<TcpGroup> group_;
};

/// The first process must have the port that the others were told. They take the same one, so that a firewall has one
/// rule for all hosts, and any other if it is in use or the first process, perhaps not yet started, is on this host.
Result<Socket> open_port(const ClusterOptions& options) {
  const std::string purpose = "the other processes of the instance";
  if (options.first_rank == 0) {
    // A host's name may mean a loopback address on the host itself, so then any address will do.
    const std::string host = is_numeric_host(options.address) ? options.address : std::string();
    auto listener = listen_tcp(host, options.port, purpose);
    if (!listener) return listener.error().context("--data-parallel-address, --data-parallel-rpc-port");
    return listener;
  }
  const bool same_host = listen_tcp(options.address, 0, purpose).has_value();
  auto listener = listen_tcp(options.host, same_host ? 0 : options.port, purpose);
  if (!listener && listener.error().code() == Code::kAlreadyExists) listener = listen_tcp(options.host, 0, purpose);
  return listener;
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::start(ClusterOptions options) {
  TANDEM_ASSIGN(Socket listener, open_port(options));
  return std::unique_ptr<Cluster>(std::make_unique<ClusterImpl>(std::move(options), std::move(listener)));
}

}  // namespace tandem::comm
