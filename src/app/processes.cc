// SPDX-License-Identifier: Apache-2.0
#include "app/processes.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>
#include <random>

#include "app/port_reservation.h"
#include "base/json.h"
#include "base/log.h"
#include "config/version.h"
#include "kernels/kernels.h"

namespace tandem::app {
namespace {

namespace json = boost::json;

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int word = 0; word < 8; ++word) token += fmt::format("{:08x}", random());
  return token;
}

/// What must be the same everywhere: what decides the numbers, and what a request's answer depends on.
std::vector<comm::Property> properties(const config::ServeConfig& config, const Processes::Options& options) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  std::vector<comm::Property> list{
      {"the version of Tandem", text(config::version())},
      {"the model (fingerprint)", options.checkpoint == nullptr ? "stub" : options.checkpoint->fingerprint()},
      {"the type of computation", text(model::compute_name(options.model.compute))},
      {"the instruction set (--isa)", text(kernels::isa_name(options.model.isa))},
      {"--tensor-parallel-size", text(config.tensor_parallel_size)},
      {"--enable-expert-parallel", text(config.expert_parallel)},
      {"--block-size", text(config.block_size)},
      {"--max-model-len", config.max_model_len ? text(*config.max_model_len) : "auto"},
      {"--served-model-name", config.served_model_names.front()},
      {"--hf-overrides", config.hf_overrides},
      {"--logprobs-mode", text(config::logprobs_mode_name(config.logprobs_mode))},
      {"--kv-cache-dtype", text(static_cast<int>(config.kv_cache_type))},
      {"kv_connector", config.kv_transfer ? config.kv_transfer->connector : "none"},
  };
  if (config.kv_transfer) list.emplace_back("kv_role", config::kv_role_name(config.kv_transfer->role));
  return list;
}

}  // namespace

std::string api_details(std::uint16_t port, const std::string& token) {
  return json::serialize(json::object{{"api_port", port}, {"token", token}});
}

Result<void> read_api_details(const std::string& details, api::OtherProcess& process) {
  TANDEM_ASSIGN(const json::value value, parse_json(details));
  if (!value.is_object()) return Status(Code::kInvalidArgument, "expected a JSON object");
  const json::object& object = value.as_object();
  TANDEM_ASSIGN(const auto port, json_int(object, "api_port"));
  TANDEM_ASSIGN(const auto token, json_string(object, "token"));
  if (!port || *port < 1 || *port > std::numeric_limits<std::uint16_t>::max() || !token)
    return Status(Code::kInvalidArgument, "expected api_port and token");
  process.endpoint.port = static_cast<std::uint16_t>(*port);
  process.token = *token;
  return {};
}

Result<std::unique_ptr<Processes>> Processes::start(const config::ServeConfig& config, const Options& options) {
  const config::DataParallel& data = config.data_parallel;
  std::unique_ptr<Processes> processes(new Processes());
  processes->total_ranks_ = data.size;
  processes->tensor_parallel_ = config.tensor_parallel_size;
  processes->together_ =
      config.expert_parallel && options.checkpoint != nullptr && options.checkpoint->config().num_experts > 0;
  processes->token_ = random_token();
  comm::ClusterOptions cluster;
  cluster.address = data.address;
  cluster.port = data.rpc_port;
  cluster.host = config.advertised_host;
  if (data.start_rank == 0 && cluster.host.empty()) cluster.host = data.address;
  cluster.first_rank = data.start_rank;
  cluster.num_ranks = data.local;
  cluster.total_ranks = data.size;
  cluster.properties = properties(config, options);
  cluster.details = api_details(options.http_port, processes->token_);
  cluster.links = processes->together_;
  cluster.tls = options.tls;
  cluster.start_timeout = data.start_timeout;
  cluster.changed = options.changed;
  if (!cluster.tls && !is_loopback(data.address))
    log::warning(
        "neither TANDEM_CLUSTER_SECRET nor --peer-certfile is given: whoever reaches port {} from a private network "
        "could join this instance",
        data.rpc_port);
  TANDEM_ASSIGN(processes->cluster_, comm::Cluster::start(std::move(cluster)));
  return processes;
}

Result<model::ExpertPlacement> Processes::wait_for_all() {
  TANDEM_ASSIGN(const auto all, cluster_->wait_for_all());
  model::ExpertPlacement placement;
  if (!together_) return placement;
  placement.num_ranks = total_ranks_ * tensor_parallel_;
  placement.group = &cluster_->group();
  for (const comm::ProcessInfo& process : all) placement.first_rank.push_back(process.first_rank * tensor_parallel_);
  placement.first_rank.push_back(placement.num_ranks);
  return placement;
}

api::InstanceView Processes::view() const {
  api::InstanceView view;
  if (together_ || !all_served_) view.incomplete = cluster_->complete();
  bool all_serve = true;
  for (const comm::Cluster::Process& process : cluster_->processes()) {
    if (process.info.first_rank == 0) continue;
    api::OtherProcess other;
    other.name = comm::describe(process.info);
    other.first_rank = process.info.first_rank;
    other.num_ranks = process.info.num_ranks;
    other.endpoint.host = process.info.host;
    other.serving = process.present && process.serving && read_api_details(process.info.details, other).has_value();
    if (!other.serving) all_serve = false;
    if (view.incomplete.ok() && !other.serving && (together_ || !all_served_))
      view.incomplete = Status(Code::kUnavailable, other.name + " does not answer requests yet", Scope::kPeer);
    view.others.push_back(std::move(other));
  }
  if (all_serve && view.incomplete.ok()) all_served_ = true;
  return view;
}

}  // namespace tandem::app
