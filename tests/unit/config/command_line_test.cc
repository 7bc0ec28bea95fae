// SPDX-License-Identifier: Apache-2.0
#include "config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "config/kv_transfer_config.h"

namespace tandem::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Result<CommandLine> parse(const std::vector<std::string>& arguments,
                          std::map<std::string, std::string> variables = {}) {
  return parse_command_line(arguments, [variables](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

template <class Config>
Config parse_as(const std::vector<std::string>& arguments, std::map<std::string, std::string> variables = {}) {
  auto line = parse(arguments, std::move(variables));
  EXPECT_TRUE(line) << line.error().message();
  if (!line || !std::holds_alternative<Config>(line->command)) {
    ADD_FAILURE() << "not the command that was asked for";
    return {};
  }
  return std::get<Config>(line->command);
}

std::string error_of(const std::vector<std::string>& arguments) {
  auto line = parse(arguments);
  EXPECT_FALSE(line) << "accepted";
  return line ? std::string() : line.error().message();
}

TEST(ServeFlags, Defaults) {
  const auto config = parse_as<ServeConfig>({"serve", "models/m"});
  EXPECT_EQ(config.model, "models/m");
  EXPECT_THAT(config.served_model_names, ElementsAre("models/m"));
  EXPECT_EQ(config.port, 8000);
  EXPECT_EQ(config.block_size, 16);
  EXPECT_EQ(config.max_num_seqs, 128);
  EXPECT_FALSE(config.max_model_len);
  EXPECT_TRUE(config.enable_prefix_caching);
  EXPECT_FALSE(config.kv_transfer);
}

TEST(ServeFlags, AscendTutorialLineParses) {
  auto line = parse({"serve",
                     "/model/X",
                     "--host",
                     "0.0.0.0",
                     "--port",
                     "8004",
                     "--api-server-count",
                     "1",
                     "--data-parallel-size",
                     "1",
                     "--data-parallel-size-local",
                     "1",
                     "--data-parallel-address",
                     "192.0.0.3",
                     "--data-parallel-rpc-port",
                     "5964",
                     "--tensor-parallel-size",
                     "1",
                     "--enable-expert-parallel",
                     "--seed",
                     "1024",
                     "--distributed-executor-backend",
                     "mp",
                     "--served-model-name",
                     "qwen3-moe",
                     "--max-model-len",
                     "32768",
                     "--max-num-batched-tokens",
                     "512",
                     "--max-num_seqs",
                     "16",
                     "--trust-remote-code",
                     "--no-enable-prefix-caching",
                     "--gpu-memory-utilization",
                     "0.9",
                     "--compilation-config",
                     R"({"cudagraph_capture_sizes":[16]})",
                     "--kv-transfer-config",
                     R"({"kv_connector":"MooncakeConnector","kv_buffer_device":"npu","kv_role":"kv_consumer",
                         "kv_parallel_size":1,"kv_port":"30200","engine_id":"2","kv_rank":1,
                         "kv_connector_module_path":"vllm_ascend.distributed.mooncake_connector",
                         "kv_connector_extra_config":{"prefill":{"dp_size":2,"tp_size":8},"decode":{"dp_size":1,"tp_size":1}}})"});
  ASSERT_TRUE(line) << line.error().message();
  const auto& config = std::get<ServeConfig>(line->command);
  EXPECT_EQ(config.max_num_seqs, 16);
  EXPECT_EQ(config.seed, 1024U);
  EXPECT_FALSE(config.enable_prefix_caching);
  ASSERT_TRUE(config.kv_transfer);
  EXPECT_EQ(config.kv_transfer->port, 30200);
  EXPECT_EQ(config.kv_transfer->engine_id, "2");
  EXPECT_FALSE(config.kv_transfer->produces());
  EXPECT_TRUE(config.kv_transfer->consumes());
  EXPECT_THAT(
      line->notes,
      Contains(
          "--kv-transfer-config: ignored here: kv_buffer_device, kv_parallel_size, kv_rank, kv_connector_module_path"));
  EXPECT_THAT(line->notes, Contains(HasSubstr("--trust-remote-code is ignored")));
}

TEST(ServeFlags, SizesAndLists) {
  EXPECT_EQ(*parse_as<ServeConfig>({"serve", "m", "--max-model-len", "32k"}).max_model_len, 32000);
  EXPECT_EQ(*parse_as<ServeConfig>({"serve", "m", "--max-model-len", "32K"}).max_model_len, 32768);
  EXPECT_FALSE(parse_as<ServeConfig>({"serve", "m", "--max-model-len", "auto"}).max_model_len);
  EXPECT_FALSE(parse_as<ServeConfig>({"serve", "m", "--max-model-len", "-1"}).max_model_len);
  EXPECT_EQ(*parse_as<ServeConfig>({"serve", "m", "--kv-cache-memory-bytes=2G"}).kv_cache_bytes, std::int64_t{2} << 30);
  EXPECT_THAT(parse_as<ServeConfig>({"serve", "m", "--served-model-name", "a", "b", "--port", "1"}).served_model_names,
              ElementsAre("a", "b"));
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "--model", "m"}).model, "m");
}

