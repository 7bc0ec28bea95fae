// SPDX-License-Identifier: Apache-2.0
#include "cluster/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include "cluster/command_runner.h"
#include "cluster/node_network.h"

namespace tandem::cluster {
namespace {

using SteadyClock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Child {
  const ProcessSpec* spec = nullptr;
  pid_t pid = -1;
  int output = -1;  ///< read end of its stdout and stderr
  std::string partial_line;
  std::deque<std::string> last_lines;  ///< shown when it cannot start
  SteadyClock::time_point started;
  bool ready = false;
  std::optional<int> wait_status;  ///< set when it ended
};

void say(std::string_view text) {
  fmt::print("up: {}\n", text);
  std::fflush(stdout);
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

/// GET /health (the proxy: /healthcheck) answers 200. Of one that speaks TLS it is enough that it listens: it may want
/// a certificate that is not ours to show.
bool answers(const ProcessSpec& spec) {
  const std::string host = spec.host == "0.0.0.0" || spec.host == "localhost" ? "127.0.0.1" : spec.host;
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(1s);
  stream.connect(host, std::to_string(spec.port));
  if (!stream) return false;
  if (spec.tls) return true;
  stream << "GET " << (spec.role == Role::kProxy ? "/healthcheck" : "/health") << " HTTP/1.1\r\nHost: " << host
         << "\r\nConnection: close\r\n\r\n"
         << std::flush;
  std::string status_line;
  std::getline(stream, status_line);
  return status_line.starts_with("HTTP/1.") && status_line.substr(8, 4) == " 200";
}

class Launcher {
 public:
  Launcher(const Deployment& deployment, const LaunchOptions& options) : deployment_(deployment), options_(options) {
    sigemptyset(&handled_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&handled_, signal);
    sigprocmask(SIG_BLOCK, &handled_, &previous_);
    signals_ = signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Launcher() {
    if (signals_ >= 0) close(signals_);
    for (const Child& child : children_)
      if (child.output >= 0) close(child.output);
    sigprocmask(SIG_SETMASK, &previous_, nullptr);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  Result<void> run() {
    if (signals_ < 0) return Status(Code::kInternal, fmt::format("signalfd: {}", std::strerror(errno)));
    if (deployment_.network) {
      TANDEM_ASSIGN(network_, NodeNetwork::create(*deployment_.network, process_runner()));
      say(fmt::format("network: {}", network_->description()));
    }
    Result<void> result = start_and_watch();
    if (result && options_.shutdown_timeout.count() > 0) drain_proxy();
    stop_all();
    if (network_) {
      network_.reset();
      say("the network is removed");
    }
    return result;
  }

 private:
  Result<void> start_and_watch() {
    children_.reserve(deployment_.processes.size());
    for (const ProcessSpec& spec : deployment_.processes) {
      say(fmt::format("starting {} ({}) on {}:{}", spec.name, role_name(spec.role), spec.host, spec.port));
      TANDEM_TRY(start(spec));
    }
    const auto deadline = SteadyClock::now() + options_.ready_timeout;
    while (!stopping_ && !all_ready()) {
      wait_for_events(100ms);
      TANDEM_TRY(check_started());
      if (SteadyClock::now() > deadline) return not_ready_in_time();
    }
    if (!stopping_) announce();
    while (!stopping_) {
      wait_for_events(1s);
      TANDEM_TRY(check_running());
    }
    return {};
  }

  Result<void> start(const ProcessSpec& spec) {
    std::array<int, 2> pipe_ends{};
    if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0)
      return Status(Code::kInternal, fmt::format("{}: pipe: {}", spec.name, std::strerror(errno)));
    // Everything that allocates happens before fork().
    std::vector<char*> arguments{const_cast<char*>(options_.program.c_str())};
    for (const std::string& argument : spec.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    std::vector<std::string> environment_text;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text(*entry);
      if (!spec.environment.contains(text.substr(0, text.find('=')))) environment_text.push_back(text);
    }
    for (const auto& [name, value] : spec.environment) environment_text.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (std::string& text : environment_text) environment.push_back(text.data());
    environment.push_back(nullptr);

    int node = -1;
    if (!spec.node.empty()) {
      TANDEM_ASSIGN(node, network_->open_namespace(spec.node));
    }
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
      close(pipe_ends[0]);
      close(pipe_ends[1]);
      if (node >= 0) close(node);
      return Status(Code::kResourceExhausted, fmt::format("{}: fork: {}", spec.name, std::strerror(errno)));
    }
    if (pid == 0) {
      // Its own group, so that Ctrl-C at the terminal reaches only the launcher, which stops the children in order.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != launcher) _exit(1);
      sigprocmask(SIG_SETMASK, &previous_, nullptr);
      dup2(pipe_ends[1], STDOUT_FILENO);
      dup2(pipe_ends[1], STDERR_FILENO);
      if (node >= 0 && setns(node, CLONE_NEWNET) != 0) {
        dprintf(STDERR_FILENO, "cannot enter the network namespace of %s: %s\n", spec.node.c_str(),
                std::strerror(errno));
        _exit(127);
      }
      execve(options_.program.c_str(), arguments.data(), environment.data());
      dprintf(STDERR_FILENO, "cannot run %s: %s\n", options_.program.c_str(), std::strerror(errno));
      _exit(127);
    }
    close(pipe_ends[1]);
    if (node >= 0) close(node);
    fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
    Child child;
    child.spec = &spec;
    child.pid = pid;
    child.output = pipe_ends[0];
    child.started = SteadyClock::now();
    children_.push_back(std::move(child));
    return {};
  }

  bool all_ready() {
    bool all = true;
    for (Child& child : children_) {
      // A headless node is asked through its first node, which is ready when all are.
      if (child.spec->headless)
        child.ready = true;
      else if (!child.ready && !child.wait_status && answers(*child.spec)) {
        child.ready = true;
        say(fmt::format("{} is ready ({:.1f} s)", child.spec->name,
                        std::chrono::duration<double>(SteadyClock::now() - child.started).count()));
      }
      all = all && child.ready;
    }
    return all;
  }

  Result<void> check_started() {
    for (Child& child : children_) {
      if (!child.wait_status) continue;
      drain(child);
      const std::string last = child.last_lines.empty() ? "it printed nothing" : child.last_lines.back();
      return Status(Code::kUnavailable,
                    fmt::format("{} ({}) could not start: it {}; its last line: {}", child.spec->name,
                                role_name(child.spec->role), describe_end(*child.wait_status), last));
    }
    return {};
  }

  Status not_ready_in_time() const {
    std::vector<std::string> late;
    for (const Child& child : children_)
      if (!child.ready) late.push_back(child.spec->name);
    return Status(Code::kDeadlineExceeded,
                  fmt::format("not ready within {} s: {}", options_.ready_timeout.count(), fmt::join(late, ", ")));
  }

  /// After the start, instances may come and go (the proxy routes round them); the proxy itself may not.
  Result<void> check_running() {
    std::size_t alive = 0;
    for (Child& child : children_) {
      if (!child.wait_status) {
        ++alive;
        continue;
      }
      if (!child.ready) continue;
      child.ready = false;
      const std::string end = describe_end(*child.wait_status);
      if (child.spec->role == Role::kProxy) return Status(Code::kUnavailable, fmt::format("the proxy {}", end));
      say(fmt::format("{} ({}) {}; the others go on without it", child.spec->name, role_name(child.spec->role), end));
    }
    if (alive <= 1) return Status(Code::kUnavailable, "every instance has ended");
    return {};
  }

  void announce() const {
    const ProcessSpec& proxy = deployment_.processes.back();
    const std::string url = fmt::format("{}://{}:{}", proxy.tls ? "https" : "http",
                                        proxy.host == "0.0.0.0" ? "127.0.0.1" : proxy.host, proxy.port);
    say(fmt::format("ready: {}", url));
    say(
        fmt::format("try: curl {}{}/v1/chat/completions -H 'Content-Type: application/json' {}"
                    R"(-d '{{"messages":[{{"role":"user","content":"Hello"}}]}}')",
                    proxy.tls ? "--cacert CA.pem " : "", url, proxy.keys ? "-H 'Authorization: Bearer KEY' " : ""));
    say("stop with Ctrl-C");
  }

  void wait_for_events(std::chrono::milliseconds limit) {
    std::vector<pollfd> waits{{signals_, POLLIN, 0}};
    for (const Child& child : children_)
      if (child.output >= 0) waits.push_back({child.output, POLLIN, 0});
    poll(waits.data(), waits.size(), static_cast<int>(limit.count()));
    for (Child& child : children_) drain(child);
    take_signals();
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (!stopping_) say("stopping");
      hurry_ = stopping_;
      stopping_ = true;
    }
    for (Child& child : children_) {
      int status = 0;
      if (!child.wait_status && waitpid(child.pid, &status, WNOHANG) == child.pid) child.wait_status = status;
    }
  }

  void drain(Child& child) {
    std::array<char, 16384> buffer{};
    while (child.output >= 0) {
      const ssize_t got = read(child.output, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return;  // nothing more for now
      if (got == 0) {
        close(child.output);
        child.output = -1;
        if (!child.partial_line.empty()) print_line(child, child.partial_line);
        child.partial_line.clear();
        return;
      }
      child.partial_line.append(buffer.data(), static_cast<std::size_t>(got));
      std::size_t end = 0;
      while ((end = child.partial_line.find('\n')) != std::string::npos) {
        print_line(child, child.partial_line.substr(0, end));
        child.partial_line.erase(0, end + 1);
      }
      // A line without an end must not grow for ever.
      if (child.partial_line.size() > 65536) {
        print_line(child, child.partial_line);
        child.partial_line.clear();
      }
    }
  }

  void print_line(Child& child, const std::string& line) {
    const auto index = static_cast<std::size_t>(&child - children_.data());
    if (options_.color)
      fmt::print("\033[{}m[{}]\033[0m {}\n", 32 + index % 5, child.spec->name, line);
    else
      fmt::print("[{}] {}\n", child.spec->name, line);
    std::fflush(stdout);
    child.last_lines.push_back(line);
    if (child.last_lines.size() > 20) child.last_lines.pop_front();
  }

  /// Lets the proxy's requests finish while the instances are there; a second signal ends the wait.
  void drain_proxy() {
    constexpr auto kGrace = 5s;  // the proxy keeps to its time; this only guards against one that does not
    Child& proxy = children_.back();
    if (proxy.spec->role != Role::kProxy || proxy.wait_status) return;
    say(fmt::format("running requests have {} s to finish; Ctrl-C again ends them",
                    std::chrono::duration<double>(options_.shutdown_timeout).count()));
    kill(proxy.pid, SIGTERM);
    const auto deadline = SteadyClock::now() + options_.shutdown_timeout + kGrace;
    while (!proxy.wait_status && !hurry_ && SteadyClock::now() < deadline) wait_for_events(50ms);
  }

  bool signal_all(int signal) {
    bool any = false;
    // The proxy first, so that no new request reaches an instance that is leaving.
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      if (child->wait_status) continue;
      kill(child->pid, signal);
      any = true;
    }
    return any;
  }

  void stop_all() {
    if (!signal_all(SIGTERM)) return;
    const auto deadline = SteadyClock::now() + options_.stop_timeout;
    auto running = [&] {
      return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.wait_status; });
    };
    while (running() && SteadyClock::now() < deadline) wait_for_events(50ms);
    if (running()) {
      for (const Child& child : children_)
        if (!child.wait_status)
          say(fmt::format("{} did not stop within {} s; killing it", child.spec->name, options_.stop_timeout.count()));
      signal_all(SIGKILL);
      while (running()) wait_for_events(50ms);
    }
    say("all processes have ended");
  }

  const Deployment& deployment_;
  const LaunchOptions& options_;
  std::unique_ptr<NodeNetwork> network_;
  std::vector<Child> children_;
  sigset_t handled_{};
  sigset_t previous_{};
  int signals_ = -1;
  bool stopping_ = false;
  bool hurry_ = false;  ///< a second signal came
};

}  // namespace

Result<void> run_deployment(const Deployment& deployment, const LaunchOptions& options) {
  return Launcher(deployment, options).run();
}

}  // namespace tandem::cluster
