// SPDX-License-Identifier: Apache-2.0
// Compute threads on CPUs: numbers, lists, and a machine with two nodes that is only a folder.
#include "app/thread_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/model_support.h"

namespace tandem::app {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<int> kEight{0, 1, 2, 3, 4, 5, 6, 7};

void make_node(const std::string& folder, int id, const std::string& cpus) {
  const std::string path = folder + "/node" + std::to_string(id);
  std::filesystem::create_directories(path);
  std::ofstream(path + "/cpulist") << cpus << "\n";
}

/// CPUs 0-3 on node 0, 4-7 on node 2; node 1 has memory only.
std::vector<NumaNode> two_nodes() {
  const testing::TempFolder folder;
  make_node(folder.path(), 2, "4-7");
  make_node(folder.path(), 0, "0-3");
  make_node(folder.path(), 1, "");
  std::filesystem::create_directories(folder.file("power"));
  return numa_nodes(folder.path());
}

config::ServeConfig flags(int ranks) {
  config::ServeConfig config;
  config.tensor_parallel_size = ranks;
  return config;
}

ThreadPlacement place(const config::ServeConfig& config, const std::vector<NumaNode>& nodes = {},
                      const std::vector<int>& usable = kEight) {
  auto placement = place_threads(config, usable, nodes);
  EXPECT_TRUE(placement) << placement.error().message();
  return *placement;
}

TEST(NumaNodes, AreReadFromTheFolder) {
  const auto nodes = two_nodes();
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_THAT(nodes[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(nodes[1].id, 2);
  EXPECT_THAT(numa_nodes("/no/such/folder"), IsEmpty());
}

TEST(ThreadPlacement, CountsThreads) {
  config::ServeConfig config = flags(2);
  EXPECT_EQ(place(config).num_threads, 8);
  config.threads_per_rank = 3;  // OMP_NUM_THREADS
  EXPECT_EQ(place(config).num_threads, 6);
  EXPECT_EQ(place(config).note, "");
  config.threads_per_rank = 100;
  EXPECT_EQ(place(config).num_threads, 8);
  EXPECT_THAT(place(config).note, HasSubstr("OMP_NUM_THREADS 100 for each of 2 ranks is more than the 8 usable CPUs"));
  config.threads = 5;  // said for the whole process, it stands
  EXPECT_EQ(place(config).num_threads, 5);
  EXPECT_EQ(place(config).note, "");
  EXPECT_EQ(place(flags(64), {}, {0, 1}).num_threads, 2);
}

TEST(ThreadPlacement, OneNodeBindsNothing) {
  EXPECT_THAT(place(flags(2)).cpus, IsEmpty());
  EXPECT_THAT(place(flags(2), {{0, kEight}}).cpus, IsEmpty());
  EXPECT_THAT(place(flags(2), two_nodes(), {0, 2}).cpus, IsEmpty()) << "all usable CPUs are on one node";
}

TEST(ThreadPlacement, TwoNodesGetTheRanksInTurn) {
  const ThreadPlacement two = place(flags(2), two_nodes());
  ASSERT_EQ(two.cpus.size(), 8U);
  for (std::size_t thread = 0; thread < 8; ++thread)
    EXPECT_THAT(two.cpus[thread], thread < 4 ? ElementsAre(0, 1, 2, 3) : ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(two.rank_nodes, ElementsAre(0, 2));

  config::ServeConfig four = flags(4);
  four.threads = 4;
  EXPECT_THAT(place(four, two_nodes()).rank_nodes, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(place(flags(1), two_nodes()).rank_nodes, ElementsAre(-1)) << "one rank spans both nodes";
  EXPECT_THAT(place(flags(3), two_nodes()).rank_nodes, IsEmpty()) << "8 threads do not belong to 3 ranks";

  config::ServeConfig free = flags(2);
  free.cpu_binding.mode = config::CpuBinding::Mode::kNone;
  EXPECT_THAT(place(free, two_nodes()).cpus, IsEmpty());
  EXPECT_THAT(place(free, two_nodes()).rank_nodes, IsEmpty());
}

TEST(ThreadPlacement, OnlyUsableCpusCount) {
  const ThreadPlacement some = place(flags(2), two_nodes(), {2, 3, 5, 7});
  EXPECT_THAT(some.cpus, ElementsAre(ElementsAre(2, 3), ElementsAre(2, 3), ElementsAre(5, 7), ElementsAre(5, 7)));
}

TEST(ThreadPlacement, ListsPinOneThreadToEachCpu) {
  config::ServeConfig config = flags(2);
  config.threads = 1;  // what `tandem up` gives; the lists stand over it
  config.cpu_binding = {config::CpuBinding::Mode::kLists, {{1, 3}, {4, 6}}};
  const ThreadPlacement pinned = place(config, two_nodes());
  EXPECT_EQ(pinned.num_threads, 4);
  EXPECT_THAT(pinned.cpus, ElementsAre(ElementsAre(1), ElementsAre(3), ElementsAre(4), ElementsAre(6)));
  EXPECT_THAT(pinned.rank_nodes, ElementsAre(0, 2));
  EXPECT_THAT(place_threads(config, {1, 3, 4}, {}).error().message(),
              HasSubstr("CPU 6 of rank 1 cannot be used; this process may run on 1,3,4"));
}

}  // namespace
}  // namespace tandem::app
