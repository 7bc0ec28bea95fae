// SPDX-License-Identifier: Apache-2.0
// Prefiller and decoder: two engines over stub workers with separate KV memories, joined by a fake transfer engine. The
// decoder must give the tokens of a colocated run on every path, and afterwards both pools and all holds balance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "unit/engine/instance.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using ::testing::ElementsAreArray;
using testing::eventually;
using testing::FakeTransfer;
using testing::greedy;
using ::testing::HasSubstr;
using testing::Instance;
using testing::kBlockSize;
using testing::kVocab;
using testing::prompt;
using worker::StubWorker;

/// Each test runs step by step and with async scheduling.
class HandoverTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(EngineOptions decoder_options = {}, std::int32_t decoder_blocks = 64, std::int32_t prefiller_blocks = 64) {
    decoder_options.async_scheduling = GetParam();
    p_.start("p", 7, prefiller_blocks, {.max_num_batched_tokens = 16, .async_scheduling = GetParam()});
    d_.start("d", 8, decoder_blocks, decoder_options);
    d_.transfer->connect(*p_.transfer);
  }
  void TearDown() override {
    p_.gate.open();
    d_.gate.open();
    d_.engine.reset();
    p_.engine.reset();
  }

  Result<RequestHandle> prefill(Collector& collector, std::vector<std::int32_t> tokens,
                                std::shared_ptr<worker::SamplingParams> params = greedy(1)) {
    GenerationRequest request;
    request.id = "prefill";
    request.prompt = std::move(tokens);
    request.sampling = std::move(params);
    request.remote_decode = true;
    return p_.engine->submit(std::move(request), collector.sink());
  }
  transfer::Handover hand_over(std::vector<std::int32_t> tokens) {
    Collector collector;
    EXPECT_TRUE(prefill(collector, std::move(tokens)));
    const Output last = collector.last();
    EXPECT_TRUE(last.handover.has_value());
    return last.handover.value_or(transfer::Handover{});
  }
  Result<RequestHandle> decode(Collector& collector, std::vector<std::int32_t> tokens,
                               const std::optional<transfer::Handover>& handover, std::int32_t max_tokens = 8) {
    GenerationRequest request;
    request.id = "decode";
    request.prompt = std::move(tokens);
    request.sampling = greedy(max_tokens);
    request.remote_prefill = handover;
    return d_.engine->submit(std::move(request), collector.sink());
  }
  void expect_balanced() {
    EXPECT_TRUE(eventually([this] { return d_.all_blocks_back(); })) << "decoder";
    EXPECT_TRUE(eventually([this] { return p_.all_blocks_back(); })) << "prefiller";
    EXPECT_EQ(d_.transfer->num_open_holds(), 0);
    EXPECT_EQ(p_.transfer->num_leases(), 0U);
    EXPECT_EQ(d_.transfer->num_pending(), 0U);
  }
  double decoder_metric(const std::string& series) { return d_.metric(series); }

  Instance p_;
  Instance d_;
};

// Prefiller.

TEST_P(HandoverTest, PrefillerKeepsThePromptsBlocksUntilTheLeaseEnds) {
  start();
  const transfer::Handover handover = hand_over(prompt(10));
  EXPECT_EQ(handover.num_tokens, 10);
  EXPECT_EQ(handover.blocks.size(), 3U);
  EXPECT_EQ(handover.last_token, StubWorker::greedy(prompt(10), kVocab, 1)[0]);
  EXPECT_EQ(p_.engine->stats().num_leased, 1);
  EXPECT_EQ(p_.engine->stats().num_free_blocks, 61);
  p_.transfer->expire(handover.lease);
  expect_balanced();
  EXPECT_EQ(p_.engine->stats().num_cached_blocks, 2) << "the full blocks stay in the prefix cache";
}

TEST_P(HandoverTest, ReleaseLeaseFreesAtOnce) {
  start();
  const transfer::Handover handover = hand_over(prompt(10));
  p_.engine->release_lease({1, 2});  // unknown: ignored
  EXPECT_EQ(p_.engine->stats().num_leased, 1);
  p_.engine->release_lease(handover.lease);
  p_.engine->release_lease(handover.lease);
  expect_balanced();
}

