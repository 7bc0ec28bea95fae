// SPDX-License-Identifier: Apache-2.0
#include "cluster/command_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tandem::cluster {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxOutput = 1U << 20;
constexpr milliseconds kReapSlice{5};

/// Attributes of a child: own process group (so that what it starts dies with it), output into the pipe, no input.
class SpawnPlan {
 public:
  explicit SpawnPlan(int output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  /// 0 or an errno.
  int spawn(pid_t& pid, const std::vector<std::string>& argv) const {
    std::vector<char*> raw;
    for (const std::string& argument : argv) raw.push_back(const_cast<char*>(argument.c_str()));
    raw.push_back(nullptr);
    return posix_spawnp(&pid, raw[0], &actions_, &attributes_, raw.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// Reads until the end of the output or the deadline. False: the deadline came first.
bool read_output(int fd, SteadyClock::time_point deadline, std::string& text) {
  std::array<char, 8192> buffer{};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now());
    if (left.count() <= 0) return false;
    pollfd wait{fd, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready <= 0) continue;
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    const std::size_t room = kMaxOutput - text.size();  // what is over the bound is read and dropped
    text.append(buffer.data(), std::min(room, static_cast<std::size_t>(got)));
  }
}

/// Waits for the end until the deadline, then kills. False: it had to be killed.
bool reap(pid_t pid, SteadyClock::time_point deadline, int& wait_status) {
  for (;;) {
    const pid_t done = waitpid(pid, &wait_status, WNOHANG);
    if (done == pid) return true;
    if (done < 0 && errno != EINTR) return true;  // somebody else reaped it: its exit code is lost
    if (SteadyClock::now() >= deadline) break;
    usleep(static_cast<useconds_t>(kReapSlice.count() * 1000));
  }
  kill(-pid, SIGKILL);
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  return false;
}

class ProcessRunner final : public CommandRunner {
 public:
  Result<CommandOutput> run(const std::vector<std::string>& argv, milliseconds timeout) override {
    TANDEM_ASSERT(!argv.empty(), "a command has a name");
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0)
      return Status(Code::kResourceExhausted, fmt::format("cannot make a pipe for {}: {}", argv[0], strerror(errno)));
    const auto deadline = SteadyClock::now() + timeout;
    pid_t pid = -1;
    const int failed = SpawnPlan(pipe_ends[1]).spawn(pid, argv);
    close(pipe_ends[1]);
    if (failed != 0) {
      close(pipe_ends[0]);
      const Code code = failed == ENOENT ? Code::kNotFound : Code::kUnavailable;
      return Status(code, fmt::format("cannot run {}: {}", argv[0], strerror(failed)));
    }
    CommandOutput output;
    const bool complete = read_output(pipe_ends[0], deadline, output.text);
    close(pipe_ends[0]);
    int wait_status = 0;
    const bool ended = reap(pid, complete ? deadline : SteadyClock::now(), wait_status);
    if (!complete || !ended)
      return Status(Code::kDeadlineExceeded,
                    fmt::format("'{}' did not end within {} ms and was killed", command_text(argv), timeout.count()));
    output.exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    return output;
  }
};

}  // namespace

std::unique_ptr<CommandRunner> process_runner() { return std::make_unique<ProcessRunner>(); }

std::string command_text(const std::vector<std::string>& argv) { return fmt::format("{}", fmt::join(argv, " ")); }

}  // namespace tandem::cluster
