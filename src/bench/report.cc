// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tandem::bench {
namespace {

namespace json = boost::json;

struct Metric {
  const char* key;
  const char* name;
  const char* title;
  const Distribution& values;
};

std::vector<Metric> chosen_metrics(const Summary& summary, const config::BenchConfig& config) {
  std::vector<Metric> chosen;
  for (const Metric& metric : {Metric{"ttft", "TTFT", "Time to First Token", summary.ttft},
                               Metric{"tpot", "TPOT", "Time per Output Token (excl. 1st token)", summary.tpot},
                               Metric{"itl", "ITL", "Inter-token Latency", summary.itl},
                               Metric{"e2el", "E2EL", "End-to-end Latency", summary.e2el}}) {
    const auto& names = config.percentile_metrics;
    if (std::find(names.begin(), names.end(), metric.key) != names.end()) chosen.push_back(metric);
  }
  return chosen;
}

/// "99" or "99.9".
std::string percent_word(double percent) {
  return percent == std::floor(percent) ? fmt::format("{}", static_cast<int>(percent)) : fmt::format("{}", percent);
}

std::string row(const std::string& label, std::int64_t value) { return fmt::format("{:<40} {:<10}\n", label, value); }
std::string row(const std::string& label, double value) { return fmt::format("{:<40} {:<10.2f}\n", label, value); }

std::string ramp_name(config::RampUp ramp) { return ramp == config::RampUp::kLinear ? "linear" : "exponential"; }

std::string label_of(const config::BenchConfig& config) {
  return config.label.empty() ? config.backend_name : config.label;
}

/// Boost.JSON writes 0.25 as 2.5E-1, which is as right but not what people want to read.
void write_value(const json::value& value, std::string& out) {
  if (value.is_double()) {
    out += python_float(value.get_double());
  } else if (value.is_object()) {
    out += '{';
    for (const auto& [key, member] : value.get_object()) {
      if (out.back() != '{') out += ", ";
      out += json::serialize(json::string_view(key)) + ": ";
      write_value(member, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const json::value& member : value.get_array()) {
      if (!first) out += ", ";
      first = false;
      write_value(member, out);
    }
    out += ']';
  } else {
    out += json::serialize(value);
  }
}

void add_details(std::span<const StreamRecord> records, json::object& result) {
  json::array input_lens, output_lens, ttfts, itls, texts, errors;
  for (const StreamRecord& record : records) {
    input_lens.emplace_back(record.prompt_tokens);
    output_lens.emplace_back(record.success ? record.output_tokens : 0);
    ttfts.emplace_back(record.ttft);
    itls.emplace_back(json::array(record.itls.begin(), record.itls.end()));
    texts.emplace_back(record.text);
    errors.emplace_back(record.error);
  }
  result["input_lens"] = std::move(input_lens);
  result["output_lens"] = std::move(output_lens);
  result["ttfts"] = std::move(ttfts);
  result["itls"] = std::move(itls);
  result["generated_texts"] = std::move(texts);
  result["errors"] = std::move(errors);
}

void add_setting(const RunFacts& facts, const config::BenchConfig& config, json::object& result) {
  result["date"] = facts.date;
  result["endpoint_type"] = config.backend_name;
  result["backend"] = config.backend_name;
  if (config.label.empty()) {
    result["label"] = nullptr;
  } else {
    result["label"] = config.label;
  }
  result["model_id"] = facts.model;
  result["tokenizer_id"] = facts.tokenizer;
  result["num_prompts"] = config.num_prompts;
  for (const auto& [key, value] : config.metadata) result[key] = value;
  if (config.request_rate) {
    result["request_rate"] = *config.request_rate;
  } else {
    result["request_rate"] = "inf";
  }
  result["burstiness"] = config.burstiness;
  if (config.max_concurrency) {
    result["max_concurrency"] = *config.max_concurrency;
  } else {
    result["max_concurrency"] = nullptr;
  }
  if (config.ramp_up != config::RampUp::kNone) {
    result["ramp_up_strategy"] = ramp_name(config.ramp_up);
    result["ramp_up_start_rps"] = config.ramp_up_start_rps;
    result["ramp_up_end_rps"] = config.ramp_up_end_rps;
  }
}

}  // namespace

std::string python_float(double value) {
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string date_text(std::time_t when) {
  std::tm parts{};
  localtime_r(&when, &parts);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

std::string table_text(const Summary& summary, const config::BenchConfig& config) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  text += row("Successful requests:", summary.completed);
  text += row("Failed requests:", summary.failed);
  if (config.max_concurrency) text += row("Maximum request concurrency:", std::int64_t{*config.max_concurrency});
  if (config.request_rate) text += row("Request rate configured (RPS):", *config.request_rate);
  text += row("Benchmark duration (s):", summary.duration);
  text += row("Total input tokens:", summary.total_input);
  text += row("Total generated tokens:", summary.total_output);
  text += row("Request throughput (req/s):", summary.request_throughput);
  if (!config.goodput.empty()) text += row("Request goodput (req/s):", summary.request_goodput);
  text += row("Output token throughput (tok/s):", summary.output_throughput);
  text += row("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s);
  text += row("Peak concurrent requests:", static_cast<double>(summary.max_concurrent_requests));
  text += row("Total Token throughput (tok/s):", summary.total_token_throughput);
  for (const Metric& metric : chosen_metrics(summary, config)) {
    text += fmt::format("{:-^50}\n", metric.title);
    text += row(fmt::format("Mean {} (ms):", metric.name), metric.values.mean);
    text += row(fmt::format("Median {} (ms):", metric.name), metric.values.median);
    for (const auto& [percent, value] : metric.values.percentiles)
      text += row(fmt::format("P{} {} (ms):", percent_word(percent), metric.name), value);
  }
  return text + std::string(50, '=') + "\n";
}

std::string json_text(const Summary& summary, std::span<const StreamRecord> records, const RunFacts& facts,
                      const config::BenchConfig& config) {
  json::object result;
  add_setting(facts, config, result);
  result["duration"] = summary.duration;
  result["completed"] = summary.completed;
  result["failed"] = summary.failed;
  result["total_input_tokens"] = summary.total_input;
  result["total_output_tokens"] = summary.total_output;
  result["request_throughput"] = summary.request_throughput;
  if (config.goodput.empty()) {
    result["request_goodput"] = nullptr;
  } else {
    result["request_goodput"] = summary.request_goodput;
  }
  result["output_throughput"] = summary.output_throughput;
  result["total_token_throughput"] = summary.total_token_throughput;
  if (config.save_detailed) add_details(records, result);
  result["max_output_tokens_per_s"] = summary.max_output_tokens_per_s;
  result["max_concurrent_requests"] = summary.max_concurrent_requests;
  for (const Metric& metric : chosen_metrics(summary, config)) {
    result[fmt::format("mean_{}_ms", metric.key)] = metric.values.mean;
    result[fmt::format("median_{}_ms", metric.key)] = metric.values.median;
    result[fmt::format("std_{}_ms", metric.key)] = metric.values.std;
    for (const auto& [percent, value] : metric.values.percentiles)
      result[fmt::format("p{}_{}_ms", percent_word(percent), metric.key)] = value;
  }
  std::string text;
  write_value(result, text);
  return text;
}

std::string result_path(const RunFacts& facts, const config::BenchConfig& config) {
  std::string name = config.result_filename;
  if (name.empty()) {
    const std::string rate = config.ramp_up == config::RampUp::kNone
                                 ? (config.request_rate ? python_float(*config.request_rate) : "inf")
                                 : fmt::format("ramp-up-{}-{}qps-{}", ramp_name(config.ramp_up),
                                               config.ramp_up_start_rps, config.ramp_up_end_rps);
    const std::string limit = config.max_concurrency ? fmt::format("-concurrency{}", *config.max_concurrency) : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json", label_of(config), rate, limit,
                       facts.model.substr(facts.model.rfind('/') + 1), facts.date);
  }
  return (std::filesystem::path(config.result_dir) / name).string();
}

Result<void> check_result_folder(const config::BenchConfig& config) {
  auto folder = std::filesystem::path(result_path(RunFacts(), config)).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return Status(Code::kInvalidArgument, fmt::format("argument --result-dir: no file can be written in {}: {}",
                                                    folder.string(), error ? error.message() : std::strerror(errno)));
}

Result<void> write_result(const std::string& path, const std::string& json, bool append) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const bool next_line = append && std::filesystem::exists(path) && std::filesystem::file_size(path, error) > 0;
  std::ofstream out(path, append ? std::ios::app : std::ios::trunc);
  if (next_line) out << '\n';
  out << json;
  out.close();
  if (out) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("{}: the result cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace tandem::bench
