// SPDX-License-Identifier: Apache-2.0
// `tandem bench serve` from the first question to the last line.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "config/bench_config.h"
#include "text/tokenizer.h"

namespace tandem::bench {

/// Opens the tokenizer at a local path (a folder, a tokenizer.json, a .gguf file). Given by whoever knows such files.
using OpenTokenizer = std::function<Result<std::shared_ptr<const text::Tokenizer>>(const std::string& path)>;

/// Prints the table to stdout, what failed to stderr, and writes the file that was asked for. Ends early, with what
/// there is until then, at SIGINT or SIGTERM. An error if nothing could be measured or not a single request succeeded.
Result<void> bench_serve(const config::BenchConfig& config, const OpenTokenizer& open_tokenizer);

}  // namespace tandem::bench
