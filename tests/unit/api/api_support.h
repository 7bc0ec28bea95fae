// SPDX-License-Identifier: Apache-2.0
// For tests of the API: an engine whose outputs the test writes, and a tokenizer of bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/context.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::test {

/// Ids 0..255 are bytes, 256 is <bos> (put before text with add_special_tokens), 257 is <eos>.
class ByteTokenizer final : public text::Tokenizer {
 public:
  static constexpr std::int32_t kBos = 256;
  static constexpr std::int32_t kEos = 257;
  static constexpr std::int32_t kVocabSize = 258;

  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<std::int32_t> ids;
    if (add_special_tokens) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const std::int32_t id : ids)
      if (id < kBos || !skip_special_tokens) bytes += token_bytes(id);
    return replace_ill_formed_utf8(bytes);
  }
  std::string token_bytes(std::int32_t id) const override {
    if (id < kBos) return std::string(1, static_cast<char>(id));
    return id == kBos ? "<bos>" : id == kEos ? "<eos>" : "";
  }
  std::string id_to_piece(std::int32_t id) const override { return token_bytes(id); }
  std::int32_t piece_to_id(std::string_view piece) const override { return piece == "<eos>" ? kEos : -1; }
  bool is_special(std::int32_t id) const override { return id >= kBos; }
  std::int32_t vocab_size() const override { return kVocabSize; }
};

/// Records requests. Outputs come from `script`, called for each request as it is submitted (on the submitting thread),
/// or from the test itself through emit().
class FakeEngine final : public engine::Engine {
 public:
  struct Submitted {
    engine::GenerationRequest request;
    engine::OutputSink sink;
    bool aborted = false;
    bool finished = false;
  };

  FakeEngine() { options_.max_model_len = 64; }

  Result<engine::RequestHandle> submit(engine::GenerationRequest request, engine::OutputSink sink) override {
    std::size_t index = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!refusal.ok()) return refusal;
      index = submitted_.size();
      submitted_.push_back(Submitted{std::move(request), std::move(sink)});
      calls_.emplace_back("submit");
    }
    if (script) script(index);
    changed_.notify_all();
    return static_cast<engine::RequestHandle>(index + 1);
  }
  void hold(const transfer::Handover& /*handover*/) override { note("hold"); }
  void drop(const transfer::Handover& /*handover*/) override { note("drop"); }
  void abort(engine::RequestHandle handle) override {
    const std::lock_guard lock(mutex_);
    submitted_.at(handle - 1).aborted = true;
    changed_.notify_all();
  }
  void release_lease(transfer::LeaseId lease) override {
    const std::lock_guard lock(mutex_);
    released_.push_back(lease);
    changed_.notify_all();
  }
  bool reset_prefix_cache() override {
    ++num_resets;
    return true;
  }
  std::vector<engine::RankLoad> rank_loads() const override { return {engine::RankLoad{}}; }
  engine::EngineStats stats() const override { return {}; }
  bool healthy() const override { return alive; }
  const engine::EngineOptions& options() const override { return options_; }
  void stop() override {}

  void emit(std::size_t index, engine::Output output) {
    engine::OutputSink sink;
    {
      const std::lock_guard lock(mutex_);
      sink = submitted_.at(index).sink;
    }
    sink(std::move(output));
  }
  /// One token with its text; with `finish` the last one.
  void say(std::size_t index, const std::string& text, std::optional<engine::FinishReason> finish = std::nullopt) {
    engine::Output output;
    output.tokens = {static_cast<unsigned char>(text.empty() ? 'x' : text[0])};
    output.text = text;
    output.finish = finish;
    output.times = {.templating = 0.5, .queue = 0.25, .transfer = 0.125, .first_step = 0.0625, .decode = 7.0};
    const auto wanted = submitted(index).request.sampling->logprobs;
    if (wanted) {
      std::vector<worker::TokenLogprob> list{{output.tokens[0], -0.5F, 1}};
      for (std::int32_t k = 0; k < *wanted; ++k)
        list.push_back({k == 0 ? output.tokens[0] : 'a' + k, -0.5F - 1.0F * static_cast<float>(k), k + 1});
      output.logprobs = {list};
    }
    emit(index, std::move(output));
  }

  Submitted submitted(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return submitted_.at(index);
  }
  std::size_t num_submitted() {
    const std::lock_guard lock(mutex_);
    return submitted_.size();
  }
  std::size_t num_aborted() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(submitted_.begin(), submitted_.end(), [](const Submitted& s) { return s.aborted; }));
  }
  /// hold, submit and drop as they came.
  std::vector<std::string> calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<transfer::LeaseId> released() {
    const std::lock_guard lock(mutex_);
    return released_;
  }

  std::function<void(std::size_t index)> script;
  Status refusal;  ///< if set: of every submit
  std::atomic<bool> alive{true};
  std::atomic<int> num_resets{0};
  engine::EngineOptions options_;

 private:
  void note(const char* call) {
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(call);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> calls_;
  std::vector<Submitted> submitted_;
  std::vector<transfer::LeaseId> released_;
};

constexpr std::string_view kTestTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if tools %}[{{ tools | tojson }}]{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}";

inline config::ServeConfig test_config() {
  config::ServeConfig config;
  config.model = "models/test";
  config.served_model_names = {"m", "alias"};
  config.access_log = false;
  return config;
}

inline transfer::Handover test_handover(std::uint64_t lease) {
  transfer::Handover handover;
  handover.engine_id = "P";
  handover.host = "127.0.0.1";
  handover.port = 30000;
  handover.blocks = {1, 2};
  handover.last_token = 5;
  handover.lease = {77, lease};
  handover.num_tokens = 20;
  handover.block_size = 16;
  return handover;
}

inline config::KvTransferConfig test_kv(config::KvRole role) {
  config::KvTransferConfig kv;
  kv.connector = "MooncakeConnectorV1";
  kv.role = role;
  return kv;
}

}  // namespace tandem::test
