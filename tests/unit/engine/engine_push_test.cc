// SPDX-License-Identifier: Apache-2.0
// Layerwise push over two engines: the decoder announces, a metaserver written by the test sends the prompt to the
// prefiller, the KV arrives layer by layer. The decoder must give the tokens of a colocated run or an error, within a
// bounded time, and afterwards both pools balance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>

#include "base/json.h"
#include "kv/block_pool.h"
#include "unit/engine/instance.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using ::testing::ElementsAreArray;
using testing::eventually;
using testing::greedy;
using ::testing::HasSubstr;
using testing::Instance;
using testing::kVocab;
using testing::prompt;
using worker::StubWorker;

/// Records what is announced; the test (or `on_announce`) says how the metaserver answers.
class FakeAnnouncer final : public Announcer {
 public:
  AnnouncementId announce(Announcement announcement, std::function<void(Status)> done) override {
    std::function<void(AnnouncementId, const Announcement&)> react;
    AnnouncementId id = 0;
    {
      const std::lock_guard lock(mutex_);
      id = next_++;
      open_.emplace(id, std::move(done));
      announcements_.push_back(announcement);
      react = on_announce;
    }
    if (react) react(id, announcement);
    return id;
  }
  void cancel(AnnouncementId id) override { answer(id, Status(Code::kCancelled, "cancelled")); }

  void answer(AnnouncementId id, Status status) {
    std::function<void(Status)> done;
    {
      const std::lock_guard lock(mutex_);
      const auto found = open_.find(id);
      if (found == open_.end()) return;
      done = std::move(found->second);
      open_.erase(found);
    }
    done(std::move(status));
  }
  std::vector<Announcement> announcements() {
    const std::lock_guard lock(mutex_);
    return announcements_;
  }
  std::size_t num_open() {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }

  std::function<void(AnnouncementId, const Announcement&)> on_announce;

 private:
  std::mutex mutex_;
  AnnouncementId next_ = 1;
  std::map<AnnouncementId, std::function<void(Status)>> open_;
  std::vector<Announcement> announcements_;
};

boost::json::object object_of(const Announcement& announcement) {
  auto value = parse_json(announcement.body);
  EXPECT_TRUE(value);
  return value->as_object();
}

/// Each test runs step by step and with async scheduling.
class PushTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(EngineOptions decoder_options = {}, EngineOptions prefiller_options = {.max_num_batched_tokens = 8},
             std::int32_t decoder_blocks = 64, std::int32_t prefiller_blocks = 64, std::int32_t theirs = 4) {
    decoder_options.async_scheduling = prefiller_options.async_scheduling = GetParam();
    p_.start("p", 7, prefiller_blocks, prefiller_options, nullptr, theirs);
    d_.start("d", 8, decoder_blocks, decoder_options, &announcer_);
    d_.transfer->connect(*p_.transfer);
  }
  void TearDown() override {
    p_.gate.open();
    d_.gate.open();
    d_.engine.reset();
    p_.engine.reset();
  }

  Result<RequestHandle> decode(Collector& collector, std::vector<std::int32_t> tokens, std::int32_t max_tokens = 8,
                               std::shared_ptr<ChoiceGroup> group = nullptr) {
    GenerationRequest request;
    request.group = std::move(group);
    request.id = "cmpl-x-0";
    request.prompt = std::move(tokens);
    request.sampling = greedy(max_tokens);
    request.metaserver = Metaserver{"meta", 80, false, "/v1/metaserver", "cmpl-x-0"};
    request.traceparent = "00-abc";
    return d_.engine->submit(std::move(request), collector.sink());
  }
  Result<RequestHandle> prefill(Collector& collector, std::vector<std::int32_t> tokens, const transfer::Delivery& to,
                                std::int32_t max_tokens = 1) {
    GenerationRequest request;
    request.id = "prefill";
    request.prompt = std::move(tokens);
    request.sampling = greedy(max_tokens);
    request.push_to = to;
    return p_.engine->submit(std::move(request), collector.sink());
  }
  static transfer::Delivery delivery_of(const Announcement& announcement) {
    auto delivery = transfer::delivery_from_json(object_of(announcement));
    EXPECT_TRUE(delivery);
    EXPECT_TRUE(*delivery);
    return **delivery;
  }
  transfer::Delivery wait_for_delivery(std::size_t count = 1) {
    EXPECT_TRUE(eventually([&] { return announcer_.announcements().size() >= count; }));
    return delivery_of(announcer_.announcements().at(count - 1));
  }
  void expect_balanced() {
    EXPECT_TRUE(eventually([this] { return d_.all_blocks_back(); })) << "decoder";
    EXPECT_TRUE(eventually([this] { return p_.all_blocks_back(); })) << "prefiller";
    EXPECT_EQ(p_.transfer->num_leases(), 0U);
    EXPECT_EQ(d_.transfer->num_receptions(), 0U);
  }
  /// One request through both, with a metaserver that answers when the prefill is done.
  void run_one(const std::vector<std::int32_t>& tokens) {
    const std::size_t before = announcer_.announcements().size();
    Collector decoding;
    ASSERT_TRUE(decode(decoding, tokens));
    const transfer::Delivery to = wait_for_delivery(before + 1);
    Collector prefilling;
    ASSERT_TRUE(prefill(prefilling, tokens, to));
    EXPECT_TRUE(prefilling.last().error.ok()) << prefilling.last().error.to_string();
    EXPECT_FALSE(prefilling.last().handover.has_value());
    announcer_.answer(before + 1, {});
    expect_right(decoding, tokens);
  }

  FakeAnnouncer announcer_;
  Instance p_;
  Instance d_;
};

