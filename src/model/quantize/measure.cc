// SPDX-License-Identifier: Apache-2.0
#include "model/quantize/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "kernels/kernels.h"
#include "kv/cache_memory.h"
#include "model/quantize/observed_ops.h"

namespace tandem::model {
namespace {

using kernels::PackedLinear;

constexpr std::int32_t kBlockSize = 16;

/// Which modules a layer for the kernels is made of, by both.
struct LayerNames {
  std::map<const PackedLinear*, std::vector<ModuleRows>> modules_of;
  std::map<std::string, const PackedLinear*> layer_of;  ///< by the first module
  std::vector<std::string> order;

  LinearObserver observer(const kernels::Ops* ops) {
    return {ops, [this](const PackedLinear& layer, const std::vector<ModuleRows>& modules) {
              modules_of[&layer] = modules;
              layer_of[modules.front().module] = &layer;
              for (const ModuleRows& module : modules) order.push_back(module.module);
            }};
  }
};

/// A model with KV for one window.
struct Runner {
  std::unique_ptr<Model> model;
  std::unique_ptr<kv::CacheMemory> cache;
  std::vector<kv::BlockId> table;

  static Result<Runner> load(const Checkpoint& checkpoint, ModelOptions options, kernels::ThreadTeam& team,
                             std::int64_t window) {
    Runner runner;
    options.max_positions = window;
    TANDEM_ASSIGN(runner.model, Model::load(checkpoint, options, team));
    const auto blocks = static_cast<std::int32_t>((window + kBlockSize - 1) / kBlockSize);
    TANDEM_ASSIGN(runner.cache, kv::CacheMemory::create(runner.model->kv_layouts(kBlockSize, blocks)));
    for (std::int32_t block = 0; block < blocks; ++block) runner.table.push_back(block);
    return runner;
  }

  /// The sum of -log p of each token after the first one.
  Result<double> run(std::span<const std::int32_t> tokens, std::vector<float>& logits) const {
    const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
    logits.resize(tokens.size() * vocab);
    const SequenceInput input{tokens, 0, table, LogitsOf::kAll};
    TANDEM_TRY(model->forward(std::span(&input, 1), *cache, logits));
    double sum = 0.0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const float* row = logits.data() + i * vocab;
      const float most = *std::max_element(row, row + vocab);
      double total = 0.0;
      for (std::size_t j = 0; j < vocab; ++j) total += std::exp(static_cast<double>(row[j]) - most);
      sum += std::log(total) + most - row[tokens[i + 1]];
    }
    return sum;
  }
};

Result<void> check_text(const Checkpoint& checkpoint, const TextWindows& text) {
  if (text.tokens.size() < 2)
    return Status(Code::kInvalidArgument,
                  fmt::format("the text has {} tokens, expected 2 or more", text.tokens.size()));
  for (const std::int32_t token : text.tokens)
    if (token < 0 || token >= checkpoint.config().vocab_size)
      return Status(Code::kInvalidArgument, fmt::format("the tokenizer makes token {} of the text, the model has {}",
                                                        token, checkpoint.config().vocab_size));
  return {};
}

std::int64_t window_of(const Checkpoint& checkpoint, const TextWindows& text) {
  const auto count = static_cast<std::int64_t>(text.tokens.size());
  return std::min({text.window, checkpoint.config().max_context, count});
}

Result<void> for_windows(const TextWindows& text, std::int64_t window,
                         const std::function<Result<void>(std::span<const std::int32_t>)>& run) {
  const auto size = static_cast<std::size_t>(window);
  for (std::size_t first = 0; first < text.tokens.size(); first += size)
    TANDEM_TRY(run(text.tokens.subspan(first, std::min(size, text.tokens.size() - first))));
  return {};
}

struct Sums {
  double error = 0.0;
  double signal = 0.0;
};

/// Computes layers of the float model and their quantised twins on the same inputs.
class OutputComparison {
 public:
  OutputComparison(const kernels::Ops& ops, kernels::ThreadTeam& team, const LayerNames& original,
                   const LayerNames& quantised)
      : ops_(ops), team_(team), original_(original), quantised_(quantised) {}