TEST_P(HandoverTest, OnlyALengthFinishIsHandedOver) {
  start();
  auto params = greedy(1);
  params->stop_token_ids = StubWorker::greedy(prompt(10), kVocab, 1);
  Collector stopped;
  ASSERT_TRUE(prefill(stopped, prompt(10), params));
  EXPECT_EQ(stopped.last().finish, FinishReason::kStop);
  EXPECT_FALSE(stopped.last().handover.has_value());
  expect_balanced();

  p_.gate.close();
  Collector aborted;
  const int before = p_.gate.arrivals();
  const auto handle = prefill(aborted, prompt(10, 3));
  ASSERT_TRUE(p_.gate.wait_for_arrivals(before + 1));
  p_.engine->abort(*handle);
  EXPECT_EQ(aborted.last().finish, FinishReason::kAbort);
  EXPECT_FALSE(aborted.last().handover.has_value());
  p_.gate.open();
  expect_balanced();
}

TEST_P(HandoverTest, PrefillerWithManyLeasesWaitsAndGoesOn) {
  start({}, 64, /*prefiller_blocks=*/6);
  std::vector<Collector> collectors(5);
  for (std::int32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(prefill(collectors[static_cast<std::size_t>(i)], prompt(11, i)));  // three blocks each: two fit
  }
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(collectors[i].last().handover.has_value());
    p_.engine->release_lease(collectors[i].last().handover->lease);
  }
  expect_balanced();
}

// Decoder: success.

TEST_P(HandoverTest, DecoderContinuesFromTheFetchedBlocks) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  expect_right(collector, prompt(22));
  EXPECT_EQ(d_.transfer->num_tokens_fetched(), 21);
  EXPECT_GT(collector.last().times.transfer, 0.0);
  EXPECT_EQ(decoder_metric("vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"}"), 21.0);
  EXPECT_EQ(decoder_metric("vllm:prompt_tokens_by_source_total{source=\"local_compute\"}"), 1.0);
  EXPECT_EQ(decoder_metric("vllm:external_prefix_cache_queries_total"), 22.0);
  EXPECT_EQ(decoder_metric("vllm:external_prefix_cache_hits_total"), 21.0);
  EXPECT_EQ(decoder_metric("tandem:kv_fetch_seconds_count"), 1.0);
  expect_balanced();
}

TEST_P(HandoverTest, PartsAddUpToTheTimeToFirstToken) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  transfer::FetchStats stats;
  stats.wait_seconds = 0.004;
  stats.copy_seconds = 0.5;
  stats.verify_seconds = 0.002;
  d_.transfer->set_stats(stats);
  Collector collector;
  const auto before = std::chrono::steady_clock::now();
  GenerationRequest request;
  request.prompt = prompt(22);
  request.sampling = greedy(3);
  request.remote_prefill = handover;
  request.received = before - std::chrono::milliseconds(30);
  ASSERT_TRUE(d_.engine->submit(request, collector.sink()));
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the fetch takes this long
  d_.transfer->complete_one();
  const RequestTimes times = collector.last().times;
  const double passed = seconds(std::chrono::steady_clock::now() - request.received);
  EXPECT_NEAR(times.templating, 0.030, 0.005);
  EXPECT_DOUBLE_EQ(times.lease_wait, 0.004);
  EXPECT_DOUBLE_EQ(times.verify, 0.002);
  EXPECT_GE(times.transfer, 0.013);
  EXPECT_GT(times.first_step, 0.0);
  EXPECT_EQ(times.prefill, 0.0);
  EXPECT_LE(times.to_first_token() + times.decode, passed);
  EXPECT_GE(times.to_first_token(), 0.05);
  EXPECT_DOUBLE_EQ(collector.first().times.to_first_token(), times.to_first_token()) << "known with the first token";
  for (const std::string part : {"template", "queue", "lease_wait", "transfer", "verify", "first_step"}) {
    EXPECT_EQ(decoder_metric("tandem:request_" + part + "_seconds_count"), 1.0) << part;
  }
  EXPECT_EQ(decoder_metric("tandem:request_prefill_seconds_count"), 0.0);
  EXPECT_NEAR(decoder_metric("tandem:request_lease_wait_seconds_sum"), 0.004, 1e-9);

  Collector local;
  ASSERT_TRUE(decode(local, prompt(9, 3), std::nullopt));
  EXPECT_GT(local.last().times.prefill, 0.0);
  EXPECT_EQ(local.last().times.first_step + local.last().times.lease_wait + local.last().times.transfer, 0.0);
  EXPECT_EQ(decoder_metric("tandem:request_prefill_seconds_count"), 1.0);
  expect_balanced();
}