TEST_P(PushTest, TheDecoderContinuesFromWhatWasPushed) {
  start();
  run_one(prompt(22));
  EXPECT_EQ(d_.transfer->num_tokens_pushed(), 21);
  EXPECT_GE(p_.transfer->num_published(), 3U) << "22 tokens in steps of 8: at least one call a step and layer";
  EXPECT_EQ(d_.metric("vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"}"), 21.0);
  EXPECT_EQ(d_.metric("vllm:prompt_tokens_by_source_total{source=\"local_compute\"}"), 1.0);
  expect_balanced();
}

TEST_P(PushTest, WhatTheMetaserverIsTold) {
  start();
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22)));
  wait_for_delivery();
  const Announcement announcement = announcer_.announcements().front();
  EXPECT_EQ(announcement.host, "meta");
  EXPECT_EQ(announcement.port, 80);
  EXPECT_EQ(announcement.target, "/v1/metaserver");
  EXPECT_EQ(announcement.traceparent, "00-abc");
  const boost::json::object body = object_of(announcement);
  EXPECT_EQ(body.at("request_id").as_string(), "cmpl-x-0");
  EXPECT_TRUE(body.at("token_ids").as_array().empty());
  EXPECT_EQ(body.at("do_remote_prefill"), boost::json::value(false));
  EXPECT_EQ(body.at("do_remote_decode"), boost::json::value(true));
  EXPECT_EQ(body.at("remote_engine_id").as_string(), "d");
  EXPECT_EQ(body.at("remote_block_ids").as_array().size(), 6U);
  EXPECT_EQ(body.at("remote_block_size").as_int64(), 4);
  EXPECT_EQ(body.at("remote_tp_size").as_int64(), 1);
  EXPECT_EQ(body.at("remote_cached_tokens").as_int64(), 0);
  announcer_.answer(1, Status(Code::kUnavailable, "no prefiller"));
  EXPECT_EQ(collector.last().error.message(), "no prefiller");
  expect_balanced();
}

TEST_P(PushTest, LengthsAroundBlocksColdAndWarm) {
  start({}, {.max_num_batched_tokens = 8}, 200, 200);
  for (int round = 0; round < 2; ++round) {
    for (const std::int32_t length : {2, 3, 4, 7, 8, 9, 12, 13, 31, 32, 33}) {
      SCOPED_TRACE(length);
      if (round == 1 && (length - 1) % 4 == 0) {  // all of it is cached: nothing is announced
        const std::size_t before = announcer_.announcements().size();
        Collector collector;
        ASSERT_TRUE(decode(collector, prompt(length, length)));
        expect_right(collector, prompt(length, length));
        EXPECT_EQ(announcer_.announcements().size(), before);
      } else {
        run_one(prompt(length, length));
      }
      expect_balanced();
    }
  }
}

