// SPDX-License-Identifier: Apache-2.0
#include "cluster/deployment.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <set>

namespace tandem::cluster {
namespace {

/// An instance before its ports and flags are settled.
struct InstanceRequest {
  std::string name;
  Role role = Role::kPrefill;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;     ///< 0: to be chosen
  std::uint16_t kv_port = 0;  ///< 0: to be chosen
  std::string model;
  std::string engine_id;  ///< empty: the name
  std::vector<std::string> flags;
  std::map<std::string, std::string> environment;
};

struct DeploymentRequest {
  std::string proxy_host;
  std::uint16_t proxy_port = 0;
  std::vector<std::string> proxy_flags;
  config::KvConnector connector = config::KvConnector::kPull;
  std::optional<NodeNetworkSpec> network;
  std::vector<InstanceRequest> instances;
};

bool has_flag(const std::vector<std::string>& flags, std::string_view name) {
  return std::any_of(flags.begin(), flags.end(), [&](const std::string& flag) {
    std::string plain = flag.substr(0, flag.find('='));
    std::replace(plain.begin(), plain.end(), '_', '-');
    return plain == name;
  });
}

Status yaml_error(const std::string& file, std::string_view what) {
  return Status(Code::kInvalidArgument, fmt::format("{}: {}", file, what));
}

Result<void> check_keys(const std::string& file, const YAML::Node& node, std::string_view where,
                        const std::set<std::string>& known) {
  if (!node.IsMap()) return yaml_error(file, fmt::format("{} must be a mapping", where));
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (!known.contains(key))
      return yaml_error(file, fmt::format("unknown key '{}' in {}; known are {}", key, where, fmt::join(known, ", ")));
  }
  return {};
}

/// Reads node[key] into `out` if it is there; yaml-cpp throws on a wrong type, which the caller turns into a Status.
template <class T>
void read(const YAML::Node& node, const char* key, T& out) {
  if (node[key]) out = node[key].template as<T>();
}

Result<Role> parse_role(const std::string& file, const std::string& text, std::string_view where) {
  if (text == "prefill") return Role::kPrefill;
  if (text == "decode") return Role::kDecode;
  return yaml_error(file, fmt::format("role of {} is '{}', expected prefill or decode", where, text));
}

Result<InstanceRequest> parse_instance(const std::string& file, const YAML::Node& node, std::size_t index) {
  const std::string where = fmt::format("instances[{}]", index);
  TANDEM_TRY(check_keys(file, node, where,
                        {"name", "role", "host", "port", "kv_port", "model", "engine_id", "flags", "environment"}));
  InstanceRequest instance;
  std::string role;
  read(node, "role", role);
  TANDEM_ASSIGN(instance.role, parse_role(file, role, where));
  read(node, "name", instance.name);
  read(node, "host", instance.host);
  read(node, "port", instance.port);
  read(node, "kv_port", instance.kv_port);
  read(node, "model", instance.model);
  read(node, "engine_id", instance.engine_id);
  read(node, "flags", instance.flags);
  read(node, "environment", instance.environment);
  return instance;
}

Result<config::KvConnector> parse_connector(const std::string& file, const std::string& text) {
  if (text == "pull") return config::KvConnector::kPull;
  if (text == "layerwise") return config::KvConnector::kLayerwise;
  return yaml_error(file, fmt::format("connector is '{}', expected pull or layerwise", text));
}

/// The `network` of the file; its hosts come from the instances.
Result<NodeNetworkSpec> parse_network(const std::string& file, const YAML::Node& node,
                                      const std::vector<InstanceRequest>& instances) {
  TANDEM_TRY(check_keys(file, node, "network", {"address"}));
  std::string address;
  read(node, "address", address);
  std::vector<std::string> hosts;
  for (const InstanceRequest& instance : instances) {
    if (instance.port == 0 || instance.kv_port == 0)
      return yaml_error(file, fmt::format("with a network every instance needs port and kv_port; {} ({}) lacks one",
                                          instance.name, instance.host));
    if (std::find(hosts.begin(), hosts.end(), instance.host) == hosts.end()) hosts.push_back(instance.host);
  }
  auto spec = parse_node_network(address, std::move(hosts));
  if (!spec) return yaml_error(file, "network: " + spec.error().message());
  return spec;
}

Result<DeploymentRequest> parse_file(const config::UpConfig& config) {
  const std::string& file = config.deployment_file;
  try {
    const YAML::Node root = YAML::LoadFile(file);
    TANDEM_TRY(
        check_keys(file, root, "the file", {"model", "serve_flags", "connector", "network", "proxy", "instances"}));
    DeploymentRequest request;
    request.proxy_host = config.host;
    request.proxy_port = config.port;
    if (root["connector"]) {
      TANDEM_ASSIGN(request.connector, parse_connector(file, root["connector"].as<std::string>()));
    }
    std::string model = config.model;
    if (model.empty()) read(root, "model", model);
    std::vector<std::string> serve_flags;
    read(root, "serve_flags", serve_flags);
    if (const YAML::Node proxy = root["proxy"]) {
      TANDEM_TRY(check_keys(file, proxy, "proxy", {"host", "port", "flags"}));
      read(proxy, "host", request.proxy_host);
      read(proxy, "port", request.proxy_port);
      read(proxy, "flags", request.proxy_flags);
    }
    const YAML::Node instances = root["instances"];
    if (!instances || !instances.IsSequence() || instances.size() == 0)
      return yaml_error(file, "'instances' must be a list of at least one prefill and one decode instance");
    for (std::size_t i = 0; i < instances.size(); ++i) {
      TANDEM_ASSIGN(InstanceRequest instance, parse_instance(file, instances[i], i));
      if (instance.model.empty()) instance.model = model;
      if (instance.model.empty())
        return yaml_error(file,
                          fmt::format("instances[{}] has no model: give 'model' here, at the top, or --model", i));
      // What the command line says comes last and wins.
      instance.flags.insert(instance.flags.begin(), serve_flags.begin(), serve_flags.end());
      instance.flags.insert(instance.flags.end(), config.serve_flags.begin(), config.serve_flags.end());
      request.instances.push_back(std::move(instance));
    }
    if (root["network"]) {
      TANDEM_ASSIGN(request.network, parse_network(file, root["network"], request.instances));
    }
    return request;
  } catch (const YAML::BadFile&) {
    return Status(Code::kNotFound, fmt::format("cannot open the deployment file {}", file));
  } catch (const YAML::Exception& error) {
    return yaml_error(file, fmt::format("line {}: {}", error.mark.line + 1, error.msg));
  }
}

Result<DeploymentRequest> request_from_flags(const config::UpConfig& config) {
  if (config.model.empty())
    return Status(Code::kInvalidArgument, "no model: give --model PATH, or a deployment file that names one");
  DeploymentRequest request;
  request.proxy_host = config.host;
  request.proxy_port = config.port;
  auto add = [&](Role role, int count) {
    for (int i = 0; i < count; ++i) {
      InstanceRequest instance;
      instance.role = role;
      instance.model = config.model;
      instance.flags = config.serve_flags;
      request.instances.push_back(std::move(instance));
    }
  };
  add(Role::kPrefill, config.prefill);
  add(Role::kDecode, config.decode);
  return request;
}

bool is_node(const InstanceRequest& instance) { return has_flag(instance.flags, "--headless"); }

Result<void> name_instances(std::vector<InstanceRequest>& instances) {
  int prefillers = 0;
  int decoders = 0;
  std::set<std::string> names{"proxy"};
  for (InstanceRequest& instance : instances) {
    const int number = instance.role == Role::kPrefill ? ++prefillers : ++decoders;
    if (instance.name.empty()) instance.name = fmt::format("{}{}", instance.role == Role::kPrefill ? "P" : "D", number);
    if (!names.insert(instance.name).second)
      return Status(Code::kInvalidArgument,
                    fmt::format("two processes are named '{}'; names must differ", instance.name));
    if (instance.engine_id.empty()) instance.engine_id = instance.name;
  }
  const auto instances_of = [&](Role role) {
    return std::count_if(instances.begin(), instances.end(),
                         [&](const InstanceRequest& one) { return one.role == role && !is_node(one); });
  };
  if (instances_of(Role::kPrefill) == 0 || instances_of(Role::kDecode) == 0)
    return Status(Code::kInvalidArgument,
                  fmt::format("a deployment needs at least one prefill and one decode instance, found {} and {}",
                              instances_of(Role::kPrefill), instances_of(Role::kDecode)));
  return {};
}

/// What a person wrote twice; ports that are chosen differ anyway.
Result<void> check_distinct(const DeploymentRequest& request) {
  std::map<std::string, std::string> engines;
  std::map<std::pair<std::string, int>, std::string> ports{{{request.proxy_host, request.proxy_port}, "the proxy"}};
  const auto take = [&ports](const std::string& host, int port, const std::string& who) -> Result<void> {
    const auto [place, is_new] = ports.try_emplace({host, port}, who);
    if (port == 0 || is_new) return {};
    return Status(Code::kInvalidArgument,
                  fmt::format("{} and {} both have port {} of {}", place->second, who, port, host));
  };
  for (const InstanceRequest& instance : request.instances) {
    if (!is_node(instance) && !engines.try_emplace(instance.engine_id, instance.name).second)
      return Status(Code::kInvalidArgument,
                    fmt::format("{} and {} both have the engine_id '{}'; only a --headless node "
                                "has that of its first one",
                                engines[instance.engine_id], instance.name, instance.engine_id));
    TANDEM_TRY(take(instance.host, instance.port, instance.name));
    TANDEM_TRY(take(instance.host, instance.kv_port, instance.name + "'s KV"));
  }
  return {};
}

Result<ProcessSpec> serve_process(InstanceRequest instance, config::KvConnector connector, const PortFinder& find_port,
                                  int threads) {
  for (const char* reserved : {"--kv-transfer-config", "--host", "--port", "--uds"})
    if (has_flag(instance.flags, reserved))
      return Status(
          Code::kInvalidArgument,
          fmt::format("{} of {} is set by `tandem up`; remove it from the serve flags", reserved, instance.name));
  if (has_flag(instance.flags, "--ssl-certfile"))
    return Status(Code::kInvalidArgument,
                  fmt::format("--ssl-certfile of {}: instances of `tandem up` are reached from this machine only; give "
                              "--ssl-certfile to `tandem up` (before --) for TLS between clients and the proxy",
                              instance.name));
  if (instance.port == 0) {
    TANDEM_ASSIGN(instance.port, find_port(instance.host));
  }
  if (instance.kv_port == 0) {
    TANDEM_ASSIGN(instance.kv_port, find_port(instance.host));
  }
  ProcessSpec process;
  process.name = instance.name;
  process.role = instance.role;
  process.host = instance.host;
  process.port = instance.port;
  process.headless = has_flag(instance.flags, "--headless");
  process.environment = std::move(instance.environment);
  process.environment.try_emplace("VLLM_HOST_IP", instance.host);
  const std::string transfer = fmt::format(
      R"({{"kv_connector":"{}","kv_role":"{}","kv_port":"{}","engine_id":"{}"}})",
      connector == config::KvConnector::kLayerwise ? "MooncakeLayerwiseConnector" : "MooncakeConnectorV1",
      instance.role == Role::kPrefill ? "kv_producer" : "kv_consumer", instance.kv_port, instance.engine_id);
  process.arguments = {
      "serve", instance.model, "--host", instance.host, "--port", std::to_string(instance.port), "--kv-transfer-config",
      transfer};
  if (!has_flag(instance.flags, "--threads")) {
    process.arguments.insert(process.arguments.end(), {"--threads", std::to_string(threads)});
  }
  process.arguments.insert(process.arguments.end(), instance.flags.begin(), instance.flags.end());
  return process;
}

ProcessSpec proxy_process(const DeploymentRequest& request, const std::vector<ProcessSpec>& instances) {
  ProcessSpec process;
  process.name = "proxy";
  process.role = Role::kProxy;
  process.host = request.proxy_host;
  process.port = request.proxy_port;
  process.arguments = {"proxy", "--host", request.proxy_host, "--port", std::to_string(request.proxy_port)};
  auto append = [&](Role role, const char* hosts_flag, const char* ports_flag) {
    process.arguments.emplace_back(hosts_flag);
    for (const ProcessSpec& instance : instances)
      if (instance.role == role && !instance.headless) process.arguments.push_back(instance.host);
    process.arguments.emplace_back(ports_flag);
    for (const ProcessSpec& instance : instances)
      if (instance.role == role && !instance.headless) process.arguments.push_back(std::to_string(instance.port));
  };
  append(Role::kPrefill, "--prefiller-hosts", "--prefiller-ports");
  append(Role::kDecode, "--decoder-hosts", "--decoder-ports");
  process.arguments.insert(process.arguments.end(), request.proxy_flags.begin(), request.proxy_flags.end());
  process.tls = has_flag(request.proxy_flags, "--ssl-certfile");
  process.keys = has_flag(request.proxy_flags, "--api-key");
  return process;
}

/// What `tandem up` was told about the port that clients use. It comes after the file's flags, so it wins. Instances
/// get the keys too: their ports are open to everybody on this machine, and the proxy passes the client's key on.
void protect(DeploymentRequest& request, const config::UpConfig& config) {
  std::vector<std::string>& proxy = request.proxy_flags;
  const auto give = [&proxy](const char* flag, const std::string& value) {
    if (!value.empty()) proxy.insert(proxy.end(), {flag, value});
  };
  if (config.shutdown_timeout.count() > 0)
    give("--shutdown-timeout", fmt::format("{}ms", config.shutdown_timeout.count()));
  if (config.tls.on()) {
    give("--ssl-certfile", config.tls.certfile);
    give("--ssl-keyfile", config.tls.keyfile);
    give("--ssl-ca-certs", config.tls.ca_certs);
    give("--ssl-ciphers", config.tls.ciphers);
    give("--ssl-cert-reqs", std::to_string(config.tls.cert_reqs));
  }
  if (config.api_keys.empty()) return;
  const auto give_keys = [&config](std::vector<std::string>& flags) {
    flags.emplace_back("--api-key");
    flags.insert(flags.end(), config.api_keys.begin(), config.api_keys.end());
  };
  give_keys(proxy);
  for (InstanceRequest& instance : request.instances) give_keys(instance.flags);
}

}  // namespace

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kProxy:
      return "proxy";
  }
  return "unknown";
}

