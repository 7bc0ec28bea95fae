// SPDX-License-Identifier: Apache-2.0
// Options of `tandem bench serve`: the flags of `vllm bench serve` (vllm_api.md 17), with the later names that are of
// use.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/tls_config.h"

namespace tandem::config {

enum class BenchBackend : std::uint8_t { kCompletions, kChat };
enum class BenchDataset : std::uint8_t { kRandom, kShareGpt, kPrefixRepetition, kCustom };
enum class RampUp : std::uint8_t { kNone, kLinear, kExponential };

using NamedValues = std::vector<std::pair<std::string, std::string>>;

struct BenchConfig {
  // Where requests go.
  BenchBackend backend = BenchBackend::kCompletions;
  std::string backend_name = "openai";
  std::string base_url = "http://127.0.0.1:8000";  ///< without a slash at the end
  std::string endpoint = "/v1/completions";
  ClientTls tls;  ///< of an https server
  NamedValues headers;
  std::string api_key;                                     ///< of OPENAI_API_KEY; "": no Authorization header
  std::string model;                                       ///< "": the first that the server names
  std::string served_model_name;                           ///< "": as model; what requests say
  std::string tokenizer;                                   ///< a local path; "": where the model is
  std::string request_id_prefix;                           ///< "": random
  std::chrono::milliseconds ready_check_timeout{600'000};  ///< zero: no request before the run
  std::int32_t num_warmups = 0;

  // What is asked.
  BenchDataset dataset = BenchDataset::kRandom;
  std::string dataset_path;
  std::int32_t num_prompts = 1000;
  std::uint64_t seed = 0;
  bool shuffle = true;     ///< sharegpt, custom
  bool oversample = true;  ///< sharegpt, custom: entries come again if there are fewer than num_prompts
  std::int32_t random_input_len = 1024, random_output_len = 128, random_prefix_len = 0;
  double random_range_ratio = 0.0;  ///< [0, 1)
  std::optional<std::int32_t> sharegpt_output_len;
  std::int32_t custom_output_len = 256;
  std::int32_t repeated_prefix_len = 256, repeated_suffix_len = 256, num_prefixes = 10, repeated_output_len = 128;

  // Fields of each request.
  bool ignore_eos = false;
  std::optional<std::int32_t> logprobs;
  std::optional<double> top_p, min_p, temperature;
  std::optional<std::int32_t> top_k;
  std::string extra_body = "{}";  ///< a JSON object; its fields replace those of the body

  // When.
  std::optional<double> request_rate;  ///< requests a second; nullopt: all at once
  double burstiness = 1.0;
  std::optional<std::int32_t> max_concurrency;
  RampUp ramp_up = RampUp::kNone;
  std::int32_t ramp_up_start_rps = 0, ramp_up_end_rps = 0;

  // What is reported.
  std::vector<std::string> percentile_metrics{"ttft", "tpot", "itl"};  ///< of those and e2el
  std::vector<double> percentiles{99.0};
  std::vector<std::pair<std::string, double>> goodput;  ///< name of a metric, milliseconds
  bool save_result = false, save_detailed = false, append_result = false;
  std::string result_dir, result_filename, label;
  NamedValues metadata;
  bool show_progress = true;
};

}  // namespace tandem::config
