// SPDX-License-Identifier: Apache-2.0
// The JSON of a delivery: what a decoder posts to the metaserver, and what a prefiller makes of it.
#include "transfer/delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <string_view>

namespace tandem::transfer {
namespace {

using ::testing::HasSubstr;
namespace json = boost::json;

Delivery sample() {
  Delivery delivery;
  delivery.engine_id = "2_dp3";
  delivery.host = "192.0.0.3";
  delivery.port = 30203;
  delivery.blocks = {5, 6, 7};
  delivery.incarnation = 0xfedcba9876543210ULL;
  delivery.reception = 0x8000000000000001ULL;
  delivery.first_token = 16;
  delivery.num_tokens = 40;
  delivery.prompt_hash = 0xabc;
  return delivery;
}

json::object posted() {
  json::object params = to_json(sample());
  params["do_remote_decode"] = true;
  params["do_remote_prefill"] = false;
  params["request_id"] = "cmpl-1-0";
  return params;
}

TEST(DeliveryTest, HasTheMembersOfTheProtocolAndRoundTrips) {
  const json::object params = posted();
  EXPECT_EQ(params.at("remote_block_ids"), json::parse("[5, 6, 7]"));
  EXPECT_EQ(params.at("remote_engine_id"), "2_dp3");
  EXPECT_EQ(params.at("remote_host"), "192.0.0.3");
  EXPECT_EQ(params.at("remote_port"), 30203);
  EXPECT_EQ(params.at("tandem").at("reception"), "8000000000000001") << "a double would round the number";
  const auto parsed = delivery_from_json(json::parse(json::serialize(params)).as_object());
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  ASSERT_TRUE(parsed->has_value());
  EXPECT_EQ((*parsed)->engine_id, "2_dp3");
  EXPECT_EQ((*parsed)->host, "192.0.0.3");
  EXPECT_EQ((*parsed)->port, 30203);
  EXPECT_EQ((*parsed)->blocks, sample().blocks);
  EXPECT_EQ((*parsed)->incarnation, sample().incarnation);
  EXPECT_EQ((*parsed)->reception, sample().reception);
  EXPECT_EQ((*parsed)->first_token, 16);
  EXPECT_EQ((*parsed)->num_tokens, 40);
  EXPECT_EQ((*parsed)->prompt_hash, 0xabcU);
}

TEST(DeliveryTest, WhatIsNotAPushOfOursIsNone) {
  json::object no_push = posted();
  no_push["do_remote_decode"] = false;
  json::object foreign = posted();
  foreign.erase("tandem");
  json::object pull = json::parse(R"({"do_remote_decode": true, "do_remote_prefill": false, "remote_block_ids": null,
                                      "remote_engine_id": null, "remote_host": null, "remote_port": null})")
                          .as_object();
  for (const json::object& params : {no_push, foreign, pull, json::object()}) {
    const auto parsed = delivery_from_json(params);
    ASSERT_TRUE(parsed) << json::serialize(params);
    EXPECT_FALSE(parsed->has_value()) << json::serialize(params);
  }
}

TEST(DeliveryTest, BrokenOnesNameTheField) {
  using Object = json::object;
  const auto error_after = [](const std::function<void(Object&, Object&)>& change) {
    Object params = posted();
    Object member = params["tandem"].as_object();
    change(params, member);
    if (params["tandem"].is_object()) params["tandem"] = member;
    const auto parsed = delivery_from_json(params);
    EXPECT_FALSE(parsed) << json::serialize(params);
    if (parsed) return std::string();
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    return parsed.error().message();
  };
  EXPECT_THAT(error_after([](Object& p, Object&) { p["tandem"] = 3; }), HasSubstr("tandem is not an object"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["do_remote_decode"] = 5; }), HasSubstr("do_remote_decode"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p.erase("remote_host"); }), HasSubstr("remote_host is missing"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_engine_id"] = ""; }), HasSubstr("remote_engine_id"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_port"] = 65536; }), HasSubstr("remote_port"));
  EXPECT_THAT(error_after([](Object& p, Object&) { p["remote_block_ids"] = json::array{-1}; }),
              HasSubstr("remote_block_ids[0]"));
  for (const char* name : {"incarnation", "reception", "prompt_hash"}) {
    for (const char* bad : {"", "xyz", "0x12", "11111111111111111"}) {
      EXPECT_THAT(error_after([&](Object&, Object& m) { m[name] = bad; }), HasSubstr(name)) << bad;
    }
    EXPECT_THAT(error_after([&](Object&, Object& m) { m.erase(name); }), HasSubstr("is missing"));
  }
  EXPECT_THAT(error_after([](Object&, Object& m) { m["num_tokens"] = -1; }), HasSubstr("num_tokens"));
  EXPECT_THAT(error_after([](Object&, Object& m) { m["first_token"] = 41; }), HasSubstr("first_token"));
}

}  // namespace
}  // namespace tandem::transfer
