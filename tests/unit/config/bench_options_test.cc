// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem bench serve`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/command_line.h"

namespace tandem::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<CommandLine> parse(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"bench", "serve"});
  return parse_command_line(flags, [](const std::string& name) -> std::optional<std::string> {
    if (name == "OPENAI_API_KEY") return "secret";
    return std::nullopt;
  });
}

BenchConfig config_of(std::vector<std::string> flags) {
  auto line = parse(std::move(flags));
  EXPECT_TRUE(line) << line.error().message();
  return line && std::holds_alternative<BenchConfig>(line->command) ? std::get<BenchConfig>(line->command)
                                                                    : BenchConfig();
}

std::string error_of(std::vector<std::string> flags) {
  auto line = parse(std::move(flags));
  EXPECT_FALSE(line) << "accepted";
  return line ? "" : line.error().message();
}

TEST(BenchFlags, Defaults) {
  const auto config = config_of({});
  EXPECT_EQ(config.base_url, "http://127.0.0.1:8000");
  EXPECT_EQ(config.endpoint, "/v1/completions");
  EXPECT_EQ(config.api_key, "secret");
  EXPECT_EQ(config.num_prompts, 1000);
  EXPECT_EQ(config.random_input_len, 1024);
  EXPECT_EQ(config.random_output_len, 128);
  EXPECT_FALSE(config.request_rate);
  EXPECT_FALSE(config.max_concurrency);
  EXPECT_THAT(config.percentile_metrics, ElementsAre("ttft", "tpot", "itl"));
  EXPECT_THAT(config.percentiles, ElementsAre(99.0));
  EXPECT_EQ(config.ready_check_timeout, std::chrono::seconds(600));
}

TEST(BenchFlags, AVllmLineParses) {
  const auto config = config_of({"--backend",
                                 "openai-chat",
                                 "--endpoint",
                                 "/v1/chat/completions",
                                 "--host",
                                 "10.0.0.1",
                                 "--port",
                                 "8010",
                                 "--model",
                                 "Qwen/Qwen3-8B",
                                 "--tokenizer",
                                 "/models/q",
                                 "--dataset-name",
                                 "random",
                                 "--random-input-len",
                                 "512",
                                 "--random_output_len",
                                 "64",
                                 "--random-range-ratio",
                                 "0.2",
                                 "--num-prompts",
                                 "200",
                                 "--request-rate",
                                 "4",
                                 "--burstiness",
                                 "0.5",
                                 "--max-concurrency",
                                 "32",
                                 "--ignore-eos",
                                 "--percentile-metrics",
                                 "ttft,tpot,itl,e2el",
                                 "--metric-percentiles",
                                 "50,90,99.9",
                                 "--goodput",
                                 "ttft:500",
                                 "tpot:50",
                                 "--save-result",
                                 "--result-dir",
                                 "out",
                                 "--metadata",
                                 "a=1",
                                 "b=x=y",
                                 "--header",
                                 "x-a=b",
                                 "--top-k",
                                 "5",
                                 "--extra-body",
                                 R"({"a": [1]})",
                                 "--trust-remote-code",
                                 "--disable-tqdm",
                                 "--seed",
                                 "7"});
  EXPECT_EQ(config.backend, BenchBackend::kChat);
  EXPECT_EQ(config.base_url, "http://10.0.0.1:8010");
  EXPECT_EQ(config.random_output_len, 64);
  EXPECT_EQ(config.request_rate, 4.0);
  EXPECT_EQ(config.max_concurrency, 32);
  EXPECT_THAT(config.percentiles, ElementsAre(50.0, 90.0, 99.9));
  EXPECT_THAT(config.goodput, ElementsAre(Pair("ttft", 500.0), Pair("tpot", 50.0)));
  EXPECT_THAT(config.metadata, ElementsAre(Pair("a", "1"), Pair("b", "x=y")));
  EXPECT_EQ(config.top_k, 5);
  EXPECT_FALSE(config.show_progress);
}

TEST(BenchFlags, LengthsOfWhicheverDataset) {
  const auto config = config_of({"--input-len", "10", "--output-len", "20"});
  EXPECT_EQ(config.random_input_len, 10);
  EXPECT_EQ(config.random_output_len, 20);
  EXPECT_EQ(config.custom_output_len, 20);
  EXPECT_EQ(config.sharegpt_output_len, 20);
}