  void operator()(const PackedLinear& layer, const float* x, std::int64_t ldx, std::int64_t rows) {
    const auto names = original_.modules_of.find(&layer);
    if (names == original_.modules_of.end() || rows == 0) return;
    const auto twin = quantised_.layer_of.find(names->second.front().module);
    if (twin == quantised_.layer_of.end()) return;
    const std::int64_t n = layer.out_features();
    y_.resize(static_cast<std::size_t>(rows * n));
    twin_y_.resize(y_.size());
    ops_.linear(team_, layer, x, ldx, rows, y_.data(), n, kernels::Epilogue::kStore);
    ops_.linear(team_, *twin->second, x, ldx, rows, twin_y_.data(), n, kernels::Epilogue::kStore);
    std::int64_t first = 0;
    for (const ModuleRows& module : names->second) {
      Sums& sums = sums_[module.module];
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = row * n + first; i < row * n + first + module.rows; ++i) {
          const double y = y_[static_cast<std::size_t>(i)];
          const double error = twin_y_[static_cast<std::size_t>(i)] - y;
          sums.error += error * error;
          sums.signal += y * y;
        }
      first += module.rows;
    }
  }

  std::vector<OutputError> errors() const {
    std::vector<OutputError> list;
    for (const std::string& module : original_.order)
      if (const auto sums = sums_.find(module); sums != sums_.end())
        list.push_back({module, sums->second.signal > 0 ? std::sqrt(sums->second.error / sums->second.signal) : 0.0});
    return list;
  }

 private:
  const kernels::Ops& ops_;
  kernels::ThreadTeam& team_;
  const LayerNames& original_;
  const LayerNames& quantised_;
  std::map<std::string, Sums> sums_;
  std::vector<float> y_, twin_y_;
};

}  // namespace

Result<InputRanges> measure_inputs(const Checkpoint& checkpoint, ModelOptions options, kernels::ThreadTeam& team,
                                   const TextWindows& text) {
  TANDEM_TRY(check_text(checkpoint, text));
  TANDEM_ASSIGN(const kernels::Ops* const ops, kernels::ops_for(options.isa));
  LayerNames names;
  InputRanges ranges;
  const ObservedOps observed(*ops, [&](const PackedLinear& layer, const float* x, std::int64_t ldx, std::int64_t rows) {
    const auto modules = names.modules_of.find(&layer);
    if (modules == names.modules_of.end() || rows == 0) return;
    InputRange& range = ranges[modules->second.front().module];
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto [low, high] = std::minmax_element(x + row * ldx, x + row * ldx + layer.in_features());
      range.min = std::min(range.min, *low);
      range.max = std::max(range.max, *high);
    }
  });
  const LinearObserver observer = names.observer(&observed);
  options.observer = &observer;
  const std::int64_t window = window_of(checkpoint, text);
  TANDEM_ASSIGN(const Runner runner, Runner::load(checkpoint, options, team, window));
  std::vector<float> logits;
  const auto measure = [&](std::span<const std::int32_t> tokens) -> Result<void> {
    TANDEM_TRY(runner.run(tokens, logits));
    return {};
  };
  TANDEM_TRY(for_windows(text, window, measure));
  // Modules of one layer have the same input.
  for (const auto& [layer, modules] : names.modules_of)
    if (const auto found = ranges.find(modules.front().module); found != ranges.end()) {
      const InputRange range = found->second;
      for (const ModuleRows& module : modules) ranges[module.module] = range;
    }
  return ranges;
}

Result<Comparison> compare_models(const Checkpoint& original, const Checkpoint& quantised, ModelOptions options,
                                  kernels::ThreadTeam& team, const TextWindows& text) {
  TANDEM_TRY(check_text(original, text));
  TANDEM_ASSIGN(const kernels::Ops* const ops, kernels::ops_for(options.isa));
  LayerNames names, twin_names;
  OutputComparison outputs(*ops, team, names, twin_names);
  const ObservedOps observed(*ops, std::ref(outputs));
  const LinearObserver observer = names.observer(&observed);
  const LinearObserver twin_observer = twin_names.observer(ops);
  const std::int64_t window = window_of(original, text);
  options.observer = &observer;
  TANDEM_ASSIGN(const Runner runner, Runner::load(original, options, team, window));
  options.observer = &twin_observer;
  TANDEM_ASSIGN(const Runner twin, Runner::load(quantised, options, team, window));
  Comparison result;
  double sum = 0.0;
  double twin_sum = 0.0;
  std::vector<float> logits;
  const auto compare = [&](std::span<const std::int32_t> tokens) -> Result<void> {
    TANDEM_ASSIGN(const double part, runner.run(tokens, logits));
    TANDEM_ASSIGN(const double twin_part, twin.run(tokens, logits));
    sum += part;
    twin_sum += twin_part;
    result.num_tokens += tokens.size() - 1;
    return {};
  };
  TANDEM_TRY(for_windows(text, window, compare));
  result.modules = outputs.errors();
  if (result.num_tokens > 0) {
    result.float_perplexity = std::exp(sum / static_cast<double>(result.num_tokens));
    result.quantised_perplexity = std::exp(twin_sum / static_cast<double>(result.num_tokens));
  }
  return result;
}

}  // namespace tandem::model
