// SPDX-License-Identifier: Apache-2.0
// Every flag of `vllm serve`: taken, or refused by name with the reason; never unknown. And how lines are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "config/command_line.h"

namespace tandem::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Result<CommandLine> parse(const std::vector<std::string>& arguments,
                          std::map<std::string, std::string> variables = {}) {
  return parse_command_line(arguments, [variables](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

template <class Config = ServeConfig>
Config parse_as(const std::vector<std::string>& arguments, std::map<std::string, std::string> variables = {}) {
  auto line = parse(arguments, std::move(variables));
  EXPECT_TRUE(line) << line.error().message();
  if (!line || !std::holds_alternative<Config>(line->command)) return {};
  return std::get<Config>(line->command);
}

std::string error_of(std::vector<std::string> arguments) {
  auto line = parse(arguments);
  return line ? "accepted" : line.error().message();
}

std::string help_of(const std::string& topic) {
  auto line = parse({"serve", topic});
  return line && std::holds_alternative<Text>(line->command) ? std::get<Text>(line->command).text : "no help";
}

TEST(VllmFlags, AreTaken) {
  const std::vector<std::vector<std::string>> lines = {
      {"--host", "::1"},
      {"--port", "0"},
      {"--uds", "/tmp/x.sock"},
      {"--api-server-count", "4"},
      {"-asc", "1"},
      {"--served-model-name", "a", "b"},
      {"--tokenizer", "t"},
      {"--tokenizer-mode", "slow"},
      {"--trust-remote-code"},
      {"--dtype", "float16"},
      {"--seed", "7"},
      {"--max-model-len", "25.6k"},
      {"-q", "ascend"},
      {"--load-format", "safetensors"},
      {"--enforce-eager"},
      {"--no-enforce-eager"},
      {"--hf-overrides.rope_scaling.factor", "2"},
      {"--rope-scaling", R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768})"},
      {"--rope-theta", "1e6"},
      {"--generation-config", "vllm"},
      {"--override-generation-config.temperature", "0.5"},
      {"--max-logprobs", "-1"},
      {"--logprobs-mode", "raw_logprobs"},
      {"--logprobs-mode", "processed_logits"},
      {"--skip-tokenizer-init"},
      {"--enable-sleep-mode"},
      {"-tp", "1"},
      {"-pp", "1"},
      {"-dcp", "1"},
      {"-dp", "2"},
      {"-dp", "2", "-dpl", "1"},
      {"-dpa", "127.0.0.1"},
      {"-dpp", "29550"},
      {"-dpb", "mp"},
      {"-dp", "2", "-dpn", "1"},
      {"-dp", "2", "-dpn", "1", "--data-parallel-external-lb"},
      {"--enable-expert-parallel"},
      {"--no-enable-expert-parallel"},
      {"--enable-eplb", "--eplb-config", "{}"},
      {"--distributed-executor-backend", "mp"},
      {"--gpu-memory-utilization", "0.9"},
      {"--kv-cache-memory-bytes", "1G"},
      {"--block-size", "128"},
      {"--kv-cache-dtype", "auto"},
      {"--swap-space", "4"},
      {"--cpu-offload-gb", "0"},
      {"--num-gpu-blocks-override", "64"},
      {"--no-enable-prefix-caching"},
      {"--prefix-caching-hash-algo", "sha256"},
      {"--max-num-batched-tokens", "8k"},
      {"--max-num-seqs", "16"},
      {"--enable-chunked-prefill"},
      {"--no-enable-chunked-prefill"},
      {"--max-num-partial-prefills", "1"},
      {"--max-long-partial-prefills", "1"},
      {"--long-prefill-token-threshold", "0"},
      {"--scheduling-policy", "priority"},
      {"--async-scheduling"},
      {"--stream-interval", "4"},
      {"-O3"},
      {"-O.cudagraph_mode", "FULL"},
      {"--additional-config", R"({"ascend_scheduler_config":{"enabled":true}})"},
      {"--structured-outputs-config.backend", "xgrammar"},
      {"--reasoning-parser", "qwen3"},
      {"--enable-auto-tool-choice", "--tool-call-parser", "hermes"},
      {"--chat-template", "{{ 1 }}"},
      {"--chat-template-content-format", "openai"},
      {"--trust-request-chat-template"},
      {"--default-chat-template-kwargs", R"({"enable_thinking":false})"},
      {"--response-role", "assistant"},
      {"--exclude-tools-when-tool-choice-none"},
      {"--return-tokens-as-token-ids"},
      {"--enable-prompt-tokens-details"},
      {"--enable-force-include-usage"},
      {"--enable-server-load-tracking"},
      {"--enable-request-id-headers"},
      {"--enable-tokenizer-info-endpoint"},
      {"--disable-fastapi-docs"},
      {"--api-key", "a", "b"},
      {"--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certs", "ca", "--ssl-cert-reqs", "2"},
      {"--ssl-certfile", "c", "--ssl-ciphers", "ECDHE+AESGCM"},
      {"--root-path", "/x"},
      {"--allowed-origins", "[\"*\"]", "--allowed-methods", "[\"GET\"]", "--allowed-headers", "[\"a\"]"},
      {"--enable-log-requests"},
      {"--no-enable-log-requests"},
      {"--disable-log-stats"},
      {"--disable-uvicorn-access-log"},
      {"--uvicorn-log-level", "trace"},
      {"--max-log-len", "100"},
      {"--limit-mm-per-prompt.image", "4"},
      {"--show-hidden-metrics-for-version", "0.10"},
      {"--otlp-traces-endpoint", "http://h"},
      {"--collect-detailed-traces", "all"},
      {"--h11-max-incomplete-event-size", "1", "--h11-max-header-count", "1"},
      // Gone from newer releases, still in scripts.
      {"--disable-log-requests"},
      {"--use-v2-block-manager"},
      {"--enable-reasoning"},
      {"--guided-decoding-backend", "auto"},
  };
  for (const auto& flags : lines) {
    std::vector<std::string> arguments = {"serve", "m"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(error_of(arguments), "accepted") << flags.front();
  }
}

TEST(VllmFlags, OrAreRefusedByNameWithTheReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> lines = {
      {{"-pp", "2"}, "argument --pipeline-parallel-size: pipeline-parallel size 2 is not in this version"},
      {{"-dcp", "2"}, "argument --decode-context-parallel-size: "},
      {{"--data-parallel-hybrid-lb"}, "argument --data-parallel-hybrid-lb: several ranks a node"},
      {{"--load-format", "dummy"}, "argument --load-format: invalid choice: 'dummy' (choose from auto, "},
      {{"--tokenizer-mode", "mistral"}, "argument --tokenizer-mode: invalid choice: 'mistral'"},
      {{"--logprobs-mode", "raw"},
       "argument --logprobs-mode: invalid choice: 'raw' (choose from raw_logprobs, processed_logprobs, raw_logits, "
       "processed_logits)"},
      {{"--kv-cache-dtype", "fp8_e4m3"}, "argument --kv-cache-dtype: fp8_e4m3 is not in this version"},
      {{"--speculative-config", "{}"}, "argument --speculative-config: speculative decoding is not in this version"},
      {{"--kv-events-config", "{}"}, "argument --kv-events-config: "},
      {{"--enable-lora"}, "argument --enable-lora: LoRA"},
      {{"--lora-modules", "a=b"}, "argument --lora-modules: LoRA"},
      {{"--max-loras", "1"}, "argument --max-loras: LoRA"},
      {{"--max-lora-rank", "1"}, "argument --max-lora-rank: LoRA"},
      {{"--middleware", "a.b"}, "argument --middleware: there is no Python here"},
      {{"--tool-parser-plugin", "p.py"}, "argument --tool-parser-plugin: there is no Python here"},
      {{"--enable-ssl-refresh"}, "argument --enable-ssl-refresh: certificates are read at start"},
      {{"--enable-auto-tool-choice"}, "--enable-auto-tool-choice requires --tool-call-parser"},
      {{"--api-server-count", "2", "--headless"}, "a headless node has no API"},
      {{"--data-parallel-external-lb"}, "--data-parallel-external-lb needs --data-parallel-rank"},
      {{"-dp", "2", "-dpn", "2"}, "--data-parallel-rank 2 is not below --data-parallel-size 2"},
      {{"-dp", "2", "-dpn", "1", "-dpl", "2"}, "--data-parallel-size-local is 1 then"},
      {{"--max-num-batched-tokens", "8", "--max-num-seqs", "16"},
       "max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (16)."},
      {{"--ssl-ciphers", "x"}, "need --ssl-certfile"},
      {{"--ssl-certfile", "c", "--ssl-cert-reqs", "1"}, "--ssl-cert-reqs needs --ssl-ca-certs"},
      {{"--conf", "f.yaml"}, "argument --config: write --config in full"},
  };
  for (const auto& [flags, message] : lines) {
    std::vector<std::string> arguments = {"serve", "m"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_THAT(error_of(arguments), HasSubstr(message)) << flags.front();
  }
}

/// The long ones are in guides_test.cc.
TEST(VllmFlags, LinesOfGuidesParse) {
  const auto node = parse_as<ServeConfig>({"serve", "M", "--headless", "--data-parallel-size", "4",
                                           "--data-parallel-size-local", "2", "--data-parallel-start-rank", "2",
                                           "--data-parallel-address", "A", "--data-parallel-rpc-port", "13345"});
  EXPECT_TRUE(node.data_parallel.headless);
  const auto rank =
      parse_as<ServeConfig>({"serve", "M", "--data-parallel-size", "2", "--data-parallel-rank", "0", "--port", "8000"});
  EXPECT_EQ(rank.data_parallel.size, 1);
  EXPECT_EQ(rank.data_parallel.external_rank, 0);
  EXPECT_EQ(error_of({"serve", "M", "--enforce-eager", "--quantization", "ascend",
                      R"(--additional-config={"ascend_scheduler_config":{"enabled":true}})", "--async-scheduling"}),
            "accepted");
}

/// Ranks on one host share kv_port and engine_id in scripts; here each is an instance of its own.
TEST(VllmFlags, RanksOfAnOutsideBalancerHavePortsAndIdsOfTheirOwn) {
  const auto config = parse_as<ServeConfig>(
      {"serve", "m", "-tp", "2", "-dp", "4", "-dpn", "3", "--kv-transfer-config",
       R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":20000,"engine_id":"p",
           "kv_connector_extra_config":{"prefill":{"dp_size":4,"tp_size":2}}})"});
  EXPECT_EQ(config.kv_transfer->port, 20006);
  EXPECT_EQ(config.kv_transfer->engine_id, "p_dp3");
  EXPECT_TRUE(config.data_parallel.one_process());
}

TEST(VllmFlags, ApiServerCountZeroIsHeadless) {
  const auto node = parse_as<ServeConfig>({"serve", "m", "-asc", "0", "-dp", "2", "-dpl", "1", "-dpr", "1"});
  EXPECT_TRUE(node.data_parallel.headless);
}

TEST(VllmFlags, AModelInTheFileReplacesThePositionalOne) {
  const std::string path = testing::TempDir() + "model.yaml";
  std::ofstream(path)
      << "model: from-file\nserved_model_name: x\nmax-model-len: 32k\n"
         "kv-transfer-config:\n  kv_connector: MooncakeConnectorV1\n  kv_role: kv_both\n  kv_port: 1234\n";
  const auto config = parse_as<ServeConfig>({"serve", "from-line", "--config", path});
  EXPECT_EQ(config.model, "from-file");
  EXPECT_THAT(config.served_model_names, ElementsAre("x"));
  EXPECT_EQ(config.max_model_len, 32000);
  EXPECT_EQ(config.kv_transfer->port, 1234);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--config", path, "--max-model-len", "16"}).max_model_len, 16);
}

TEST(VllmFlags, NamesAreFoundByPrefixAndSuggestedWhenNear) {
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--max_num_batched", "600"}).max_num_batched_tokens, 600);
  EXPECT_THAT(error_of({"serve", "m", "--max-num", "5"}), HasSubstr("ambiguous option: --max-num could match"));
  EXPECT_THAT(error_of({"serve", "m", "--served-modelname", "x"}), HasSubstr("did you mean --served-model-name?"));
  EXPECT_THAT(error_of({"serve", "m", "--enable-prefix-cachin"}), HasSubstr("accepted"));
}

TEST(VllmFlags, HelpIsGroupedAsVllmsAndCanBeAskedFor) {
  const std::string all = help_of("--help");
  EXPECT_EQ(all, help_of("--help=all"));
  std::size_t at = 0;
  for (const char* group : {"ModelConfig", "CacheConfig", "SchedulerConfig", "Frontend", "ParallelConfig"})
    EXPECT_THAT(all, HasSubstr(std::string("\n") + group + ":")) << at++;
  EXPECT_THAT(help_of("--help=listgroup"), HasSubstr("SchedulerConfig\n"));
  const std::string scheduler = help_of("--help=schedulerconfig");
  EXPECT_THAT(scheduler, HasSubstr("--max-num-seqs"));
  EXPECT_THAT(scheduler, Not(HasSubstr("--block-size")));
  const std::string flag = help_of("--help=max_model_len");
  EXPECT_THAT(flag, HasSubstr("--max-model-len"));
  EXPECT_THAT(flag, Not(HasSubstr("--max-num-seqs")));
  EXPECT_THAT(error_of({"serve", "--help=SchedulerConfi"}), HasSubstr("did you mean SchedulerConfig?"));
  EXPECT_THAT(error_of({"serve", "--help=nothing-like-it"}), HasSubstr("groups are ModelConfig"));
}

TEST(VllmFlags, VariablesOfTheServer) {
  const auto config = parse_as<ServeConfig>(
      {"serve", "m"}, {{"VLLM_SERVER_DEV_MODE", "1"}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "7"}, {"VLLM_API_KEY", "k"}});
  EXPECT_TRUE(config.dev_mode);
  EXPECT_EQ(config.keep_alive, std::chrono::seconds(7));
  EXPECT_THAT(config.api_keys, ElementsAre("k"));
  EXPECT_FALSE(parse_as<ServeConfig>({"serve", "m"}, {{"VLLM_SERVER_DEV_MODE", "0"}}).dev_mode);
}

TEST(VllmFlags, WhatIsIgnoredIsSaidWithTheReason) {
  const auto line = parse({"serve", "m", "--swap-space", "4", "--structured-outputs-config.backend", "xgrammar",
                           "--structured-outputs-config.disable_any_whitespace", "true", "--stream-interval", "2"});
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_TRUE(std::get<ServeConfig>(line->command).compact_json);
  EXPECT_THAT(line->notes, Contains("--swap-space is ignored: KV is never swapped"));
  EXPECT_THAT(line->notes, Contains(HasSubstr("backend (llguidance serves all)")));
  EXPECT_THAT(line->notes, Contains("--stream-interval 2 is ignored: a chunk is sent for each token"));
}

TEST(ProxyFlagsOfAccess, KeysAndTls) {
  const auto config = parse_as<ProxyConfig>({"proxy",
                                             "--api-key",
                                             "a",
                                             "b",
                                             "--instance-api-key",
                                             "i",
                                             "--ssl-certfile",
                                             "c",
                                             "--prefiller-hosts",
                                             "https://p0",
                                             "--prefiller-ports",
                                             "8443",
                                             "--decoder-hosts",
                                             "http://d0",
                                             "--decoder-ports",
                                             "80",
                                             "--instance-ca-certs",
                                             "ca",
                                             "--instance-certfile",
                                             "cc",
                                             "--instance-keyfile",
                                             "ck"},
                                            {{"VLLM_API_KEY", "not this"}, {"OPENAI_API_KEY", "o"}});
  EXPECT_THAT(config.api_keys, ElementsAre("a", "b"));
  EXPECT_EQ(config.instance_api_key, "i");
  EXPECT_EQ(config.fallback_api_key, "o");
  EXPECT_EQ(config.tls.keyfile, "c");
  EXPECT_TRUE(config.prefillers.at(0).tls);
  EXPECT_EQ(config.prefillers.at(0).host, "p0");
  EXPECT_FALSE(config.decoders.at(0).tls);
  EXPECT_EQ(config.instance_tls.ca_certs, "ca");
  EXPECT_EQ(config.instance_tls.certfile, "cc");
  EXPECT_THAT(parse_as<ProxyConfig>({"proxy"}, {{"VLLM_API_KEY", "v"}}).api_keys, ElementsAre("v"));
  EXPECT_THAT(parse_as<ProxyConfig>({"proxy"}).api_keys, IsEmpty());
  EXPECT_THAT(error_of({"proxy", "--ssl-keyfile", "k"}), HasSubstr("need --ssl-certfile"));
}

TEST(ServeFlagsOfAccess, UnixSocketsAndMetaserverTls) {
  const auto config = parse_as<ServeConfig>({"serve", "m", "--uds", "/run/t.sock", "--kv-metaserver-ca-certs", "ca"});
  EXPECT_EQ(config.uds, "/run/t.sock");
  EXPECT_EQ(config.kv_metaserver_tls.ca_certs, "ca");
  EXPECT_THAT(error_of({"serve", "m", "--uds", "/x", "-asc", "0", "-dp", "2", "-dpl", "1", "-dpr", "1"}),
              HasSubstr("a headless node has no API"));
}

TEST(ServeFlagsOfAccess, WhatPeersProve) {
  const auto by_files =
      parse_as<ServeConfig>({"serve", "m", "--peer-ca-certs", "ca", "--peer-certfile", "c", "--peer-keyfile", "k"});
  EXPECT_EQ(by_files.peer_proof.ca_certs, "ca");
  EXPECT_EQ(by_files.peer_proof.certfile, "c");
  EXPECT_EQ(by_files.peer_proof.keyfile, "k");
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}, {{"TANDEM_CLUSTER_SECRET", "s"}}).peer_proof.secret, "s");
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}, {{"TANDEM_CLUSTER_SECRET_FILE", "f"}}).peer_proof.secret_file, "f");
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--cluster-secret-file", "g"}, {{"TANDEM_CLUSTER_SECRET_FILE", "f"}})
                .peer_proof.secret_file,
            "g");
  for (const char* one : {"--peer-ca-certs", "--peer-certfile", "--peer-keyfile"})
    EXPECT_THAT(error_of({"serve", "m", one, "f"}), HasSubstr("--peer-certfile and --peer-ca-certs need each other"));
  EXPECT_THAT(error_of({"serve", "m", "--peer-ca-certs", "ca", "--peer-certfile", "c", "--cluster-secret-file", "s"}),
              HasSubstr("leave one out, everywhere"));
}

}  // namespace
}  // namespace tandem::config