TEST(ServeFlags, RopeScalingIsMergedIntoOverrides) {
  const auto config = parse_as<ServeConfig>({"serve", "m", "--hf-overrides", R"({"a":1})", "--rope-scaling",
                                             R"({"rope_type":"yarn","factor":4.0})", "--rope-theta", "10000"});
  EXPECT_EQ(config.hf_overrides, R"({"a":1,"rope_scaling":{"rope_type":"yarn","factor":4E0},"rope_theta":1E4})");
}

TEST(ServeFlags, ErrorsNameFlagFoundAndAllowed) {
  EXPECT_EQ(error_of({"serve", "m", "--port", "70000"}),
            "argument --port: 70000 is out of range; allowed are 0 to 65535");
  EXPECT_EQ(error_of({"serve", "m", "--port", "x"}), "argument --port: invalid int value: 'x'");
  EXPECT_THAT(error_of({"serve", "m", "--dtype", "int4"}),
              HasSubstr("argument --dtype: invalid choice: 'int4' (choose from auto, "));
  EXPECT_THAT(error_of({"serve", "m", "--quantization", "bitsandbytes"}),
              HasSubstr("invalid choice: 'bitsandbytes' (choose from none, w8a8, ascend, compressed-tensors, gptq, "));
  EXPECT_THAT(error_of({"serve", "m", "--gpu-memory-utilization", "1.1"}), HasSubstr("1.1 is out of range"));
  EXPECT_THAT(error_of({"serve", "m", "--hf-overrides", "[1]"}), HasSubstr("expected a JSON object, found array"));
  EXPECT_THAT(error_of({"serve", "m", "--hf-overrides", "{"}), HasSubstr("invalid JSON"));
  EXPECT_THAT(error_of({"serve", "m", "--max-model-lenn", "8"}), HasSubstr("did you mean --max-model-len?"));
  EXPECT_THAT(error_of({"serve"}), HasSubstr("arguments are required: model"));
  EXPECT_THAT(error_of({"serve", "m", "x"}), HasSubstr("unrecognized arguments: x"));
  EXPECT_THAT(error_of({"serve", "m", "--trust-remote-code", "true"}), HasSubstr("unrecognized arguments: true"));
  EXPECT_THAT(error_of({"serve", "m", "--model", "n"}), HasSubstr("two models"));
}

TEST(ServeFlags, BudgetMustCoverSeats) {
  EXPECT_EQ(error_of({"serve", "m", "--max-num-batched-tokens", "8", "--max-num-seqs", "16"}),
            "max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (16).");
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--max-num-batched-tokens", "8"}).max_num_seqs, 8);
}

TEST(ServeFlags, WhatCannotBeHadIsRefusedByName) {
  EXPECT_THAT(
      error_of({"serve", "m", "-pp", "2"}),
      HasSubstr("argument --pipeline-parallel-size: pipeline-parallel size 2 is not in this version; expected"));
}

TEST(ServeFlags, KeysComeFromTheCommandLineOrTheEnvironment) {
  EXPECT_THAT(parse_as<ServeConfig>({"serve", "m", "--api-key", "a", "", "b"}).api_keys, ElementsAre("a", "b"));
  EXPECT_TRUE(parse_as<ServeConfig>({"serve", "m"}).api_keys.empty());
}

