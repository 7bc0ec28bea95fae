// SPDX-License-Identifier: Apache-2.0
// The L1 form of a hand-over (pd_protocol.md 4.3) and what broken ones get.
#include "transfer/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::transfer {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

Handover sample() {
  Handover handover;
  handover.engine_id = "0_dp1";
  handover.host = "192.0.0.1";
  handover.port = 30008;
  handover.blocks = {12, 13, 14, 40};
  handover.last_token = 271;
  handover.lease = {0xfedcba9876543210ULL, 0xffffffffffffffffULL};
  handover.num_tokens = 50;
  handover.prompt_hash = 0xabcdef0123456789ULL;
  handover.block_size = 16;
  handover.tp_size = 2;
  return handover;
}

TEST(HandoverTest, HasExactlyTheL1KeysAndOurMember) {
  const json::object params = to_json(sample());
  const json::value expected = json::parse(R"({"do_remote_prefill": true, "do_remote_decode": false,
    "remote_block_ids": [12, 13, 14, 40], "remote_engine_id": "0_dp1", "remote_host": "192.0.0.1", "remote_port": 30008,
    "last_token_id": 271, "tandem": {"lease": "fedcba9876543210-ffffffffffffffff", "num_tokens": 50,
    "prompt_hash": "abcdef0123456789", "block_size": 16, "tp_size": 2}})");
  EXPECT_EQ(json::value(params), expected) << json::serialize(params);
}

TEST(HandoverTest, RoundTripsThroughText) {
  const auto parsed = handover_from_json(json::parse(json::serialize(to_json(sample()))).as_object());
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  ASSERT_TRUE(parsed->has_value());
  const Handover& back = **parsed;
  const Handover want = sample();
  EXPECT_EQ(back.engine_id, want.engine_id);
  EXPECT_EQ(back.host, want.host);
  EXPECT_EQ(back.port, want.port);
  EXPECT_EQ(back.blocks, want.blocks);
  EXPECT_EQ(back.last_token, want.last_token);
  EXPECT_EQ(back.lease, want.lease);
  EXPECT_EQ(back.num_tokens, want.num_tokens);
  EXPECT_EQ(back.prompt_hash, want.prompt_hash);
  EXPECT_EQ(back.block_size, want.block_size);
  EXPECT_EQ(back.tp_size, want.tp_size);
}

TEST(HandoverTest, WhatIsNotOursIsLeftToALocalPrefill) {
  const std::string_view not_ours[] = {
      "{}",
      R"({"do_remote_decode": true, "do_remote_prefill": false, "remote_block_ids": null})",
      R"({"do_remote_prefill": null})",
      R"({"do_remote_prefill": true, "remote_block_ids": [1], "remote_host": "h", "remote_port": 1,
          "remote_engine_id": "vllm"})",
  };
  for (const std::string_view text : not_ours) {
    const auto parsed = handover_from_json(json::parse(text).as_object());
    ASSERT_TRUE(parsed) << text;
    EXPECT_FALSE(parsed->has_value()) << text;
  }
}

TEST(HandoverTest, UnknownMembersAndNumbersAsTextAreFine) {
  json::object params = to_json(sample());
  params["remote_port"] = "30008";
  params["some_later_key"] = json::array{1, nullptr};
  params["last_token_id"] = nullptr;
  const auto parsed = handover_from_json(params);
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ((*parsed)->port, 30008);
  EXPECT_EQ((*parsed)->last_token, -1);
}

TEST(HandoverTest, BrokenOnesNameTheField) {
  const auto error_after = [](const std::function<void(json::object&, json::object&)>& change) {
    json::object params = to_json(sample());
    json::object member = params["tandem"].as_object();
    params.erase("tandem");
    change(params, member);
    if (!params.contains("tandem")) params["tandem"] = member;
    const auto parsed = handover_from_json(params);
    EXPECT_FALSE(parsed) << json::serialize(params);
    if (parsed) return std::string();
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    return parsed.error().message();
  };
  using Object = json::object;
  EXPECT_THAT(error_after([](Object& p, Object&) { p["tandem"] = 3; }), HasSubstr("tandem"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p.erase("remote_host"); }), HasSubstr("remote_host"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_host"] = ""; }), HasSubstr("remote_host"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_engine_id"] = 5; }), HasSubstr("remote_engine_id"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_port"] = 0; }), HasSubstr("remote_port"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_port"] = 65536; }), HasSubstr("remote_port"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_port"] = 65535; }), HasSubstr("remote_port"));  // + rank 1
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_block_ids"] = "x"; }), HasSubstr("remote_block_ids"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_block_ids"] = json::array{1, -2}; }),
              HasSubstr("remote_block_ids[1]"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_block_ids"] = json::array{1e10}; }),
              HasSubstr("remote_block_ids[0]"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["do_remote_prefill"] = json::array{}; }),
              HasSubstr("do_remote_prefill"));
  for (const char* lease : {"", "-", "12", "g-1", "1-g", "11111111111111111-1", "1-2-3", "0x1-2"}) {
    EXPECT_THAT(error_after([&](Object&, Object& m) { m["lease"] = lease; }), HasSubstr("tandem.lease")) << lease;
  }
  for (const char* hash : {"", "xyz", "0x12", "11111111111111111"}) {
    EXPECT_THAT(error_after([&](Object&, Object& m) { m["prompt_hash"] = hash; }), HasSubstr("prompt_hash")) << hash;
  }
  EXPECT_THAT(error_after([](Object&, Object& m) { m.erase("prompt_hash"); }), HasSubstr("prompt_hash is missing"));
  EXPECT_THAT(error_after([](Object&, Object& m) { m["num_tokens"] = -1; }), HasSubstr("num_tokens"));
  EXPECT_THAT(error_after([](Object&, Object& m) { m["num_tokens"] = 65; }),
              HasSubstr("num_tokens"));  // 4 blocks of 16
  EXPECT_THAT(error_after([](Object&, Object& m) { m["block_size"] = 0; }), HasSubstr("block_size"));
  EXPECT_THAT(error_after([](Object&, Object& m) { m.erase("tp_size"); }), HasSubstr("tp_size"));
}

}  // namespace
}  // namespace tandem::transfer
