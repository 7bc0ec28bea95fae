// SPDX-License-Identifier: Apache-2.0
// Frames and messages: round trips, streams cut anywhere, and refusals.
#include "transfer/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

namespace tandem::transfer::wire {
namespace {

using ::testing::HasSubstr;

Identity sample_identity() {
  Identity identity;
  identity.engine_id = "prefiller-0";
  identity.incarnation = 0xfedcba9876543210ULL;
  identity.boot_id = "9afb8c40-4a0d-4ab3-88b9-beb7521c581c";
  kv::Layout layout;
  layout.num_layers = 28;
  layout.num_blocks = 4096;
  layout.block_size = 16;
  layout.total_kv_heads = 8;
  layout.num_kv_heads = 4;
  layout.head_dim = 128;
  layout.element = kv::ElementType::kF32;
  layout.fingerprint = "model:abc";
  identity.ranks = {layout, layout};
  identity.ranks[1].first_kv_head = 4;
  identity.ranks[1].base = layout.total_bytes();
  return identity;
}

Handover sample_handover() {
  Handover handover;
  handover.engine_id = "prefiller-0";
  handover.host = "::1";
  handover.port = 30000;
  handover.lease = {3, 4};
  handover.num_tokens = 100;
  handover.prompt_hash = 0xfedcba9876543210ULL;
  handover.block_size = 16;
  handover.tp_size = 2;
  return handover;
}

std::vector<Message> one_of_each() {
  const LeaseId lease{3, 0xffffffffffffffffULL};
  return {Hello{sample_identity()},
          Welcome{sample_identity(), 30'000, "1a-2b"},
          Hold{lease},
          Renew{9, {lease, {1, 2}}},
          RenewReply{9},
          LeasesEnded{{{lease, Ended::kExpired}, {{1, 2}, Ended::kUnknown}}},
          Done{lease},
          Drop{lease},
          FetchRequest{77, lease, Via::kTcp, {3, 28, 16, 4096}},
          Grant{77, 0xabcdef, 2, 3},
          GrantBlocks{77, 5, {{12, 1}, {13, 9}}, {1, 2, 3, 4, 5, 0xffffffffU}},
          FetchEnded{77},
          FetchError{77, Code::kUnavailable, "lease has ended"},
          Attach{3, 0xabcdef},
          Pull{{{0, 1}, {1ULL << 40, kMaxRunBytes}}},
          Refused{Code::kInvalidArgument, "no"},
          Progress{lease, 3, 4, 2048},
          Offer{5, 6, sample_identity(), sample_handover()},
          OfferReply{Code::kNotFound, "nobody waits"}};
}

TEST(WireTest, EveryMessageRoundTrips) {
  const std::vector<Message> messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].index(), i) << "one of each, in order";
    std::vector<std::byte> bytes;
    append_frame(messages[i], bytes);
    FrameReader reader;
    reader.append(bytes);
    auto parsed = reader.next();
    ASSERT_TRUE(parsed) << i << ": " << parsed.error().to_string();
    ASSERT_TRUE(parsed->has_value());
    EXPECT_TRUE(**parsed == messages[i]) << i;
  }
}

TEST(WireTest, StreamsMayBeCutAnywhere) {
  std::vector<std::byte> bytes;
  const std::vector<Message> messages = one_of_each();
  for (const Message& message : messages) append_frame(message, bytes);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    FrameReader reader;
    std::size_t parsed = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min<std::size_t>(bytes.size() - at, 1 + random() % (seed + 1));
      reader.append({bytes.data() + at, count});
      at += count;
      for (;;) {
        auto message = reader.next();
        ASSERT_TRUE(message) << message.error().to_string();
        if (!message->has_value()) break;
        ASSERT_LT(parsed, messages.size());
        EXPECT_TRUE(**message == messages[parsed++]);
      }
    }
    EXPECT_EQ(parsed, messages.size());
  }
}

TEST(WireTest, EveryTruncationOfAPayloadIsAnError) {
  for (const Message& message : one_of_each()) {
    std::vector<std::byte> bytes;
    append_frame(message, bytes);
    const std::span<const std::byte> payload = std::span<const std::byte>(bytes).subspan(kHeaderBytes);
    const auto type = static_cast<std::uint8_t>(message.index() + 1);
    for (std::size_t size = 0; size < payload.size(); ++size) {
      auto parsed = parse_payload(type, payload.first(size));
      // GrantBlocks ends in as many checksums as there are: whole ones fewer are a shorter message, refused by count
      // later.
      const bool fewer_sums =
          std::holds_alternative<GrantBlocks>(message) && size >= 32 && (payload.size() - size) % 4 == 0;
      EXPECT_EQ(parsed.has_value(), fewer_sums) << int(type) << " cut to " << size;
    }
    std::vector<std::byte> longer(payload.begin(), payload.end());
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parse_payload(type, longer)) << int(type);
  }
}

