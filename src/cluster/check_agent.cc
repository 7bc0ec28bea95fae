// SPDX-License-Identifier: Apache-2.0
#include "cluster/check_agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <list>

#include "base/json.h"

namespace tandem::cluster {
namespace {

namespace json = boost::json;
using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxSessions = 16;
constexpr std::size_t kMaxQuestion = 1U << 20;
constexpr milliseconds kQuestionTime{10'000};
constexpr milliseconds kMeasureTime{60'000};
constexpr std::string_view kMark = "tandem_check";  // in every answer, with the version of this protocol

std::string line_of(json::object object) {
  object[kMark] = 1;
  return std::string(json::serialize(object)) + "\n";
}

std::string error_line(const Status& status) { return line_of({{"error", status.message()}}); }

Result<json::object> parse_line(std::string_view line) {
  TANDEM_ASSIGN(json::value value, parse_json(line, JsonLimits{.max_depth = 16, .max_bytes = kMaxAgentLine}));
  if (!value.is_object()) return Status(Code::kInvalidArgument, "expected one JSON object a line");
  return std::move(value.get_object());
}

Result<json::object> parse_answer(std::string_view line) {
  const std::string beginning(line.substr(0, 60));
  auto object = parse_line(line);
  if (!object || !object->contains(kMark))
    return Status(Code::kFailedPrecondition,
                  fmt::format("something else than a tandem check agent answers there: '{}'", beginning), Scope::kPeer);
  TANDEM_ASSIGN(const auto error, json_string(*object, "error"));
  if (error) return Status(Code::kUnavailable, fmt::format("the agent answered: {}", *error), Scope::kPeer);
  return std::move(*object);
}

void echo(LineSocket& socket, TimePoint deadline) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto got = socket.receive(buffer.data(), buffer.size(), deadline);
    if (!got || *got == 0) return;
    if (!socket.send(std::string_view(buffer.data(), *got), deadline)) return;
  }
}

void sink(LineSocket& socket, TimePoint deadline) {
  std::vector<char> buffer(1U << 18);
  std::uint64_t bytes = 0;
  for (;;) {
    const auto got = socket.receive(buffer.data(), buffer.size(), deadline);
    if (!got) return;
    if (*got == 0) break;
    bytes += *got;
  }
  (void)socket.send(line_of({{"bytes", bytes}}), deadline);  // a peer that is gone needs no answer
}

Result<std::string> answer_of(const json::object& question, std::string_view ask, const NodeTools& tools) {
  if (ask == "facts") {
    TANDEM_ASSIGN(const FactsRequest request, read_facts_request(question));
    return line_of(facts_json(collect_facts(request, tools)));
  }
  if (ask == "probes") {
    TANDEM_ASSIGN(const ProbesRequest request, read_probes_request(question));
    return line_of(probes_json(collect_probes(request, tools)));
  }
  if (ask == "echo" || ask == "sink") return line_of({});
  return Status(Code::kInvalidArgument, "ask: expected facts, probes, echo or sink");
}

Result<json::object> exchange(const std::string& host, std::uint16_t port, const json::object& question,
                              milliseconds connect_timeout, milliseconds answer_timeout) {
  const TimePoint connected_by = Steady::now() + connect_timeout;
  TANDEM_ASSIGN(LineSocket socket, LineSocket::connect(host, port, connected_by));
  TANDEM_TRY(socket.send(std::string(json::serialize(question)) + "\n", connected_by));
  auto line = socket.receive_line(kMaxAgentLine, Steady::now() + answer_timeout);
  if (!line) return line.error().context(fmt::format("agent {}:{}", host, port));
  auto answer = parse_answer(*line);
  if (!answer) return answer.error().context(fmt::format("agent {}:{}", host, port));
  return answer;
}

}  // namespace

/// One connection's thread.
struct CheckAgent::Session {
  std::atomic<bool> done{false};
  std::thread thread;
};

CheckAgent::CheckAgent(Listener listener, NodeTools tools) : listener_(std::move(listener)), tools_(std::move(tools)) {
  tools_.stop = &stop_;
  acceptor_ = std::thread([this] { accept_loop(); });
}

CheckAgent::~CheckAgent() {
  stop_ = true;
  acceptor_.join();
}

void CheckAgent::accept_loop() {
  std::list<Session> sessions;
  auto reap = [&](bool all) {
    for (auto it = sessions.begin(); it != sessions.end();) {
      if (!all && !it->done) {
        ++it;
        continue;
      }
      it->thread.join();
      it = sessions.erase(it);
    }
  };
  while (!stop_) {
    const int fd = listener_.accept(milliseconds(100));
    reap(false);
    if (fd < 0) continue;
    LineSocket socket(fd, &stop_);
    if (sessions.size() >= kMaxSessions) {
      const Status busy(Code::kResourceExhausted, "the agent has no room for another connection; try again later");
      (void)socket.send(error_line(busy), Steady::now() + milliseconds(100));
      continue;
    }
    Session& session = sessions.emplace_back();
    session.thread = std::thread([this, &session, moved = std::move(socket)]() mutable {
      serve(std::move(moved));
      session.done = true;
    });
  }
  reap(true);
}

void CheckAgent::serve(LineSocket socket) {
  const auto line = socket.receive_line(kMaxQuestion, Steady::now() + kQuestionTime);
  // A connection without a question is a connect probe.
  if (!line) return;
  const auto question = parse_line(*line);
  const auto ask = question ? json_string(*question, "ask") : Result<std::optional<std::string>>(question.error());
  const std::string name = ask ? ask->value_or("") : "";
  const auto answer = ask ? answer_of(*question, name, tools_) : Result<std::string>(ask.error());
  const TimePoint deadline = Steady::now() + kMeasureTime;
  if (!socket.send(answer ? *answer : error_line(answer.error()), deadline) || !answer) return;
  if (name == "echo") echo(socket, deadline);
  if (name == "sink") sink(socket, deadline);
}

Result<NodeFacts> ask_facts(const std::string& host, std::uint16_t port, const FactsRequest& request,
                            milliseconds connect_timeout, milliseconds answer_timeout) {
  TANDEM_ASSIGN(const json::object answer,
                exchange(host, port, facts_request_json(request), connect_timeout, answer_timeout));
  auto facts = read_facts(answer);
  if (!facts) return facts.error().context(fmt::format("facts of agent {}:{}", host, port));
  return facts;
}

Result<NodeProbes> ask_probes(const std::string& host, std::uint16_t port, const ProbesRequest& request,
                              milliseconds connect_timeout, milliseconds answer_timeout) {
  TANDEM_ASSIGN(const json::object answer,
                exchange(host, port, probes_request_json(request), connect_timeout, answer_timeout));
  auto probes = read_probes(answer);
  if (!probes) return probes.error().context(fmt::format("probes of agent {}:{}", host, port));
  return probes;
}

Result<void> check_agent_answer(std::string_view line) {
  TANDEM_TRY(parse_answer(line));
  return {};
}

Result<std::uint64_t> read_sink_answer(std::string_view line) {
  TANDEM_ASSIGN(const json::object answer, parse_answer(line));
  TANDEM_ASSIGN(const auto bytes, json_int(answer, "bytes"));
  if (!bytes || *bytes < 0)
    return Status(Code::kInvalidArgument, "bytes: expected how many bytes arrived", Scope::kPeer);
  return static_cast<std::uint64_t>(*bytes);
}

}  // namespace tandem::cluster
