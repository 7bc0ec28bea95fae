// SPDX-License-Identifier: Apache-2.0
#include "cluster/rank_table_sources.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "support/hccn_stand_in.h"

namespace tandem::cluster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class RankTableSources : public testing::Test {
 protected:
  RankTableSources() : folder_(std::filesystem::temp_directory_path() / fmt::format("rank_sources.{}", getpid())) {
    std::filesystem::create_directories(folder_);
    config_.ips = {"10.0.0.1", "10.0.0.2"};
    config_.npus_per_node = 2;
    config_.prefill_device_cnt = 2;
    config_.decode_device_cnt = 2;
    host_.interfaces = {{"lo", "127.0.0.1", 65536, true, true},
                        {"eth0", "10.0.0.1", 1500, true, false},
                        {"eth1", "10.9.0.1", 1500, true, false}};
  }
  ~RankTableSources() override { std::filesystem::remove_all(folder_); }

  std::string error() const {
    const auto file = build_rank_table(config_, host_);
    EXPECT_FALSE(file);
    return file ? "" : file.error().message();
  }
  RankTable table() const {
    const auto file = build_rank_table(config_, host_);
    EXPECT_TRUE(file) << file.error().message();
    EXPECT_FALSE(file->partial);
    return *parse_rank_table(file->text);
  }
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = folder_ / name;
    EXPECT_TRUE(write_text_file(path, text));
    return path;
  }

  std::filesystem::path folder_;
  config::RanktableConfig config_;
  RankTableHost host_;
  HccnStandIn runner_;
  Hccn hccn_{runner_, "hccn_tool", milliseconds(1000)};
};

TEST_F(RankTableSources, SharesOfTheNodesMakeTheTable) {
  host_.hccn = &hccn_;
  const auto first = build_rank_table(config_, host_);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_TRUE(first->partial);
  EXPECT_EQ(first->path, "ranktable.10.0.0.1.json");

  HccnStandIn other_runner(1);
  const Hccn other(other_runner, "hccn_tool", milliseconds(1000));
  const RankTableHost other_host{&other, {{"eth0", "10.0.0.2", 1500, true, false}}};
  const auto second = build_rank_table(config_, other_host);
  ASSERT_TRUE(second) << second.error().message();

  // In any order: --ips gives it.
  config_.merge_files = {write("b.json", second->text), write("a.json", first->text)};
  const RankTable merged = table();
  EXPECT_EQ(merged.prefill_device_list[1].device_ip, "10.20.0.2");
  EXPECT_EQ(merged.decode_device_list[0].device_ip, "10.20.1.1");
  EXPECT_EQ(merged.decode_device_list[1].cluster_id, "4");

  config_.merge_files.pop_back();
  EXPECT_THAT(error(), HasSubstr("the share of 10.0.0.1 (from --ips) is missing"));
  config_.merge_files.push_back(config_.merge_files[0]);
  EXPECT_THAT(error(), HasSubstr("has the share of 10.0.0.2 again"));
  config_.merge_files = {write("junk.json", "{}")};
  EXPECT_THAT(error(), HasSubstr("junk.json"));
}

TEST_F(RankTableSources, A3RowsComeFromVnicAndSuperPod) {
  host_.hccn = &hccn_;
  config_.ips = {"10.0.0.1"};
  config_.prefill_device_cnt = config_.decode_device_cnt = 1;
  runner_.replace("-l", "Total Count : 1\nChip Count : 2\n");
  runner_.replace("-t spod-info -i 0 -c 0", recorded("spod_info.txt"));
  runner_.replace("-t spod-info -i 0 -c 1", "SDID : 4587521\nSuper Pod ID : 0\n");
  const RankTable made = table();
  EXPECT_EQ(made.prefill_device_list[0].device_ip, "192.168.0.1");
  EXPECT_EQ(made.prefill_device_list[0].super_device_id, "4587520");
  EXPECT_EQ(made.decode_device_list[0].super_device_id, "4587521");
  config_.soc = config::AscendSoc::kA2;
  EXPECT_EQ(table().prefill_device_list[0].device_ip, "10.20.0.1");
}