TEST_P(HandoverTest, ASlowTransferMovesNoOtherHistogram) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 1; }));
  EXPECT_TRUE(
      eventually([this] { return decoder_metric("vllm:num_requests_waiting_by_reason{reason=\"deferred\"}") == 1.0; }));
  EXPECT_EQ(decoder_metric("vllm:num_requests_waiting_by_reason{reason=\"capacity\"}"), 0.0);
  EXPECT_EQ(decoder_metric("vllm:num_requests_waiting"), 1.0);
  const auto began = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the transfer takes this long
  d_.transfer->complete_one();
  collector.last();
  const double slow = seconds(std::chrono::steady_clock::now() - began);
  EXPECT_GE(decoder_metric("tandem:request_transfer_seconds_sum"), 0.2);
  EXPECT_GE(decoder_metric("vllm:time_to_first_token_seconds_sum"), 0.2);
  for (const std::string part : {"queue_time", "prefill_time", "decode_time"})
    EXPECT_LE(decoder_metric("vllm:request_" + part + "_seconds_sum"), std::max(0.1, slow - 0.2)) << part;
  expect_balanced();
}

TEST_P(HandoverTest, LengthsAroundBlocksColdAndWarm) {
  start({.max_num_batched_tokens = 8}, /*decoder_blocks=*/200);  // room to keep all prompts cached
  for (int round = 0; round < 2; ++round) {
    for (const std::int32_t length : {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 31, 32, 33, 47, 48, 49}) {
      SCOPED_TRACE(length);
      const auto tokens = prompt(length, length);
      Collector collector;
      ASSERT_TRUE(decode(collector, tokens, hand_over(tokens)));
      expect_right(collector, tokens);
      EXPECT_EQ(collector.last().num_cached_tokens, round == 0 ? 0 : (length - 1) / kBlockSize * kBlockSize);
      expect_balanced();
    }
  }
}

TEST_P(HandoverTest, OnlyWhatIsMissingIsFetched) {
  start();
  Collector first;
  ASSERT_TRUE(decode(first, prompt(16), std::nullopt, 1));
  first.last();
  auto longer = prompt(16);
  for (const std::int32_t token : prompt(9, 5)) longer.push_back(token);
  Collector partial;
  ASSERT_TRUE(decode(partial, longer, hand_over(longer)));
  expect_right(partial, longer);
  EXPECT_EQ(partial.last().num_cached_tokens, 16);
  EXPECT_EQ(d_.transfer->num_tokens_fetched(), 24 - 16);
  // All of it is here: the lease is dropped, not fetched.
  const auto whole = std::vector<std::int32_t>(longer.begin(), longer.begin() + 17);
  Collector full;
  ASSERT_TRUE(decode(full, whole, hand_over(whole)));
  expect_right(full, whole);
  EXPECT_EQ(d_.transfer->num_fetches(), 1U);
  EXPECT_EQ(d_.transfer->num_drops(), 1U);
  expect_balanced();
}

TEST_P(HandoverTest, SeveralRequestsShareOneHandover) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  std::vector<Collector> collectors(3);
  for (Collector& collector : collectors) ASSERT_TRUE(decode(collector, prompt(22), handover));
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 3; }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(p_.transfer->num_leases(), 1U);
    d_.transfer->complete_one();
  }
  for (Collector& collector : collectors) expect_right(collector, prompt(22));
  expect_balanced();
}

TEST_P(HandoverTest, ARequestThatComesAfterAnotherHasFetchedNeedsAHold) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.engine->hold(handover);
  Collector first, second;
  ASSERT_TRUE(decode(first, prompt(22), handover));
  expect_right(first, prompt(22));
  EXPECT_EQ(p_.transfer->num_leases(), 1U);
  ASSERT_TRUE(decode(second, prompt(22), handover));
  expect_right(second, prompt(22));
  d_.engine->drop(handover);
  expect_balanced();
}

