// SPDX-License-Identifier: Apache-2.0
#include "config/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "config/command_line.h"

namespace tandem::config {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Slurm, TheFirstHostOfAList) {
  EXPECT_EQ(*first_slurm_host("node7"), "node7");
  EXPECT_EQ(*first_slurm_host("a,b"), "a");
  EXPECT_EQ(*first_slurm_host("node[03-16,20],other7"), "node03");
  EXPECT_EQ(*first_slurm_host("rack1-n[5,8]-ib"), "rack1-n5-ib");
  for (const char* bad : {"", "[1-2]", "node[", "node[]", "node[a-b]", ",a"})
    EXPECT_FALSE(first_slurm_host(bad)) << bad;
}

Result<CommandLine> serve(std::vector<std::string> flags, const Variables& variables) {
  std::vector<std::string> arguments{"serve", "m"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return parse_command_line(arguments, environment_of(variables));
}

const Variables kSecond = {{"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "2"},
                           {"SLURM_NNODES", "2"},
                           {"SLURM_STEP_NODELIST", "node[03-04]"},
                           {"SLURM_NODELIST", "node[01-09]"}};

DataParallel parallel_of(const Result<CommandLine>& line) {
  EXPECT_TRUE(line) << line.error().message();
  return line ? std::get<ServeConfig>(line->command).data_parallel : DataParallel();
}

TEST(Slurm, EachProcessFindsItsPlace) {
  const DataParallel second = parallel_of(serve({"-dp", "8"}, kSecond));
  EXPECT_EQ(second.local, 4);
  EXPECT_EQ(second.start_rank, 4);
  EXPECT_TRUE(second.headless);
  EXPECT_EQ(second.address, "node03");
  Variables variables = kSecond;
  variables["SLURM_PROCID"] = "0";
  const DataParallel first = parallel_of(serve({"-dp", "8"}, variables));
  EXPECT_EQ(first.start_rank, 0);
  EXPECT_FALSE(first.headless);
  EXPECT_FALSE(first.one_process());
  variables.erase("SLURM_NTASKS");
  EXPECT_EQ(parallel_of(serve({"-dp", "8"}, variables)).local, 4) << "by the nodes";
}

TEST(Slurm, WhatTheFlagsSayStandsOverIt) {
  const DataParallel given =
      parallel_of(serve({"-dp", "8", "-dpr", "6", "--headless", "--data-parallel-address", "192.0.0.3"}, kSecond));
  EXPECT_EQ(given.start_rank, 6);
  EXPECT_EQ(given.local, 2);
  EXPECT_EQ(given.address, "192.0.0.3");
  EXPECT_EQ(parallel_of(serve({"-dp", "8", "--data-parallel-address", "10.0.0.1"}, kSecond)).address, "10.0.0.1");
  EXPECT_TRUE(parallel_of(serve({}, kSecond)).one_process()) << "one rank has nothing to spread";
}

TEST(Slurm, WhatCannotBeIsSaid) {
  EXPECT_THAT(serve({"-dp", "3"}, kSecond).error().message(),
              HasSubstr("cannot be spread evenly over the 2 processes"));
  Variables variables = kSecond;
  variables["SLURM_PROCID"] = "2";
  EXPECT_THAT(serve({"-dp", "8"}, variables).error().message(), HasSubstr("SLURM_PROCID is 2, but SLURM_NTASKS is 2"));
  variables["SLURM_PROCID"] = "x";
  EXPECT_THAT(serve({"-dp", "8"}, variables).error().message(), HasSubstr("SLURM_PROCID"));
  variables = kSecond;
  variables["SLURM_STEP_NODELIST"] = "node[";
  EXPECT_THAT(serve({"-dp", "8"}, variables).error().message(), HasSubstr("SLURM_STEP_NODELIST"));
}

}  // namespace
}  // namespace tandem::config
