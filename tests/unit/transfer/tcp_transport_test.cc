// SPDX-License-Identifier: Apache-2.0
// Data connections are kept and used again, against an owner that is played by the test.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "transfer/transport.h"

namespace tandem::transfer {
namespace {

/// The owner's end of one connection.
class PlayedOwner {
 public:
  explicit PlayedOwner(const Socket& listener) {
    pollfd ready{listener.fd(), POLLIN, 0};
    if (poll(&ready, 1, 5000) == 1) socket_ = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  /// Waits for a grant's Attach and Pull; the bytes asked for, 0 if they did not come.
  std::uint32_t wait_for_pull(std::uint64_t token) {
    bool attached = false;
    for (;;) {
      auto message = reader_.next();
      if (!message) return 0;
      if (!message->has_value()) {
        std::byte part[4096];
        const ssize_t count = recv(socket_.fd(), part, sizeof part, 0);
        if (count <= 0) return 0;
        reader_.append({part, static_cast<std::size_t>(count)});
        continue;
      }
      if (const auto* attach = std::get_if<wire::Attach>(&**message)) attached = attach->token == token;
      if (const auto* pull = std::get_if<wire::Pull>(&**message)) {
        std::uint32_t bytes = 0;
        for (const wire::Run& run : pull->runs) bytes += run.length;
        return attached ? bytes : 0;
      }
    }
  }
  void answer(std::uint32_t bytes, std::byte value) {
    const wire::HeaderBytes header = wire::make_header(wire::kDataType, bytes);
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), bytes, value);
    (void)!send(socket_.fd(), frame.data(), frame.size(), MSG_NOSIGNAL);
  }

 private:
  Socket socket_;
  wire::FrameReader reader_;
};

class TcpTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop = std::move(*EventLoop::create());
    listener = std::move(*listen_tcp("127.0.0.1", 0, "a test"));
    TcpPeer peer;
    peer.addresses = *resolve("127.0.0.1", bound_port(listener));
    peer.name = "played";
    transport = make_tcp_transport(*loop, peer);
  }
  /// One move after the other, with tokens 1, 2, ...
  std::vector<Status> run_moves(std::uint64_t count) {
    std::vector<Status> ends;
    std::shared_ptr<Move> move;
    std::function<void(std::uint64_t)> start = [&](std::uint64_t token) {
      MoveRequest request;
      request.token = token;
      request.copies = copies;
      request.destination = memory.data();
      request.on_progress = [](std::uint64_t) {};
      request.on_done = [&, token](Status status) {
        ends.push_back(std::move(status));
        if (token == count) return loop->stop();
        start(token + 1);
      };
      move = transport->start(std::move(request));
    };
    start(1);
    const auto deadline = loop->after(std::chrono::seconds(10), [&] { loop->stop(); });
    loop->run();
    loop->cancel(deadline);
    return ends;
  }

  std::unique_ptr<EventLoop> loop;
  Socket listener;
  std::shared_ptr<Transport> transport;
  std::vector<Copy> copies = {{0, 0, 100}, {500, 100, 50}};
  std::vector<std::byte> memory = std::vector<std::byte>(150);
};

TEST_F(TcpTransportTest, OneConnectionServesRequestAfterRequest) {
  std::jthread owner([&] {
    PlayedOwner connection(listener);
    for (std::uint64_t token = 1; token <= 3; ++token) {
      EXPECT_EQ(connection.wait_for_pull(token), 150U);
      connection.answer(150, static_cast<std::byte>(token));
    }
  });
  const std::vector<Status> ends = run_moves(3);
  ASSERT_EQ(ends.size(), 3U);
  for (const Status& status : ends) EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(memory, std::vector<std::byte>(150, std::byte{3}));
}

TEST_F(TcpTransportTest, AKeptConnectionThatTheOwnerClosesMeanwhileIsReplaced) {
  std::jthread owner([&] {
    {
      PlayedOwner kept(listener);
      EXPECT_EQ(kept.wait_for_pull(1), 150U);
      kept.answer(150, std::byte{1});
      EXPECT_EQ(kept.wait_for_pull(2), 150U) << "the kept connection is tried first";
    }
    PlayedOwner fresh(listener);
    EXPECT_EQ(fresh.wait_for_pull(2), 150U);
    fresh.answer(150, std::byte{2});
  });
  const std::vector<Status> ends = run_moves(2);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_TRUE(ends[1].ok()) << ends[1].to_string();
  EXPECT_EQ(memory, std::vector<std::byte>(150, std::byte{2}));
}

TEST_F(TcpTransportTest, AFreshConnectionThatTheOwnerClosesIsAnError) {
  std::jthread owner([&] {
    PlayedOwner fresh(listener);
    EXPECT_EQ(fresh.wait_for_pull(1), 150U);
  });
  const std::vector<Status> ends = run_moves(1);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::transfer