TEST_P(HandoverTest, WaitingForKvDoesNotHoldUpOthers) {
  start();
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  Collector fetching;
  ASSERT_TRUE(decode(fetching, prompt(22), hand_over(prompt(22))));
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 1; }));
  EXPECT_TRUE(eventually([this] { return decoder_metric("tandem:requests_waiting_for_remote_kv") == 1.0; }));
  EXPECT_EQ(d_.engine->stats().num_waiting, 1);
  Collector local;
  ASSERT_TRUE(decode(local, prompt(22), std::nullopt));  // the same prompt: unverified blocks are not shared
  expect_right(local, prompt(22));
  d_.transfer->complete_one();
  expect_right(fetching, prompt(22));
  expect_balanced();
}

TEST_P(HandoverTest, PoolsForThreeAnd64Requests) {
  for (const bool prefix_caching : {true, false}) {
    start({.max_num_seqs = 16, .max_num_batched_tokens = 16, .enable_prefix_caching = prefix_caching},
          /*decoder_blocks=*/24, /*prefiller_blocks=*/18);
    std::vector<Collector> prefills(64);
    std::vector<Collector> decodes(64);
    for (std::int32_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(prefill(prefills[static_cast<std::size_t>(i)], prompt(9 + i % 11, i % 5)));
    }
    for (std::int32_t i = 0; i < 64; ++i) {
      const Output last = prefills[static_cast<std::size_t>(i)].last();
      ASSERT_TRUE(last.handover.has_value());
      ASSERT_TRUE(decode(decodes[static_cast<std::size_t>(i)], prompt(9 + i % 11, i % 5), last.handover, 15));
    }
    for (std::int32_t i = 0; i < 64; ++i) {
      expect_right(decodes[static_cast<std::size_t>(i)], prompt(9 + i % 11, i % 5), 15);
    }
    EXPECT_GT(decoder_metric("vllm:num_preemptions_total"), 0.0);
    EXPECT_GT(d_.transfer->num_fetches(), 0U);
    expect_balanced();
  }
}

// Decoder: failures.

TEST_P(HandoverTest, FailedFetchFailsTheRequestByDefault) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_error(Status(Code::kDataLoss, "checksum of block 2 differs", Scope::kTransfer));
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  EXPECT_EQ(collector.last().error.code(), Code::kDataLoss);
  EXPECT_EQ(collector.last().error.message(), "checksum of block 2 differs");
  EXPECT_TRUE(collector.tokens().empty());
  EXPECT_EQ(decoder_metric("tandem:kv_load_failures_total"), 1.0);
  expect_balanced();
  EXPECT_EQ(d_.engine->stats().num_cached_blocks, 0) << "nothing unverified is kept";
  EXPECT_TRUE(d_.engine->healthy());
}

TEST_P(HandoverTest, FailedFetchIsRecomputedByPolicy) {
  start({.load_failure_policy = LoadFailurePolicy::kRecompute});
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_error(Status(Code::kUnavailable, "peer gone", Scope::kPeer));
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  expect_right(collector, prompt(22));
  EXPECT_EQ(decoder_metric("tandem:kv_load_recomputes_total"), 1.0);
  EXPECT_EQ(decoder_metric("vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"}"), 0.0);
  EXPECT_EQ(decoder_metric("vllm:prompt_tokens_by_source_total{source=\"local_compute\"}"), 22.0);
  expect_balanced();
}

TEST_P(HandoverTest, EveryThirdFetchFailsAndTheRestIsRight) {
  start({.max_num_seqs = 4, .load_failure_policy = LoadFailurePolicy::kRecompute}, 40);
  for (std::int32_t i = 0; i < 12; ++i) {
    const auto handover = hand_over(prompt(14, i));
    d_.transfer->set_error(i % 3 == 0 ? Status(Code::kUnavailable, "refused", Scope::kTransfer) : Status());
    Collector collector;
    ASSERT_TRUE(decode(collector, prompt(14, i), handover));
    expect_right(collector, prompt(14, i));
  }
  expect_balanced();
}

TEST_P(HandoverTest, HandoversThatDoNotFitAreLoadFailures) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kFail, LoadFailurePolicy::kRecompute}) {
    start({.load_failure_policy = policy});
    const std::vector<std::pair<std::function<void(transfer::Handover&)>, std::string>> cases = {
        {[](transfer::Handover& handover) { handover.block_size = 3; }, "lists 6 blocks of 3 tokens"},
        {[](transfer::Handover& handover) { handover.num_tokens = 20; }, "KV of 20 tokens, the prompt has 22"},
        {[](transfer::Handover& handover) { handover.num_tokens = 23; }, "KV of 23 tokens, the prompt has 22"},
        {[](transfer::Handover& handover) { handover.blocks.pop_back(); }, "lists 5 blocks"},
        {[](transfer::Handover& handover) { ++handover.prompt_hash; }, "KV of another prompt of 22 tokens"},
    };
    for (const auto& [spoil, message] : cases) {
      SCOPED_TRACE(message);
      transfer::Handover handover = hand_over(prompt(22));
      spoil(handover);
      Collector collector;
      ASSERT_TRUE(decode(collector, prompt(22), handover));
      if (policy == LoadFailurePolicy::kFail) {
        EXPECT_THAT(collector.last().error.message(), HasSubstr(message));
        EXPECT_EQ(http_mapping(collector.last().error.code()).status, 500);
      } else {
        expect_right(collector, prompt(22));
      }
      EXPECT_EQ(d_.transfer->num_fetches(), 0U);
      expect_balanced();
    }
    EXPECT_EQ(decoder_metric("tandem:kv_load_failures_total"), static_cast<double>(cases.size()));
  }
}

