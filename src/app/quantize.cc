// SPDX-License-Identifier: Apache-2.0
// `tandem quantize`: texts to tokens, the work of model/quantize, and what it found out as tables.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/isa_choice.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cluster/rank_table.h"
#include "kernels/thread_team.h"
#include "model/checkpoint.h"
#include "model/quantize/measure.h"
#include "model/quantize/quantizer.h"
#include "text/tokenizer.h"

namespace tandem::app {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

Result<std::vector<std::int32_t>> tokens_of(const std::string& path, const model::Checkpoint& checkpoint,
                                            std::int64_t max_tokens) {
  TANDEM_ASSIGN(std::string text, cluster::read_text_file(path, kMaxTextBytes));
  // No token stands for more than a few dozen bytes, so the rest would only be cut off again.
  constexpr std::size_t kBytesPerToken = 64;
  const auto most = static_cast<std::size_t>(max_tokens);
  if (text.size() > most * kBytesPerToken) text.resize(complete_utf8_prefix(text.substr(0, most * kBytesPerToken)));
  TANDEM_ASSIGN(const auto tokenizer, text::Tokenizer::from_file(checkpoint.tokenizer_source().tokenizer_json_path));
  auto tokens = tokenizer->encode(text, true);
  if (!tokens) return tokens.error().context(path);
  if (tokens->size() > most) tokens->resize(most);
  return tokens;
}

/// One row a module: layers in order, with the error of the weights alone and, if a text was given, of the outputs.
void print_modules(const model::QuantizeReport& report, const model::Comparison* comparison) {
  std::map<std::string, double> outputs;
  if (comparison != nullptr)
    for (const model::OutputError& row : comparison->modules) outputs[row.module] = row.relative_rms;
  std::size_t width = 6;
  for (const model::ModuleReport& row : report.modules) width = std::max(width, row.module.size());
  fmt::print("\n{:<{}}  {:<12}  {:>13}  {:>13}\n", "module", width, "type", "weight error", "output error");
  for (const model::ModuleReport& row : report.modules) {
    const auto output = outputs.find(row.module);
    fmt::print("{:<{}}  {:<12}  {:>13}  {:>13}\n", row.module, width, row.type,
               row.type == "FLOAT" ? "-" : fmt::format("{:.3f} %", 100.0 * row.weight_error),
               output == outputs.end() ? "-" : fmt::format("{:.3f} %", 100.0 * output->second));
  }
}

void print_summary(const config::QuantizeConfig& config, const model::QuantizeReport& report,
                   const model::Comparison* comparison) {
  const auto quantised = std::count_if(report.modules.begin(), report.modules.end(),
                                       [](const model::ModuleReport& row) { return row.type != "FLOAT"; });
  fmt::print("\n{}: {} of {} modules in int8, {:.1f} MiB -> {:.1f} MiB\n", config.target, quantised,
             report.modules.size(), static_cast<double>(report.float_bytes) / kMiB,
             static_cast<double>(report.quantised_bytes) / kMiB);
  if (comparison == nullptr) {
    fmt::print("no text was given (--text), so neither outputs nor perplexity were compared\n");
    return;
  }
  fmt::print("perplexity over {} tokens of {}: {:.4f} before, {:.4f} after ({:+.2f} %)\n", comparison->num_tokens,
             config.text_file, comparison->float_perplexity, comparison->quantised_perplexity,
             100.0 * (comparison->quantised_perplexity / comparison->float_perplexity - 1.0));
}

}  // namespace

Result<void> run_quantize(const config::QuantizeConfig& config) {
  if (std::filesystem::path(config.source).extension() == ".gguf")
    return Status(Code::kUnsupported, "a .gguf file cannot be quantised; give the Hugging Face folder it was made of");
  TANDEM_ASSIGN(const auto source, model::Checkpoint::open(config.source, {}));
  if (source->tokenizer_source().tokenizer_json_path.empty())
    return Status(Code::kUnsupported, config.source + " is not a Hugging Face folder with safetensors");
  model::ModelOptions options;
  options.compute = model::ComputeType::kBf16;
  TANDEM_ASSIGN(options.isa, choose_isa(config.isa));
  const int threads =
      config.threads > 0 ? config.threads : std::max(1, static_cast<int>(kernels::usable_cpus().size()));
  kernels::ThreadTeam team(threads);

  model::QuantizeOptions how;
  how.exclude = config.exclude;
  how.dynamic = config.dynamic;
  how.shard_bytes = static_cast<std::size_t>(config.shard_bytes);
  if (config.static_inputs) {
    TANDEM_ASSIGN(const auto tokens, tokens_of(config.calibration_file, *source, config.max_tokens));
    log::info("measuring the inputs of all modules over {} tokens of {}", tokens.size(), config.calibration_file);
    TANDEM_ASSIGN(how.ranges, model::measure_inputs(*source, options, team, {tokens, config.window}));
  }
  log::info("writing {}", config.target);
  TANDEM_ASSIGN(const model::QuantizeReport report,
                model::quantize_checkpoint(*source, config.source, config.target, how, team));
  // Reading it back is the last check, also when nothing is compared.
  TANDEM_ASSIGN(const auto quantised, model::Checkpoint::open(config.target, {}));
  std::optional<model::Comparison> comparison;
  if (!config.text_file.empty()) {
    TANDEM_ASSIGN(const auto tokens, tokens_of(config.text_file, *source, config.max_tokens));
    log::info("comparing both models over {} tokens of {}", tokens.size(), config.text_file);
    TANDEM_ASSIGN(comparison, model::compare_models(*source, *quantised, options, team, {tokens, config.window}));
  }
  print_modules(report, comparison ? &*comparison : nullptr);
  print_summary(config, report, comparison ? &*comparison : nullptr);
  return {};
}

}  // namespace tandem::app
