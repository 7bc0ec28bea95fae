// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_watch.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>

#include "base/json.h"
#include "base/log.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostInfoBytes = 64U << 10;
constexpr std::chrono::milliseconds kFirstLooks{1500};
constexpr std::chrono::seconds kBreath{1};
constexpr int kBreathsOfOurs = 10;
constexpr int kBreathsOfOthers = 60;

net::ClientTimeouts look_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.connect = std::chrono::seconds(1);
  timeouts.head = timeouts.idle = timeouts.total = std::chrono::seconds(2);
  return timeouts;
}

}  // namespace

Result<InstanceInfo> InstanceInfo::parse(std::string_view body) {
  TANDEM_ASSIGN(const auto value, parse_json(body));
  if (!value.is_object()) return Status(Code::kInvalidArgument, "/tandem/info: expected a JSON object");
  const boost::json::object& object = value.as_object();
  TANDEM_ASSIGN(const auto connector, json_string(object, "kv_connector"));
  TANDEM_ASSIGN(const auto role, json_string(object, "kv_role"));
  TANDEM_ASSIGN(const auto proxy, json_bool(object, "proxy"));
  InstanceInfo info;
  if (connector == "MooncakeLayerwiseConnector") info.connector = Connector::kLayerwise;
  info.kv_role = role.value_or("");
  info.is_proxy = proxy.value_or(false);
  return info;
}

std::string InstanceInfo::misfit(Role role) const {
  if (is_proxy) return "is a proxy, no instance; look at the ports that this proxy was given";
  if (role == Role::kPrefill && kv_role == "kv_consumer")
    return "has kv_role kv_consumer, so it cannot hand KV over; were prefillers and decoders swapped?";
  if (role == Role::kDecode && kv_role == "kv_producer")
    return "has kv_role kv_producer, so it cannot take KV over; were prefillers and decoders swapped?";
  return "";
}

InstanceWatch::InstanceWatch(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                             InstanceBoard& board)
    : executor_(executor), config_(config), board_(board), first_looks_(executor) {}

void InstanceWatch::start() {
  if (config_.connector == config::ProxyConnector::kPull) return;
  ready_at_ = std::chrono::steady_clock::now() + kFirstLooks;
  first_looks_.expires_at(ready_at_);
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const auto& instance : board_.of(role)) {
      ++num_unasked_;
      ++num_watched_;
      boost::asio::co_spawn(executor_, watch(instance, true), boost::asio::detached);
    }
  }
}

void InstanceWatch::add(std::shared_ptr<Instance> instance) {
  if (config_.connector == config::ProxyConnector::kPull) return;
  ++num_watched_;
  boost::asio::co_spawn(executor_, watch(std::move(instance), false), boost::asio::detached);
}

net::Task<void> InstanceWatch::ready() {
  if (num_unasked_ > 0 && std::chrono::steady_clock::now() < ready_at_) co_await first_looks_.async_wait(kAwait);
}

net::Task<void> InstanceWatch::look(std::shared_ptr<Instance> instance) {
  net::ClientRequest request("GET", "/tandem/info");
  auto answer = co_await instance->client->send(std::move(request), look_timeouts(), stopped_);
  if (!answer && !stopped_.cancelled() && !instance->silent) {
    instance->silent = true;
    log::warning("{}; it is asked again every second", with_problem(*instance, answer.error().message()));
  }
  if (!answer) co_return;
  const int status = (*answer)->status();
  auto body = co_await (*answer)->read_all(kMostInfoBytes);
  if (!body || status >= 500) co_return;  // not ready: asked again
  if (instance->silent) log::info("{}: answers now", title(*instance));
  instance->silent = false;
  InstanceInfo info;
  instance->is_tandem = status == 200;
  if (status == 200) {
    auto found = InstanceInfo::parse(*body);
    instance->is_tandem = found.has_value();
    if (found) info = std::move(*found);
  }
  instance->look_again = false;
  learn(*instance, info);
}

void InstanceWatch::learn(Instance& instance, const InstanceInfo& info) {
  const std::string why = info.misfit(instance.role);
  const std::string misfit = why.empty() ? "" : fmt::format("{} {}", title(instance), why);
  if (instance.misfit != misfit) {
    if (!misfit.empty()) log::error("no requests for it: {}", misfit);
    instance.misfit = misfit;
    instance.up_gauge.set(misfit.empty() ? 1 : 0);
  }
  if (config_.connector != config::ProxyConnector::kAuto || instance.connector == info.connector) return;
  instance.connector = info.connector;
  log::info("{}{}: {}", title(instance), instance.is_tandem ? "" : " (no /tandem/info)",
            connector_name(info.connector));
  if (instance.is_tandem && info.kv_role.empty() && !info.is_proxy)
    log::warning("{} has no --kv-transfer-config: decoders compute every prompt themselves", title(instance));
}

net::Task<void> InstanceWatch::watch(std::shared_ptr<Instance> instance, bool first) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(executor_);
  const auto hook = stopped_.on_cancel([timer] { timer->cancel(); });
  while (!stopped_.cancelled() && board_.find(instance->role, instance->name) == instance) {
    co_await look(instance);
    if (first && --num_unasked_ == 0) first_looks_.cancel();
    first = false;
    const int breaths = instance->is_tandem ? kBreathsOfOurs : kBreathsOfOthers;
    for (int breath = 0; breath < breaths && !stopped_.cancelled(); ++breath) {
      timer->expires_after(kBreath);
      co_await timer->async_wait(kAwait);
      if (instance->look_again) break;
    }
  }
  --num_watched_;
}

}  // namespace tandem::proxy
