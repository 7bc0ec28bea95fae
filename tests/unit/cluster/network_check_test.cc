// SPDX-License-Identifier: Apache-2.0
#include "cluster/network_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "support/hccn_stand_in.h"

namespace tandem::cluster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

bool everything_exists(const std::string&) { return true; }
bool nothing_exists(const std::string&) { return false; }

constexpr int kDevices = 3;

/// Two nodes of three devices, each answering through a stand-in; hosts are made up.
class NetworkCheck : public testing::Test {
 protected:
  NetworkCheck() : folder_(std::filesystem::temp_directory_path() / fmt::format("network_check.{}", getpid())) {
    std::filesystem::create_directories(folder_);
    config_.npus_per_node = kDevices;
    for (int n = 0; n < 2; ++n) write_conf(n, "");
  }
  ~NetworkCheck() override { std::filesystem::remove_all(folder_); }

  std::string conf_path(int n) const { return folder_ / fmt::format("hccn.conf.{}", n); }
  void write_conf(int n, const std::string& replacement_of_device_1) const {
    std::ofstream file(conf_path(n));
    for (int i = 0; i < kDevices; ++i)
      if (i == 1 && !replacement_of_device_1.empty())
        file << replacement_of_device_1 << "\n";
      else
        file << fmt::format("address_{}=10.20.{}.{}\ngateway_{}=10.20.{}.254\n", i, n, i + 1, i, n);
  }

  NodeTools tools(int n, bool (*exists)(const std::string&) = everything_exists) {
    return NodeTools{.runner = runners_[n],
                     .hccn_tool = "hccn_tool",
                     .hccn_conf = conf_path(n),
                     .timeout = milliseconds(1000),
                     .exists = exists};
  }

  std::vector<CheckRow> rows(bool (*exists)(const std::string&) = everything_exists) {
    std::vector<CheckedNode> nodes(2);
    for (int n = 0; n < 2; ++n) {
      CheckedNode& node = nodes[static_cast<std::size_t>(n)];
      node.name = node.host = fmt::format("10.0.0.{}", n + 1);
      node.port = 18650;
      node.facts = collect_facts({expected_devices(config_), config_.a3, config_.host_only}, tools(n, exists));
      node.facts.interfaces = {{"eth0", node.host, 1500, true, false}};
      ProbesRequest request;
      for (const DeviceFacts& device : node.facts.devices) {
        request.devices.push_back(device.id);
        request.ping_addresses.push_back(fmt::format("10.20.{}.{}", 1 - n, device.id + 1));
        if (config_.a3) request.hccs_addresses.push_back(fmt::format("192.168.{}.{}", 1 - n, device.id + 1));
      }
      node.probes = collect_probes(request, tools(n, exists));
      PathResult path;
      path.peer = fmt::format("10.0.0.{}:18650", 2 - n);
      path.route = {true, "eth0 " + node.host};
      path.interface_name = "eth0";
      path.mtu = 1500;
      path.connect = path.latency = {true, "100 us"};
      path.latency_us = 100;
      path.bandwidth = {true, "9.00 Gbit/s"};
      path.gbit_per_s = 9;
      node.probes.paths.push_back(path);
    }
    if (change_) change_(nodes);
    return assess_network(nodes, config_);
  }

  /// The failed rows as "node subject check".
  static std::vector<std::string> failures(const std::vector<CheckRow>& rows) {
    std::vector<std::string> names;
    for (const CheckRow& row : rows) {
      if (row.outcome != Outcome::kFailed) continue;
      names.push_back(fmt::format("{} {} {}", row.node, row.subject, row.check));
      EXPECT_FALSE(row.remedy.empty()) << names.back();
      EXPECT_FALSE(row.found.empty()) << names.back();
    }
    return names;
  }
  static CheckRow failure(const std::vector<CheckRow>& rows) {
    for (const CheckRow& row : rows)
      if (row.outcome == Outcome::kFailed) return row;
    ADD_FAILURE() << "nothing failed";
    return {};
  }

