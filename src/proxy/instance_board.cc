// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_board.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tandem::proxy {
namespace {

constexpr double kMillion = 1e6;

// 9.3: prefill score = bytes / 4 * 0.0345 + 120.0745; decode score = bytes. In millionths.
std::int64_t prefill_score(std::size_t bytes) { return static_cast<std::int64_t>(bytes) * 8'625 + 120'074'500; }
std::int64_t decode_score(std::size_t bytes) { return static_cast<std::int64_t>(bytes) * 1'000'000; }

std::vector<std::shared_ptr<Instance>> make_instances(Role role, const std::vector<config::Backend>& backends,
                                                      const boost::asio::any_io_executor& executor,
                                                      obs::Registry& registry) {
  std::vector<std::shared_ptr<Instance>> instances;
  for (std::size_t i = 0; i < backends.size(); ++i) {
    auto instance = std::make_shared<Instance>();
    const net::Endpoint endpoint(backends[i].host, backends[i].port);
    instance->role = role;
    instance->index = i;
    instance->name = endpoint.to_string();
    instance->client = net::HttpClient::create(executor, endpoint, net::ClientLimits());
    const obs::Labels labels = {{"role", std::string(role_name(role))}, {"instance", instance->name}};
    instance->tokens_gauge = registry.gauge("tandem:proxy_active_tokens_score",
                                            "Load score of requests that an instance computes now.", labels);
    if (role == Role::kPrefill) {
      instance->kv_gauge = registry.gauge("tandem:proxy_active_kv_score",
                                          "Load score of requests whose KV an instance still holds.", labels);
    }
    instance->up_gauge = registry.gauge("tandem:proxy_instance_up",
                                        "1 if the last contact with an instance went well, 0 if it failed.", labels);
    instance->up_gauge.set(1);
    instance->failures =
        registry.counter("tandem:proxy_instance_failures_total",
                         "Requests that an instance refused to connect, broke or answered 5xx.", labels);
    instances.push_back(std::move(instance));
  }
  return instances;
}

}  // namespace

std::string_view role_name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

LoadShare::LoadShare(std::shared_ptr<Instance> instance, std::int64_t tokens, std::int64_t kv)
    : instance_(std::move(instance)), tokens_(tokens), kv_(kv) {
  instance_->active_tokens += tokens_;
  instance_->active_kv += kv_;
  publish();
}

void LoadShare::swap(LoadShare& other) noexcept {
  std::swap(instance_, other.instance_);
  std::swap(tokens_, other.tokens_);
  std::swap(kv_, other.kv_);
}

void LoadShare::publish() const {
  instance_->tokens_gauge.set(static_cast<double>(instance_->active_tokens) / kMillion);
  if (instance_->role == Role::kPrefill) {
    instance_->kv_gauge.set(static_cast<double>(instance_->active_kv) / kMillion);
  }
}

void LoadShare::release_tokens() {
  if (tokens_ == 0) return;
  instance_->active_tokens -= std::exchange(tokens_, 0);
  publish();
}

void LoadShare::release_kv() {
  if (kv_ == 0) return;
  instance_->active_kv -= std::exchange(kv_, 0);
  publish();
}

InstanceBoard::InstanceBoard(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                             obs::Registry& registry)
    : prefillers_(make_instances(Role::kPrefill, config.prefillers, executor, registry)),
      decoders_(make_instances(Role::kDecode, config.decoders, executor, registry)) {}

std::shared_ptr<Instance> InstanceBoard::choose(Role role, Tried& tried, TimePoint now) const {
  const auto& instances = of(role);
  tried.resize(instances.size());
  const auto rank = [&](const std::shared_ptr<Instance>& instance) {
    const bool avoid = instance->avoid_until > now;
    return std::tuple(tried[instance->index], avoid, instance->priority(), instance->index);
  };
  const auto best = std::min_element(instances.begin(), instances.end(),
                                     [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  if (best == instances.end()) return nullptr;
  ++tried[(*best)->index];
  return *best;
}

LoadShare InstanceBoard::take_prefill(const std::shared_ptr<Instance>& instance, std::size_t body_bytes) {
  return {instance, prefill_score(body_bytes), prefill_score(body_bytes)};
}

LoadShare InstanceBoard::take_decode(const std::shared_ptr<Instance>& instance, std::size_t body_bytes) {
  return {instance, decode_score(body_bytes), 0};
}

void InstanceBoard::failed(Instance& instance, TimePoint now) {
  constexpr int kMostDoublings = 5;
  const auto pause = std::chrono::seconds(1 << std::min(instance.failures_in_a_row, kMostDoublings));
  instance.avoid_until = now + std::min<Duration>(pause, std::chrono::seconds(30));
  ++instance.failures_in_a_row;
  instance.failures.add();
  instance.up_gauge.set(0);
}

void InstanceBoard::succeeded(Instance& instance) {
  instance.failures_in_a_row = 0;
  instance.avoid_until = TimePoint{};
  instance.up_gauge.set(1);
}

}  // namespace tandem::proxy