TEST_P(PushTest, ChoicesOfAPromptShareWhatWasPushed) {
  start();
  const auto group = std::make_shared<ChoiceGroup>(3);
  const auto tokens = prompt(22);
  std::vector<Collector> choices(3);
  ASSERT_TRUE(decode(choices[0], tokens, 8, group));
  for (std::size_t i = 1; i < 3; ++i) {
    GenerationRequest request;
    request.prompt = tokens;
    request.sampling = greedy(8);
    request.group = group;
    ASSERT_TRUE(d_.engine->submit(std::move(request), choices[i].sink()));
  }
  const transfer::Delivery to = wait_for_delivery();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, tokens, to));
  prefilling.last();
  announcer_.answer(1, {});
  for (Collector& choice : choices) expect_right(choice, tokens);
  EXPECT_EQ(announcer_.announcements().size(), 1U);
  EXPECT_EQ(d_.transfer->num_tokens_pushed(), 21);
  EXPECT_EQ(d_.metric("vllm:prompt_tokens_by_source_total{source=\"local_cache_hit\"}"), 2 * 20.0);
  EXPECT_EQ(d_.metric("vllm:prompt_tokens_by_source_total{source=\"local_compute\"}"), 1.0 + 2 * 2.0)
      << "the decoder computes no prompt";
  expect_balanced();
}

TEST_P(PushTest, ChoicesGoOnWhenNothingComes) {
  start();
  const auto group = std::make_shared<ChoiceGroup>(2);
  const auto tokens = prompt(22);
  std::vector<Collector> choices(2);
  ASSERT_TRUE(decode(choices[0], tokens, 8, group));
  GenerationRequest request;
  request.prompt = tokens;
  request.sampling = greedy(8);
  request.group = group;
  ASSERT_TRUE(d_.engine->submit(std::move(request), choices[1].sink()));
  wait_for_delivery();
  announcer_.answer(1, Status(Code::kUnavailable, "no prefiller"));
  EXPECT_FALSE(choices[0].last().error.ok());
  expect_right(choices[1], tokens);
  expect_balanced();
}

TEST_P(PushTest, PrefixHitsOnEitherSide) {
  start();
  Collector warm_prefiller;
  GenerationRequest local;
  local.prompt = prompt(16);
  local.sampling = greedy(1);
  ASSERT_TRUE(p_.engine->submit(local, warm_prefiller.sink()));
  warm_prefiller.last();
  auto longer = prompt(16);
  for (const std::int32_t token : prompt(9, 5)) longer.push_back(token);
  run_one(longer);  // the prefiller has 16 of 25
  EXPECT_EQ(d_.transfer->num_tokens_pushed(), 24);
  for (const std::int32_t token : prompt(10, 6)) longer.push_back(token);
  run_one(longer);  // the decoder has 24 of 35
  EXPECT_EQ(d_.transfer->num_tokens_pushed(), 24 + 34 - 24);
  expect_balanced();
}

TEST_P(PushTest, BlocksOfOtherSizes) {
  for (const std::int32_t theirs : {2, 3, 8, 16}) {
    SCOPED_TRACE(theirs);
    start({}, {.max_num_batched_tokens = 8}, 64, 256 / theirs, theirs);
    Collector decoding;
    const std::size_t before = announcer_.announcements().size();
    ASSERT_TRUE(decode(decoding, prompt(22)));
    Collector prefilling;
    ASSERT_TRUE(prefill(prefilling, prompt(22), wait_for_delivery(before + 1)));
    expect_right(decoding, prompt(22));
    expect_balanced();
  }
}

