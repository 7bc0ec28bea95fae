// SPDX-License-Identifier: Apache-2.0
// Flags and variables of serve_logging_options.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "config/command_line.h"
#include "config/idle_variables.h"

namespace tandem::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Result<CommandLine> parse(std::vector<std::string> flags, std::map<std::string, std::string> variables = {}) {
  flags.insert(flags.begin(), {"serve", "m"});
  return parse_command_line(flags, [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

ServeConfig serve(const std::vector<std::string>& flags, const std::map<std::string, std::string>& variables = {}) {
  auto line = parse(flags, variables);
  EXPECT_TRUE(line) << line.error().message();
  return line ? std::get<ServeConfig>(line->command) : ServeConfig();
}

std::string error_of(const std::vector<std::string>& flags, const std::map<std::string, std::string>& variables = {}) {
  auto line = parse(flags, variables);
  return line ? "accepted" : line.error().message();
}

TEST(LoggingOptions, DefaultsAreVllms) {
  const ServeConfig config = serve({});
  EXPECT_FALSE(config.enable_log_requests);
  EXPECT_FALSE(config.enable_log_outputs);
  EXPECT_EQ(config.max_log_len, std::nullopt);
  EXPECT_TRUE(config.access_log);
  EXPECT_FALSE(config.disable_log_stats);
  EXPECT_EQ(config.log_stats_interval, std::chrono::seconds(10));
  EXPECT_EQ(config.log_level, "info");
  EXPECT_FALSE(config.keep_alive_on_engine_death);
}

TEST(LoggingOptions, OutputsAreOnlyLoggedWithRequests) {
  EXPECT_EQ(error_of({"--enable-log-outputs"}), "--enable-log-outputs requires --enable-log-requests");
  const ServeConfig config = serve({"--enable-log-requests", "--enable-log-outputs", "--max-log-len", "0"});
  EXPECT_TRUE(config.enable_log_outputs);
  EXPECT_EQ(config.max_log_len, 0);
  EXPECT_EQ(serve({"--max-log-len", "None"}).max_log_len, std::nullopt);
  EXPECT_THAT(error_of({"--max-log-len", "-1"}), HasSubstr("--max-log-len"));
}

TEST(LoggingOptions, TheAccessLogEndsByItsFlagOrByUvicornsLevel) {
  EXPECT_FALSE(serve({"--disable-uvicorn-access-log"}).access_log);
  for (const char* level : {"warning", "error", "critical"}) {
    const ServeConfig config = serve({"--uvicorn-log-level", level});
    EXPECT_FALSE(config.access_log) << level;
    EXPECT_EQ(config.log_level, "info") << "only the lines of HTTP requests are uvicorn's";
  }
  for (const char* level : {"debug", "info", "trace"}) EXPECT_TRUE(serve({"--uvicorn-log-level", level}).access_log);
  EXPECT_THAT(error_of({"--uvicorn-log-level", "loud"}), HasSubstr("--uvicorn-log-level"));
}

TEST(LoggingOptions, TheLogLevelIsTheFlagsElseTheVariables) {
  EXPECT_EQ(serve({"--log-level", "ERROR"}).log_level, "error");
  EXPECT_EQ(serve({}, {{"VLLM_LOGGING_LEVEL", "DEBUG"}}).log_level, "debug");
  EXPECT_EQ(serve({"--log-level", "warning"}, {{"VLLM_LOGGING_LEVEL", "DEBUG"}}).log_level, "warning");
  EXPECT_EQ(serve({}, {{"VLLM_LOGGING_LEVEL", ""}}).log_level, "info");
  EXPECT_THAT(error_of({}, {{"VLLM_LOGGING_LEVEL", "loud"}}), HasSubstr("environment variable VLLM_LOGGING_LEVEL"));
}

TEST(LoggingOptions, VariablesOfTheServersLife) {
  EXPECT_EQ(serve({}, {{"VLLM_LOG_STATS_INTERVAL", "2.5"}}).log_stats_interval, std::chrono::milliseconds(2500));
  EXPECT_THAT(error_of({}, {{"VLLM_LOG_STATS_INTERVAL", "0"}}),
              HasSubstr("environment variable VLLM_LOG_STATS_INTERVAL"));
  EXPECT_EQ(serve({}, {{"VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5"}}).keep_alive, std::chrono::seconds(5));
  EXPECT_TRUE(serve({}, {{"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1"}}).keep_alive_on_engine_death);
  EXPECT_FALSE(serve({}, {{"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0"}}).keep_alive_on_engine_death);
  const std::vector<std::string> read{"VLLM_LOGGING_LEVEL", "VLLM_LOG_STATS_INTERVAL", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
                                      "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"};
  EXPECT_THAT(idle_variables_note(read, serve({})), IsEmpty());
}

TEST(LoggingOptions, WhatMeansNothingHereIsAcceptedAndNamed) {
  const auto line = parse({"--disable-log-requests", "--log-config-file", "x.json", "--log-error-stack",
                           "--show-hidden-metrics-for-version", "0.10"});
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_THAT(line->notes,
              UnorderedElementsAre(HasSubstr("--disable-log-requests is ignored"),
                                   HasSubstr("--log-config-file is ignored: it configures Python's logging"),
                                   HasSubstr("--log-error-stack is ignored"),
                                   HasSubstr("--show-hidden-metrics-for-version is ignored: old metric names are "
                                             "shown anyway")));
}

}  // namespace
}  // namespace tandem::config
