// SPDX-License-Identifier: Apache-2.0
// What the owner sends to whom: runs outside of a lease are refused, and nothing leaves once the lease is over.
#include "transfer/data_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

namespace tandem::transfer {
namespace {

using ::testing::HasSubstr;

kv::Layout sample_layout() {
  kv::Layout layout;
  layout.num_layers = 2;
  layout.num_blocks = 8;
  layout.block_size = 4;
  layout.total_kv_heads = layout.num_kv_heads = 1;
  layout.head_dim = 16;
  return layout;  // 256 bytes a block, 2048 a layer
}

TEST(CheckRunTest, OnlyBlocksOfTheLeaseMayBeRead) {
  const kv::Layout layout = sample_layout();
  const std::vector<kv::Layout> ranks = {layout};
  const std::unordered_set<kv::BlockId> members = {2, 3, 7, 0};
  const auto at = [&](int layer, kv::BlockId block) { return layout.offset(layer, block, 0, 0, 0); };
  EXPECT_TRUE(check_run(ranks, {at(0, 2), 512}, members).ok());
  EXPECT_TRUE(check_run(ranks, {at(1, 3) + 255, 1}, members).ok());
  EXPECT_TRUE(check_run(ranks, {at(0, 7), 512}, members).ok())
      << "the last block of a layer touches the first of the next";
  EXPECT_THAT(check_run(ranks, {at(0, 2), 513}, members).message(), HasSubstr("block 4"));
  EXPECT_THAT(check_run(ranks, {at(0, 2) - 1, 2}, members).message(), HasSubstr("block 1"));
  EXPECT_THAT(check_run(ranks, {at(1, 7), 257}, members).message(), HasSubstr("outside"));
  EXPECT_FALSE(check_run(ranks, {layout.total_bytes(), 1}, members).ok());
  EXPECT_FALSE(check_run(ranks, {~std::uint64_t{0}, 2}, members).ok());
  EXPECT_FALSE(check_run(ranks, {0, 0}, members).ok());
}

TEST(CheckRunTest, RanksOfOneProcessLieBehindEachOther) {
  std::vector<kv::Layout> ranks(3, sample_layout());
  const std::size_t bytes = ranks[0].total_bytes();  // of a rank
  ranks[1].base = bytes;
  ranks[2].base = 2 * bytes + 64;
  const std::unordered_set<kv::BlockId> members = {0, 7};
  const std::size_t last = ranks[0].offset(1, 7, 0, 0, 0);
  EXPECT_TRUE(check_run(ranks, {last, 512}, members).ok()) << "on into the next rank's first block";
  EXPECT_THAT(check_run(ranks, {last, 513}, members).message(), HasSubstr("block 1"));
  EXPECT_THAT(check_run(ranks, {last + bytes, 257}, members).message(), HasSubstr("outside")) << "a gap";
  EXPECT_THAT(check_run(ranks, {2 * bytes, 8}, members).message(), HasSubstr("outside"));
  EXPECT_TRUE(check_run(ranks, {ranks[2].offset(1, 0, 0, 0, 0), 256}, members).ok());
  EXPECT_FALSE(check_run(ranks, {ranks[2].offset(1, 7, 0, 0, 0), 257}, members).ok());
}

class DataSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = EventLoop::create();
    ASSERT_TRUE(made);
    loop = std::move(*made);
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    connection = std::make_shared<Connection>(*loop, Channel(Socket(fds[0])), "test");
    reader = Socket(fds[1]);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 31 >> 3);
    sender = std::make_unique<DataSender>(*connection, memory.data(), [this] { return alive; });
  }
  std::vector<std::byte> read_all() {
    std::vector<std::byte> all;
    std::byte part[4096];
    for (ssize_t count; (count = recv(reader.fd(), part, sizeof part, MSG_DONTWAIT)) > 0;) {
      all.insert(all.end(), part, part + count);
    }
    return all;
  }
  /// Sends everything while the reader reads, and takes the frames apart.
  std::vector<std::byte> send_all() {
    std::vector<std::byte> stream;
    for (int turn = 0; turn < 100'000 && !sender->idle(); ++turn) {
      EXPECT_TRUE(sender->on_writable());
      const std::vector<std::byte> part = read_all();
      stream.insert(stream.end(), part.begin(), part.end());
    }
    std::vector<std::byte> payload;
    for (std::size_t at = 0; at < stream.size();) {
      wire::HeaderBytes bytes;
      std::memcpy(bytes.data(), stream.data() + at, bytes.size());
      const auto header = wire::parse_header(bytes);
      EXPECT_TRUE(header) << header.error().to_string();
      if (!header) break;
      EXPECT_EQ(header->type, wire::kDataType);
      at += bytes.size();
      payload.insert(payload.end(), stream.begin() + static_cast<std::ptrdiff_t>(at),
                     stream.begin() + static_cast<std::ptrdiff_t>(at + header->length));
      at += header->length;
    }
    return payload;
  }

  std::unique_ptr<EventLoop> loop;
  std::shared_ptr<Connection> connection;
  Socket reader;
  std::vector<std::byte> memory = std::vector<std::byte>(std::size_t{8} << 20);
  bool alive = true;
  std::unique_ptr<DataSender> sender;
};

TEST_F(DataSenderTest, RunsArriveInOrderThroughSmallSocketBuffers) {
  wire::Pull pull;
  std::vector<std::byte> expected;
  for (std::uint32_t i = 0; i < 600; ++i) {
    const std::uint64_t offset = (i * 7919U) % 4'000'000U;
    const std::uint32_t length = 1 + (i * 104729U) % 9'000U;
    pull.runs.push_back({offset, length});
    expected.insert(expected.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset),
                    memory.begin() + static_cast<std::ptrdiff_t>(offset + length));
  }
  pull.runs.push_back({0, wire::kMaxRunBytes});
  expected.insert(expected.end(), memory.begin(), memory.begin() + wire::kMaxRunBytes);
  ASSERT_TRUE(sender->enqueue(pull).ok());
  ASSERT_TRUE(sender->enqueue(wire::Pull{{{5, 3}}}).ok());
  expected.insert(expected.end(), memory.begin() + 5, memory.begin() + 8);
  EXPECT_EQ(send_all(), expected);
}

TEST_F(DataSenderTest, NothingMoreIsSentOnceTheLeaseIsOver) {
  ASSERT_TRUE(sender->enqueue(wire::Pull{{{0, wire::kMaxRunBytes}}}).ok());
  ASSERT_TRUE(sender->on_writable());
  EXPECT_FALSE(read_all().empty());
  alive = false;
  for (int turn = 0; turn < 10; ++turn) EXPECT_TRUE(sender->on_writable());
  EXPECT_TRUE(read_all().empty());
}

TEST_F(DataSenderTest, CreditsAreBounded) {
  for (std::size_t i = 0; i < wire::kMaxPulls; ++i) ASSERT_TRUE(sender->enqueue(wire::Pull{{{0, 1}}}).ok());
  EXPECT_EQ(sender->enqueue(wire::Pull{{{0, 1}}}).code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::transfer