TEST_F(RankTableSources, AToolThatFailsIsNamed) {
  host_.hccn = &hccn_;
  config_.local_device_ids = {0, 3};
  runner_.replace("-i 3 -ip -g", "netmask:255.255.255.0\n");
  EXPECT_THAT(error(), HasSubstr("hccn_tool -i 3 -ip -g: expected a line 'ipaddr:ADDRESS'"));
  config_.soc = config::AscendSoc::kA3;
  runner_.replace("-t spod-info -i 0 -c 0", "no such chip", 1);
  EXPECT_THAT(error(), HasSubstr("npu-smi info -t spod-info -i 0 -c 0"));
}

TEST_F(RankTableSources, ListsGiveAllNodesAtOnce) {
  config_.device_ips = {"10.20.0.1", "10.20.0.2", "10.20.1.1,10.20.1.2"};
  EXPECT_EQ(table().decode_device_list[1].device_ip, "10.20.1.2");
  config_.device_ips = {"10.0.0.2=10.20.1.1,10.20.1.2", "10.0.0.1=10.20.0.1,10.20.0.2"};
  EXPECT_EQ(table().prefill_device_list[0].device_ip, "10.20.0.1");
  config_.device_ips = {"10.20.0.1", "10.20.0.2", "10.20.1.1"};
  EXPECT_THAT(error(), HasSubstr("--device-ips: found 3 addresses; expected 4 for 2 nodes of 2 devices, or 2"));
  config_.device_ips = {"10.20.0.1", "x"};
  EXPECT_THAT(error(), HasSubstr("'x' is not an IPv4 address"));
  config_.device_ips = {"10.0.0.3=10.20.0.1,10.20.0.2"};
  EXPECT_THAT(error(), HasSubstr("node 10.0.0.3 is not among --ips"));
  config_.device_ips = {"10.20.0.1", "10.20.0.2"};
  EXPECT_TRUE(build_rank_table(config_, host_)->partial);
}

TEST_F(RankTableSources, AFileGivesAllNodesAtOnce) {
  config_.addresses_file = write("addresses",
                                 "# node device address\n10.0.0.2 0 10.20.1.1\n10.0.0.2 1 10.20.1.2\n\n"
                                 "10.0.0.1 0 10.20.0.1  # first\n10.0.0.1 1 10.20.0.2\n");
  EXPECT_EQ(table().decode_device_list[1].device_ip, "10.20.1.2");
  for (const char* line : {"10.0.0.1 0", "10.0.0.1 x 10.20.0.1", "node 0 10.20.0.1", "10.0.0.1 0 10.20.0.1 0"}) {
    config_.addresses_file = write("addresses", fmt::format("\n{}\n", line));
    EXPECT_THAT(error(), HasSubstr("line 2: expected NODE_IP DEVICE_ID DEVICE_IP")) << line;
  }
  config_.addresses_file = write("addresses", "");
  EXPECT_THAT(error(), HasSubstr("no device is listed"));
}

TEST_F(RankTableSources, HostsWithoutAToolUseTheirInterface) {
  EXPECT_THAT(build_rank_table(config_, host_)->text, HasSubstr(R"("device_ip": "10.0.0.1")"));
  config_.network_card_name = "eth1";
  EXPECT_THAT(build_rank_table(config_, host_)->text, HasSubstr(R"("device_ip": "10.9.0.1")"));
  config_.network_card_name = "eth7";
  EXPECT_THAT(error(), HasSubstr("--network-card-name eth7: this host has no such interface"));
  config_.network_card_name = "";
  config_.plain_hosts = true;
  EXPECT_EQ(table().decode_device_list[1].device_ip, "10.0.0.2");
}

TEST_F(RankTableSources, AHostOutsideTheListIsAnError) {
  config_.ips = {"10.0.0.8", "10.0.0.9"};
  EXPECT_THAT(error(), HasSubstr("none of --ips 10.0.0.8 10.0.0.9 is an address of this host (10.0.0.1, 10.9.0.1)"));
  config_.local_host = "10.0.0.9";
  EXPECT_EQ(build_rank_table(config_, host_)->node, "10.0.0.9");
  config_.local_host = "10.0.0.7";
  EXPECT_THAT(error(), HasSubstr("--local-host 10.0.0.7 is not among --ips"));
}

}  // namespace
}  // namespace tandem::cluster
