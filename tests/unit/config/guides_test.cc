// SPDX-License-Identifier: Apache-2.0
// The scripts of two public deployment guides of vLLM-Ascend, as examples/ has them (with another program and model):
// run by bash with a function in place of the program, so that quotes, continuations and variables mean what they mean
// to users. What comes out must be taken by `tandem serve`, mean what the guide means by it, and be explained where it
// does nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>

#include "config/command_line.h"
#include "config/idle_variables.h"

namespace tandem::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTrustNote =
    "--trust-remote-code is ignored: there is no Python here, so no code of a model is ever run";
const std::string kBackendNote =
    "--distributed-executor-backend mp is ignored: all ranks of a host run in this process";
const std::string kModuleNote = "--kv-transfer-config: ignored here: kv_connector_module_path";
const std::string kFolder = "examples/qwen3-moe-";

/// What a script would have started.
struct Invocation {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> variables;
};

Invocation run_script(const std::string& path) {
  // The loader's variables of the script are for another machine: bash's own children would complain of them.
  const std::string command =
      "env -i PATH=\"$PATH\" bash -c 'hostname() { echo 192.0.0.7 10.0.0.1; }; "
      "tandem() { unset LD_PRELOAD; printf \"%s\\0\" \"$#\" \"$@\"; env -0; }; source " +
      path + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe.get())) text.append(buffer.data(), got);
  std::istringstream fields(text);
  std::string field;
  std::getline(fields, field, '\0');
  Invocation invocation;
  for (int left = std::stoi("0" + field); left > 0 && std::getline(fields, field, '\0'); --left)
    invocation.arguments.push_back(field);
  while (std::getline(fields, field, '\0'))
    invocation.variables[field.substr(0, field.find('='))] = field.substr(field.find('=') + 1);
  return invocation;
}

struct Parsed {
  ServeConfig config;
  std::vector<std::string> notes;
  std::string idle_variables;
};

Parsed parse_script(const std::string& name, const std::function<void(std::string&)>& edit = {}) {
  Invocation invocation = run_script(kFolder + name + ".sh");
  for (std::string& argument : invocation.arguments)
    if (edit) edit(argument);
  EXPECT_GT(invocation.arguments.size(), 10U) << name;
  auto line = parse_command_line(invocation.arguments, [&](const std::string& key) -> std::optional<std::string> {
    const auto found = invocation.variables.find(key);
    return found == invocation.variables.end() ? std::nullopt : std::optional(found->second);
  });
  if (!line) {
    ADD_FAILURE() << name << ": " << line.error().message();
    return {};
  }
  Parsed parsed{std::get<ServeConfig>(line->command), line->notes, ""};
  std::vector<std::string> names;
  for (const auto& [key, value] : invocation.variables) names.push_back(key);
  parsed.idle_variables = idle_variables_note(names, parsed.config);
  return parsed;
}

TEST(Guides, PrefillersOfTwoPrefillersAndAWideDecoder) {
  for (const std::string node : {"1", "2"}) {
    const Parsed parsed = parse_script("2p1d/prefill-" + node);
    const ServeConfig& config = parsed.config;
    EXPECT_EQ(config.model, "build/models/qwen3-moe-small");
    EXPECT_THAT(config.served_model_names, ElementsAre("qwen3-moe"));
    EXPECT_EQ(config.port, 8004);
    EXPECT_EQ(config.seed, 1024U);
    EXPECT_EQ(config.data_parallel.size, 2);
    EXPECT_EQ(config.data_parallel.local, 2);
    EXPECT_EQ(config.tensor_parallel_size, 8);
    EXPECT_TRUE(config.expert_parallel);
    EXPECT_EQ(config.max_model_len, 32768);
    EXPECT_EQ(config.max_num_batched_tokens, 32768);
    EXPECT_EQ(config.memory_utilization, 0.9);
    EXPECT_EQ(config.planned_decodes, 0);
    EXPECT_EQ(config.threads_per_rank, 10);
    EXPECT_EQ(config.advertised_host, "192.0.0." + node);
    EXPECT_EQ(config.advertised_interface, "eth0");
    EXPECT_EQ(config.kv_transfer.value().kind, KvConnector::kLayerwise);
    EXPECT_TRUE(config.kv_transfer->produces());
    EXPECT_FALSE(config.kv_transfer->consumes());
    EXPECT_EQ(config.kv_transfer->port, node == "1" ? 30000 : 30100);
    EXPECT_EQ(config.kv_transfer->engine_id, node == "1" ? "0" : "1");
    EXPECT_THAT(
        parsed.notes,
        ElementsAre(kTrustNote, kBackendNote,
                    "--enforce-eager: no decode steps are planned at start, and there are no device graphs here",
                    kModuleNote));
    EXPECT_EQ(parsed.idle_variables,
              "environment variables that do nothing here: HCCL_BUFFSIZE, OMP_PROC_BIND, VLLM_USE_V1");
  }
}

