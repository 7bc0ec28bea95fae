// SPDX-License-Identifier: Apache-2.0
// What instances say of themselves: GET /tandem/info tells which connector an instance of ours runs, and in which role.
// Asked at the start, after a failure until it answers, and now and then. Foreign instances answer 404 and are taken
// for pull. With --connector pull nobody is asked.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/proxy_config.h"
#include "net/cancel.h"
#include "net/http_server.h"
#include "proxy/instance_board.h"

namespace tandem::proxy {

/// What an instance, or another proxy, says of itself.
struct InstanceInfo {
  Connector connector = Connector::kPull;
  std::string kv_role;    ///< empty: it has no connector
  bool is_proxy = false;  ///< nothing that could prefill or decode for us

  /// Reads {"kv_connector": ..., "kv_role": ..., "proxy": ...}. An error if it is no such object.
  static Result<InstanceInfo> parse(std::string_view body);
  /// Why it cannot be a prefiller or a decoder; empty if it can.
  std::string misfit(Role role) const;
};

/// Used on the proxy's io thread only.
class InstanceWatch {
 public:
  InstanceWatch(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config, InstanceBoard& board);

  /// Begins with all instances of the board.
  void start();
  /// Begins with one that was added later.
  void add(std::shared_ptr<Instance> instance);
  void stop() { stopped_.cancel(); }
  /// Whether something still runs after stop().
  bool active() const { return num_watched_ > 0; }

  /// Until every instance of the start was asked once, 1.5 s at most.
  net::Task<void> ready();
  /// Asks one now. Learns nothing from one that cannot be reached.
  net::Task<void> look(std::shared_ptr<Instance> instance);

 private:
  void learn(Instance& instance, const InstanceInfo& info);
  net::Task<void> watch(std::shared_ptr<Instance> instance, bool first);

  boost::asio::any_io_executor executor_;
  const config::ProxyConfig& config_;
  InstanceBoard& board_;
  net::Cancel stopped_;
  boost::asio::steady_timer first_looks_;  ///< ends when all have been asked once
  TimePoint ready_at_{};
  int num_unasked_ = 0;
  int num_watched_ = 0;
};

}  // namespace tandem::proxy