  std::filesystem::path folder_;
  config::CheckNetworkConfig config_;
  HccnStandIn runners_[2] = {HccnStandIn(0), HccnStandIn(1)};
  std::function<void(std::vector<CheckedNode>&)> change_;
};

TEST_F(NetworkCheck, AHealthyNetworkPassesEveryCheck) {
  const auto all = rows();
  EXPECT_THAT(failures(all), testing::IsEmpty());
  std::set<std::string> checks;
  for (const CheckRow& row : all) {
    checks.insert(row.check);
    EXPECT_EQ(row.outcome, Outcome::kOk) << row.check;
  }
  EXPECT_THAT(checks, testing::UnorderedElementsAre("interface", "route", "mtu", "connect", "latency", "bandwidth",
                                                    "lldp", "link", "net_health", "netdetect", "gateway", "ip", "tls",
                                                    "hccn.conf", "ping"));
  EXPECT_EQ(num_failed(all), 0U);
}

TEST_F(NetworkCheck, A3AlsoAsksForVnicAndHccsPing) {
  config_.a3 = true;
  const auto all = rows();
  EXPECT_THAT(failures(all), testing::IsEmpty());
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const CheckRow& row) { return row.check == "vnic"; }));
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const CheckRow& row) { return row.check == "hccs_ping"; }));
  runners_[1].replace("-i 2 -vnic -g", "vnic link status: DOWN\nvnic ipaddr: 192.168.1.3\n");
  EXPECT_THAT(failures(rows()), testing::ElementsAre("10.0.0.2 device 2 vnic"));
}

struct Fault {
  const char* question;  ///< that node 1 answers
  const char* answer;
  const char* failed;  ///< the only row that may fail
  const char* found;
  const char* remedy;
};

class NetworkFaults : public NetworkCheck, public testing::WithParamInterface<Fault> {};

TEST_P(NetworkFaults, AreNamedWithTheirRemedy) {
  runners_[1].replace(GetParam().question, GetParam().answer);
  const auto all = rows();
  EXPECT_THAT(failures(all), testing::ElementsAre(GetParam().failed));
  EXPECT_THAT(failure(all).found, HasSubstr(GetParam().found));
  EXPECT_THAT(failure(all).remedy, HasSubstr(GetParam().remedy));
}

INSTANTIATE_TEST_SUITE_P(
    Devices, NetworkFaults,
    testing::Values(Fault{"-i 1 -lldp -g", "nothing\n", "10.0.0.2 device 1 lldp", "Ifname", "-i 1 -lldp -g"},
                    Fault{"-i 1 -link -g", "link status: DOWN\n", "10.0.0.2 device 1 link", "DOWN",
                          "switch port 400GE1/1/5:1"},
                    Fault{"-i 1 -net_health -g", "net health status: Socket fail\n", "10.0.0.2 device 1 net_health",
                          "Socket fail", "hccn_tool -i 1 -netdetect -s address 10.20.1.254"},
                    Fault{"-i 1 -netdetect -g", "netdetect address: 0.0.0.0\n", "10.0.0.2 device 1 netdetect",
                          "not set", "hccn_tool -i 1 -netdetect -s address 10.20.1.254"},
                    Fault{"-i 1 -gateway -g", "default gateway is not set\n", "10.0.0.2 device 1 gateway",
                          "default gateway", "hccn_tool -i 1 -gateway -s gateway 10.20.1.254"},
                    Fault{"-i 1 -ip -g", "", "10.0.0.2 device 1 ip", "an empty output",
                          "hccn_tool -i 1 -ip -s address 10.20.1.2 netmask"},
                    Fault{"-i 1 -tls -g", "dev_id:1, tls switch[1](0:disable, 1:enable)\n", "10.0.0.2 device 1 tls",
                          "1 (on), but not on all devices", "hccn_tool -i 1 -tls -s enable 0"},
                    Fault{"-i 1 -ping -g address 10.20.0.3", "3 packets transmitted, 2 received, 33.33% packet loss\n",
                          "10.0.0.2 device 1 ping", "10.20.0.3 (10.0.0.1 device 2): 33.33 % loss",
                          "hccn_tool -i 1 -ping -g address 10.20.0.3"}));

