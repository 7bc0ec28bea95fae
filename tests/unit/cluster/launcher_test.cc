// SPDX-License-Identifier: Apache-2.0
#include "cluster/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdio>
#include <fstream>
#include <string>

namespace tandem::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A launcher in a process of its own (it takes over signals), with its output in a pipe.
class LauncherProcess {
 public:
  explicit LauncherProcess(const Deployment& deployment) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) ADD_FAILURE() << "pipe failed";
    std::fflush(stdout);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      LaunchOptions options;
      options.program = "tests/support/fake_instance.py";
      options.ready_timeout = std::chrono::seconds(30);
      const Result<void> result = run_deployment(deployment, options);
      std::printf("result: %s\n", result ? "ok" : result.error().message().c_str());
      std::fflush(stdout);
      _exit(0);
    }
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~LauncherProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    finish();
    std::fclose(output_);
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  /// Reads lines until one has `text`; false at the end of the output. The launcher's own deadlines bound the wait.
  bool read_until(const std::string& text) {
    std::array<char, 4096> line{};
    while (std::fgets(line.data(), line.size(), output_) != nullptr) {
      seen_ += line.data();
      if (std::string(line.data()).find(text) != std::string::npos) return true;
    }
    return false;
  }
  void send(int signal) const { kill(pid_, signal); }
  void finish() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
  std::string seen_;
};

Deployment three_processes() {
  const PortFinder find = kernel_port_finder();
  Deployment deployment;
  const std::array<std::pair<const char*, Role>, 3> roles{
      {{"P1", Role::kPrefill}, {"D1", Role::kDecode}, {"proxy", Role::kProxy}}};
  for (const auto& [name, role] : roles) {
    ProcessSpec process;
    process.name = name;
    process.role = role;
    process.host = "127.0.0.1";
    process.port = *find(process.host);
    process.arguments = {"--port", std::to_string(process.port)};
    process.environment["FAKE_NAME"] = name;
    deployment.processes.push_back(process);
  }
  return deployment;
}

bool anybody_listens(const ProcessSpec& process) {
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket(context);
  boost::system::error_code error;
  socket.connect({boost::asio::ip::make_address(process.host), process.port}, error);
  return !error;
}

TEST(Launcher, StartsAllAndStopsAllOnCtrlC) {
  const Deployment deployment = three_processes();
  LauncherProcess launcher(deployment);
  ASSERT_TRUE(launcher.read_until("up: ready: http://127.0.0.1:" + std::to_string(deployment.processes[2].port)))
      << launcher.seen();
  EXPECT_THAT(launcher.seen(), HasSubstr("[P1] listening on " + std::to_string(deployment.processes[0].port)));
  launcher.send(SIGINT);
  ASSERT_TRUE(launcher.read_until("result: ok")) << launcher.seen();
  for (const ProcessSpec& process : deployment.processes) EXPECT_FALSE(anybody_listens(process)) << process.name;
}

TEST(Launcher, SaysWhichProcessCouldNotStartAndWhyAndStopsTheRest) {
  Deployment deployment = three_processes();
  deployment.processes[1].environment["FAKE_FAIL"] = "D1";
  LauncherProcess launcher(deployment);
  ASSERT_TRUE(launcher.read_until("result: ")) << launcher.seen();
  EXPECT_THAT(launcher.seen(), HasSubstr("result: D1 (decode) could not start: it ended with exit code 1; its last "
                                         "line: error: port 99 is in use"));
  for (const ProcessSpec& process : deployment.processes) EXPECT_FALSE(anybody_listens(process)) << process.name;
}

TEST(Launcher, ADeadProxyEndsTheDeployment) {
  const Deployment deployment = three_processes();
  LauncherProcess launcher(deployment);
  ASSERT_TRUE(launcher.read_until("up: ready:")) << launcher.seen();
  const std::string find =
      "pkill -9 -f '[f]ake_instance.py --port " + std::to_string(deployment.processes[2].port) + "'";
  ASSERT_EQ(std::system(find.c_str()), 0);
  ASSERT_TRUE(launcher.read_until("result: ")) << launcher.seen();
  EXPECT_THAT(launcher.seen(), HasSubstr("result: the proxy was killed by signal 9"));
  for (const ProcessSpec& process : deployment.processes) EXPECT_FALSE(anybody_listens(process)) << process.name;
}

}  // namespace
}  // namespace tandem::cluster
