// SPDX-License-Identifier: Apache-2.0
#include "model/hf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/json.h"
#include "base/log.h"
#include "model/fused_experts.h"
#include "model/hf_metadata.h"
#include "model/mapped_file.h"
#include "model/quantised/format.h"
#include "model/safetensors.h"
#include "model/tensor_index.h"
#include "model/tensor_names.h"

namespace tandem::model {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

constexpr std::uintmax_t kMaxSmallFile = std::uintmax_t{64} << 20;
constexpr std::size_t kMaxShards = 10'000;

Result<void> check_small(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return Status(Code::kNotFound, fmt::format("cannot read {}: {}", path.string(), error.message()));
  if (size > kMaxSmallFile)
    return Status(Code::kInvalidArgument,
                  fmt::format("{} has {} bytes, expected at most {}", path.string(), size, kMaxSmallFile));
  return {};
}

Result<json::object> read_object(const fs::path& path) {
  TANDEM_TRY(check_small(path));
  TANDEM_ASSIGN(const json::value value, read_json_file(path.string()));
  if (!value.is_object())
    return Status(Code::kInvalidArgument, fmt::format("{} does not hold a JSON object", path.string()));
  return value.as_object();
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::vector<fs::path> files_ending(const fs::path& folder, std::string_view ending) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().ends_with(ending)) found.push_back(it->path());
  std::sort(found.begin(), found.end());
  return found;
}

class HfCheckpoint : public Checkpoint {
 public:
  Result<void> load(const fs::path& folder, const json::object& overrides) {
    folder_ = folder;
    TANDEM_TRY(read_tokenizer_config());
    TANDEM_TRY(read_model_config(overrides));
    TANDEM_TRY(read_generation_config());
    TANDEM_TRY(read_weights());
    auto checked = format_ == nullptr ? index_.check(config_) : check_quantised();
    if (!checked) return checked.error().context(folder.string());
    fingerprint_ = checkpoint_fingerprint(*this);
    return {};
  }

  const ModelConfig& config() const override { return config_; }
  Result<TensorView> tensor(std::string_view name, std::int64_t rows, std::int64_t cols) const override {
    TANDEM_ASSIGN(LinearModule module, linear(name, rows, cols));
    return std::move(module.weight);
  }
  Result<LinearModule> linear(std::string_view name, std::int64_t rows, std::int64_t cols) const override {
    constexpr std::string_view kWeight = ".weight";
    if (format_ != nullptr && rows > 1 && name != kEmbeddingName && name.ends_with(kWeight)) {
      const std::string module(name.substr(0, name.size() - kWeight.size()));
      TANDEM_ASSIGN(auto quantised, format_->linear(index_, module, rows, cols));
      if (quantised) return std::move(*quantised);
    }
    LinearModule plain;
    TANDEM_ASSIGN(plain.weight, index_.view(stored_name(name), rows, cols));
    plain.stored_bytes = plain.weight.bytes;
    return plain;
  }
  bool has_tensor(std::string_view name) const override { return index_.contains(stored_name(name)); }
  std::string_view quantization() const override { return format_ == nullptr ? std::string_view() : format_->method(); }
  TokenizerSource tokenizer_source() const override {
    TokenizerSource source;
    source.tokenizer_json_path = (folder_ / "tokenizer.json").string();
    return source;
  }
  Result<std::optional<std::string>> chat_template(bool with_tools) const override {
    return choose_template(tokenizer_.templates, with_tools);
  }
  std::string special_token(std::string_view role) const override {
    if (role == "bos") return tokenizer_.bos;
    if (role == "eos") return tokenizer_.eos;
    if (role == "pad") return tokenizer_.pad;
    return role == "unk" ? tokenizer_.unk : std::string();
  }
  GenerationDefaults generation_defaults() const override { return generation_; }
  std::string fingerprint() const override { return fingerprint_; }
  void release_pages() const override {
    for (const MappedFile& file : files_) file.release_pages();
  }