TEST_F(NetworkCheck, AnAddressThatTwoDevicesHaveFailsOnBoth) {
  runners_[1].replace("-i 1 -ip -g", "ipaddr:10.20.0.1\n");
  const auto all = rows();
  EXPECT_THAT(failures(all),
              testing::ElementsAre("10.0.0.1 device 0 ip", "10.0.0.2 device 1 ip", "10.0.0.2 device 1 hccn.conf"));
  EXPECT_THAT(failure(all).found, HasSubstr("10.20.0.1 is also the address of 10.0.0.2 device 1"));
}

TEST_F(NetworkCheck, HccnConfMustBeThereAndAgree) {
  write_conf(1, "address_1=10.20.1.77");
  const auto different = rows();
  EXPECT_THAT(failures(different), testing::ElementsAre("10.0.0.2 device 1 hccn.conf"));
  EXPECT_THAT(failure(different).found, HasSubstr("address_1 is 10.20.1.77 in the file and 10.20.1.2 on the device"));
  write_conf(1, "# left out");
  EXPECT_THAT(failure(rows()).found, HasSubstr("address_1 is missing"));
  write_conf(1, "junk");
  EXPECT_THAT(failure(rows()).found, HasSubstr("junk"));
  std::filesystem::remove(conf_path(1));
  const auto missing = rows();
  EXPECT_THAT(failures(missing), testing::ElementsAre("10.0.0.2 host hccn.conf"));
  EXPECT_THAT(failure(missing).remedy, HasSubstr("docker run -v /etc/hccn.conf:/etc/hccn.conf"));
}

TEST_F(NetworkCheck, AMissingToolFailsWhereNpusAreExpected) {
  const auto all = rows(nothing_exists);
  EXPECT_THAT(failures(all), testing::ElementsAre("10.0.0.1 host hccn_tool", "10.0.0.2 host hccn_tool"));
  config_.npus_per_node.reset();
  const auto plain = rows(nothing_exists);
  EXPECT_THAT(failures(plain), testing::IsEmpty());
  EXPECT_TRUE(
      std::any_of(plain.begin(), plain.end(), [](const auto& row) { return row.outcome == Outcome::kSkipped; }));
}

TEST_F(NetworkCheck, HostsAreJudged) {
  config_.host_only = true;
  config_.min_gbit_per_s = 10;
  config_.max_latency_us = 50;
  EXPECT_EQ(failures(rows()).size(), 4U);
  config_.min_gbit_per_s = config_.max_latency_us = 0;
  const auto expect_failure = [&](std::string_view row, std::string_view remedy,
                                  std::function<void(CheckedNode&)> change) {
    change_ = [&](std::vector<CheckedNode>& nodes) { change(nodes[1]); };
    const auto all = rows();
    EXPECT_THAT(failures(all), testing::Contains(std::string(row)));
    const auto found = std::find_if(all.begin(), all.end(), [&](const CheckRow& one) {
      return fmt::format("{} {} {}", one.node, one.subject, one.check) == row;
    });
    ASSERT_NE(found, all.end());
    EXPECT_THAT(found->remedy, HasSubstr(std::string(remedy)));
  };
  expect_failure("10.0.0.2 host agent", "tandem check agent --port 18650",
                 [](CheckedNode& node) { node.unreachable = "connection refused"; });
  expect_failure("10.0.0.2 host interface", "ip link set dev eth0 up",
                 [](CheckedNode& node) { node.facts.interfaces[0].up = false; });
  expect_failure("10.0.0.2 host interface", "--network host",
                 [](CheckedNode& node) { node.facts.interfaces[0].address = "172.17.0.2"; });
  expect_failure("10.0.0.2 to 10.0.0.1 route", "ip route add 10.0.0.1 dev",
                 [](CheckedNode& node) { node.probes.paths[0].route = {false, "no route"}; });
  expect_failure("10.0.0.2 to 10.0.0.1 mtu", "ip link set dev eth0 mtu 1500",
                 [](CheckedNode& node) { node.probes.paths[0].mtu = 9000; });
  expect_failure("10.0.0.2 to 10.0.0.1 connect", "tandem check agent --port 18650",
                 [](CheckedNode& node) { node.probes.paths[0].connect = {false, "refused"}; });
  expect_failure("10.0.0.2 to 10.0.0.1 latency", "ping",
                 [](CheckedNode& node) { node.probes.paths[0].latency = {false, "no answer in time"}; });
  expect_failure("10.0.0.2 to 10.0.0.1 bandwidth", "ethtool eth0",
                 [](CheckedNode& node) { node.probes.paths[0].bandwidth = {false, "no answer in time"}; });
  expect_failure("10.0.0.2 host probes", "agent on 10.0.0.2", [](CheckedNode& node) { node.probe_failure = "closed"; });
}

