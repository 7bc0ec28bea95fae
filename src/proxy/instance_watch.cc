// SPDX-License-Identifier: Apache-2.0
#include "proxy/instance_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "proxy/forwarding.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr std::size_t kMostInfoBytes = 64U << 10;
constexpr std::size_t kMostModelsBytes = 4U << 20;
constexpr std::chrono::milliseconds kFirstLooks{1500};
constexpr std::chrono::seconds kBreath{1};

TimePoint now() { return std::chrono::steady_clock::now(); }

/// Foreign instances log each 404, so they are left alone while they have nothing to do.
int breaths_between_looks(const Instance& instance) {
  if (instance.silent || instance.look_again) return 1;
  if (instance.is_tandem) return 2;
  return instance.active_tokens > 0 ? 10 : 60;
}

net::ClientTimeouts look_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.connect = std::chrono::seconds(1);
  timeouts.head = timeouts.idle = timeouts.total = std::chrono::seconds(3);
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
  info.kv_connector = connector.value_or("");
  info.kv_role = role.value_or("");
  info.is_proxy = proxy.value_or(false);
  return info;
}

std::vector<std::string> served_models(std::string_view body) {
  std::vector<std::string> names;
  const auto value = parse_json(body);
  const auto* data = value && value->is_object() ? value->as_object().if_contains("data") : nullptr;
  if (data == nullptr || !data->is_array()) return names;
  for (const auto& model : data->as_array()) {
    const auto* id = model.is_object() ? model.as_object().if_contains("id") : nullptr;
    if (id != nullptr && id->is_string()) names.emplace_back(id->as_string());
  }
  return names;
}

Connector InstanceInfo::connector() const {
  return kv_connector == "MooncakeLayerwiseConnector" ? Connector::kLayerwise : Connector::kPull;
}

std::string InstanceInfo::misfit(Role role, std::optional<Connector> wanted) const {
  if (is_proxy) return "is a proxy, no instance; look at the ports that this proxy was given";
  if (role == Role::kPrefill && kv_role == "kv_consumer")
    return "has kv_role kv_consumer, so it cannot hand KV over; were prefillers and decoders swapped?";
  if (role == Role::kDecode && kv_role == "kv_producer")
    return "has kv_role kv_producer, so it cannot take KV over; were prefillers and decoders swapped?";
  if (wanted && connector() != *wanted) {
    return fmt::format("runs {}, but this proxy has --connector {}; --connector auto takes it as it is",
                       kv_connector.empty() ? "without --kv-transfer-config" : kv_connector, connector_name(*wanted));
  }
  return "";
}

InstanceWatch::InstanceWatch(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                             const InstanceBoard& board)
    : executor_(executor), config_(config), board_(board), first_looks_(executor) {}

void InstanceWatch::start() {
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
  ++num_watched_;
  boost::asio::co_spawn(executor_, watch(std::move(instance), false), boost::asio::detached);
}

net::Task<void> InstanceWatch::ready() {
  if (num_unasked_ > 0 && std::chrono::steady_clock::now() < ready_at_) co_await first_looks_.async_wait(kAwait);
}

net::Task<void> InstanceWatch::look(std::shared_ptr<Instance> instance) {
  net::ClientRequest request("GET", "/tandem/info");
  auto answer = co_await instance->client->send(std::move(request), look_timeouts(), stopped_);
  if (!answer) {
    if (answer.error().scope() == Scope::kProcess) co_return;  // that is our own lack
    fell_silent(*instance, answer.error().message());
    co_return;
  }
  const int status = (*answer)->status();
  auto body = co_await (*answer)->read_all(kMostInfoBytes);
  if (!body || status >= 500) {
    fell_silent(*instance, body ? fmt::format("status {} of GET /tandem/info", status) : body.error().message());
    co_return;
  }
  if (instance->silent) InstanceBoard::succeeded(*instance);
  InstanceInfo info;
  instance->is_tandem = status == 200;
  if (status == 200) {
    auto found = InstanceInfo::parse(*body);
    instance->is_tandem = found.has_value();
    if (found) info = std::move(*found);
  }
  learn(*instance, info);
  // It may be another process than the last time.
  if (std::exchange(instance->look_again, false) && instance->misfit.empty()) co_await ask_models(instance);
}

net::Task<void> InstanceWatch::ask_models(std::shared_ptr<Instance> instance) {
  net::ClientRequest request("GET", "/v1/models");
  request.headers = backend_headers(net::Headers(), make_uuid(), config_);
  auto answer = co_await instance->client->send(std::move(request), look_timeouts(), stopped_);
  if (!answer || (*answer)->status() != 200) co_return;  // it may want a key that only clients have
  auto body = co_await (*answer)->read_all(kMostModelsBytes);
  if (!body) co_return;
  instance->models = served_models(*body);
  const auto serves_another = [&](const std::shared_ptr<Instance>& other) {
    const auto& names = other->models;
    return other != instance && !names.empty() && !instance->models.empty() &&
           std::find_first_of(names.begin(), names.end(), instance->models.begin(), instance->models.end()) ==
               names.end();
  };
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const auto& all = board_.of(role);
    const auto other = std::find_if(all.begin(), all.end(), serves_another);
    if (other == all.end()) continue;
    log::warning("{} serves {}, but {} serves {}: requests for the one will fail at the other", title(*instance),
                 fmt::join(instance->models, ", "), title(**other), fmt::join((*other)->models, ", "));
    co_return;
  }
}

void InstanceWatch::fell_silent(Instance& instance, std::string_view problem) {
  if (stopped_.cancelled()) return;
  if (!std::exchange(instance.silent, true)) {
    log::warning(
        "{}; it gets no requests while others answer, and is asked again until it does, a second after each try",
        with_problem(instance, problem));
  }
  InstanceBoard::publish_up(instance, now());
}

void InstanceWatch::learn(Instance& instance, const InstanceInfo& info) {
  const auto fixed = board_.fixed_connector();
  const std::string why = instance.is_tandem ? info.misfit(instance.role, fixed) : "";
  const std::string misfit = why.empty() ? "" : fmt::format("{} {}", title(instance), why);
  if (instance.misfit != misfit) {
    if (!misfit.empty()) log::error("no requests for it: {}", misfit);
    instance.misfit = misfit;
  }
  InstanceBoard::publish_up(instance, now());
  if (!fixed && instance.connector != info.connector()) {
    instance.connector = info.connector();
    log::info("{}{}: {}", title(instance), instance.is_tandem ? "" : " (no /tandem/info)",
              connector_name(info.connector()));
  }
  const bool alone = instance.is_tandem && info.kv_role.empty() && misfit.empty();
  if (alone && !instance.alone)
    log::warning("{} has no --kv-transfer-config: decoders compute every prompt themselves", title(instance));
  instance.alone = alone;
}

net::Task<void> InstanceWatch::watch(std::shared_ptr<Instance> instance, bool first) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(executor_);
  const auto hook = stopped_.on_cancel([timer] { timer->cancel(); });
  const auto goes_on = [&] { return !stopped_.cancelled() && instance->listed; };
  do {
    co_await look(instance);
    if (first && --num_unasked_ == 0) first_looks_.cancel();
    first = false;
    for (int breath = 0; breath < breaths_between_looks(*instance) && goes_on(); ++breath) {
      timer->expires_after(kBreath);
      co_await timer->async_wait(kAwait);
      InstanceBoard::publish_up(*instance, now());  // a pause after failures may be over
    }
  } while (goes_on());
  --num_watched_;
}

}  // namespace tandem::proxy
