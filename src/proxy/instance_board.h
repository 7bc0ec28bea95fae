// SPDX-License-Identifier: Apache-2.0
// The prefillers and decoders, how loaded the proxy thinks each is (pd_protocol.md 9.3) and which failed lately.
// Load is counted in integers and given back by whoever took it, so that an idle proxy shows exactly zero.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "config/proxy_config.h"
#include "net/http_client.h"
#include "obs/metrics.h"

namespace tandem::proxy {

enum class Role : std::uint8_t { kPrefill, kDecode };
std::string_view role_name(Role role);  ///< "prefill"

/// One backend. Used on the proxy's io thread only.
struct Instance {
  Role role = Role::kPrefill;
  std::size_t index = 0;  ///< position in the configuration
  std::string name;       ///< "host:port"
  std::shared_ptr<net::HttpClient> client;

  std::int64_t active_tokens = 0;  ///< millionths of a score
  std::int64_t active_kv = 0;      ///< millionths; prefillers only
  int failures_in_a_row = 0;
  TimePoint avoid_until{};  ///< tried last until then

  obs::Gauge tokens_gauge, kv_gauge, up_gauge;
  obs::Counter failures;

  /// rc2: active_tokens + 0.3 * active_kv, times ten.
  std::int64_t priority() const { return 10 * active_tokens + 3 * active_kv; }
};

/// A claim on an instance's scores. Moves only; gives back what is left of it when destroyed.
class LoadShare {
 public:
  LoadShare() {}
  LoadShare(std::shared_ptr<Instance> instance, std::int64_t tokens, std::int64_t kv);
  LoadShare(LoadShare&& other) noexcept { swap(other); }
  LoadShare& operator=(LoadShare&& other) noexcept {
    LoadShare moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~LoadShare() {
    release_tokens();
    release_kv();
  }
  void release_tokens();
  void release_kv();

 private:
  void swap(LoadShare& other) noexcept;
  void publish() const;

  std::shared_ptr<Instance> instance_;
  std::int64_t tokens_ = 0;
  std::int64_t kv_ = 0;
};

/// How often this request has tried each instance of one role.
using Tried = std::vector<int>;

class InstanceBoard {
 public:
  InstanceBoard(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                obs::Registry& registry);

  const std::vector<std::shared_ptr<Instance>>& of(Role role) const {
    return role == Role::kPrefill ? prefillers_ : decoders_;
  }
  /// The one to ask: least tried by this request first, then not failed lately, then least loaded, then configured
  /// first. Null if the role has no instance. Counts the try.
  std::shared_ptr<Instance> choose(Role role, Tried& tried, TimePoint now) const;

  /// The load of a request whose body has this many bytes.
  static LoadShare take_prefill(const std::shared_ptr<Instance>& instance, std::size_t body_bytes);
  static LoadShare take_decode(const std::shared_ptr<Instance>& instance, std::size_t body_bytes);

  /// Unreachable, broken or 5xx: avoided for a second, doubling to thirty. Overload (503) is no failure.
  static void failed(Instance& instance, TimePoint now);
  static void succeeded(Instance& instance);

 private:
  std::vector<std::shared_ptr<Instance>> prefillers_, decoders_;
};

}  // namespace tandem::proxy
