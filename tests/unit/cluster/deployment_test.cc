// SPDX-License-Identifier: Apache-2.0
#include "cluster/deployment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "config/command_line.h"

namespace tandem::cluster {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

PortFinder counting_ports() {
  auto next = std::make_shared<std::uint16_t>(static_cast<std::uint16_t>(21000));
  return [next](const std::string&) -> Result<std::uint16_t> { return (*next)++; };
}

config::UpConfig up(std::string model) {
  config::UpConfig config;
  config.model = std::move(model);
  return config;
}

std::string after(const std::vector<std::string>& arguments, const std::string& flag) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i)
    if (arguments[i] == flag) return arguments[i + 1];
  return "(no " + flag + ")";
}

class DeploymentFile : public ::testing::Test {
 protected:
  config::UpConfig with(const std::string& yaml) {
    path_ = ::testing::TempDir() + "deployment_" + std::to_string(::getpid()) + ".yaml";
    std::ofstream(path_) << yaml;
    config::UpConfig config;
    config.deployment_file = path_;
    return config;
  }
  void TearDown() override { std::remove(path_.c_str()); }
  std::string path_;
};

TEST(Deployment, FromFlagsPairsRolesWithPortsAndSharesTheCpus) {
  config::UpConfig config = up("models/m.gguf");
  config.prefill = 2;
  config.decode = 1;
  config.port = 8000;
  config.serve_flags = {"--block-size", "32"};
  const auto deployment = make_deployment(config, counting_ports(), 7);
  ASSERT_TRUE(deployment) << deployment.error().to_string();
  ASSERT_EQ(deployment->processes.size(), 4U);
  const ProcessSpec& p2 = deployment->processes[1];
  EXPECT_EQ(p2.name, "P2");
  EXPECT_EQ(p2.arguments[0], "serve");
  EXPECT_EQ(p2.arguments[1], "models/m.gguf");
  EXPECT_EQ(after(p2.arguments, "--port"), "21002");
  EXPECT_EQ(after(p2.arguments, "--threads"), "2");
  EXPECT_EQ(after(p2.arguments, "--block-size"), "32");
  EXPECT_EQ(after(p2.arguments, "--kv-transfer-config"),
            R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":"21003","engine_id":"P2"})");
  const ProcessSpec& decoder = deployment->processes[2];
  EXPECT_EQ(decoder.role, Role::kDecode);
  EXPECT_THAT(after(decoder.arguments, "--kv-transfer-config"), HasSubstr("kv_consumer"));
  const std::vector<std::string> proxy{"proxy",
                                       "--host",
                                       "127.0.0.1",
                                       "--port",
                                       "8000",
                                       "--prefiller-hosts",
                                       "127.0.0.1",
                                       "127.0.0.1",
                                       "--prefiller-ports",
                                       "21000",
                                       "21002",
                                       "--decoder-hosts",
                                       "127.0.0.1",
                                       "--decoder-ports",
                                       "21004"};
  EXPECT_EQ(deployment->processes[3].arguments, proxy);
}

TEST(Deployment, ThreadsOfTheUserWin) {
  config::UpConfig config = up("m");
  config.serve_flags = {"--threads=5"};
  const auto deployment = make_deployment(config, counting_ports(), 8);
  ASSERT_TRUE(deployment);
  EXPECT_THAT(deployment->processes[0].arguments, Contains("--threads=5"));
  EXPECT_EQ(after(deployment->processes[0].arguments, "--threads"), "(no --threads)");
}

TEST(Deployment, RefusesFlagsThatItSetsItself) {
  config::UpConfig config = up("m");
  config.serve_flags = {"--kv_transfer_config", "{}"};
  const auto deployment = make_deployment(config, counting_ports(), 2);
  ASSERT_FALSE(deployment);
  EXPECT_THAT(deployment.error().message(), HasSubstr("--kv-transfer-config of P1 is set by `tandem up`"));
}

TEST(Deployment, KeysGoToAllAndTlsToTheProxy) {
  config::UpConfig config = up("m");
  config.api_keys = {"k1", "k2"};
  config.tls = {.certfile = "c.pem", .keyfile = "k.pem", .ca_certs = "ca.pem", .ciphers = "", .cert_reqs = 2};
  config.shutdown_timeout = std::chrono::milliseconds(1500);
  const auto deployment = make_deployment(config, counting_ports(), 2);
  ASSERT_TRUE(deployment) << deployment.error().to_string();
  for (const ProcessSpec& process : deployment->processes) EXPECT_EQ(after(process.arguments, "--api-key"), "k1");
  const ProcessSpec& proxy = deployment->processes.back();
  EXPECT_TRUE(proxy.tls && proxy.keys);
  EXPECT_EQ(after(proxy.arguments, "--ssl-certfile"), "c.pem");
  EXPECT_EQ(after(proxy.arguments, "--ssl-keyfile"), "k.pem");
  EXPECT_EQ(after(proxy.arguments, "--ssl-ca-certs"), "ca.pem");
  EXPECT_EQ(after(proxy.arguments, "--ssl-cert-reqs"), "2");
  EXPECT_EQ(after(proxy.arguments, "--shutdown-timeout"), "1500ms");
  EXPECT_THAT(deployment->processes[0].arguments, Not(Contains("--ssl-certfile")));
  config.serve_flags = {"--ssl-certfile", "c.pem"};
  const auto refused = make_deployment(config, counting_ports(), 2);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("give --ssl-certfile to `tandem up`"));
}

