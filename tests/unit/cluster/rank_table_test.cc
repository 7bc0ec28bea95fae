// SPDX-License-Identifier: Apache-2.0
#include "cluster/rank_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace tandem::cluster {
namespace {

using testing::HasSubstr;

NodeDevices node(const std::string& server_id, int number, int devices, bool a3 = false) {
  NodeDevices made{server_id, {}};
  for (int i = 0; i < devices; ++i) {
    RankTableDevice device;
    device.server_id = server_id;
    device.device_id = std::to_string(i);
    device.device_ip = fmt::format("10.20.{}.{}", number, i + 1);
    if (a3) {
      device.super_pod_id = "0";
      device.super_device_id = std::to_string(number * 100 + i);
    }
    made.devices.push_back(std::move(device));
  }
  return made;
}

// The deployment of pd_protocol.md 10.3.
std::vector<NodeDevices> four_nodes() {
  return {node("172.19.32.175", 0, 8), node("172.19.241.49", 1, 8), node("172.19.123.51", 2, 8),
          node("172.19.190.36", 3, 8)};
}

RankTable small_table(bool a3 = false) {
  const std::vector<NodeDevices> nodes{node("172.19.32.175", 0, 2, a3), node("172.19.123.51", 1, 2, a3)};
  auto table = make_rank_table(nodes, 2, 2);
  EXPECT_TRUE(table) << table.error().message();
  return *table;
}

TEST(RankTable, IsWrittenAsPythonWritesIt) {
  const std::vector<NodeDevices> nodes{node("172.19.32.175", 0, 1), node("172.19.123.51", 1, 1)};
  EXPECT_EQ(rank_table_json(*make_rank_table(nodes, 1, 1)), R"({
    "version": "1.2",
    "server_count": "2",
    "prefill_device_list": [
        {
            "server_id": "172.19.32.175",
            "device_id": "0",
            "device_ip": "10.20.0.1",
            "cluster_id": "1"
        }
    ],
    "decode_device_list": [
        {
            "server_id": "172.19.123.51",
            "device_id": "0",
            "device_ip": "10.20.1.1",
            "cluster_id": "2"
        }
    ],
    "status": "completed"
})");
}

TEST(RankTable, A3RowsHaveTheirSuperPodBeforeTheClusterId) {
  EXPECT_THAT(rank_table_json(small_table(true)), HasSubstr(R"(            "device_ip": "10.20.1.2",
            "super_pod_id": "0",
            "super_device_id": "101",
            "cluster_id": "4"
)"));
}

TEST(RankTable, ComesBackAsItWasWritten) {
  for (const bool a3 : {false, true}) {
    const RankTable table = small_table(a3);
    const auto read = parse_rank_table(rank_table_json(table));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(*read, table);
  }
}

TEST(RankTable, NumbersTwoPrefillAndTwoDecodeNodes) {
  const auto table = make_rank_table(four_nodes(), 16, 16);
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->server_count, "4");
  ASSERT_EQ(table->prefill_device_list.size(), 16U);
  ASSERT_EQ(table->decode_device_list.size(), 16U);
  EXPECT_EQ(table->prefill_device_list[15],
            (RankTableDevice{"172.19.241.49", "7", "10.20.1.8", std::nullopt, std::nullopt, "16"}));
  EXPECT_EQ(table->decode_device_list[0],
            (RankTableDevice{"172.19.123.51", "0", "10.20.2.1", std::nullopt, std::nullopt, "17"}));
  EXPECT_EQ(table->decode_device_list[15].cluster_id, "32");
}

TEST(RankTable, DropsSurplusAndRefusesTooFewDevices) {
  const auto fewer = make_rank_table(four_nodes(), 8, 4);
  ASSERT_TRUE(fewer);
  EXPECT_EQ(fewer->server_count, "4");
  EXPECT_EQ(fewer->decode_device_list.size(), 4U);
  const auto more = make_rank_table(four_nodes(), 16, 17);
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message(),
              HasSubstr("--prefill-device-cnt 16 + --decode-device-cnt 17 = 33 devices, but the nodes have 32"));
}