TEST(ServeFlags, ToolAndReasoningParsers) {
  const auto config = parse_as<ServeConfig>(
      {"serve", "m", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"});
  EXPECT_TRUE(config.enable_auto_tool_choice);
  EXPECT_EQ(config.tool_format, ToolFormat::kHermes);
  EXPECT_EQ(config.reasoning_format, ReasoningFormat::kQwen3);
  EXPECT_THAT(error_of({"serve", "m", "--enable-auto-tool-choice"}), HasSubstr("--tool-call-parser"));
  EXPECT_THAT(error_of({"serve", "m", "--tool-call-parser", "x"}), HasSubstr("hermes, qwen3_coder, llama3_json"));
}

TEST(ServeFlags, FlagsInAFile) {
  const std::string path = testing::TempDir() + "flags.yaml";
  std::ofstream(path) << "model: m\nport: 9000\nserved-model-name: [a, b]\nenable_log_requests: true\n"
                         "disable-log-stats: false\nseed: null\nchat-template: \"true\"\n"
                         "override-generation-config:\n  temperature: 0.5\n  top_k: 4\n";
  const auto config = parse_as<ServeConfig>({"serve", "--config", path, "--port", "9001"});
  EXPECT_EQ(config.model, "m");
  EXPECT_EQ(config.port, 9001);
  EXPECT_THAT(config.served_model_names, ElementsAre("a", "b"));
  EXPECT_TRUE(config.enable_log_requests);
  EXPECT_FALSE(config.disable_log_stats);
  EXPECT_EQ(config.chat_template, "true");
  EXPECT_EQ(config.generation_overrides.temperature, 0.5);
  EXPECT_EQ(config.generation_overrides.top_k, 4);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "--config=" + path}).port, 9000);
  std::ofstream(path) << "no-such-flag: 1\n";
  EXPECT_THAT(error_of({"serve", "--config", path}), HasSubstr("unrecognized arguments: --no-such-flag"));
  std::ofstream(path) << "- a list\n";
  EXPECT_THAT(error_of({"serve", "m", "--config", path}), HasSubstr("expected one mapping"));
  std::ofstream(path) << "a: [\n";
  EXPECT_THAT(error_of({"serve", "m", "--config", path}), HasSubstr("line "));
  EXPECT_THAT(error_of({"serve", "m", "--config", "/nowhere.yaml"}), HasSubstr("cannot be opened"));
  EXPECT_THAT(error_of({"serve", "m", "--config", "flags.json"}), HasSubstr(".yaml"));
  EXPECT_THAT(error_of({"serve", "m", "--config"}), HasSubstr("--config"));
}

TEST(ServeFlags, BrowsersAndGateways) {
  const auto config = parse_as<ServeConfig>(
      {"serve", "m", "--root-path", "/api/", "--allowed-origins", R"(["https://a"])", "--allow-credentials"});
  EXPECT_EQ(config.root_path, "/api");
  EXPECT_THAT(config.allowed_origins, ElementsAre("https://a"));
  EXPECT_TRUE(config.allow_credentials);
  EXPECT_THAT(error_of({"serve", "m", "--allowed-origins", "https://a"}), HasSubstr("argument --allowed-origins"));
  EXPECT_THAT(error_of({"serve", "m", "--root-path", "api"}), HasSubstr("slash"));
}

TEST(ServeFlags, DataParallelRanksAreCountedOut) {
  const DataParallel all = parse_as<ServeConfig>({"serve", "m", "-dp", "4"}).data_parallel;
  EXPECT_EQ(all.local, 4);
  EXPECT_TRUE(all.one_process());
  const DataParallel second =
      parse_as<ServeConfig>({"serve", "m", "-dp", "32", "-dpl", "16", "--data-parallel-start-rank", "16", "--headless",
                             "--data-parallel-address", "192.0.0.3", "--data-parallel-rpc-port", "5964"})
          .data_parallel;
  EXPECT_EQ(second.start_rank, 16);
  EXPECT_EQ(second.address, "192.0.0.3");
  EXPECT_EQ(second.rpc_port, 5964);
  EXPECT_FALSE(second.one_process());
  EXPECT_THAT(error_of({"serve", "m", "-dp", "4", "-dpl", "5"}), HasSubstr("go past --data-parallel-size 4"));
  EXPECT_THAT(error_of({"serve", "m", "-dp", "4", "-dpl", "2", "--headless"}),
              HasSubstr("expected --data-parallel-start-rank above 0"));
  EXPECT_THAT(error_of({"serve", "m", "-dp", "4", "-dpl", "2", "--data-parallel-start-rank", "2"}),
              HasSubstr("without --headless"));
}

TEST(ServeFlags, Environment) {
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}, {{"OMP_NUM_THREADS", "3,2"}}).threads_per_rank, 3);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--threads", "5"}, {{"OMP_NUM_THREADS", "3"}}).threads, 5);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}, {{"VLLM_HOST_IP", "10.0.0.1"}}).advertised_host, "10.0.0.1");
  EXPECT_FALSE(parse({"serve", "m"}, {{"OMP_NUM_THREADS", "many"}}));
}