TEST_F(DeploymentFile, WhatIsGivenTwiceIsNamed) {
  const auto error = [this](const std::string& first, const std::string& second) {
    const auto deployment = make_deployment(with("model: m\nproxy: {port: 9000}\ninstances:\n  - {role: prefill, " +
                                                 first + "}\n  - {role: decode, " + second + "}\n"),
                                            counting_ports(), 2);
    return deployment ? "" : deployment.error().message();
  };
  EXPECT_EQ(error("port: 8100, kv_port: 30000", "port: 8101, kv_port: 30001"), "");
  EXPECT_THAT(error("port: 8100", "port: 8100"), HasSubstr("P1 and D1 both have port 8100 of 127.0.0.1"));
  EXPECT_THAT(error("kv_port: 8100", "port: 8100"), HasSubstr("P1's KV and D1 both have port 8100"));
  EXPECT_THAT(error("port: 9000", "port: 8100"), HasSubstr("the proxy and P1 both have port 9000"));
  EXPECT_THAT(error("engine_id: x", "engine_id: x"), HasSubstr("P1 and D1 both have the engine_id 'x'"));
  EXPECT_EQ(error("host: 127.0.0.2, port: 8100", "port: 8100"), "");
}

TEST(Deployment, NeedsAModel) {
  const auto deployment = make_deployment(up(""), counting_ports(), 2);
  ASSERT_FALSE(deployment);
  EXPECT_THAT(deployment.error().message(), HasSubstr("--model"));
}

TEST(Deployment, KernelPortsDifferWhileTheFinderLives) {
  const PortFinder find = kernel_port_finder();
  const auto first = find("127.0.0.1");
  const auto second = find("127.0.0.1");
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(find("not an address"));
}

TEST_F(DeploymentFile, GivesEveryInstanceItsOwnSettings) {
  const auto deployment = make_deployment(with(R"(
model: top.gguf
serve_flags: [--block-size, "16"]
proxy: {port: 9000, flags: [--max-retries, "5"]}
instances:
  - {role: prefill, port: 8100, kv_port: 30000, environment: {OMP_NUM_THREADS: "3"}}
  - {role: decode, name: left, model: other.gguf, flags: [--max-num-seqs, "8"]}
)"),
                                          counting_ports(), 2);
  ASSERT_TRUE(deployment) << deployment.error().to_string();
  const ProcessSpec& prefill = deployment->processes[0];
  EXPECT_EQ(prefill.name, "P1");
  EXPECT_EQ(prefill.port, 8100);
  EXPECT_EQ(prefill.environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_THAT(after(prefill.arguments, "--kv-transfer-config"), HasSubstr(R"("kv_port":"30000")"));
  const ProcessSpec& decode = deployment->processes[1];
  EXPECT_EQ(decode.name, "left");
  EXPECT_EQ(decode.arguments[1], "other.gguf");
  EXPECT_EQ(after(decode.arguments, "--block-size"), "16");
  EXPECT_EQ(after(decode.arguments, "--max-num-seqs"), "8");
  EXPECT_EQ(after(deployment->processes[2].arguments, "--max-retries"), "5");
  EXPECT_EQ(deployment->processes[2].port, 9000);
}

TEST_F(DeploymentFile, ErrorsNameTheFileAndTheKey) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"model: m\ninstances:\n  - {role: prefil}\n", "role of instances[0] is 'prefil', expected prefill or decode"},
      {"model: m\ninstance: []\n", "unknown key 'instance' in the file"},
      {"model: m\ninstances:\n  - {role: prefill, prt: 1}\n", "unknown key 'prt' in instances[0]"},
      {"model: m\ninstances: []\n", "'instances' must be a list"},
      {"instances:\n  - {role: prefill}\n", "instances[0] has no model"},
      {"model: m\ninstances:\n  - {role: prefill, port: lots}\n", "line 3"},
      {"model: [\n", "line"},
      {"model: m\ninstances:\n  - {role: prefill}\n", "at least one prefill and one decode instance, found 1 and 0"},
      {"model: m\ninstances:\n  - {role: prefill, name: a}\n  - {role: decode, name: a}\n",
       "two processes are named 'a'"},
  };
  for (const auto& [yaml, message] : cases) {
    const auto deployment = make_deployment(with(yaml), counting_ports(), 2);
    ASSERT_FALSE(deployment) << yaml;
    EXPECT_THAT(deployment.error().message(), HasSubstr(message)) << yaml;
  }
}

TEST(Deployment, MissingFileIsNamed) {
  config::UpConfig config;
  config.deployment_file = "no/such/file.yaml";
  const auto deployment = make_deployment(config, counting_ports(), 2);
  ASSERT_FALSE(deployment);
  EXPECT_THAT(deployment.error().message(), HasSubstr("no/such/file.yaml"));
}