TEST_F(NetworkCheck, TheTableFoldsWhatIsWellAndPrintsEachFailure) {
  runners_[1].replace("-i 1 -link -g", "link status: DOWN\n");
  const auto all = rows();
  const std::string text = check_table_text(all);
  EXPECT_THAT(text, HasSubstr("devices 0-2"));
  EXPECT_THAT(text, HasSubstr("10.20.0.1 ... 10.20.0.3"));
  EXPECT_THAT(text, HasSubstr("FAILED"));
  EXPECT_THAT(text, HasSubstr("mend: look at cable"));
  EXPECT_THAT(text, HasSubstr(fmt::format("1 of {} checks failed", all.size())));
  const auto json = boost::json::parse(check_table_json(all)).as_object();
  EXPECT_FALSE(json.at("ok").as_bool());
  EXPECT_EQ(json.at("failed").as_int64(), 1);
  EXPECT_EQ(json.at("checks").as_array().size(), all.size());
}

TEST_F(NetworkCheck, ControlCharactersDoNotReachTheTable) {
  const std::vector<CheckRow> hostile{{"n\x1b[2J", "host", "link", Outcome::kFailed, "a\nb\tc", "r\x7f"}};
  const std::string text = check_table_text(hostile);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

TEST_F(NetworkCheck, FactsAndProbesComeBackFromJson) {
  const NodeFacts facts = collect_facts({kDevices, true, false}, tools(0));
  const auto read = read_facts(facts_json(facts));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(facts_json(*read), facts_json(facts));
  ProbesRequest request;
  request.devices = {0, 2};
  request.ping_addresses = {"10.20.1.1"};
  request.peers = {{"127.0.0.1", 1}};
  const auto read_request = read_probes_request(probes_request_json(request));
  ASSERT_TRUE(read_request) << read_request.error().message();
  EXPECT_EQ(probes_request_json(*read_request), probes_request_json(request));
  const NodeProbes probes = collect_probes(request, tools(0));
  EXPECT_EQ(probes.pings.size(), 2U);
  const auto read_back = read_probes(probes_json(probes));
  ASSERT_TRUE(read_back) << read_back.error().message();
  EXPECT_EQ(probes_json(*read_back), probes_json(probes));
}

TEST(NodeFactsJson, RefusesWhatIsNoAnswer) {
  namespace json = boost::json;
  const json::object good = facts_json(NodeFacts{});
  for (const auto& [key, value] : good) {
    json::object bad = good;
    bad[key] = 1.5;
    EXPECT_FALSE(read_facts(bad)) << key;
  }
  json::object request = probes_request_json(ProbesRequest{});
  request["ping_addresses"] = json::array{"10.0.0.1; reboot"};
  EXPECT_FALSE(read_probes_request(request));
  request["ping_addresses"] = json::array{};
  EXPECT_TRUE(read_probes_request(request));
  request["measure_ms"] = 1'000'000;
  EXPECT_FALSE(read_probes_request(request));
}

}  // namespace
}  // namespace tandem::cluster
