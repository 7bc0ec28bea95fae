// SPDX-License-Identifier: Apache-2.0
// The small JSON files beside a checkpoint's weights: generation_config.json and tokenizer_config.json.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::model {

Result<GenerationDefaults> parse_generation_config(const boost::json::object& config);

/// A named chat template. Files with one template call it "default".
struct NamedTemplate {
  std::string name;
  std::string text;
};

struct TokenizerConfig {
  std::vector<NamedTemplate> templates;
  std::string bos, eos, pad, unk;  ///< text of the special tokens, empty if none
  std::optional<double> model_max_length;
};
Result<TokenizerConfig> parse_tokenizer_config(const boost::json::object& config);

/// "tool_use" for tools if there is one, else "default", else the only one.
Result<std::optional<std::string>> choose_template(const std::vector<NamedTemplate>& templates, bool with_tools);

}  // namespace tandem::model
