// SPDX-License-Identifier: Apache-2.0
#include "bench/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "bench/entry_file.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;
using Ids = std::vector<std::int32_t>;
using Random = std::mt19937_64;

constexpr std::size_t kMostBytes = std::size_t{2} << 30;
// What ShareGPT entries must have to be used.
constexpr std::int64_t kFewestTokens = 4;
constexpr std::int64_t kMostPromptTokens = 1024;
constexpr std::int64_t kMostTokens = 2048;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

std::int64_t draw(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// All samples so far, with a bound on their text.
class Samples {
 public:
  explicit Samples(std::size_t count) { all_.reserve(std::min<std::size_t>(count, 1U << 20)); }
  Result<void> add(Sample sample) {
    bytes_ += sample.prompt.size();
    if (bytes_ > kMostBytes)
      return invalid(
          fmt::format("{} prompts already have more than {} bytes; ask for fewer (--num-prompts) or shorter "
                      "ones",
                      all_.size(), kMostBytes));
    all_.push_back(std::move(sample));
    return {};
  }
  std::vector<Sample> take() { return std::move(all_); }
  std::size_t size() const { return all_.size(); }

 private:
  std::vector<Sample> all_;
  std::size_t bytes_ = 0;
};

/// Text of ids, without those that mean something to a model (end of turn).
class TokenText {
 public:
  explicit TokenText(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      if (!tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty()) usable_.push_back(id);
  }
  bool empty() const { return usable_.empty(); }
  std::size_t size() const { return usable_.size(); }
  std::int32_t id(std::uint64_t index) const { return usable_[index % usable_.size()]; }
  Ids random_ids(Random& random, std::int64_t count) const {
    Ids ids;
    for (std::int64_t i = 0; i < count; ++i)
      ids.push_back(id(static_cast<std::uint64_t>(draw(random, 0, static_cast<std::int64_t>(size()) - 1))));
    return ids;
  }
  /// Text whose encoding has the ids' number of tokens, or nearly: neighbouring tokens may join to fewer, and pieces of
  /// characters become U+FFFD, which are more and are cut.
  Result<Sample> sample(const Ids& ids) const {
    TANDEM_ASSIGN(Ids again, tokenizer_.encode(tokenizer_.decode(ids, false), false));
    if (again.size() > ids.size()) again.resize(ids.size());
    Sample sample;
    sample.prompt = tokenizer_.decode(again, false);
    TANDEM_ASSIGN(const Ids counted, tokenizer_.encode(sample.prompt, false));
    sample.prompt_tokens = static_cast<std::int64_t>(counted.size());
    return sample;
  }

 private:
  const text::Tokenizer& tokenizer_;
  Ids usable_;
};

Result<std::vector<Sample>> random_samples(const config::BenchConfig& config, const text::Tokenizer& tokenizer,
                                           const TokenText& words) {
  TANDEM_ASSIGN(const Ids added, tokenizer.encode("", true));
  const std::int64_t length = config.random_input_len - static_cast<std::int64_t>(added.size());
  if (length < 1)
    return invalid(
        fmt::format("argument --random-input-len: {} leaves nothing beside the {} special tokens that the "
                    "tokenizer adds",
                    config.random_input_len, added.size()));
  const auto low = [&](std::int64_t len) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(len) * (1.0 - config.random_range_ratio)));
  };
  const auto high = [&](std::int64_t len) {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(len) * (1.0 + config.random_range_ratio)));
  };
  Random random(config.seed);
  const auto count = static_cast<std::size_t>(config.num_prompts);
  std::vector<std::int64_t> inputs(count), outputs(count), offsets(count);
  for (auto& input : inputs) input = draw(random, std::max<std::int64_t>(low(length), 1), high(length));
  for (auto& output : outputs)
    output = draw(random, std::max<std::int64_t>(low(config.random_output_len), 1), high(config.random_output_len));
  for (auto& offset : offsets) offset = draw(random, 0, static_cast<std::int64_t>(words.size()) - 1);
  const Ids prefix = words.random_ids(random, config.random_prefix_len);
  Samples samples(count);
  for (std::size_t i = 0; i < count; ++i) {
    Ids ids = prefix;
    for (std::int64_t k = 0; k < inputs[i]; ++k)
      ids.push_back(words.id(static_cast<std::uint64_t>(offsets[i] + k) + i));
    TANDEM_ASSIGN(Sample sample, words.sample(ids));
    sample.output_tokens = outputs[i];
    TANDEM_TRY(samples.add(std::move(sample)));
  }
  return samples.take();
}

Result<std::vector<Sample>> repeated_prefixes(const config::BenchConfig& config, const TokenText& words) {
  Random random(config.seed);
  const auto num_prefixes = static_cast<std::size_t>(std::min(config.num_prefixes, config.num_prompts));
  std::vector<Ids> prefixes(num_prefixes);
  for (auto& prefix : prefixes) prefix = words.random_ids(random, config.repeated_prefix_len);
  Samples samples(static_cast<std::size_t>(config.num_prompts));
  for (std::size_t i = 0; i < static_cast<std::size_t>(config.num_prompts); ++i) {
    Ids ids = prefixes[i % num_prefixes];
    const Ids suffix = words.random_ids(random, config.repeated_suffix_len);
    ids.insert(ids.end(), suffix.begin(), suffix.end());
    TANDEM_ASSIGN(Sample sample, words.sample(ids));
    sample.output_tokens = config.repeated_output_len;
    TANDEM_TRY(samples.add(std::move(sample)));
  }
  std::vector<Sample> all = samples.take();
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

const json::string* string_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr ? nullptr : value->if_string();
}

