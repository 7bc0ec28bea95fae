// SPDX-License-Identifier: Apache-2.0
// Flags and variables that were written for another device (serve_device_options.cc, idle_variables.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "config/command_line.h"
#include "config/idle_variables.h"

namespace tandem::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<CommandLine> parse(std::vector<std::string> flags, std::map<std::string, std::string> variables = {}) {
  flags.insert(flags.begin(), {"serve", "m", "--max-num_seqs", "32"});
  return parse_command_line(flags, [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::int32_t planned(const std::vector<std::string>& flags) {
  auto line = parse(flags);
  EXPECT_TRUE(line) << line.error().message();
  return line ? std::get<ServeConfig>(line->command).planned_decodes : -1;
}

std::string error_of(const std::vector<std::string>& flags) {
  auto line = parse(flags);
  return line ? "accepted" : line.error().message();
}

TEST(PlannedDecodes, AreTheLargestCaptureSize) {
  EXPECT_EQ(planned({}), 0);
  EXPECT_EQ(planned({"--compilation-config", R"({"cudagraph_capture_sizes":[1,16,8]})"}), 16);
  EXPECT_EQ(planned({"--compilation-config.cudagraph_capture_sizes", "[4]"}), 4);
  EXPECT_EQ(planned({"-O.cudagraph_mode", "FULL_DECODE_ONLY"}), 32);
  EXPECT_EQ(planned({"--compilation_config", R"({"cudagraph_capture_sizes":[500]})"}), 32);
  EXPECT_EQ(planned({"--compilation-config", R"({"cudagraph_mode":"NONE","cudagraph_capture_sizes":[8]})"}), 0);
  EXPECT_EQ(planned({"--compilation-config", R"({"cudagraph_capture_sizes":[8]})", "--enforce-eager"}), 0);
  EXPECT_EQ(planned({"--compilation-config", R"({"cudagraph_capture_sizes":[8]})", "--no-enforce-eager"}), 8);
  EXPECT_EQ(planned({"-O3"}), 0);
}

TEST(PlannedDecodes, KeysThatAreNotUsedAreNamed) {
  const auto line =
      parse({"--compilation-config", R"({"use_inductor":false,"cudagraph_capture_sizes":[2],"level":3})"});
  ASSERT_TRUE(line);
  EXPECT_THAT(line->notes,
              ElementsAre("--compilation-config: ignored here: use_inductor, level",
                          HasSubstr("steps of up to 2 decoding requests are planned at start and allocate nothing")));
}

TEST(PlannedDecodes, ErrorsNameKeyAndRange) {
  const auto error = [](const std::string& config) { return error_of({"--compilation-config", config}); };
  EXPECT_THAT(error(R"({"cudagraph_capture_sizes":[0]})"), HasSubstr("holds 0; expected numbers from 1 to 65536"));
  EXPECT_THAT(error(R"({"cudagraph_capture_sizes":["16"]})"), HasSubstr("holds \"16\"; expected numbers"));
  EXPECT_THAT(error(R"({"cudagraph_capture_sizes":16})"), HasSubstr("must be a list of numbers"));
  EXPECT_THAT(error(R"({"cudagraph_mode":"SOME"})"), HasSubstr("cudagraph_mode: invalid choice: 'SOME'"));
  EXPECT_THAT(error("[16]"), HasSubstr("argument --compilation-config: expected a JSON object or a level"));
}

TEST(DeviceFlags, AreExplainedOneByOne) {
  const auto line = parse({"--trust_remote_code", "--distributed-executor-backend", "ray", "--additional-config",
                           R"({"torchair_graph_config":{"enabled":true},"frobnicate":1})"});
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_THAT(line->notes,
              ElementsAre("--trust-remote-code is ignored: there is no Python here, so no code of a model is ever run",
                          "--additional-config is ignored: torchair_graph_config (there are no device graphs here), "
                          "frobnicate (not known here)",
                          "--distributed-executor-backend ray is ignored: all ranks of a host run in this process"));
  EXPECT_THAT(error_of({"--distributed-executor-backend", "mpi"}),
              HasSubstr("invalid choice: 'mpi' (choose from mp, ray, uni, external_launcher)"));
  EXPECT_THAT(error_of({"--additional-config", "[]"}),
              HasSubstr("argument --additional-config: expected a JSON object"));
}

TEST(DeviceVariables, ChooseTheAddress) {
  const auto config = [](std::map<std::string, std::string> variables) {
    return std::get<ServeConfig>(parse({}, std::move(variables))->command);
  };
  EXPECT_EQ(config({{"HCCL_IF_IP", "192.0.0.1"}}).advertised_host, "192.0.0.1");
  EXPECT_EQ(config({{"HCCL_IF_IP", "192.0.0.1"}, {"VLLM_HOST_IP", "10.0.0.1"}}).advertised_host, "10.0.0.1");
  EXPECT_EQ(config({{"GLOO_SOCKET_IFNAME", "eth1"}}).advertised_interface, "eth1");
  EXPECT_EQ(config({{"GLOO_SOCKET_IFNAME", "eth1"}, {"HCCL_SOCKET_IFNAME", "eth2"}}).advertised_interface, "eth2");
}

TEST(IdleVariables, AreListedOnceAndOnlyThose) {
  const auto note = [](const std::vector<std::string>& names) { return idle_variables_note(names, ServeConfig()); };
  EXPECT_THAT(note({"PATH", "HOME", "OMP_NUM_THREADS", "VLLM_HOST_IP", "HCCL_IF_IP", "LD_PRELOAD"}), IsEmpty());
  EXPECT_EQ(note({"VLLM_USE_V1", "PATH", "HCCL_BUFFSIZE"}),
            "environment variables that do nothing here: HCCL_BUFFSIZE, VLLM_USE_V1");
  EXPECT_THAT(note({"DISAGGREGATED_PREFILL_RANK_TABLE_PATH"}), HasSubstr("RANK_TABLE"));
  ServeConfig config;
  config.kv_transfer.emplace().kind = KvConnector::kRankTable;
  EXPECT_THAT(idle_variables_note(std::vector<std::string>{"DISAGGREGATED_PREFILL_RANK_TABLE_PATH"}, config),
              IsEmpty());
}

}  // namespace
}  // namespace tandem::config
