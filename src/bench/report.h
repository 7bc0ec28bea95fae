// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind: the table, the JSON object and the name of its file, laid out as those of `vllm bench
// serve` (vllm_api.md 17.4), which scripts read.
#pragma once

#include <ctime>
#include <span>
#include <string>

#include "bench/stream_record.h"
#include "bench/summary.h"
#include "config/bench_config.h"

namespace tandem::bench {

struct RunFacts {
  std::string model;      ///< model_id
  std::string tokenizer;  ///< tokenizer_id
  std::string date;       ///< local time, YYYYmmdd-HHMMSS
};

/// Lines of 50 columns; ends with a line end.
std::string table_text(const Summary& summary, const config::BenchConfig& config);

/// One JSON object in one line; lengths, times, texts and errors of each request with --save-detailed.
std::string json_text(const Summary& summary, std::span<const StreamRecord> records, const RunFacts& facts,
                      const config::BenchConfig& config);

/// --result-dir and --result-filename, or the name made of label, rate, concurrency, model and date.
std::string result_path(const RunFacts& facts, const config::BenchConfig& config);

/// Whether a file can be made where the result will be, before the run that nobody wants to lose. Makes the folder.
Result<void> check_result_folder(const config::BenchConfig& config);

/// Writes or, with --append-result, adds `json` as a line of its own. Makes the folder. An error names the file.
Result<void> write_result(const std::string& path, const std::string& json, bool append);

/// A number as Python prints a float: "1.0", "0.25", "inf".
std::string python_float(double value);

/// "YYYYmmdd-HHMMSS", local time.
std::string date_text(std::time_t when);

}  // namespace tandem::bench