Status header_error(const std::function<void(HeaderBytes&)>& change) {
  HeaderBytes bytes = make_header(3, 16);
  change(bytes);
  auto header = parse_header(bytes);
  EXPECT_FALSE(header);
  return header ? Status() : header.error();
}

TEST(WireTest, HeadersAreChecked) {
  EXPECT_THAT(header_error([](HeaderBytes& b) { std::memcpy(b.data(), "GET ", 4); }).message(), HasSubstr("KV port"));
  const Status version = header_error([](HeaderBytes& b) { b[4] = std::byte{9}; });
  EXPECT_EQ(version.code(), Code::kFailedPrecondition);
  EXPECT_THAT(version.message(), HasSubstr("version 9"));
  EXPECT_THAT(version.message(), HasSubstr("ours is 2"));
  EXPECT_THAT(header_error([](HeaderBytes& b) { b[5] = std::byte{0}; }).message(), HasSubstr("type 0"));
  EXPECT_THAT(header_error([](HeaderBytes& b) { b[5] = std::byte{63}; }).message(), HasSubstr("type 63"));
  EXPECT_THAT(header_error([](HeaderBytes& b) { b[6] = std::byte{1}; }).message(), HasSubstr("reserved"));
  EXPECT_THAT(header_error([](HeaderBytes& b) { b[11] = std::byte{1}; }).message(), HasSubstr("limit"));
}

TEST(WireTest, TlsWhereAFrameIsExpectedIsNamed) {
  const std::vector<std::byte> alert = {std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                                        std::byte{2},  std::byte{2}, std::byte{40}};
  std::vector<std::byte> hello(300);
  hello[0] = std::byte{22};
  hello[1] = std::byte{3};
  hello[2] = std::byte{1};
  for (const auto& bytes : {alert, hello}) {
    FrameReader reader;
    reader.append(bytes);
    const auto message = reader.next();
    ASSERT_FALSE(message);
    EXPECT_EQ(message.error().code(), Code::kFailedPrecondition);
    EXPECT_NE(message.error().message().find("it speaks TLS, and this side does not"), std::string::npos);
  }
}

TEST(WireTest, DataFramesAreNotMessages) {
  const HeaderBytes header = make_header(kDataType, 4);
  FrameReader reader;
  reader.append(header);
  EXPECT_FALSE(reader.next());
}

TEST(WireTest, ImpossibleValuesAreRefused) {
  const auto refused = [](const Message& message) {
    std::vector<std::byte> bytes;
    append_frame(message, bytes);
    return !parse_payload(static_cast<std::uint8_t>(message.index() + 1),
                          std::span<const std::byte>(bytes).subspan(kHeaderBytes))
                .has_value();
  };
  Identity identity = sample_identity();
  identity.ranks[0].num_blocks = 0;
  EXPECT_TRUE(refused(Hello{identity}));
  identity = sample_identity();
  identity.ranks[1].first_kv_head = 5;  // 5 + 4 > 8
  EXPECT_TRUE(refused(Hello{identity}));
  identity = sample_identity();
  identity.ranks[0].num_layers = identity.ranks[0].num_blocks = identity.ranks[0].block_size = 0x7fffffff;
  EXPECT_TRUE(refused(Hello{identity}));
  identity = sample_identity();
  identity.ranks[1].base -= 1;  // within rank 0
  EXPECT_TRUE(refused(Hello{identity}));
  identity = sample_identity();
  identity.ranks.pop_back();  // heads 4 to 7 are nowhere
  EXPECT_TRUE(refused(Hello{identity}));
  EXPECT_TRUE(refused(Welcome{sample_identity(), 0, ""}));
  EXPECT_TRUE(refused(FetchRequest{1, {}, Via::kShm, {0, 1, 5, 5}}));
  EXPECT_TRUE(refused(FetchRequest{1, {}, Via::kShm, {0, 1, -1, 5}}));
  EXPECT_TRUE(refused(FetchRequest{1, {}, Via::kShm, {1, 1, 0, 5}}));
  EXPECT_TRUE(refused(FetchRequest{1, {}, Via::kShm, {-1, 1, 0, 5}}));
  EXPECT_TRUE(refused(Progress{{}, 2, 2, 5}));
  EXPECT_TRUE(refused(Progress{{}, 0, 1, -5}));
  Handover nowhere = sample_handover();
  nowhere.port = 0;
  EXPECT_TRUE(refused(Offer{1, 2, sample_identity(), nowhere}));
  EXPECT_TRUE(refused(GrantBlocks{1, 0, {{-1, 0}}, {}}));
  EXPECT_TRUE(refused(Pull{{{0, 0}}}));
  EXPECT_TRUE(refused(Pull{{{0, kMaxRunBytes + 1}}}));
  EXPECT_TRUE(refused(FetchError{1, Code::kOk, ""}));
  EXPECT_FALSE(refused(Hello{sample_identity()}));
}

}  // namespace
}  // namespace tandem::transfer::wire