TEST(ServeFlags, TensorParallelSize) {
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}).tensor_parallel_size, 1);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "-tp", "3"}).tensor_parallel_size, 3);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "-tp=2"}).tensor_parallel_size, 2);
  EXPECT_THAT(error_of({"serve", "m", "-tp", "0"}), HasSubstr("argument --tensor-parallel-size: 0 is out of range"));
  // The KV transfer config must say the same.
  const std::string config = R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer",
                                 "kv_connector_extra_config":{"prefill":{"tp_size":2},"decode":{"tp_size":1}}})";
  EXPECT_TRUE(parse({"serve", "m", "-tp", "2", "--kv-transfer-config", config}));
  EXPECT_THAT(error_of({"serve", "m", "-tp", "4", "--kv-transfer-config", config}),
              HasSubstr("KV transfer 'prefill' config has a conflicting tensor parallel size. Expected 4, but got 2."));
}

TEST(ServeFlags, KvCacheType) {
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}).kv_cache_type, KvCacheType::kAuto);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--kv-cache-dtype", "int8"}).kv_cache_type, KvCacheType::kInt8);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--kv-cache-dtype", "float32"}).kv_cache_type, KvCacheType::kFloat32);
  for (const char* fp8 : {"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
    EXPECT_THAT(error_of({"serve", "m", "--kv-cache-dtype", fp8}),
                AllOf(HasSubstr("argument --kv-cache-dtype: " + std::string(fp8) + " is not"), HasSubstr("int8")));
  EXPECT_THAT(error_of({"serve", "m", "--kv-cache-dtype", "int4"}),
              HasSubstr("invalid choice: 'int4' (choose from auto, bfloat16, float32, int8)"));
}

TEST(ServeFlags, CpuBinding) {
  using Mode = CpuBinding::Mode;
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}).cpu_binding.mode, Mode::kAuto);
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--cpu-bind", "nobind"}).cpu_binding.mode, Mode::kNone);
  const auto lists =
      parse_as<ServeConfig>({"serve", "m", "-tp", "2"}, {{"VLLM_CPU_OMP_THREADS_BIND", "0-2,8|5,4,6-7"}}).cpu_binding;
  EXPECT_EQ(lists.mode, Mode::kLists);
  EXPECT_THAT(lists.lists, ElementsAre(ElementsAre(0, 1, 2, 8), ElementsAre(4, 5, 6, 7)));
  // The flag stands over the variable.
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--cpu-bind", "auto"}, {{"VLLM_CPU_OMP_THREADS_BIND", "0-3"}})
                .cpu_binding.mode,
            Mode::kAuto);
}

TEST(ServeFlags, CpuBindingErrorsSayWhatIsWrong) {
  const auto error = [](const std::string& list) { return error_of({"serve", "m", "-tp", "2", "--cpu-bind", list}); };
  EXPECT_EQ(error("0-3"),
            "argument --cpu-bind: 1 CPU lists for tensor-parallel size 2; give one list a rank, separated by |");
  EXPECT_THAT(error("0-3|4-6"), HasSubstr("lists of 4 and of 3 CPUs"));
  EXPECT_THAT(error("0-3|3-6"), HasSubstr("CPU 3 is in two lists"));
  EXPECT_THAT(error("0-3,2|4-7"), HasSubstr("CPU 2 is listed twice"));
  EXPECT_THAT(error("0-3|"), HasSubstr("'' is no list of CPUs (expected auto, nobind, or one list a rank"));
  EXPECT_THAT(error("3-1|4-6"), HasSubstr("1 is out of range"));
  EXPECT_THAT(error("all"), HasSubstr("invalid int value: 'all'"));
  EXPECT_THAT(error("0-99999999|1"), HasSubstr("out of range"));
  EXPECT_THAT(parse({"serve", "m"}, {{"VLLM_CPU_OMP_THREADS_BIND", "0|1"}}).error().message(),
              HasSubstr("VLLM_CPU_OMP_THREADS_BIND: 2 CPU lists for tensor-parallel size 1"));
}

