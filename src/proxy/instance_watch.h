// SPDX-License-Identifier: Apache-2.0
// What instances say of themselves: GET /tandem/info tells which connector an instance of ours runs, and in which role.
// Asked at the start, after a failure, and all the time: one that does not answer is silent, which the board avoids.
// Foreign instances answer 404, which is an answer, and are taken for what --connector says, or for pull.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/proxy_config.h"
#include "net/cancel.h"
#include "net/http_server.h"
#include "proxy/instance_board.h"

namespace tandem::proxy {

/// What an instance, or another proxy, says of itself.
struct InstanceInfo {
  std::string kv_connector;  ///< empty: it has none
  std::string kv_role;       ///< empty: it has no connector
  bool is_proxy = false;     ///< nothing that could prefill or decode for us

  /// Reads {"kv_connector": ..., "kv_role": ..., "proxy": ...}. An error if it is no such object.
  static Result<InstanceInfo> parse(std::string_view body);
  Connector connector() const;
  /// Why it cannot be a prefiller or a decoder of a proxy with that --connector (nullopt: auto); empty if it can.
  std::string misfit(Role role, std::optional<Connector> wanted) const;
};

/// The names in the answer to GET /v1/models; none if it is no such answer.
std::vector<std::string> served_models(std::string_view body);

/// Used on the proxy's io thread only.
class InstanceWatch {
 public:
  InstanceWatch(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                const InstanceBoard& board);

  /// Begins with all instances of the board.
  void start();
  /// Begins with one that was added later.
  void add(std::shared_ptr<Instance> instance);
  void stop() { stopped_.cancel(); }
  /// Whether something still runs after stop().
  bool active() const { return num_watched_ > 0; }

  /// Until every instance of the start was asked once, 1.5 s at most.
  net::Task<void> ready();
  /// Asks one now. Of one that does not answer it learns only that.
  net::Task<void> look(std::shared_ptr<Instance> instance);

 private:
  void learn(Instance& instance, const InstanceInfo& info);
  void fell_silent(Instance& instance, std::string_view problem);
  net::Task<void> ask_models(std::shared_ptr<Instance> instance);
  net::Task<void> watch(std::shared_ptr<Instance> instance, bool first);

  boost::asio::any_io_executor executor_;
  const config::ProxyConfig& config_;
  const InstanceBoard& board_;
  net::Cancel stopped_;
  boost::asio::steady_timer first_looks_;  ///< ends when all have been asked once
  TimePoint ready_at_{};
  int num_unasked_ = 0;
  int num_watched_ = 0;
};

}  // namespace tandem::proxy
