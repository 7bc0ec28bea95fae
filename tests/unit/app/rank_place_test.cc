// SPDX-License-Identifier: Apache-2.0
#include "app/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cluster/rank_table.h"

namespace tandem::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two nodes of four devices: 10.0.0.1 prefills, 10.0.0.2 decodes.
class RankPlaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<cluster::NodeDevices> nodes(2);
    for (int node = 0; node < 2; ++node) {
      nodes[node].server_id = node == 0 ? "10.0.0.1" : "10.0.0.2";
      for (int device = 0; device < 4; ++device) {
        cluster::RankTableDevice row;
        row.server_id = nodes[node].server_id;
        row.device_id = std::to_string(device);
        row.device_ip = "10.1." + std::to_string(node) + "." + std::to_string(device + 1);
        nodes[node].devices.push_back(row);
      }
    }
    auto table = cluster::make_rank_table(nodes, 4, 4);
    ASSERT_TRUE(table) << table.error().to_string();
    path_ = (std::filesystem::path(::testing::TempDir()) / "rank_place_test.json").string();
    ASSERT_TRUE(cluster::write_text_file(path_, cluster::rank_table_json(*table)));
    config_.kv_transfer.emplace();
    config_.kv_transfer->kind = config::KvConnector::kRankTable;
    config_.kv_transfer->role = config::KvRole::kProducer;
    config_.kv_transfer->rank_table = path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string error_of(const std::vector<std::string>& addresses) {
    const auto placed = take_place_in_rank_table(config_, addresses);
    EXPECT_FALSE(placed);
    return placed.error().message();
  }

  std::string path_;
  config::ServeConfig config_;
};

TEST_F(RankPlaceTest, BothRolesFindThemselvesAndTheirPeers) {
  ASSERT_TRUE(take_place_in_rank_table(config_, {"192.168.0.9", "10.0.0.1", "127.0.0.1"}));
  EXPECT_EQ(config_.advertised_host, "10.0.0.1");
  EXPECT_THAT(config_.kv_transfer->peer_hosts, ElementsAre("10.0.0.2"));

  config_.advertised_host = "10.0.0.2";  // VLLM_HOST_IP
  config_.kv_transfer->role = config::KvRole::kConsumer;
  config_.tensor_parallel_size = 4;
  ASSERT_TRUE(take_place_in_rank_table(config_, {"10.0.0.1"}));
  EXPECT_THAT(config_.kv_transfer->peer_hosts, ElementsAre("10.0.0.1"));
}

TEST_F(RankPlaceTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(error_of({"10.0.0.9"}), HasSubstr("prefill_device_list.server_id: none is this host (its addresses: "
                                                "10.0.0.9), it has 10.0.0.1"));
  EXPECT_THAT(error_of({"10.0.0.2"}), HasSubstr("the host is in the other list: is kv_role kv_producer right?"));
  EXPECT_THAT(error_of({"10.0.0.2"}), HasSubstr(path_));

  config_.tensor_parallel_size = 5;
  EXPECT_THAT(error_of({"10.0.0.1"}), HasSubstr("--tensor-parallel-size 5: prefill_device_list: tensor-parallel rank 4 "
                                                "needs 5 rows"));
  config_.tensor_parallel_size = 2;
  config_.kv_transfer->visible_devices = {"3", "7"};
  EXPECT_THAT(error_of({"10.0.0.1"}), HasSubstr("a device_id among [3,7], found 1"));

  config_.advertised_host = "10.0.0.77";
  EXPECT_THAT(error_of({"10.0.0.1"}), HasSubstr("VLLM_HOST_IP: 10.0.0.77"));
  config_.kv_transfer->rank_table = "/no/such/table.json";
  EXPECT_THAT(error_of({"10.0.0.1"}), HasSubstr("/no/such/table.json"));
}

TEST_F(RankPlaceTest, ThisHostHasAddresses) {
  EXPECT_THAT(host_addresses(), ::testing::Contains("127.0.0.1"));
  EXPECT_EQ(host_addresses().back().substr(0, 4), "127.");
}

}  // namespace
}  // namespace tandem::app