struct Change {
  const char* from;
  const char* to;
  const char* problem;
};

class RankTableProblems : public testing::TestWithParam<Change> {};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

TEST_P(RankTableProblems, NameTheField) {
  const std::string text = replaced(rank_table_json(small_table()), GetParam().from, GetParam().to);
  const auto reading = read_rank_table(text);
  ASSERT_TRUE(reading) << reading.error().message();
  EXPECT_THAT(reading->problems, testing::Contains(HasSubstr(GetParam().problem)));
  EXPECT_FALSE(parse_rank_table(text));
}

INSTANTIATE_TEST_SUITE_P(
    A2, RankTableProblems,
    testing::Values(
        Change{R"("version": "1.2")", R"("version": "1.0")", "version: must be \"1.2\", found '1.0'"},
        Change{R"("version": "1.2",)", "", "version: is missing"},
        Change{R"("version": "1.2")", R"("version": 1.2)", "version: must be text, found 1.2E0"},
        Change{R"("server_count": "2")", R"("server_count": 2)", "server_count: must be text, found 2"},
        Change{R"("server_count": "2")", R"("server_count": "x")", "server_count: must be a positive number"},
        Change{R"("server_count": "2")", R"("server_count": "0")", "server_count: must be a positive number"},
        Change{R"("server_count": "2")", R"("server_count": "1")", "server_count: is 1, but the lists name 2 nodes"},
        Change{R"("status": "completed")", R"("status": "initializing")", "status: must be \"completed\""},
        Change{R"("status": "completed")", R"("status": "partial")", "put them together with --merge"},
        Change{R"("prefill_device_list")", R"("prefill")", "prefill_device_list: is missing"},
        Change{R"("decode_device_list": [)", R"("decode_device_list": 3, "more": [)",
               "decode_device_list: must be a list of devices, found 3"},
        Change{R"("decode_device_list": [)", R"("decode_device_list": [], "more": [)",
               "decode_device_list: has no device"},
        Change{R"("prefill_device_list": [)", R"("prefill_device_list": [7, )",
               "prefill_device_list[0]: must be an object, found 7"},
        Change{R"("server_id": "172.19.32.175",)", "", "prefill_device_list[0].server_id: is missing"},
        Change{R"("server_id": "172.19.32.175")", R"("server_id": "node1")",
               "prefill_device_list[0].server_id: must be the node's IPv4 address, found 'node1'"},
        Change{R"("device_id": "0")", R"("device_id": 0)", "prefill_device_list[0].device_id: must be text, found 0"},
        Change{R"("device_id": "0")", R"("device_id": "x")", "prefill_device_list[0].device_id: must be a number"},
        Change{R"("device_id": "1")", R"("device_id": "0")",
               "prefill_device_list[1].device_id: 0 of 172.19.32.175 is in prefill_device_list[0] already"},
        Change{R"("device_ip": "10.20.0.1")", R"("device_ip": "")", "prefill_device_list[0].device_ip: is empty"},
        Change{R"("device_ip": "10.20.0.1",)", "", "prefill_device_list[0].device_ip: is missing"},
        Change{R"("device_ip": "10.20.0.1")", R"("device_ip": "10.20.0")",
               "prefill_device_list[0].device_ip: must be the device's IPv4 address"},
        Change{R"("device_ip": "10.20.0.1")", R"("device_ip": "0.0.0.0")", "device_ip: is 0.0.0.0"},
        Change{R"("device_ip": "10.20.1.1")", R"("device_ip": "10.20.0.1")",
               "decode_device_list[0].device_ip: 10.20.0.1 is the address of prefill_device_list[0] already"},
        Change{R"("cluster_id": "3")", R"("cluster_id": "4")", "decode_device_list[0].cluster_id: must be \"3\""},
        Change{R"("cluster_id": "1")", R"("cluster_id": 1)", "prefill_device_list[0].cluster_id: must be text"},
        Change{R"("cluster_id": "4")", R"("super_pod_id": "0", "super_device_id": "1", "cluster_id": "4")",
               "decode_device_list[1].super_pod_id: only A3 tables have it"}));