 private:
  // MindIE-style exports of smoothed models wrap a norm: norm.module.weight and norm.module.bias count, and what stands
  // at norm.weight is from before.
  std::string stored_name(std::string_view name) const {
    if (format_ != nullptr && name.find("norm.") != std::string_view::npos) {
      const std::size_t dot = name.rfind('.');
      std::string wrapped = fmt::format("{}.module{}", name.substr(0, dot), name.substr(dot));
      if (index_.contains(wrapped)) return wrapped;
    }
    return std::string(name);
  }

  Result<void> check_quantised() {
    // A rotated model has a head of its own even if the float model's was tied to the embedding.
    if (index_.contains(kHeadName)) config_.tie_word_embeddings = false;
    const auto find = [&](const TensorSpec& spec) -> Result<void> {
      if (spec.role == TensorRole::kBias && has_no_own_bias(spec)) return {};
      TANDEM_TRY(tensor(spec.name, spec.rows, spec.cols));
      return {};
    };
    return index_.check(config_, find, [&](std::string_view name) { return format_->uses(name); });
  }

  // Static modules of msModelSlim have their bias among their integers; the float one may be left out.
  bool has_no_own_bias(const TensorSpec& spec) const {
    if (index_.contains(spec.name)) return false;
    return index_.contains(spec.name.substr(0, spec.name.rfind('.')) + ".quant_bias");
  }

  Result<void> read_model_config(const json::object& overrides) {
    const fs::path path = folder_ / "config.json";
    TANDEM_ASSIGN(const json::object object, read_object(path));
    auto parsed = parse_config(object, overrides);
    if (!parsed) return parsed.error().context(path.string());
    config_ = std::move(*parsed);
    TANDEM_ASSIGN(const std::optional<json::object> description, read_description());
    auto format = quantised_format(merge_overrides(object, overrides), description ? &*description : nullptr);
    if (!format) return format.error().context(folder_.string());
    format_ = std::move(*format);
    if (tokenizer_.model_max_length) limit_context(config_, *tokenizer_.model_max_length);
    return {};
  }

  // quant_model_description.json, or quant_model_description_<type>.json as MindIE's exports name it.
  Result<std::optional<json::object>> read_description() const {
    fs::path path = folder_ / "quant_model_description.json";
    if (!is_file(path)) {
      std::vector<fs::path> others;
      for (const fs::path& file : files_ending(folder_, ".json"))
        if (file.filename().string().starts_with("quant_model_description")) others.push_back(file);
      if (others.empty()) return std::optional<json::object>();
      if (others.size() > 1)
        return Status(
            Code::kInvalidArgument,
            fmt::format("{} holds {} descriptions of its quantisation ({}, {}); keep the one that belongs to "
                        "the weights",
                        folder_.string(), others.size(), others[0].filename().string(), others[1].filename().string()));
      path = others.front();
    }
    TANDEM_ASSIGN(json::object object, read_object(path));
    return std::optional<json::object>(std::move(object));
  }

  Result<void> read_tokenizer_config() {
    const fs::path path = folder_ / "tokenizer_config.json";
    if (is_file(path)) {
      TANDEM_ASSIGN(const json::object object, read_object(path));
      auto parsed = parse_tokenizer_config(object);
      if (!parsed) return parsed.error().context(path.string());
      tokenizer_ = std::move(*parsed);
    }
    // A template in a file of its own wins over the one in tokenizer_config.json.
    if (const fs::path jinja = folder_ / "chat_template.jinja"; is_file(jinja)) {
      TANDEM_TRY(check_small(jinja));
      std::ifstream in(jinja, std::ios::binary);
      tokenizer_.templates = {{"default", std::string(std::istreambuf_iterator<char>(in), {})}};
    } else if (const fs::path json_file = folder_ / "chat_template.json"; is_file(json_file)) {
      TANDEM_ASSIGN(const json::object object, read_object(json_file));
      auto parsed = parse_tokenizer_config(object);
      if (!parsed) return parsed.error().context(json_file.string());
      if (!parsed->templates.empty()) tokenizer_.templates = parsed->templates;
    }
    return {};
  }

  Result<void> read_generation_config() {
    if (const fs::path path = folder_ / "generation_config.json"; is_file(path)) {
      TANDEM_ASSIGN(const json::object object, read_object(path));
      auto parsed = parse_generation_config(object);
      if (!parsed) return parsed.error().context(path.string());
      generation_ = std::move(*parsed);
    }
    if (generation_.eos_token_ids.empty()) generation_.eos_token_ids = config_.eos_token_ids;
    return {};
  }

