// SPDX-License-Identifier: Apache-2.0
// `tandem check agent`: answers `tandem check network` from another node, one question a connection. A question is one
// line of JSON with "ask": facts, probes (one line comes back), echo (bytes come back) or sink (bytes are counted).
// It runs hccn_tool with addresses as arguments and connects to peers it is told; it has no password, so it is started
// for a check and ends after its lifetime.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "cluster/line_socket.h"
#include "cluster/node_facts.h"

namespace tandem::cluster {

inline constexpr std::size_t kMaxAgentLine = 64U << 20;

class CheckAgent {
 public:
  /// Serves on threads of its own (at most 16 connections at once) from now on. `tools.stop` is replaced by the agent's
  /// own; the rest of `tools` must outlive it.
  CheckAgent(Listener listener, NodeTools tools);
  /// Ends every connection and joins.
  ~CheckAgent();
  CheckAgent(const CheckAgent&) = delete;
  CheckAgent& operator=(const CheckAgent&) = delete;

  std::uint16_t port() const { return listener_.port(); }

 private:
  struct Session;

  void accept_loop();
  void serve(LineSocket socket);

  Listener listener_;
  NodeTools tools_;
  std::atomic<bool> stop_{false};
  std::thread acceptor_;
};

// What an asker uses.
Result<NodeFacts> ask_facts(const std::string& host, std::uint16_t port, const FactsRequest& request,
                            std::chrono::milliseconds connect_timeout, std::chrono::milliseconds answer_timeout);
Result<NodeProbes> ask_probes(const std::string& host, std::uint16_t port, const ProbesRequest& request,
                              std::chrono::milliseconds connect_timeout, std::chrono::milliseconds answer_timeout);
/// An answer's error, or an answer that is no agent's.
Result<void> check_agent_answer(std::string_view line);
Result<std::uint64_t> read_sink_answer(std::string_view line);

}  // namespace tandem::cluster