constexpr const char* kTwoNodeDecoder = R"(
model: m
network: {address: 192.0.0.254/24}
connector: layerwise
proxy: {host: 192.0.0.254, port: 8080}
instances:
  - {role: prefill, host: 192.0.0.1, port: 8004, kv_port: 30000, engine_id: "0"}
  - {role: decode, host: 192.0.0.3, port: 8004, kv_port: 30200, engine_id: "2"}
  - {role: decode, host: 192.0.0.4, port: 8004, kv_port: 30200, engine_id: "2", flags: [--headless]}
)";

TEST_F(DeploymentFile, ANetworkMakesEachHostANamespaceAndAHeadlessNodeIsNoInstance) {
  const auto deployment = make_deployment(with(kTwoNodeDecoder), counting_ports(), 8);
  ASSERT_TRUE(deployment) << deployment.error().to_string();
  ASSERT_TRUE(deployment->network.has_value());
  EXPECT_EQ(deployment->network->hosts, (std::vector<std::string>{"192.0.0.1", "192.0.0.3", "192.0.0.4"}));
  EXPECT_EQ(node_network_name(*deployment->network), "tdc0000000");
  ASSERT_EQ(deployment->processes.size(), 4U);
  EXPECT_EQ(deployment->processes[0].node, "192.0.0.1");
  EXPECT_THAT(
      after(deployment->processes[0].arguments, "--kv-transfer-config"),
      HasSubstr(
          R"("kv_connector":"MooncakeLayerwiseConnector","kv_role":"kv_producer","kv_port":"30000","engine_id":"0")"));
  EXPECT_FALSE(deployment->processes[1].headless);
  EXPECT_TRUE(deployment->processes[2].headless);
  const ProcessSpec& proxy = deployment->processes[3];
  EXPECT_EQ(proxy.node, "");
  EXPECT_EQ(after(proxy.arguments, "--decoder-hosts"), "192.0.0.3");
  EXPECT_THAT(proxy.arguments, Not(Contains("192.0.0.4")));
  // The command line stands over the file.
  config::UpConfig pull = with(kTwoNodeDecoder);
  pull.connector = config::KvConnector::kPull;
  EXPECT_THAT(after(make_deployment(pull, counting_ports(), 8)->processes[0].arguments, "--kv-transfer-config"),
              HasSubstr("MooncakeConnectorV1"));
}

TEST_F(DeploymentFile, NetworksThatCannotBeAreRefused) {
  const auto error = [this](const std::string& from, const std::string& to) {
    std::string text = kTwoNodeDecoder;
    text.replace(text.find(from), from.size(), to);
    const auto deployment = make_deployment(with(text), counting_ports(), 8);
    return deployment ? std::string("accepted") : deployment.error().message();
  };
  EXPECT_THAT(error("254/24", "254"),
              HasSubstr("network: address is '192.0.0.254', expected an IPv4 address and a prefix"));
  EXPECT_THAT(error("254/24", "254/8"), HasSubstr("a prefix of 16 to 30"));
  EXPECT_THAT(error("host: 192.0.0.1,", "host: 192.0.1.1,"),
              HasSubstr("host '192.0.1.1' is not an address in the network of 192.0.0.254/24"));
  EXPECT_THAT(error("host: 192.0.0.1,", "host: 192.0.0.254,"), HasSubstr("is the address of the bridge itself"));
  EXPECT_THAT(error(", kv_port: 30000", ""), HasSubstr("every instance needs port and kv_port"));
  EXPECT_THAT(error("connector: layerwise", "connector: push"),
              HasSubstr("connector is 'push', expected pull or layerwise"));
  EXPECT_THAT(error("engine_id: \"2\"}", "engine_id: \"2\", flags: [--headless]}"),
              HasSubstr("at least one prefill and one decode instance, found 1 and 0"));
}

TEST(Deployment, TheGuidesDeploymentsHaveAllTheirRanks) {
  const auto no_variables = [](const std::string&) { return std::optional<std::string>(); };
  for (const auto& [file, ranks] : {std::pair("qwen3-moe-2p1d", 64), std::pair("qwen3-moe-2p2d", 32)}) {
    config::UpConfig config;
    config.deployment_file = std::string("examples/") + file + ".yaml";
    const auto deployment = make_deployment(config, counting_ports(), 2);
    ASSERT_TRUE(deployment) << deployment.error().to_string();
    EXPECT_EQ(deployment->network.value().hosts,
              (std::vector<std::string>{"192.0.0.1", "192.0.0.2", "192.0.0.3", "192.0.0.4"}));
    int counted = 0;
    for (const ProcessSpec& process : deployment->processes) {
      const auto line = config::parse_command_line(process.arguments, no_variables);
      ASSERT_TRUE(line) << process.name << ": " << line.error().message();
      if (const auto* serve = std::get_if<config::ServeConfig>(&line->command))
        counted += serve->data_parallel.local * serve->tensor_parallel_size;
    }
    EXPECT_EQ(counted, ranks);
  }
}

}  // namespace
}  // namespace tandem::cluster