TEST_P(HandoverTest, BlocksOfAnotherSizeAreTakenToo) {
  for (const std::int32_t theirs : {1, 2, 3, 8, 16}) {
    SCOPED_TRACE(theirs);
    p_.start("p", 7, 256 / theirs, {.max_num_batched_tokens = 16}, nullptr, theirs);
    d_.start("d", 8, 64, {});
    d_.transfer->connect(*p_.transfer);
    Collector collector;
    ASSERT_TRUE(decode(collector, prompt(22), hand_over(prompt(22))));
    expect_right(collector, prompt(22));
    EXPECT_EQ(d_.transfer->num_tokens_fetched(), 21);
    expect_balanced();
  }
}

TEST_P(HandoverTest, HandoverOfAnotherPromptOfTheSameLengthIsNotUsed) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kFail, LoadFailurePolicy::kRecompute}) {
    start({.load_failure_policy = policy});
    std::vector<std::int32_t> other = prompt(22);
    ++other[3];
    const transfer::Handover handover = hand_over(other);
    Collector collector;
    ASSERT_TRUE(decode(collector, prompt(22), handover));
    if (policy == LoadFailurePolicy::kFail) {
      EXPECT_THAT(collector.last().error.message(), HasSubstr("another prompt"));
      EXPECT_TRUE(collector.tokens().empty());
    } else {
      expect_right(collector, prompt(22));
    }
    EXPECT_EQ(d_.transfer->num_fetches(), 0U);
    expect_balanced();
  }
}

TEST_P(HandoverTest, LastPromptTokenNeedNotBeInTheHandover) {
  start();
  const transfer::Handover handover = hand_over(prompt(21));  // of the first 21 tokens of prompt(22)
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  expect_right(collector, prompt(22));
  EXPECT_EQ(d_.transfer->num_fetches(), 1U);
  expect_balanced();
}

TEST_P(HandoverTest, ExpiredLeaseIsAnErrorAndNeverOtherText) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  p_.transfer->expire(handover.lease);
  Collector other;
  ASSERT_TRUE(prefill(other, prompt(60, 9)));  // takes blocks over
  p_.engine->release_lease(other.last().handover->lease);
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  EXPECT_EQ(collector.last().error.code(), Code::kUnavailable);
  expect_balanced();
}

TEST_P(HandoverTest, RefusedRequestsDropTheirLease) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  Collector collector;
  EXPECT_FALSE(decode(collector, {1, 2, kVocab + 1}, handover));
  EXPECT_EQ(d_.transfer->num_drops(), 1U);
  expect_balanced();
}

// Decoder: aborts.

