// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/log.h"

namespace tandem::proxy {
namespace {

constexpr double kMillion = 1e6;

// 9.3: prefill score = bytes / 4 * 0.0345 + 120.0745; decode score = bytes. In millionths.
std::int64_t prefill_score(std::size_t bytes) { return static_cast<std::int64_t>(bytes) * 8'625 + 120'074'500; }
std::int64_t decode_score(std::size_t bytes) { return static_cast<std::int64_t>(bytes) * 1'000'000; }

std::optional<Connector> connector_of(config::ProxyConnector option) {
  if (option == config::ProxyConnector::kPull) return Connector::kPull;
  if (option == config::ProxyConnector::kLayerwise) return Connector::kLayerwise;
  return std::nullopt;
}

/// What two names of one instance have in common.
std::string key_of(std::string_view name) {
  constexpr std::string_view kLocal = "localhost:";
  std::string key(name);
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return key.starts_with(kLocal) ? "127.0.0.1:" + key.substr(kLocal.size()) : key;
}

struct IsCalled {
  Role role;
  std::string_view name;
  bool operator()(const std::shared_ptr<Instance>& each) const {
    return each->role == role && key_of(each->name) == key_of(name);
  }
};

}  // namespace

std::string_view role_name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

std::string_view connector_name(Connector connector) {
  return connector == Connector::kLayerwise ? "layerwise" : "pull";
}

std::string title(const Instance& instance) {
  return fmt::format("{} {}", instance.role == Role::kPrefill ? "prefiller" : "decoder", instance.name);
}

std::string with_problem(const Instance& instance, std::string_view problem) {
  if (problem.starts_with(instance.name)) problem.remove_prefix(instance.name.size());
  if (problem.starts_with(": ")) problem.remove_prefix(2);
  return fmt::format("{}: {}", title(instance), problem);
}

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
  if (!instance_->listed) return;
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
                             obs::Registry& registry, std::shared_ptr<boost::asio::ssl::context> tls)
    : executor_(executor), registry_(registry), tls_(std::move(tls)), connector_(connector_of(config.connector)) {
  const auto add_all = [this](Role role, const std::vector<config::Backend>& backends) {
    for (const auto& backend : backends) {
      net::Endpoint endpoint(backend.host, backend.port);
      endpoint.tls = backend.tls;
      auto instance = make(role, endpoint);
      if (const auto same = find(role, instance->name))
        log::warning("{} is given twice, also as {}; it is used once", title(*instance), same->name);
      else
        add(std::move(instance));
    }
  };
  add_all(Role::kPrefill, config.prefillers);
  add_all(Role::kDecode, config.decoders);
}

std::shared_ptr<Instance> InstanceBoard::make(Role role, const net::Endpoint& endpoint) {
  auto instance = std::make_shared<Instance>();
  instance->role = role;
  instance->ordinal = next_ordinal_++;
  instance->name = endpoint.to_string();
  instance->client = net::HttpClient::create(executor_, endpoint, net::ClientLimits(), tls_);
  instance->connector = connector_;
  return instance;
}

void InstanceBoard::make_series(Instance& instance) {
  const obs::Labels labels = {{"role", std::string(role_name(instance.role))}, {"instance", instance.name}};
  instance.tokens_gauge = registry_.gauge("tandem:proxy_active_tokens_score",
                                          "Load score of requests that an instance computes now.", labels);
  if (instance.role == Role::kPrefill) {
    instance.kv_gauge = registry_.gauge("tandem:proxy_active_kv_score",
                                        "Load score of requests whose KV an instance still holds.", labels);
  }
  instance.up_gauge = registry_.gauge(
      "tandem:proxy_instance_up", "1 if an instance answers, fits its role and did not just fail a request.", labels);
  instance.failures = registry_.counter("tandem:proxy_instance_failures_total",
                                        "Requests that an instance refused to connect, broke or answered 5xx.", labels);
}

std::shared_ptr<Instance> InstanceBoard::best(Role role, std::optional<Connector> wanted, const Tried& tried,
                                              TimePoint now) const {
  const auto rank = [&](const Instance& instance) {
    const bool alone = role == Role::kDecode && !wanted && !has_prefiller(instance);
    return std::tuple(alone, instance.silent, tried.times(instance), instance.avoid_until > now, instance.priority(),
                      instance.last_turn, instance.ordinal);
  };
  std::shared_ptr<Instance> best;
  for (const auto& instance : of(role)) {
    if (wanted && instance->connector && instance->connector != wanted) continue;
    if (tried.spent(*instance) || !instance->misfit.empty()) continue;
    if (!best || rank(*instance) < rank(*best)) best = instance;
  }
  return best;
}

bool InstanceBoard::has_prefiller(const Instance& decoder) const {
  return std::any_of(prefillers_.begin(), prefillers_.end(), [&decoder](const auto& prefiller) {
    const bool known = prefiller->connector && decoder.connector;
    return prefiller->misfit.empty() && (!known || prefiller->connector == decoder.connector);
  });
}

std::shared_ptr<Instance> InstanceBoard::choose(Role role, std::optional<Connector> wanted, Tried& tried,
                                                TimePoint now) {
  auto instance = best(role, wanted, tried, now);
  if (instance) {
    tried.count(*instance);
    instance->last_turn = ++turn_;
  }
  return instance;
}

std::string InstanceBoard::misfits(Role role) const {
  std::string text;
  for (const auto& instance : of(role)) {
    if (!instance->misfit.empty()) text += (text.empty() ? "" : "; ") + instance->misfit;
  }
  return text;
}

std::shared_ptr<Instance> InstanceBoard::find(Role role, std::string_view name) const {
  const auto& instances = of(role);
  const auto found = std::find_if(instances.begin(), instances.end(), IsCalled{role, name});
  return found == instances.end() ? nullptr : *found;
}

bool InstanceBoard::expects(const std::shared_ptr<Instance>& instance) const {
  return std::find(expected_.begin(), expected_.end(), instance) != expected_.end();
}

bool InstanceBoard::expects(Role role, std::string_view name) const {
  return std::any_of(expected_.begin(), expected_.end(), IsCalled{role, name});
}

void InstanceBoard::add(std::shared_ptr<Instance> instance) {
  auto& instances = instance->role == Role::kPrefill ? prefillers_ : decoders_;
  give_up(instance);
  make_series(*instance);
  instance->listed = true;
  publish_up(*instance, std::chrono::steady_clock::now());
  instances.push_back(std::move(instance));
}

bool InstanceBoard::remove(Role role, std::string_view name) {
  const auto instance = find(role, name);
  if (!instance) return std::erase_if(expected_, IsCalled{role, name}) > 0;
  instance->listed = false;
  obs::Registry::remove(instance->tokens_gauge);
  if (role == Role::kPrefill) obs::Registry::remove(instance->kv_gauge);
  obs::Registry::remove(instance->up_gauge);
  obs::Registry::remove(instance->failures);
  std::erase(role == Role::kPrefill ? prefillers_ : decoders_, instance);
  return true;
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
  instance.look_again = true;
  if (instance.listed) instance.failures.add();
  publish_up(instance, now);
}

void InstanceBoard::succeeded(Instance& instance) {
  if (std::exchange(instance.silent, false)) log::info("{}: answers now", title(instance));
  instance.failures_in_a_row = 0;
  instance.avoid_until = TimePoint{};
  publish_up(instance, TimePoint::max());
}

void InstanceBoard::publish_up(Instance& instance, TimePoint now) {
  const bool up = !instance.silent && instance.misfit.empty() && instance.avoid_until <= now;
  if (instance.listed) instance.up_gauge.set(up ? 1 : 0);
}

}  // namespace tandem::proxy