  Result<void> read_weights() {
    std::optional<fs::path> index;
    if (is_file(folder_ / "model.safetensors.index.json")) {
      index = folder_ / "model.safetensors.index.json";
    } else if (const auto indexes = files_ending(folder_, ".safetensors.index.json"); indexes.size() == 1) {
      index = indexes.front();
    }
    if (index) return read_sharded(*index);
    std::vector<fs::path> files = files_ending(folder_, ".safetensors");
    if (const fs::path single = folder_ / "model.safetensors"; is_file(single)) files = {single};
    if (files.empty())
      return Status(Code::kNotFound,
                    fmt::format("{} holds no .safetensors file{}", folder_.string(),
                                files_ending(folder_, ".bin").empty()
                                    ? ""
                                    : "; PyTorch .bin weights are not read: convert them to safetensors"));
    for (const fs::path& file : files) TANDEM_TRY(read_shard(file, nullptr));
    return {};
  }

  // `wanted`: names that the index expects in this file; nullptr: take all.
  Result<void> read_shard(const fs::path& path, const std::vector<std::string>* wanted) {
    TANDEM_ASSIGN(MappedFile file, MappedFile::open(path.string()));
    TANDEM_ASSIGN(std::vector<StoredTensor> tensors, parse_safetensors(file.bytes(), path.string()));
    std::set<std::string, std::less<>> found;
    for (StoredTensor& tensor : tensors) {
      if (wanted != nullptr && !std::binary_search(wanted->begin(), wanted->end(), tensor.name)) continue;
      found.insert(tensor.name);
      auto split = split_experts(std::move(tensor), config_);
      if (!split) return split.error().context(path.string());
      for (StoredTensor& one : *split) TANDEM_TRY(index_.add(std::move(one), path.string()));
    }
    if (wanted != nullptr)
      for (const std::string& name : *wanted)
        if (!found.contains(name))
          return Status(Code::kInvalidArgument,
                        fmt::format("{}: the index promises tensor '{}' in this file, but it is not there",
                                    path.string(), name.substr(0, 200)));
    files_.push_back(std::move(file));
    return {};
  }

  Result<void> read_sharded(const fs::path& index) {
    TANDEM_ASSIGN(const json::object object, read_object(index));
    const json::value* map = object.if_contains("weight_map");
    if (map == nullptr || !map->is_object())
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: 'weight_map' is missing or not an object", index.string()));
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& [name, file] : map->as_object()) {
      const bool plain =
          file.is_string() && fs::path(std::string(file.as_string())).filename() == file.as_string().c_str();
      if (!plain)
        return Status(
            Code::kInvalidArgument,
            fmt::format("{}: tensor '{}' stands in {}, expected the name of a file in the same folder", index.string(),
                        std::string_view(name).substr(0, 200), json::serialize(file).substr(0, 200)));
      shards[std::string(file.as_string())].emplace_back(name);
    }
    if (shards.size() > kMaxShards)
      return Status(Code::kInvalidArgument,
                    fmt::format("{} names {} files, at most {}", index.string(), shards.size(), kMaxShards));
    for (auto& [file, names] : shards) {
      if (!is_file(folder_ / file))
        return Status(Code::kNotFound, fmt::format("{} names {}, which is not in the folder; is the download complete?",
                                                   index.string(), file));
      std::sort(names.begin(), names.end());
      TANDEM_TRY(read_shard(folder_ / file, &names));
    }
    return {};
  }

  fs::path folder_;
  ModelConfig config_;
  TokenizerConfig tokenizer_;
  GenerationDefaults generation_;
  std::vector<MappedFile> files_;
  TensorIndex index_;
  std::unique_ptr<QuantisedFormat> format_;  ///< nullptr: floats
  std::string fingerprint_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_hf_folder(const std::string& folder, const json::object& hf_overrides) {
  auto checkpoint = std::make_unique<HfCheckpoint>();
  TANDEM_TRY(checkpoint->load(folder, hf_overrides));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace tandem::model
