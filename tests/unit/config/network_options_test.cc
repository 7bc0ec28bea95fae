// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem ranktable` and `tandem check`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/command_line.h"

namespace tandem::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<CommandLine> parse(const std::vector<std::string>& arguments, const std::string& hccn_tool = "") {
  return parse_command_line(arguments, [&](const std::string& name) -> std::optional<std::string> {
    if (name == "HCCN_TOOL_PATH" && !hccn_tool.empty()) return hccn_tool;
    return std::nullopt;
  });
}

std::string error_of(const std::vector<std::string>& arguments) {
  const auto line = parse(arguments);
  EXPECT_FALSE(line) << "accepted";
  return line ? "" : line.error().message();
}

TEST(RanktableOptions, TakesGenRanktablesFlags) {
  const auto line =
      parse({"ranktable", "--ips", "10.0.0.1", "10.0.0.2", "--npus-per-node", "8", "--network-card-name", "eth0",
             "--prefill-device-cnt", "8", "--decode-device-cnt", "8", "--local-device-ids", "0,1,4"},
            "/opt/hccn_tool");
  ASSERT_TRUE(line) << line.error().message();
  const auto& config = std::get<RanktableConfig>(line->command);
  EXPECT_THAT(config.ips, ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_EQ(config.network_card_name, "eth0");
  EXPECT_EQ(config.prefill_device_cnt, 8);
  EXPECT_THAT(config.local_device_ids, ElementsAre(0, 1, 4));
  EXPECT_EQ(config.hccn_tool, "/opt/hccn_tool");
  EXPECT_TRUE(parse({"ranktable", "--check", "table.json"}));
}

TEST(RanktableOptions, ErrorsNameTheFlag) {
  const std::vector<std::string> counts{"--prefill-device-cnt", "1", "--decode-device-cnt", "1"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), "ranktable");
    more.insert(more.end(), counts.begin(), counts.end());
    return error_of(more);
  };
  EXPECT_THAT(error_of({"ranktable"}), HasSubstr("--ips is missing"));
  EXPECT_THAT(error_of({"ranktable", "--ips", "10.0.0.1"}), HasSubstr("--prefill-device-cnt is missing"));
  EXPECT_THAT(with({"--ips", "10.0.0.110.0.0.2"}), HasSubstr("--ips: '10.0.0.110.0.0.2' is not an IPv4 address"));
  EXPECT_THAT(with({"--ips", "10.0.0.1", "10.0.0.1"}), HasSubstr("10.0.0.1 is given twice"));
  EXPECT_THAT(with({"--ips", "10.0.0.1", "--local-device-ids", "0,x"}), HasSubstr("--local-device-ids"));
  EXPECT_THAT(with({"--ips", "10.0.0.1", "--local-device-ids", "0,0"}), HasSubstr("device 0 is given twice"));
  EXPECT_THAT(with({"--ips", "10.0.0.1", "--plain-hosts", "--addresses", "f"}), HasSubstr("only one of"));
  EXPECT_THAT(with({"--ips", "10.0.0.1", "--soc", "a4"}), HasSubstr("--soc"));
}

TEST(CheckOptions, TakesNodesWithAndWithoutPorts) {
  const auto line = parse({"check", "network", "--nodes", "10.0.0.1", "node2:7000", "--port", "6000", "--a3", "--json",
                           "--npus-per-node", "16", "--min-bandwidth", "9.5"});
  ASSERT_TRUE(line) << line.error().message();
  const auto& config = std::get<CheckNetworkConfig>(line->command);
  ASSERT_EQ(config.nodes.size(), 2U);
  EXPECT_EQ(config.nodes[0].port, 6000);
  EXPECT_FALSE(config.nodes[0].port_given);
  EXPECT_EQ(config.nodes[1].host, "node2");
  EXPECT_EQ(config.nodes[1].port, 7000);
  EXPECT_TRUE(config.a3 && config.json);
  EXPECT_EQ(config.npus_per_node, 16);
  EXPECT_EQ(config.min_gbit_per_s, 9.5);
  EXPECT_EQ(std::get<CheckAgentConfig>(parse({"check", "agent", "--port", "0"})->command).port, 0);
}

TEST(CheckOptions, ErrorsNameTheFlag) {
  EXPECT_THAT(error_of({"check"}), HasSubstr("check: expected network or agent, found nothing"));
  EXPECT_THAT(error_of({"check", "disk"}), HasSubstr("found 'disk'"));
  EXPECT_THAT(error_of({"check", "network", "--nodes", "-x"}), HasSubstr("--nodes"));
  EXPECT_THAT(error_of({"check", "network", "--nodes", "a b"}), HasSubstr("--nodes: 'a b' is not a node"));
  EXPECT_THAT(error_of({"check", "network", "--nodes", "a:0"}), HasSubstr("--nodes"));
  EXPECT_THAT(error_of({"check", "network", "--nodes", "a", "a"}), HasSubstr("a is given twice"));
  EXPECT_THAT(error_of({"check", "network", "--host-only", "--a3"}), HasSubstr("--host-only"));
  EXPECT_THAT(error_of({"check", "network", "--measure", "60s"}), HasSubstr("--measure: 60s is too long"));
}

TEST(CheckOptions, HelpNamesTheFlags) {
  EXPECT_THAT(std::get<Text>(parse({"check", "network", "--help"})->command).text, HasSubstr("--min-bandwidth"));
  EXPECT_THAT(std::get<Text>(parse({"check", "--help"})->command).text, HasSubstr("tandem check agent"));
  EXPECT_THAT(std::get<Text>(parse({"ranktable", "--help"})->command).text, HasSubstr("--merge"));
}

}  // namespace
}  // namespace tandem::config