TEST(BenchFlags, Addresses) {
  EXPECT_EQ(config_of({"--base-url", "http://h:1/x/"}).base_url, "http://h:1/x");
  EXPECT_EQ(config_of({"--host", "::1", "--port", "9"}).base_url, "http://[::1]:9");
  EXPECT_EQ(config_of({"--backend", "openai-chat"}).endpoint, "/v1/chat/completions");
  EXPECT_EQ(config_of({"--backend", "vllm"}).backend, BenchBackend::kCompletions);
}

TEST(BenchFlags, Ramps) {
  const auto config =
      config_of({"--ramp-up-strategy", "linear", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "10"});
  EXPECT_EQ(config.ramp_up, RampUp::kLinear);
  EXPECT_EQ(config.ramp_up_end_rps, 10);
  EXPECT_THAT(error_of({"--ramp-up-strategy", "linear"}), HasSubstr("needs --ramp-up-start-rps"));
  EXPECT_THAT(error_of({"--ramp-up-start-rps", "1"}), HasSubstr("--ramp-up-strategy"));
  EXPECT_THAT(error_of({"--ramp-up-strategy", "linear", "--request-rate", "3"}), HasSubstr("--request-rate"));
  EXPECT_THAT(error_of({"--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "10"}),
              HasSubstr("cannot start at 0"));
  EXPECT_THAT(error_of({"--ramp-up-strategy", "linear", "--ramp-up-start-rps", "10", "--ramp-up-end-rps", "10"}),
              HasSubstr("below"));
}

TEST(BenchFlags, TheOlderNameOfTheBackend) {
  EXPECT_EQ(config_of({"--endpoint-type", "openai-chat"}).backend, BenchBackend::kChat);
}

TEST(BenchFlags, ErrorsNameTheFlag) {
  EXPECT_THAT(error_of({"--backend", "tgi"}), HasSubstr("--backend"));
  EXPECT_THAT(error_of({"--goodput", "itl:5"}), HasSubstr("--goodput"));
  EXPECT_THAT(error_of({"--goodput", "ttft=5"}), HasSubstr("ttft:MS"));
  EXPECT_THAT(error_of({"--percentile-metrics", "ttft,x"}), HasSubstr("'x' is no metric"));
  EXPECT_THAT(error_of({"--metric-percentiles", "101"}), HasSubstr("--metric-percentiles"));
  EXPECT_THAT(error_of({"--metadata", "=x"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error_of({"--random-range-ratio", "1"}), HasSubstr("below 1"));
  EXPECT_THAT(error_of({"--dataset-name", "sharegpt"}), HasSubstr("--dataset-path"));
  EXPECT_THAT(error_of({"--extra-body", "[1]"}), HasSubstr("--extra-body"));
  EXPECT_THAT(error_of({"--request-rate", "0"}), HasSubstr("--request-rate"));
  EXPECT_THAT(error_of({"--profile"}), HasSubstr("--profile"));
  EXPECT_THAT(error_of({"--endpoint-type", "tgi"}), HasSubstr("--backend"));
  EXPECT_THAT(error_of({"--num-prompt", "0"}), HasSubstr("--num-prompts"));
  EXPECT_THAT(error_of({"--backend", "openai-chat", "--endpoint", "/v1/completions"}), HasSubstr("--endpoint"));
  // What vLLM's tool has and this one has not is refused by name, with what to do.
  for (const char* name : {"sonnet", "burstgpt", "hf", "random-mm", "spec_bench"}) {
    EXPECT_THAT(error_of({"--dataset-name", name}),
                AllOf(HasSubstr("--dataset-name"), HasSubstr(name), HasSubstr("--dataset-name custom")));
  }
  EXPECT_THAT(error_of({"--dataset-name", "x"}), HasSubstr("choose from random, sharegpt"));
  for (const char* flag : {"--sonnet-input-len", "--hf-subset", "--tokenizer-mode", "--lora-modules"})
    EXPECT_THAT(error_of({flag, "1"}), HasSubstr(flag));
  for (const char* flag : {"--use-beam-search", "--no-stream", "--plot-timeline"})
    EXPECT_THAT(error_of({flag}), HasSubstr(flag));
  const auto bare = parse_command_line(std::vector<std::string>{"bench"}, {});
  ASSERT_FALSE(bare);
  EXPECT_THAT(bare.error().message(), HasSubstr("expected serve"));
}

}  // namespace
}  // namespace tandem::config