PortFinder kernel_port_finder() {
  using boost::asio::ip::tcp;
  struct Reserved {
    boost::asio::io_context context;
    std::vector<tcp::acceptor> sockets;
  };
  auto reserved = std::make_shared<Reserved>();
  return [reserved](const std::string& host) -> Result<std::uint16_t> {
    boost::system::error_code error;
    const auto address = boost::asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error)
      return Status(Code::kInvalidArgument, fmt::format("host '{}' is not an address: {}", host, error.message()));
    tcp::acceptor socket(reserved->context);
    const tcp::endpoint endpoint(address, 0);
    // Bound with SO_REUSEADDR and never listening, it keeps the kernel from giving the port to somebody else, while the
    // process that it is for (which sets SO_REUSEADDR too) can bind it.
    (void)socket.open(endpoint.protocol(), error);
    if (!error) (void)socket.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) (void)socket.bind(endpoint, error);
    if (error) return Status(Code::kUnavailable, fmt::format("no free port on {}: {}", host, error.message()));
    const std::uint16_t port = socket.local_endpoint().port();
    reserved->sockets.push_back(std::move(socket));
    return port;
  };
}

Result<Deployment> make_deployment(const config::UpConfig& config, const PortFinder& find_port, int num_cpus) {
  TANDEM_ASSIGN(DeploymentRequest request,
                config.deployment_file.empty() ? request_from_flags(config) : parse_file(config));
  if (config.connector) request.connector = *config.connector;
  protect(request, config);
  TANDEM_TRY(name_instances(request.instances));
  TANDEM_TRY(check_distinct(request));
  const int threads = std::max(1, num_cpus / static_cast<int>(request.instances.size()));
  Deployment deployment;
  deployment.network = request.network;
  for (InstanceRequest& instance : request.instances) {
    TANDEM_ASSIGN(ProcessSpec process, serve_process(std::move(instance), request.connector, find_port, threads));
    if (request.network) process.node = process.host;
    deployment.processes.push_back(std::move(process));
  }
  if (request.proxy_port == 0) {
    TANDEM_ASSIGN(request.proxy_port, find_port(request.proxy_host));
  }
  deployment.processes.push_back(proxy_process(request, deployment.processes));
  return deployment;
}

}  // namespace tandem::cluster