TEST_P(HandoverTest, AbortWhileFetchingKeepsTheBlocksUntilTheFetchEnds) {
  start({}, /*decoder_blocks=*/10);
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  for (int round = 0; round < 20; ++round) {
    Collector collector;
    const auto handle = decode(collector, prompt(22), hand_over(prompt(22)));
    ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 1; }));
    d_.engine->abort(*handle);
    EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
    EXPECT_EQ(d_.engine->stats().num_waiting, 0);
    EXPECT_EQ(d_.engine->stats().num_free_blocks + d_.engine->stats().num_cached_blocks, 4);
    Collector next;  // 16 tokens and 8 more need six blocks: must wait for the fetch's end
    ASSERT_TRUE(decode(next, prompt(17, 3), std::nullopt));
    d_.transfer->complete_one();
    expect_right(next, prompt(17, 3));
    expect_balanced();
  }
}

TEST_P(HandoverTest, AbortWhileWaitingForBlocksDropsTheLease) {
  start({.max_num_seqs = 1}, 32);
  d_.gate.close();
  Collector running;
  ASSERT_TRUE(decode(running, prompt(9), std::nullopt));
  ASSERT_TRUE(d_.gate.wait_for_arrivals(1));
  Collector waiting;
  const auto handle = decode(waiting, prompt(22), hand_over(prompt(22)));
  EXPECT_EQ(d_.transfer->num_open_holds(), 1);
  d_.engine->abort(*handle);
  EXPECT_EQ(waiting.last().finish, FinishReason::kAbort);
  EXPECT_EQ(d_.transfer->num_drops(), 1U);
  d_.gate.open();
  expect_right(running, prompt(9));
  expect_balanced();
}

TEST_P(HandoverTest, AbortAfterTheFetch) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.gate.close();
  Collector collector;
  const auto handle = decode(collector, prompt(22), handover);
  ASSERT_TRUE(d_.gate.wait_for_arrivals(1));
  d_.engine->abort(*handle);
  EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
  d_.gate.open();
  expect_balanced();
}

TEST_P(HandoverTest, AbortStormOnTheDecoder) {
  start({.max_num_seqs = 8}, 40, 200);
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  std::vector<Collector> collectors(30);
  std::vector<RequestHandle> handles;
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    const auto tokens = prompt(14, static_cast<std::int32_t>(i));
    handles.push_back(*decode(collectors[i], tokens, hand_over(tokens)));
  }
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 8; }));
  for (const RequestHandle handle : handles) d_.engine->abort(handle);
  for (Collector& collector : collectors) EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
  while (d_.transfer->num_pending() > 0) d_.transfer->complete_one();
  expect_balanced();
  d_.transfer->set_mode(FakeTransfer::Mode::kAtOnce);
  Collector next;
  ASSERT_TRUE(decode(next, prompt(14), hand_over(prompt(14))));
  expect_right(next, prompt(14));
}

TEST_P(HandoverTest, StopEndsFetchesAndLeases) {
  start();
  const transfer::Handover handover = hand_over(prompt(22));
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  Collector collector;
  ASSERT_TRUE(decode(collector, prompt(22), handover));
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 1; }));
  std::thread stopper([this] { d_.engine->stop(); });
  EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
  d_.transfer->complete_one();
  stopper.join();
  EXPECT_EQ(d_.transfer->num_open_holds(), 0);

  hand_over(prompt(30));
  p_.engine->stop();
  EXPECT_EQ(p_.transfer->num_leases(), 0U);
  expect_balanced();
}

TEST_P(HandoverTest, StopDoesNotWaitForEverForAFetch) {
  start({.max_num_seqs = 2, .stop_timeout = std::chrono::milliseconds(200)});
  d_.transfer->set_mode(FakeTransfer::Mode::kByHand);
  std::vector<Collector> collectors(4);
  for (std::int32_t i = 0; i < 3; ++i) {  // two fetch, one waits for a seat
    ASSERT_TRUE(decode(collectors[static_cast<std::size_t>(i)], prompt(14, i), hand_over(prompt(14, i))));
  }
  ASSERT_TRUE(eventually([this] { return d_.transfer->num_pending() == 2; }));
  d_.engine->stop();  // waits in vain for the fetches, until its deadline
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(collectors[i].last().finish, FinishReason::kAbort);
  while (d_.transfer->num_pending() > 0) d_.transfer->complete_one();  // late callbacks find a closed queue
  EXPECT_EQ(d_.transfer->num_open_holds(), 0);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, HandoverTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine
