// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem bench serve`.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "config/command_options.h"
#include "config/tls_options.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr std::int64_t kMostPrompts = 10'000'000;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;  // of one prompt or answer
constexpr std::int64_t kMostRequestsASecond = 1'000'000;
constexpr std::string_view kChatPath = "/v1/chat/completions";

template <class Integer>
Setter optional_integer(std::optional<Integer>& target, std::int64_t low, std::int64_t high) {
  return [&target, low, high](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const std::int64_t number, parse_integer(value, low, high));
    target = static_cast<Integer>(number);
    return {};
  };
}

Setter optional_number(std::optional<double>& target, double low, bool low_allowed, double high) {
  return [&target, low, low_allowed, high](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, parse_number(value, low, low_allowed, high));
    return {};
  };
}

/// KEY=VALUE of each; the value may hold further signs.
std::function<Result<void>(const std::vector<std::string>&)> pairs_into(NamedValues& target) {
  return [&target](const std::vector<std::string>& values) -> Result<void> {
    target.clear();
    for (const std::string& value : values) {
      const std::size_t sign = value.find('=');
      if (sign == 0 || sign == std::string::npos) return invalid(fmt::format("'{}' is not KEY=VALUE", value));
      target.emplace_back(value.substr(0, sign), value.substr(sign + 1));
    }
    return {};
  };
}

std::vector<std::string> comma_separated(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  return parts;
}

Result<void> read_metrics(const std::string& value, std::vector<std::string>& metrics) {
  static const std::set<std::string> kKnown = {"ttft", "tpot", "itl", "e2el"};
  metrics = comma_separated(value);
  for (const std::string& name : metrics)
    if (!kKnown.contains(name)) return invalid(fmt::format("'{}' is no metric; expected ttft, tpot, itl, e2el", name));
  return {};
}

Result<void> read_percentiles(const std::string& value, std::vector<double>& percentiles) {
  percentiles.clear();
  for (const std::string& text : comma_separated(value)) {
    TANDEM_ASSIGN(const double percentile, parse_number(text, 0.0, true, 100.0));
    percentiles.push_back(percentile);
  }
  return {};
}

Result<void> read_goodput(const std::vector<std::string>& values, std::vector<std::pair<std::string, double>>& goals) {
  goals.clear();
  for (const std::string& value : values) {
    const std::size_t colon = value.find(':');
    const std::string name = value.substr(0, colon);
    if (colon == std::string::npos || (name != "ttft" && name != "tpot" && name != "e2el"))
      return invalid(fmt::format("'{}' is no goal; expected ttft:MS, tpot:MS or e2el:MS", value));
    TANDEM_ASSIGN(const double limit,
                  parse_number(value.substr(colon + 1), 0.0, true, std::numeric_limits<double>::max()));
    goals.emplace_back(name, limit);
  }
  return {};
}

Result<void> read_dataset(const std::string& value, BenchDataset& dataset) {
  static const std::set<std::string> kNotHere = {"sonnet", "burstgpt", "hf", "random-mm", "spec_bench"};
  if (kNotHere.contains(value))
    return Status(Code::kUnsupported,
                  fmt::format("the dataset '{}' of vllm bench serve is not here; make a JSON lines file of its prompts "
                              "and give --dataset-name custom",
                              value));
  static const std::vector<std::pair<std::string_view, BenchDataset>> kDatasets = {
      {"random", BenchDataset::kRandom},
      {"sharegpt", BenchDataset::kShareGpt},
      {"prefix_repetition", BenchDataset::kPrefixRepetition},
      {"custom", BenchDataset::kCustom}};
  TANDEM_ASSIGN(dataset, parse_choice(value, kDatasets));
  return {};
}

}  // namespace

BenchOptions::BenchOptions(FlagList& flags) {
  add_target(flags);
  add_datasets(flags);
  add_fields(flags);
  add_load(flags);
  add_report(flags);
}

void BenchOptions::add_target(FlagList& flags) {
  flags.group("Server");
  flags.one("--backend", "NAME", "openai (also vllm) for completions, openai-chat for chat", "openai",
            text_into(config_.backend_name));
  flags.one("--base-url", "URL", "http or https, in place of --host and --port", "", text_into(base_url_));
  flags.one("--endpoint-type", "NAME", "older name of --backend", "", text_into(config_.backend_name));
  add_client_tls(flags, "--server", "https servers", config_.tls);
  flags.one("--host", "HOST", "", "127.0.0.1", text_into(host_));
  flags.one("--port", "PORT", "", "8000", integer_into(port_, 1, 65535));
  flags.one("--endpoint", "PATH", "", "that of the backend", text_into(endpoint_));
  flags.many("--header", "KEY=VALUE", "sent with every request", "", pairs_into(config_.headers));
  flags.one("--model", "NAME", "", "the first that the server names", text_into(config_.model));
  flags.one("--served-model-name", "NAME", "what requests say, where it is not --model", "",
            text_into(config_.served_model_name));
  flags.one("--tokenizer", "PATH", "model folder, tokenizer.json or .gguf file", "the model, if it is a local path",
            text_into(config_.tokenizer));
  flags.one("--request-id-prefix", "TEXT", "", "bench-<8 random digits>-", text_into(config_.request_id_prefix));
  flags.one("--ready-check-timeout-sec", "S", "how long one request is tried before the run; 0: not", "600",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t count, parse_integer(value, 0, 1'000'000));
              config_.ready_check_timeout = std::chrono::seconds(count);
              return {};
            });
  flags.one("--num-warmups", "N", "requests before the run that do not count", "0",
            integer_into(config_.num_warmups, 0, kMostPrompts));
}

void BenchOptions::add_datasets(FlagList& flags) {
  flags.group("Datasets");
  flags.one("--dataset-name", "NAME", "random, sharegpt, prefix_repetition, custom", "random",
            [this](const std::string& value) { return read_dataset(value, config_.dataset); });
  flags.one("--dataset-path", "FILE", "sharegpt: JSON; custom: JSON lines with \"prompt\"", "",
            text_into(config_.dataset_path));
  flags.one("--num-prompts", "N", "", "1000", integer_into(config_.num_prompts, 1, kMostPrompts));
  flags.one("--seed", "N", "", "0", integer_into(config_.seed, 0, std::numeric_limits<std::int64_t>::max()));
  flags.toggle("--disable-shuffle", "sharegpt, custom: in the order of the file", disable_shuffle_, false);
  flags.toggle("--no-oversample", "sharegpt, custom: no entry twice", no_oversample_, false);
  flags.one("--input-len", "N", "tokens of a prompt, of whichever dataset", "",
            optional_integer(input_len_, 1, kMostTokens));
  flags.one("--output-len", "N", "tokens of an answer, of whichever dataset", "",
            optional_integer(output_len_, 1, kMostTokens));
  flags.one("--random-input-len", "N", "", "1024", integer_into(config_.random_input_len, 1, kMostTokens));
  flags.one("--random-output-len", "N", "", "128", integer_into(config_.random_output_len, 1, kMostTokens));
  flags.one("--random-range-ratio", "R", "lengths are drawn from len * (1 - R) to len * (1 + R)", "0",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(config_.random_range_ratio, parse_number(value, 0.0, true, 1.0));
              if (config_.random_range_ratio < 1.0) return {};
              return invalid("the ratio must be below 1, or a length could be 0");
            });
  flags.one("--random-prefix-len", "N", "tokens at the beginning of every prompt, the same in all", "0",
            integer_into(config_.random_prefix_len, 0, kMostTokens));
  flags.one("--sharegpt-output-len", "N", "", "as long as the recorded answer",
            optional_integer(config_.sharegpt_output_len, 1, kMostTokens));
  flags.one("--custom-output-len", "N", "", "256", integer_into(config_.custom_output_len, 1, kMostTokens));
  flags.one("--prefix-repetition-prefix-len", "N", "", "256",
            integer_into(config_.repeated_prefix_len, 1, kMostTokens));
  flags.one("--prefix-repetition-suffix-len", "N", "", "256",
            integer_into(config_.repeated_suffix_len, 1, kMostTokens));
  flags.one("--prefix-repetition-num-prefixes", "N", "", "10", integer_into(config_.num_prefixes, 1, kMostPrompts));
  flags.one("--prefix-repetition-output-len", "N", "", "128",
            integer_into(config_.repeated_output_len, 1, kMostTokens));
}

void BenchOptions::add_fields(FlagList& flags) {
  flags.group("Fields of requests");
  flags.toggle("--ignore-eos", "answers have their full length", config_.ignore_eos, false);
  flags.one("--logprobs", "N", "", "", optional_integer(config_.logprobs, 0, 1000)).nullable();
  flags.one("--top-p", "P", "", "", optional_number(config_.top_p, 0.0, false, 1.0)).nullable();
  flags.one("--top-k", "N", "", "", optional_integer(config_.top_k, -1, kMostTokens)).nullable();
  flags.one("--min-p", "P", "", "", optional_number(config_.min_p, 0.0, true, 1.0)).nullable();
  flags.one("--temperature", "T", "", "0", optional_number(config_.temperature, 0.0, true, 100.0)).nullable();
  flags
      .one("--extra-body", "JSON", "further fields; they replace those of the same name", "",
           [this](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(config_.extra_body, parse_json_object(value));
             return {};
           })
      .json();
}

void BenchOptions::add_load(FlagList& flags) {
  flags.group("Load");
  flags.one("--request-rate", "R", "requests a second, or inf: all at once", "inf",
            [this](const std::string& value) -> Result<void> {
              config_.request_rate.reset();
              if (value == "inf") return {};
              TANDEM_ASSIGN(config_.request_rate, parse_number(value, 0.0, false, double{kMostRequestsASecond}));
              return {};
            });
  flags.one("--burstiness", "B", "shape of the gaps' gamma distribution; 1: a Poisson process", "1.0",
            [this](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(config_.burstiness, parse_number(value, 0.0, false, 1.0e6));
              return {};
            });
  flags
      .one("--max-concurrency", "N", "requests at once", "no limit",
           optional_integer(config_.max_concurrency, 1, kMostPrompts))
      .nullable();
  flags.one("--ramp-up-strategy", "NAME", "linear or exponential, in place of one rate", "",
            choice_into<RampUp>(config_.ramp_up, {{"linear", RampUp::kLinear}, {"exponential", RampUp::kExponential}}));
  flags.one("--ramp-up-start-rps", "N", "rate of the first request", "",
            optional_integer(ramp_up_start_, 0, kMostRequestsASecond));
  flags.one("--ramp-up-end-rps", "N", "rate of the last request", "",
            optional_integer(ramp_up_end_, 1, kMostRequestsASecond));
}

void BenchOptions::add_report(FlagList& flags) {
  flags.group("Report");
  flags.one("--percentile-metrics", "M,M", "of ttft, tpot, itl, e2el", "ttft,tpot,itl",
            [this](const std::string& value) { return read_metrics(value, config_.percentile_metrics); });
  flags.one("--metric-percentiles", "P,P", "", "99",
            [this](const std::string& value) { return read_percentiles(value, config_.percentiles); });
  flags.many("--goodput", "M:MS", "goals a request must meet to count, of ttft, tpot, e2el", "",
             [this](const auto& values) { return read_goodput(values, config_.goodput); });
  flags.toggle("--save-result", "write a JSON file", config_.save_result, false);
  flags.toggle("--save-detailed", "with every request's lengths, times, text and error", config_.save_detailed, false);
  flags.toggle("--append-result", "add to the file", config_.append_result, false);
  flags.one("--result-dir", "FOLDER", "", "the current one", text_into(config_.result_dir));
  flags.one("--result-filename", "FILE", "", "{label}-{rate}qps[-concurrencyN]-{model}-{time}.json",
            text_into(config_.result_filename));
  flags.many("--metadata", "KEY=VALUE", "added to the file", "", pairs_into(config_.metadata));
  flags.one("--label", "TEXT", "", "the backend's name", text_into(config_.label));
  flags.toggle("--disable-tqdm", "no progress line", disable_tqdm_, false);
  flags.group("Accepted, without effect here");
  flags.ignored("--trust-remote-code", Arity::kNone, "tokenizers are data here, no code is loaded");
  flags.ignored("--custom-skip-chat-template", Arity::kNone, "prompts of a custom dataset are always sent as they are");
  flags.group("Known, but not there");
  flags.refused("--insecure", Arity::kNone,
                "an https server is always checked; --server-ca-certs FILE names who signed its certificate");
  for (const char* name :
       {"--spec-bench-output-len", "--spec-bench-category", "--sonnet-input-len", "--sonnet-output-len",
        "--sonnet-prefix-len", "--blazedit-min-distance", "--blazedit-max-distance",
        "--random-mm-base-items-per-request", "--random-mm-num-mm-items-range-ratio", "--random-mm-limit-mm-per-prompt",
        "--random-mm-bucket-config", "--hf-subset", "--hf-split", "--hf-output-len"})
    flags.refused(name, Arity::kOne, "its dataset is not here; --dataset-name custom takes any prompts from a file");
  flags.refused("--random-batch-size", Arity::kOne, "it is for embeddings; a request has one prompt here");
  flags.refused("--tokenizer-mode", Arity::kOne, "tokenizers are read from tokenizer.json or GGUF, in one way");
  flags.refused("--use-beam-search", Arity::kNone, "there is no beam search");
  flags.refused("--no-stream", Arity::kNone,
                "answers are always streamed, or there would be no time to the first token");
  for (const char* name : {"--lora-modules", "--lora-assignment"})
    flags.refused(name, Arity::kMany,
                  "requests all name one model; run it once for each adapter with --served-model-name");
  flags.refused("--plot-timeline", Arity::kNone, "nothing is drawn; --save-detailed writes every time");
  flags.refused("--profile", Arity::kNone, "the server has no profiler that a request could start");
}