TEST(RankTable, A3ProblemsNameTheField) {
  const std::string good = rank_table_json(small_table(true));
  auto problems = [&](std::string_view from, std::string_view to) {
    return read_rank_table(replaced(good, from, to))->problems;
  };
  EXPECT_THAT(problems(R"("super_device_id": "1",)", ""),
              testing::ElementsAre(HasSubstr("prefill_device_list[1].super_device_id: is missing")));
  EXPECT_THAT(problems(R"("super_device_id": "1")", R"("super_device_id": "one")"),
              testing::ElementsAre(HasSubstr("must be a number as text, found 'one'")));
  EXPECT_THAT(problems(R"("super_device_id": "1")", R"("super_device_id": "0")"),
              testing::ElementsAre(HasSubstr("super_device_id: 0 of super pod 0 is in prefill_device_list[0]")));
}

TEST(RankTable, NoJsonIsAnError) {
  EXPECT_FALSE(read_rank_table(""));
  EXPECT_FALSE(read_rank_table("[]"));
  EXPECT_FALSE(read_rank_table("{"));
  EXPECT_FALSE(read_rank_table(std::string(100, '[')));
  EXPECT_THAT(load_rank_table("no/such/table.json").error().message(), HasSubstr("no/such/table.json"));
}

TEST(RankTable, HostsWithoutDeviceNetworkShareOneAddress) {
  NodeDevices first = node("10.0.0.1", 0, 2), second = node("10.0.0.2", 1, 2);
  for (auto* one : {&first, &second})
    for (auto& device : one->devices) device.device_ip = one->server_id;
  const auto table = make_rank_table(std::vector{first, second}, 2, 2);
  EXPECT_TRUE(table) << table.error().message();
  second.devices[0].device_ip = "10.0.0.1";
  EXPECT_FALSE(make_rank_table(std::vector{first, second}, 2, 2));
}

TEST(RankTable, SharesComeBackAndAreChecked) {
  for (const bool a3 : {false, true}) {
    const NodeDevices share = node("172.19.32.175", 0, 3, a3);
    const auto read = parse_partial_table(partial_table_json(share));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->server_id, share.server_id);
    EXPECT_EQ(read->devices, share.devices);
  }
  const auto whole = parse_partial_table(rank_table_json(small_table()));
  ASSERT_FALSE(whole);
  EXPECT_THAT(whole.error().message(), HasSubstr("this is a whole table"));
  const std::string other =
      replaced(partial_table_json(node("10.0.0.1", 0, 1)), R"("server_id": "10.0.0.1")", R"("server_id": "10.0.0.9")");
  EXPECT_THAT(parse_partial_table(other).error().message(), HasSubstr("device_list[0].server_id: must be 10.0.0.9"));
}

TEST(RankTable, RankTakesItsRowAmongTheVisibleOnes) {
  const RankTable table = *make_rank_table(four_nodes(), 16, 16);
  EXPECT_EQ(device_of_rank(table, TableRole::kPrefill, "172.19.241.49", {}, 3)->cluster_id, "12");
  const std::vector<std::string> visible{"4", "6"};
  EXPECT_EQ(device_of_rank(table, TableRole::kDecode, "172.19.190.36", visible, 1)->device_id, "6");
  const auto beyond = device_of_rank(table, TableRole::kDecode, "172.19.190.36", visible, 2);
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message(), HasSubstr("rank 2 needs 3 rows"));
  const auto stranger = device_of_rank(table, TableRole::kPrefill, "172.19.123.51", {}, 0);
  ASSERT_FALSE(stranger);
  EXPECT_THAT(stranger.error().message(), HasSubstr("prefill_device_list: server_id 172.19.123.51 is not in it"));
}

TEST(TextFile, IsReplacedAsAWhole) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("rank_table_test.{}", getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder / "table.json";
  ASSERT_TRUE(write_text_file(path, "one"));
  ASSERT_TRUE(write_text_file(path, "two"));
  EXPECT_EQ(*read_text_file(path, 10), "two");
  EXPECT_FALSE(read_text_file(path, 2));
  EXPECT_FALSE(write_text_file(folder / "missing" / "table.json", "x"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::cluster