TEST(KvTransferFlag, RefusesWhatDoesNotFit) {
  const auto error = [](const std::string& text) { return error_of({"serve", "m", "--kv-transfer-config", text}); };
  EXPECT_THAT(error(R"({"kv_role":"kv_both"})"), HasSubstr("needs a kv_connector"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1"})"), HasSubstr("needs a kv_role"));
  EXPECT_THAT(error(R"({"kv_connector":"MultiConnector","kv_role":"kv_both"})"),
              HasSubstr("kv_connector 'MultiConnector' is not here: it combines connectors"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorStoreV1","kv_role":"kv_both"})"),
              HasSubstr("there is no shared KV pool here; use MooncakeConnectorV1 and prefix caching. Known are "));
  EXPECT_THAT(error(R"({"kv_connector":"NixlConnector","kv_role":"kv_both"})"),
              HasSubstr("unknown kv_connector 'NixlConnector'; known are MooncakeConnector, MooncakeConnectorV1"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"boss"})"),
              HasSubstr("kv_role 'boss' is unknown"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_both","kv_port":"70000"})"),
              HasSubstr("kv_port 70000"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_both","kv_port":"x"})"),
              HasSubstr("kv_port"));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer",
                        "kv_connector_extra_config":{"prefill":{"tp_size":4}}})"),
              HasSubstr("KV transfer 'prefill' config has a conflicting tensor parallel size. Expected 1, but got 4."));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_consumer",
                        "kv_connector_extra_config":{"decode":{"dp_size":2}}})"),
              HasSubstr("KV transfer 'decode' config has a conflicting data parallel size. Expected 1, but got 2."));
  const std::string both = R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_both","kv_connector_extra_config":
                               {"prefill":{"tp_size":1,"dp_size":2},"decode":{"tp_size":1,"dp_size":4}}})";
  EXPECT_THAT(error_of({"serve", "m", "-dp", "2", "--kv-transfer-config", both}),
              HasSubstr("KV transfer 'decode' config has a conflicting data parallel size. Expected 2, but got 4."));
  EXPECT_THAT(error_of({"serve", "m", "-dp", "4", "--kv-transfer-config", both}),
              HasSubstr("KV transfer 'prefill' config has a conflicting data parallel size. Expected 4, but got 2."));
  EXPECT_THAT(error(R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_both","kv_load_failure_policy":"hope"})"),
              HasSubstr("kv_load_failure_policy 'hope' is unknown; allowed are fail, recompute"));
  EXPECT_THAT(error("[]"), HasSubstr("argument --kv-transfer-config: expected a JSON object"));
}

TEST(KvTransferFlag, WhoListensAndWhere) {
  const auto config = [](const std::string& connector, const std::string& role) {
    return *parse_as<ServeConfig>({"serve", "m", "--kv-transfer-config",
                                   R"({"kv_connector":")" + connector + R"(","kv_role":")" + role + R"("})"})
                .kv_transfer;
  };
  EXPECT_TRUE(config("MooncakeConnectorV1", "kv_producer").listens());
  EXPECT_FALSE(config("MooncakeConnectorV1", "kv_consumer").listens());
  EXPECT_TRUE(config("MooncakeLayerwiseConnector", "kv_consumer").listens());
  EXPECT_TRUE(config("MooncakeLayerwiseConnector", "kv_consumer").receives());
  EXPECT_FALSE(config("MooncakeLayerwiseConnector", "kv_producer").receives());
  EXPECT_EQ(config("MooncakeLayerwiseConnector", "kv_producer").kind, KvConnector::kLayerwise);
}

TEST(KvTransferFlag, PortsMustNotOverlap) {
  KvTransferConfig kv;
  kv.port = 30000;
  EXPECT_TRUE(check_ports(kv, 4, 30004));
  EXPECT_TRUE(check_ports(kv, 4, 29999));
  const auto overlap = check_ports(kv, 4, 30003);
  ASSERT_FALSE(overlap);
  EXPECT_THAT(overlap.error().message(), HasSubstr("kv_port takes the ports 30000 to 30003, and --port 30003"));
  kv.port = 65534;
  EXPECT_TRUE(check_ports(kv, 2, 8000));
  const auto over = check_ports(kv, 3, 8000);
  ASSERT_FALSE(over);
  EXPECT_THAT(over.error().message(), HasSubstr("kv_port 65534 leaves no room for 3 ranks"));
  kv.role = KvRole::kConsumer;  // listens nowhere
  EXPECT_TRUE(check_ports(kv, 3, 65534));
  EXPECT_THAT(error_of({"serve", "m", "--port", "30000", "--kv-transfer-config",
                        R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":"30000"})"}),
              HasSubstr("argument --kv-transfer-config: kv_port takes the ports 30000 to 30000, and --port 30000"));
  EXPECT_THAT(error_of({"serve", "m", "--port", "30005", "-tp", "2", "-dp", "3", "--kv-transfer-config",
                        R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":"30000"})"}),
              HasSubstr("kv_port takes the ports 30000 to 30005, and --port 30005"))
      << "one for each tensor-parallel rank of each data-parallel rank";
}

