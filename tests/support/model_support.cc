// SPDX-License-Identifier: Apache-2.0
#include "support/model_support.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/json.h"

namespace tandem::testing {
namespace json = boost::json;
namespace {

Logits floats(const json::value& list) {
  Logits values;
  for (const json::value& value : list.as_array()) values.push_back(value.to_number<float>());
  return values;
}

Tokens tokens(const json::value& list) {
  Tokens values;
  for (const json::value& value : list.as_array()) values.push_back(value.to_number<std::int32_t>());
  return values;
}

}  // namespace

std::vector<std::string> golden_names() {
  return {"T1-qwen3",       "T2-qwen3moe",   "T2b-qwen3moe-mixed", "T3-qwen2",    "T4-llama",
          "T4b-llama3rope", "T5-qwen3-yarn", "T6-qwen3-12kv",      "T7-qwen3-2kv"};
}

GoldenModel load_golden(const std::string& name) {
  const auto parsed = read_json_file("tests/golden/models/" + name + ".json");
  TANDEM_ASSERT(parsed.has_value(), "tests run in the repository root, which holds tests/golden/models");
  const json::object& file = parsed->as_object();
  GoldenModel golden;
  golden.name = name;
  golden.salt = std::string(file.at("salt").as_string());
  const auto config = model::parse_config(file.at("config").as_object(), {});
  TANDEM_ASSERT(config.has_value(), config.error().message().c_str());
  golden.config = *config;
  for (const auto& [key, value] : file.at("prompts").as_object()) golden.prompts[std::string(key)] = tokens(value);
  for (const auto& [key, value] : file.at("last_logits").as_object())
    golden.last_logits[std::string(key)] = floats(value);
  for (const json::value& row : file.at("all_logits_P8").as_array()) golden.all_logits_p8.push_back(floats(row));
  golden.greedy_after_p8 = tokens(file.at("greedy_after_P8"));
  if (const json::value* quantised = file.if_contains("w8a8_dynamic_last_logits"))
    for (const auto& [key, value] : quantised->as_object()) golden.w8a8_last_logits[std::string(key)] = floats(value);
  return golden;
}

std::vector<kernels::Isa> available_isas() {
  std::vector<kernels::Isa> found;
  for (const kernels::Isa isa : kernels::kAllIsas)
    if (kernels::ops_for(isa)) found.push_back(isa);
  return found;
}

ModelRunner::ModelRunner(const model::Checkpoint& checkpoint, const model::ModelOptions& options, int threads,
                         std::int32_t block_size, std::int32_t num_blocks)
    : team_(threads) {
  auto loaded = model::Model::load(checkpoint, options, team_);
  TANDEM_ASSERT(loaded.has_value(), loaded.error().message().c_str());
  model_ = std::move(*loaded);
  auto memory = kv::CacheMemory::create(model_->kv_layouts(block_size, num_blocks));
  TANDEM_ASSERT(memory.has_value(), memory.error().message().c_str());
  cache_ = std::move(*memory);
}

std::vector<kv::BlockId> ModelRunner::allocate(std::int64_t positions) {
  const kv::Layout& layout = cache_->layout();
  std::vector<kv::BlockId> table;
  for (std::int64_t covered = 0; covered < positions; covered += layout.block_size) {
    TANDEM_ASSERT(next_block_ < layout.num_blocks, "the test's cache is too small");
    // From both ends in turn, so that no sequence gets neighbouring blocks by luck.
    table.push_back(next_block_ % 2 == 0 ? next_block_ / 2 : layout.num_blocks - 1 - next_block_ / 2);
    ++next_block_;
  }
  return table;
}

std::vector<Logits> ModelRunner::forward(std::span<const model::SequenceInput> sequences) {
  std::size_t rows = 0;
  for (const model::SequenceInput& sequence : sequences) {
    if (sequence.logits == model::LogitsOf::kAll) rows += sequence.tokens.size();
    if (sequence.logits == model::LogitsOf::kLast) rows += 1;
  }
  const auto vocab = static_cast<std::size_t>(model_->config().vocab_size);
  std::vector<float> flat(rows * vocab);
  const auto passed = model_->forward(sequences, *cache_, flat);
  TANDEM_ASSERT(passed, passed.error().message().c_str());
  std::vector<Logits> result;
  for (std::size_t row = 0; row < rows; ++row)
    result.emplace_back(flat.data() + row * vocab, flat.data() + (row + 1) * vocab);
  return result;
}

std::vector<Logits> ModelRunner::all_logits(const Tokens& tokens, std::int64_t chunk) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::vector<kv::BlockId> table = allocate(count);
  std::vector<Logits> result;
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t size = chunk > 0 ? std::min(chunk, count - first) : count;
    const model::SequenceInput input{
        std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)), first, table,
        model::LogitsOf::kAll};
    for (Logits& row : forward(std::span(&input, 1))) result.push_back(std::move(row));
    first += size;
  }
  return result;
}

Tokens ModelRunner::greedy(const Tokens& prompt, int count) {
  const std::vector<kv::BlockId> table = allocate(static_cast<std::int64_t>(prompt.size()) + count);
  Tokens input = prompt;
  Tokens output;
  std::int64_t position = 0;
  while (static_cast<int>(output.size()) < count) {
    const model::SequenceInput sequence{input, position, table, model::LogitsOf::kLast};
    const std::vector<Logits> logits = forward(std::span(&sequence, 1));
    position += static_cast<std::int64_t>(input.size());
    output.push_back(argmax(logits.front()));
    input = {output.back()};
  }
  return output;
}

float max_abs_difference(const Logits& a, const Logits& b) {
  TANDEM_ASSERT(a.size() == b.size(), "logits of different vocabularies");
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN sticks
  }
  return largest;
}

double relative_l2(const Logits& a, const Logits& b) {
  TANDEM_ASSERT(a.size() == b.size(), "logits of different vocabularies");
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / norm);
}

std::int32_t argmax(const Logits& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
  TANDEM_ASSERT(::mkdtemp(pattern.data()) != nullptr, "cannot make a temporary folder");
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace tandem::testing