/// conversations[turn].value, or nullptr.
const json::string* turn_of(const json::value& entry, std::size_t turn) {
  const json::object* object = entry.if_object();
  const json::value* turns = object == nullptr ? nullptr : object->if_contains("conversations");
  if (turns == nullptr || !turns->is_array() || turns->get_array().size() < 2) return nullptr;
  const json::object* said = turns->get_array()[turn].if_object();
  return said == nullptr ? nullptr : string_in(*said, "value");
}

/// nullopt: an entry that is not used (too short, too long, one turn).
Result<std::optional<Sample>> sharegpt_sample(const json::value& entry, const config::BenchConfig& config,
                                              const text::Tokenizer& tokenizer) {
  const json::string* asked = turn_of(entry, 0);
  const json::string* answered = turn_of(entry, 1);
  if (asked == nullptr || answered == nullptr) return std::optional<Sample>();
  TANDEM_ASSIGN(const Ids prompt, tokenizer.encode(std::string_view(*asked), true));
  Sample sample;
  sample.prompt = std::string(*asked);
  sample.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  if (config.sharegpt_output_len) {
    sample.output_tokens = *config.sharegpt_output_len;
  } else {
    TANDEM_ASSIGN(const Ids answer, tokenizer.encode(std::string_view(*answered), true));
    sample.output_tokens = static_cast<std::int64_t>(answer.size());
    if (sample.output_tokens < kFewestTokens) return std::optional<Sample>();
  }
  if (sample.prompt_tokens < kFewestTokens || sample.prompt_tokens > kMostPromptTokens ||
      sample.prompt_tokens + sample.output_tokens > kMostTokens)
    return std::optional<Sample>();
  return std::optional(std::move(sample));
}

Result<std::optional<Sample>> custom_sample(const json::value& entry, const config::BenchConfig& config,
                                            const text::Tokenizer& tokenizer) {
  const json::string* prompt = entry.is_object() ? string_in(entry.get_object(), "prompt") : nullptr;
  if (prompt == nullptr) return invalid("an entry has no text \"prompt\"");
  Sample sample;
  sample.prompt = std::string(*prompt);
  TANDEM_ASSIGN(const Ids ids, tokenizer.encode(sample.prompt, true));
  sample.prompt_tokens = static_cast<std::int64_t>(ids.size());
  sample.output_tokens = config.custom_output_len;
  return std::optional(std::move(sample));
}

Result<std::vector<Sample>> file_samples(const config::BenchConfig& config, const text::Tokenizer& tokenizer) {
  const bool sharegpt = config.dataset == config::BenchDataset::kShareGpt;
  TANDEM_ASSIGN(EntryFile file,
                EntryFile::open(config.dataset_path, sharegpt ? EntryFile::Form::kArray : EntryFile::Form::kLines));
  std::vector<std::size_t> order(file.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Random random(config.seed);
  if (config.shuffle) std::shuffle(order.begin(), order.end(), random);
  const auto wanted = static_cast<std::size_t>(config.num_prompts);
  Samples samples(wanted);
  for (const std::size_t index : order) {
    if (samples.size() == wanted) break;
    TANDEM_ASSIGN(const json::value entry, file.read(index));
    auto sample = sharegpt ? sharegpt_sample(entry, config, tokenizer) : custom_sample(entry, config, tokenizer);
    if (!sample) return sample.error().context(fmt::format("dataset {}, entry {}", config.dataset_path, index + 1));
    if (*sample) TANDEM_TRY(samples.add(std::move(**sample)));
  }
  std::vector<Sample> found = samples.take();
  if (found.empty())
    return invalid(
        fmt::format("dataset {}: none of its {} entries can be used (two turns, prompts of {} to {} tokens, "
                    "{} with the answer)",
                    config.dataset_path, file.size(), kFewestTokens, kMostPromptTokens, kMostTokens));
  if (found.size() == wanted || !config.oversample) return found;
  Samples more(wanted);
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto any = static_cast<std::size_t>(draw(random, 0, static_cast<std::int64_t>(found.size()) - 1));
    TANDEM_TRY(more.add(found[i < found.size() ? i : any]));
  }
  return more.take();
}

}  // namespace

Result<std::vector<Sample>> make_samples(const config::BenchConfig& config, const text::Tokenizer& tokenizer) {
  if (config.dataset == config::BenchDataset::kShareGpt || config.dataset == config::BenchDataset::kCustom)
    return file_samples(config, tokenizer);
  const TokenText words(tokenizer);
  if (words.empty()) return invalid("the tokenizer has no tokens beside special ones");
  if (config.dataset == config::BenchDataset::kPrefixRepetition) return repeated_prefixes(config, words);
  return random_samples(config, tokenizer, words);
}

}  // namespace tandem::bench