TEST(KvTransferFlag, RankTableIsSetUpByVariables) {
  const std::vector<std::string> arguments = {
      "serve", "m", "--kv-transfer-config",
      R"({"kv_connector":"LLMDataDistCMgrConnector","kv_role":"kv_producer","kv_port":"20001","engine_id":"0"})"};
  const auto config = parse_as<ServeConfig>(arguments, {{"DISAGGREGATED_PREFILL_RANK_TABLE_PATH", "t.json"},
                                                        {"ASCEND_RT_VISIBLE_DEVICES", "2,3"},
                                                        {"VLLM_ASCEND_LLMDD_RPC_IP", "10.0.0.1"},
                                                        {"VLLM_ASCEND_LLMDD_RPC_PORT", "5559"}});
  ASSERT_TRUE(config.kv_transfer);
  EXPECT_EQ(config.kv_transfer->kind, KvConnector::kRankTable);
  EXPECT_EQ(config.kv_transfer->rank_table, "t.json");
  EXPECT_THAT(config.kv_transfer->visible_devices, ElementsAre("2", "3"));
  EXPECT_EQ(config.kv_transfer->bind_host, "10.0.0.1");
  EXPECT_EQ(config.kv_transfer->port, 5559);
  EXPECT_EQ(parse_as<ServeConfig>(arguments, {{"DISAGGREGATED_PREFILL_RANK_TABLE_PATH", "t"}}).kv_transfer->port, 5557);

  EXPECT_THAT(error_of(arguments), HasSubstr("needs the environment variable DISAGGREGATED_PREFILL_RANK_TABLE_PATH"));
  const auto bad =
      parse(arguments, {{"DISAGGREGATED_PREFILL_RANK_TABLE_PATH", "t"}, {"ASCEND_RT_VISIBLE_DEVICES", "0,x"}});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message(), HasSubstr("environment variable ASCEND_RT_VISIBLE_DEVICES"));
  EXPECT_THAT(error_of({"serve", "m", "--kv-transfer-config",
                        R"({"kv_connector":"LLMDataDistCMgrConnector","kv_role":"kv_both"})"}),
              HasSubstr("takes kv_role kv_producer or kv_consumer, not kv_both"));
}

TEST(ServeFlags, MetaserverHosts) {
  EXPECT_THAT(parse_as<ServeConfig>({"serve", "m"}).kv_metaserver_hosts, IsEmpty());
  EXPECT_THAT(parse_as<ServeConfig>({"serve", "m", "--kv-metaserver-hosts", "a", "b"}).kv_metaserver_hosts,
              ElementsAre("a", "b"));
}

TEST(KvTransferFlag, OnlyTheOwnSideIsCompared) {
  const auto config =
      parse_as<ServeConfig>({"serve", "m", "--kv-transfer-config",
                             R"({"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":1,
                                                 "kv_load_failure_policy":"recompute",
                                                 "kv_connector_extra_config":{"prefill":{"tp_size":1},"decode":{"tp_size":8}}})"});
  ASSERT_TRUE(config.kv_transfer);
  EXPECT_EQ(config.kv_transfer->role, KvRole::kProducer);
  EXPECT_EQ(config.kv_transfer->load_failure, LoadFailure::kRecompute);
  EXPECT_FALSE(parse_as<ServeConfig>({"serve", "m", "--kv-transfer-config", "{}"}).kv_transfer);
}

TEST(ServeFlags, AKeyOfTheTransferThatNobodyKnowsIsRefused) {
  const auto with = [](const std::string& key) {
    return error_of({"serve", "m", "--kv-transfer-config",
                     R"({"kv_connector":"MooncakeConnector","kv_role":"kv_both",")" + key + R"(":"23000"})"});
  };
  EXPECT_THAT(with("kv_prot"), HasSubstr("unknown key 'kv_prot' (did you mean kv_port?)"));
  EXPECT_THAT(with("nonsense"), HasSubstr("unknown key 'nonsense'; known are kv_connector, "));
}

TEST(ServeFlags, ShutdownTimeout) {
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}).shutdown_timeout.count(), 0) << "as vLLM: requests are ended";
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m", "--shutdown-timeout", "60"}).shutdown_timeout.count(), 60'000);
  EXPECT_THAT(error_of({"serve", "m", "--shutdown-timeout", "-1"}), HasSubstr("is not a time"));
}