TEST_P(PushTest, KvArrivesBeforeThePrefillIsOver) {
  start({}, {.max_num_batched_tokens = 8});
  Collector decoding;
  ASSERT_TRUE(decode(decoding, prompt(25)));
  const transfer::Delivery to = wait_for_delivery();
  p_.gate.close();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), to));
  ASSERT_TRUE(p_.gate.wait_for_arrivals(1));
  EXPECT_EQ(p_.transfer->num_published(), 0U);
  p_.gate.let_one_pass();
  ASSERT_TRUE(p_.gate.wait_for_arrivals(2));
  EXPECT_GT(p_.transfer->num_published(), 0U) << "the first chunk is out while the second has not begun";
  EXPECT_TRUE(eventually([this] { return p_.engine->stats().num_leased == 1; }));
  p_.gate.open();
  expect_right(decoding, prompt(25));
  expect_balanced();
}

TEST_P(PushTest, MetaserverErrorsFailOrRecomputeByPolicy) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kFail, LoadFailurePolicy::kRecompute}) {
    start({.load_failure_policy = policy});
    const std::size_t before = announcer_.announcements().size();
    Collector collector;
    ASSERT_TRUE(decode(collector, prompt(22)));
    wait_for_delivery(before + 1);
    announcer_.answer(before + 1, Status(Code::kUnavailable, "metaserver: 502", Scope::kTransfer));
    if (policy == LoadFailurePolicy::kFail) {
      EXPECT_EQ(collector.last().error.message(), "metaserver: 502");
      EXPECT_TRUE(collector.tokens().empty());
    } else {
      expect_right(collector, prompt(22));
      EXPECT_EQ(d_.metric("tandem:kv_load_recomputes_total"), 1.0);
    }
    expect_balanced();
  }
}

TEST_P(PushTest, AnOkWithoutAnOfferEndsTheWaitSoon) {
  start({.offer_grace = std::chrono::milliseconds(50)});
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22)));
  wait_for_delivery();
  announcer_.answer(1, {});
  EXPECT_EQ(collector.last().error.code(), Code::kUnavailable);
  EXPECT_THAT(collector.last().error.message(), HasSubstr("no prefiller offered its KV within 50 ms"));
  expect_balanced();
}

TEST_P(PushTest, AnOfferThatCameIsNotHurriedByTheMetaserversOk) {
  start({.offer_grace = std::chrono::milliseconds(1)});
  Collector decoding;
  ASSERT_TRUE(decode(decoding, prompt(25)));
  const transfer::Delivery to = wait_for_delivery();
  p_.gate.close();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), to));
  ASSERT_TRUE(p_.gate.wait_for_arrivals(1));
  announcer_.answer(1, {});  // a metaserver that answers early
  Collector other;           // the decoder's engine goes round several times
  GenerationRequest local;
  local.prompt = prompt(9, 9);
  local.sampling = greedy(20);
  ASSERT_TRUE(d_.engine->submit(local, other.sink()));
  other.last();
  p_.gate.open();
  expect_right(decoding, prompt(25));
  expect_balanced();
}

TEST_P(PushTest, AbortedDecoderEndsEverything) {
  start();
  Collector decoding;
  const auto handle = decode(decoding, prompt(25));
  const transfer::Delivery to = wait_for_delivery();
  p_.gate.close();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), to));
  ASSERT_TRUE(p_.gate.wait_for_arrivals(1));
  d_.engine->abort(*handle);
  EXPECT_EQ(decoding.last().finish, FinishReason::kAbort);
  EXPECT_EQ(announcer_.num_open(), 0U) << "the HTTP call is given up";
  EXPECT_EQ(prefilling.last().error.code(), Code::kCancelled);
  EXPECT_THAT(prefilling.last().error.message(), HasSubstr("did not take its KV"));
  p_.gate.open();
  expect_balanced();
}

TEST_P(PushTest, AbortBeforeAnyOffer) {
  start();
  Collector decoding;
  const auto handle = decode(decoding, prompt(25));
  const transfer::Delivery to = wait_for_delivery();
  d_.engine->abort(*handle);
  EXPECT_EQ(decoding.last().finish, FinishReason::kAbort);
  EXPECT_EQ(announcer_.num_open(), 0U);
  Collector late;  // the proxy had sent it already
  ASSERT_TRUE(prefill(late, prompt(25), to));
  EXPECT_EQ(late.last().error.code(), Code::kNotFound);
  EXPECT_EQ(late.last().error.scope(), Scope::kTransfer) << "no mistake of the client";
  expect_balanced();
}

