// SPDX-License-Identifier: Apache-2.0
// The spellings that vLLM's command line allows, brought into one form that a plain parser understands: underscores in
// names, unique prefixes, --x=v, dotted JSON (--x.a.b v), -dp for --data-parallel-size, repeated flags that replace.
// Rules: vllm_api.md 14.1. Pure text work; knows no flag by name.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tandem::config {

enum class Arity { kNone, kOne, kMany };

struct FlagForm {
  std::string name;  ///< "--max-model-len"
  Arity arity = Arity::kOne;
  bool negatable = false;  ///< arity none: --no-x exists too
  bool nullable = false;   ///< arity one: "" and "None" mean that the flag was not given
  bool json = false;       ///< arity one: --x.a.b v builds the object
};

struct FlagForms {
  std::vector<FlagForm> flags;
  std::vector<std::pair<std::string, std::string>> short_forms;  ///< {"-tp", "--tensor-parallel-size"}
};

struct Arguments {
  /// --name, --no-name, --name=value, or --name followed by its values; then positionals. Each flag at most once.
  std::vector<std::string> canonical;
  std::vector<std::string> positional;
  std::vector<std::string> rest;  ///< what stood after "--"
};

/// An unknown or ambiguous flag, or one without its value, is an error that names the nearest known one.
Result<Arguments> canonical_arguments(std::span<const std::string> arguments, const FlagForms& forms);

/// The known name nearest to `name`, or "" if none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace tandem::config