TEST(ProxyFlags, AllSpellings) {
  const auto config = parse_as<ProxyConfig>({"proxy", "--host", "0.0.0.0", "--port", "9000", "--prefiller-hosts",
                                             "192.0.0.1", "192.0.0.2", "--prefiller-port", "8004", "8005",
                                             "--decoder-host", "d", "--decoder-ports", "8006"});
  ASSERT_THAT(config.prefillers, SizeIs(2));
  EXPECT_EQ(config.prefillers[1].host, "192.0.0.2");
  EXPECT_EQ(config.prefillers[1].port, 8005);
  ASSERT_THAT(config.decoders, SizeIs(1));
  EXPECT_EQ(config.decoders[0].host, "d");
  const auto defaults = parse_as<ProxyConfig>({"proxy"});
  EXPECT_EQ(defaults.prefillers.at(0).port, 8001);
  EXPECT_EQ(defaults.decoders.at(0).port, 8002);
  EXPECT_EQ(parse_as<ProxyConfig>({"proxy", "--log-level", "DEBUG"}).log_level, "debug");
  EXPECT_EQ(parse_as<ProxyConfig>({"proxy", "--connect-timeout", "250ms"}).connect_timeout.count(), 250);
  EXPECT_EQ(parse_as<ProxyConfig>({"proxy", "--shutdown-timeout", "90s"}).shutdown_timeout.count(), 90'000);
  EXPECT_EQ(defaults.connector, ProxyConnector::kAuto);
  const auto layerwise = parse_as<ProxyConfig>({"proxy", "--connector", "layerwise", "--metaserver-url",
                                                "http://gateway:80/v1/metaserver", "--waiting-retry-interval", "0.5"});
  EXPECT_EQ(layerwise.connector, ProxyConnector::kLayerwise);
  EXPECT_EQ(layerwise.metaserver_url, "http://gateway:80/v1/metaserver");
  EXPECT_EQ(layerwise.waiting_retry_interval.count(), 500);
}

TEST(ProxyFlags, MetaserverMustBeAUrl) {
  for (const char* bad : {"gateway:80", "http://", "ftp://x", "http:///path", "http://a b"}) {
    EXPECT_THAT(error_of({"proxy", "--metaserver-url", bad}), HasSubstr("is not a URL")) << bad;
  }
  EXPECT_THAT(error_of({"proxy", "--connector", "push"}), HasSubstr("layerwise"));
}

TEST(ProxyFlags, PairsMustMatch) {
  EXPECT_THAT(error_of({"proxy", "--prefiller-hosts", "a", "b", "--prefiller-ports", "1"}),
              HasSubstr("Number of prefiller hosts must match number of prefiller ports"));
  EXPECT_THAT(error_of({"proxy", "--decoder-ports", "1", "2"}),
              HasSubstr("Number of decoder hosts must match number of decoder ports"));
  EXPECT_THAT(error_of({"proxy", "--decoder-hosts", "192.0.0.2192.0.0.3"}), HasSubstr("without a blank between them?"));
  EXPECT_THAT(error_of({"proxy", "--decoder-ports", "0"}), HasSubstr("out of range"));
  EXPECT_THAT(error_of({"proxy", "--decoder-hosts", "a,b"}), HasSubstr("with blanks between them"));
  EXPECT_THAT(error_of({"proxy", "--decoder-hosts", "localhost:8002"}), HasSubstr("ports have a flag of their own"));
  EXPECT_EQ(parse_as<ProxyConfig>({"proxy", "--decoder-hosts", "::1"}).decoders[0].host, "::1");
}

TEST(ProxyFlags, AProxyIsNotItsOwnInstance) {
  const auto itself = HasSubstr("is this proxy itself (--host localhost --port 8001)");
  EXPECT_THAT(error_of({"proxy", "--port", "8001"}), itself);
  EXPECT_THAT(error_of({"proxy", "--port", "8001", "--prefiller-ports", "8000", "--decoder-hosts", "127.0.0.1",
                        "--decoder-ports", "8001"}),
              itself);
  EXPECT_THAT(error_of({"proxy", "--host", "0.0.0.0", "--port", "8002"}), HasSubstr("decoder localhost:8002 is this"));
  parse_as<ProxyConfig>({"proxy", "--host", "192.0.2.1", "--port", "8001"});
  parse_as<ProxyConfig>({"proxy", "--host", "0.0.0.0", "--port", "8001", "--prefiller-hosts", "192.0.2.1"});
}

TEST(ProxyFlags, LogAndShutdown) {
  EXPECT_TRUE(parse_as<ProxyConfig>({"proxy"}).access_log);
  EXPECT_FALSE(parse_as<ProxyConfig>({"proxy", "--disable-uvicorn-access-log"}).access_log);
  EXPECT_EQ(parse_as<ProxyConfig>({"proxy", "--shutdown-timeout", "0"}).shutdown_timeout.count(), 0);
  EXPECT_THAT(error_of({"proxy", "--connect-timeout", "0"}), HasSubstr("is not a time"));
}

TEST(UpFlags, FlagsBehindTheDashesGoToServe) {
  const auto config = parse_as<UpConfig>(
      {"up", "--model", "m", "--prefill", "2", "--decode", "3", "--port", "9", "--", "--max-model-len", "1k"});
  EXPECT_EQ(config.prefill, 2);
  EXPECT_EQ(config.decode, 3);
  EXPECT_THAT(config.serve_flags, ElementsAre("--max-model-len", "1k"));
  EXPECT_EQ(parse_as<UpConfig>({"up", "file.yaml"}).deployment_file, "file.yaml");
  const auto locked = parse_as<UpConfig>({"up", "--model", "m", "--api-key", "k1", "k2", "--ssl-certfile", "c.pem",
                                          "--shutdown-timeout", "30s", "--", "--max-num-seqs", "4"});
  EXPECT_THAT(locked.api_keys, ElementsAre("k1", "k2"));
  EXPECT_EQ(locked.tls.keyfile, "c.pem");
  EXPECT_EQ(locked.shutdown_timeout.count(), 30'000);
  EXPECT_THAT(error_of({"up", "--model", "m", "--ssl-keyfile", "k.pem"}), HasSubstr("need --ssl-certfile"));
  EXPECT_THAT(error_of({"up"}), HasSubstr("--model"));
  EXPECT_EQ(error_of({"up", "--model", "m", "--max-model-len", "1k"}),
            "unrecognized arguments: --max-model-len (flags for `tandem serve` go after --)");
  EXPECT_THAT(error_of({"up", "--model", "m", "--prefill", "0"}), HasSubstr("argument --prefill: 0 is out of range"));
}

TEST(Commands, HelpAndVersion) {
  EXPECT_THAT(parse_as<Text>({"--version"}).text, testing::StartsWith("tandem "));
  EXPECT_THAT(parse_as<Text>({"--help"}).text, HasSubstr("Usage: tandem COMMAND"));
  const std::string help = parse_as<Text>({"serve", "--help"}).text;
  for (const char* piece : {"--max-model-len", "VllmConfig", "--no-enable-prefix-caching", "model folder"})
    EXPECT_THAT(help, HasSubstr(piece));
  EXPECT_THAT(help, testing::Not(HasSubstr("--speculative-config")));
  EXPECT_THAT(error_of({"serv"}), HasSubstr("did you mean serve?"));
  EXPECT_THAT(error_of({}), HasSubstr("a command is missing"));
}

TEST(CommandLine, QuantizeFlags) {
  const auto config = parse_as<QuantizeConfig>({"quantize", "src", "dst", "--calibration", "text.txt", "--exclude",
                                                "*.a", "*.b", "--dynamic", "*.down_proj", "--shard-size", "5G"});
  EXPECT_EQ(config.source, "src");
  EXPECT_EQ(config.target, "dst");
  EXPECT_TRUE(config.static_inputs);
  EXPECT_EQ(config.text_file, "text.txt");
  EXPECT_THAT(config.exclude, ElementsAre("*.a", "*.b"));
  EXPECT_THAT(config.dynamic, ElementsAre("*.down_proj"));
  EXPECT_EQ(config.shard_bytes, std::int64_t{5} << 30);
  EXPECT_FALSE(parse_as<QuantizeConfig>({"quantize", "src", "dst"}).static_inputs);
  EXPECT_THAT(error_of({"quantize", "src"}), HasSubstr("SRC"));
  EXPECT_THAT(error_of({"quantize", "a", "b", "c"}), HasSubstr("unrecognized arguments: c"));
  EXPECT_THAT(error_of({"quantize", "a", "b", "--static"}), HasSubstr("--calibration"));
  EXPECT_THAT(error_of({"quantize", "a", "b", "--dynamic", "*"}), HasSubstr("--calibration"));
}

TEST(CommandLine, QuantizationNames) {
  const auto method = [](const char* name) { return parse_as<ServeConfig>({"serve", "m", "-q", name}).quantization; };
  EXPECT_EQ(parse_as<ServeConfig>({"serve", "m"}).quantization, Quantization::kAuto);
  EXPECT_EQ(method("ascend"), Quantization::kAscend);
  EXPECT_EQ(method("compressed-tensors"), Quantization::kCompressedTensors);
  EXPECT_EQ(method("gptq_marlin"), Quantization::kGptq);
  EXPECT_EQ(method("awq"), Quantization::kAwq);
  EXPECT_EQ(quantization_name(method("awq_marlin")), "awq");
  EXPECT_EQ(quantization_name(method("w8a8")), "w8a8");
}

}  // namespace
}  // namespace tandem::config