TEST_P(PushTest, AbortedPrefillerFailsTheDecoder) {
  start();
  Collector decoding;
  ASSERT_TRUE(decode(decoding, prompt(25)));
  p_.gate.close();
  Collector prefilling;
  const auto handle = prefill(prefilling, prompt(25), wait_for_delivery());
  ASSERT_TRUE(p_.gate.wait_for_arrivals(1));
  p_.engine->abort(*handle);
  EXPECT_EQ(prefilling.last().finish, FinishReason::kAbort);
  EXPECT_EQ(decoding.last().error.code(), Code::kUnavailable);
  p_.gate.open();
  expect_balanced();
}

TEST_P(PushTest, AnOfferThatIsNotTakenFailsThePrefill) {
  start();
  p_.transfer->set_offer_answer(Status(Code::kUnavailable, "decoder unreachable", Scope::kPeer));
  Collector decoding;
  const auto handle = decode(decoding, prompt(25));
  p_.gate.close();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), wait_for_delivery()));
  EXPECT_EQ(prefilling.last().error.message(), "decoder unreachable");
  p_.gate.open();
  d_.engine->abort(*handle);
  expect_balanced();
}

TEST_P(PushTest, DeliveriesThatDoNotFitAreRefusedByThePrefiller) {
  start();
  const std::vector<std::pair<std::function<void(transfer::Delivery&)>, std::string>> cases = {
      {[](transfer::Delivery& to) { to.num_tokens = 21; }, "KV of 21 tokens, the prompt has 22"},
      {[](transfer::Delivery& to) { to.first_token = 22; }, "tokens from 22 on"},
      {[](transfer::Delivery& to) { to.first_token = -1; }, "tokens from -1 on"},
      {[](transfer::Delivery& to) { ++to.prompt_hash; }, "another prompt of 22 tokens"},
  };
  Collector decoding;
  const auto handle = decode(decoding, prompt(22));
  const transfer::Delivery good = wait_for_delivery();
  for (const auto& [spoil, message] : cases) {
    SCOPED_TRACE(message);
    transfer::Delivery to = good;
    spoil(to);
    Collector prefilling;
    ASSERT_TRUE(prefill(prefilling, prompt(22), to));
    EXPECT_THAT(prefilling.last().error.message(), HasSubstr(message));
    EXPECT_EQ(p_.transfer->num_leases(), 0U);
  }
  d_.engine->abort(*handle);
  expect_balanced();
}

TEST_P(PushTest, OthersArePreemptedBeforeAPush) {
  // 12 blocks of 4: two that generate fill them, the pushed prompt keeps its own.
  start({}, {.max_num_batched_tokens = 8}, 64, 12);
  std::vector<Collector> generating(2);
  for (std::int32_t i = 0; i < 2; ++i) {
    GenerationRequest local;
    local.prompt = prompt(6, i + 1);
    local.sampling = greedy(24);
    ASSERT_TRUE(p_.engine->submit(local, generating[static_cast<std::size_t>(i)].sink()));
  }
  for (int round = 0; round < 6; ++round) run_one(prompt(15, 20 + round));
  for (std::int32_t i = 0; i < 2; ++i) {
    expect_right(generating[static_cast<std::size_t>(i)], prompt(6, i + 1), 24);
  }
  expect_balanced();
}