TEST(Guides, DecoderOverTwoNodes) {
  for (const std::string node : {"1", "2"}) {
    const Parsed parsed = parse_script("2p1d/decode-" + node);
    const ServeConfig& config = parsed.config;
    EXPECT_EQ(config.data_parallel.size, 32);
    EXPECT_EQ(config.data_parallel.local, 16);
    EXPECT_EQ(config.data_parallel.start_rank, node == "1" ? 0 : 16);
    EXPECT_EQ(config.data_parallel.headless, node == "2");
    EXPECT_EQ(config.data_parallel.address, "192.0.0.3");
    EXPECT_EQ(config.data_parallel.rpc_port, 5964);
    EXPECT_EQ(config.tensor_parallel_size, 1);
    EXPECT_EQ(config.max_num_batched_tokens, 512);
    EXPECT_EQ(config.max_num_seqs, 16);
    EXPECT_FALSE(config.enable_prefix_caching);
    EXPECT_EQ(config.planned_decodes, 16);
    EXPECT_EQ(config.advertised_host, node == "1" ? "192.0.0.3" : "192.0.0.4");
    EXPECT_EQ(config.kv_transfer.value().engine_id, "2");
    EXPECT_EQ(config.kv_transfer->port, 30200);
    EXPECT_TRUE(config.kv_transfer->receives());
    EXPECT_THAT(parsed.notes,
                ElementsAre(kTrustNote, kBackendNote,
                            "--compilation-config: steps of up to 16 decoding requests are planned at start and "
                            "allocate nothing; there are no device graphs here",
                            kModuleNote));
  }
}

/// The guide has the same scripts with this connector.
void name_rank_table_connector(std::string& argument) {
  const std::string name = "\"MooncakeConnector\"";
  if (const std::size_t at = argument.find(name); at != std::string::npos)
    argument.replace(at, name.size(),
                     R"("LLMDataDistCMgrConnector", "kv_buffer_device": "npu", "kv_parallel_size": 1)");
}

TEST(Guides, FourNodesWithEitherConnector) {
  for (const std::string way : {"mooncake", "ranktable"}) {
    for (const std::string node : {"prefill-1", "prefill-2", "decode-1", "decode-2"}) {
      SCOPED_TRACE(way + " " + node);
      const Parsed parsed = parse_script("2p2d/" + node, [&](std::string& argument) {
        if (way == "ranktable") name_rank_table_connector(argument);
      });
      const ServeConfig& config = parsed.config;
      const bool prefills = node[0] == 'p';
      EXPECT_EQ(config.tensor_parallel_size, 8);
      EXPECT_EQ(config.data_parallel.size, 1);
      EXPECT_EQ(config.max_model_len, 40960);
      EXPECT_EQ(config.planned_decodes, prefills ? 0 : 16);  // --enforce-eager stands over cudagraph_mode
      EXPECT_EQ(config.async_scheduling, !prefills);
      EXPECT_FALSE(config.enable_prefix_caching);
      EXPECT_EQ(config.quantization, Quantization::kAscend);
      EXPECT_TRUE(config.enable_auto_tool_choice);
      EXPECT_EQ(config.tool_format, ToolFormat::kHermes);
      EXPECT_EQ(config.memory_utilization, prefills ? 0.8 : 0.9);
      EXPECT_EQ(config.advertised_host, "192.0.0.7");
      EXPECT_EQ(config.kv_transfer.value().kind, way == "mooncake" ? KvConnector::kPull : KvConnector::kRankTable);
      EXPECT_EQ(config.kv_transfer->produces(), prefills);
      EXPECT_THAT(parsed.notes,
                  Contains("--additional-config is ignored: ascend_scheduler_config (the one scheduler here joins "
                           "decodes and chunks of prompts)"));
      EXPECT_THAT(parsed.notes, Contains(kBackendNote));
      EXPECT_THAT(parsed.idle_variables, HasSubstr("HCCL_INTRA_PCIE_ENABLE, HCCL_INTRA_ROCE_ENABLE, "
                                                   "HCCL_OP_EXPANSION_MODE, OMP_PROC_BIND, PYTORCH_NPU_ALLOC_CONF, "
                                                   "VLLM_ASCEND_ENABLE_FLASHCOMM1"));
      const std::string table = "DISAGGREGATED_PREFILL_RANK_TABLE_PATH";
      EXPECT_EQ(parsed.idle_variables.find(table) == std::string::npos, way == "ranktable");
      EXPECT_EQ(config.kv_transfer->rank_table.ends_with("/ranktable.json"), way == "ranktable");
    }
  }
}

}  // namespace
}  // namespace tandem::config