Result<void> BenchOptions::finish_target(const Environment& environment) {
  static const std::vector<std::pair<std::string_view, BenchBackend>> kBackends = {
      {"openai", BenchBackend::kCompletions},
      {"vllm", BenchBackend::kCompletions},
      {"openai-chat", BenchBackend::kChat}};
  auto backend = parse_choice(config_.backend_name, kBackends);
  if (!backend) return backend.error().context("argument --backend");
  config_.backend = *backend;
  if (config_.backend == BenchBackend::kChat) config_.endpoint = kChatPath;
  if (!endpoint_.empty()) config_.endpoint = endpoint_;
  if (!config_.endpoint.starts_with('/')) return invalid("argument --endpoint: expected a path that begins with /");
  // Scripts for vLLM name the path with the backend; a pair that does not fit would measure refusals.
  if (config_.backend == BenchBackend::kChat && !config_.endpoint.ends_with("chat/completions"))
    return invalid(
        fmt::format("argument --endpoint: the chat backend needs a path that ends with chat/completions, "
                    "found {}",
                    config_.endpoint));
  const bool bare_v6 = host_.find(':') != std::string::npos && !host_.starts_with('[');
  config_.base_url = fmt::format("http://{}:{}", bare_v6 ? "[" + host_ + "]" : host_, port_);
  if (!base_url_.empty()) config_.base_url = base_url_;
  while (config_.base_url.ends_with('/')) config_.base_url.pop_back();
  config_.api_key = environment("OPENAI_API_KEY").value_or("");
  return {};
}

Result<void> BenchOptions::finish_load() {
  if (config_.ramp_up == RampUp::kNone) {
    if (ramp_up_start_ || ramp_up_end_)
      return invalid("arguments --ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy");
    return {};
  }
  if (config_.request_rate) return invalid("argument --ramp-up-strategy: leave --request-rate out, it sets the rates");
  if (!ramp_up_start_ || !ramp_up_end_)
    return invalid("argument --ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
  if (*ramp_up_start_ >= *ramp_up_end_) return invalid("argument --ramp-up-start-rps must be below --ramp-up-end-rps");
  if (*ramp_up_start_ == 0 && config_.ramp_up == RampUp::kExponential)
    return invalid("argument --ramp-up-start-rps: an exponential ramp cannot start at 0");
  config_.ramp_up_start_rps = *ramp_up_start_;
  config_.ramp_up_end_rps = *ramp_up_end_;
  return {};
}

Result<BenchConfig> BenchOptions::finish(const std::vector<std::string>& positional, const Environment& environment) {
  if (!positional.empty()) return invalid(fmt::format("unrecognized arguments: {}", positional[0]));
  TANDEM_TRY(finish_target(environment));
  TANDEM_TRY(finish_load());
  const bool reads_file = config_.dataset == BenchDataset::kShareGpt || config_.dataset == BenchDataset::kCustom;
  if (reads_file && config_.dataset_path.empty())
    return invalid("argument --dataset-path is missing: the file of the dataset");
  if (reads_file && input_len_) return invalid("argument --input-len: prompts of a file have the length they have");
  if (input_len_) config_.random_input_len = config_.repeated_suffix_len = *input_len_;
  if (output_len_) {
    config_.random_output_len = config_.custom_output_len = config_.repeated_output_len = *output_len_;
    config_.sharegpt_output_len = output_len_;
  }
  config_.shuffle = !disable_shuffle_;
  config_.oversample = !no_oversample_;
  config_.show_progress = !disable_tqdm_;
  return config_;
}

}  // namespace tandem::config