TEST_P(PushTest, APushThatMustBePreemptedIsAnErrorOnBothSides) {
  // Two prompts of six blocks and output that outgrows a pool of 13, while their decoders have taken nothing yet.
  start({}, {.max_num_batched_tokens = 64}, 64, 13);
  std::vector<Collector> decoding(2);
  std::vector<Collector> prefilling(2);
  p_.gate.close();
  for (std::int32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(decode(decoding[static_cast<std::size_t>(i)], prompt(22, i)));
    transfer::Delivery to = wait_for_delivery(static_cast<std::size_t>(i) + 1);
    p_.transfer->hold_back(true);
    ASSERT_TRUE(prefill(prefilling[static_cast<std::size_t>(i)], prompt(22, i), to, /*max_tokens=*/12));
  }
  p_.gate.open();
  int failed = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    if (prefilling[i].last().error.ok()) continue;
    ++failed;
    EXPECT_EQ(prefilling[i].last().error.code(), Code::kResourceExhausted);
    EXPECT_THAT(prefilling[i].last().error.message(), HasSubstr("preempted while its KV was pushed"));
    EXPECT_EQ(decoding[i].last().error.code(), Code::kUnavailable);
  }
  EXPECT_EQ(failed, 1);
  p_.transfer->hold_back(false);
  for (std::int32_t i = 0; i < 2; ++i) {
    if (prefilling[static_cast<std::size_t>(i)].last().error.ok()) {
      expect_right(decoding[static_cast<std::size_t>(i)], prompt(22, i));
    }
  }
  expect_balanced();
}

TEST_P(PushTest, FailedStepOnThePrefillerIsAnErrorOfBoth) {
  start();
  Collector decoding;
  ASSERT_TRUE(decode(decoding, prompt(25)));
  const transfer::Delivery to = wait_for_delivery();
  p_.fail_next_step = true;
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), to));
  EXPECT_EQ(prefilling.last().error.code(), Code::kInternal);
  EXPECT_EQ(decoding.last().error.code(), Code::kUnavailable);
  expect_balanced();
}

TEST_P(PushTest, ManyAtOnceThroughSmallPools) {
  start({.max_num_seqs = 16, .max_num_batched_tokens = 16}, {.max_num_batched_tokens = 16}, 24, 18);
  std::vector<Collector> decoding(40);
  std::vector<Collector> prefilling(40);
  std::mutex mutex;
  std::size_t next = 0;
  announcer_.on_announce = [&](AnnouncementId, const Announcement& announcement) {
    const transfer::Delivery to = delivery_of(announcement);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < 40; ++i) {
      const auto tokens = prompt(9 + static_cast<std::int32_t>(i) % 11, static_cast<std::int32_t>(i));
      if (kv::token_hash(tokens) != to.prompt_hash) continue;
      EXPECT_TRUE(prefill(prefilling[next++], tokens, to));
      return;
    }
    ADD_FAILURE() << "an announcement of no prompt";
  };
  for (std::int32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(decode(decoding[static_cast<std::size_t>(i)], prompt(9 + i % 11, i), 15));
  }
  for (std::int32_t i = 0; i < 40; ++i) {
    expect_right(decoding[static_cast<std::size_t>(i)], prompt(9 + i % 11, i), 15);
  }
  for (std::size_t i = 0; i < next; ++i) prefilling[i].last();
  expect_balanced();
}

TEST_P(PushTest, StopEndsReceptionsAndPushes) {
  start();
  Collector decoding;
  ASSERT_TRUE(decode(decoding, prompt(25)));
  const transfer::Delivery to = wait_for_delivery();
  p_.gate.close();
  Collector prefilling;
  ASSERT_TRUE(prefill(prefilling, prompt(25), to));
  ASSERT_TRUE(p_.gate.wait_for_arrivals(1));
  d_.engine->stop();
  EXPECT_EQ(decoding.last().finish, FinishReason::kAbort);
  EXPECT_FALSE(prefilling.last().error.ok());
  p_.gate.open();
  p_.engine->stop();
  EXPECT_EQ(p_.transfer->num_leases(), 0U);
  EXPECT_EQ(d_.transfer->num_receptions(), 0U);
  EXPECT_EQ(announcer_.num_open(), 0U);
}

TEST_P(PushTest, WithoutAnAnnouncerThePromptIsComputedHere) {
  d_.start("d", 8, 64, {});
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22)));
  expect_right(collector, prompt(22));
}

INSTANTIATE_TEST_SUITE_P(Scheduling, PushTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine
