// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem quantize`.
#include <fmt/format.h>

#include "config/command_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;

std::function<Result<void>(const std::vector<std::string>&)> patterns_into(std::vector<std::string>& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target = values;
    return {};
  };
}

}  // namespace

QuantizeOptions::QuantizeOptions(FlagList& flags) {
  flags.group("What is written");
  flags.toggle("--static", "static input scales (W8A8) from --calibration; otherwise dynamic ones (W8A8_DYNAMIC)",
               config_.static_inputs, false);
  flags.one("--calibration", "FILE", "text over which the inputs' ranges are measured; means --static", "",
            text_into(config_.calibration_file));
  flags.many("--exclude", "GLOB", "modules that stay floats, with * and ? ('*.down_proj')", "none",
             patterns_into(config_.exclude));
  flags.many("--dynamic", "GLOB", "modules that stay dynamic when the others are static", "experts",
             patterns_into(config_.dynamic));
  flags.one("--shard-size", "BYTES", "largest file (4G = 4 x 1024^3)", "4G",
            size_into(config_.shard_bytes, 1 << 20, std::int64_t{1} << 50));
  flags.group("Report");
  flags.one("--text", "FILE", "text over which the models are compared", "that of --calibration",
            text_into(config_.text_file));
  flags.one("--max-tokens", "N", "tokens used of each text", "4096", size_into(config_.max_tokens, 2, kMaxTokens));
  flags.one("--window", "N", "tokens of one sequence", "512", size_into(config_.window, 2, kMaxTokens));
  flags.group("System");
  flags.one("--threads", "N", "compute threads; 0: one for each usable CPU", "0",
            integer_into(config_.threads, 0, 1024));
  flags.one("--isa", "ISA", "instruction set: auto, portable, avx2, avx512, neon, dotprod", "auto",
            choice_into<Isa>(config_.isa, {kIsaNames.begin(), kIsaNames.end()}));
}

Result<QuantizeConfig> QuantizeOptions::finish(const std::vector<std::string>& positional) {
  if (positional.size() < 2)
    return invalid("the following arguments are required: SRC (a float model's folder) and DST (a new folder)");
  if (positional.size() > 2) return invalid(fmt::format("unrecognized arguments: {}", positional[2]));
  config_.source = positional[0];
  config_.target = positional[1];
  if (config_.static_inputs && config_.calibration_file.empty())
    return invalid("argument --static needs --calibration FILE: ranges are measured over a text");
  if (!config_.dynamic.empty() && config_.calibration_file.empty())
    return invalid("argument --dynamic needs --calibration FILE: without it all modules are dynamic");
  config_.static_inputs = !config_.calibration_file.empty();
  if (config_.text_file.empty()) config_.text_file = config_.calibration_file;
  return config_;
}

}  // namespace tandem::config
