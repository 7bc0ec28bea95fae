// SPDX-License-Identifier: Apache-2.0
// The prefillers and decoders, how loaded the proxy thinks each is (pd_protocol.md 9.3), which failed lately and which
// are silent (instance_watch.h).
// Instances come and go at run time. Load is counted in integers and given back by whoever took it, so that an idle
// proxy shows exactly zero.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

/// Which way KV moves between a prefiller and a decoder.
enum class Connector : std::uint8_t { kPull, kLayerwise };
std::string_view connector_name(Connector connector);  ///< "layerwise"

/// One backend. Used on the proxy's io thread only.
struct Instance {
  Role role = Role::kPrefill;
  std::size_t ordinal = 0;  ///< grows with every instance that is added
  std::string name;         ///< "host:port"
  std::shared_ptr<net::HttpClient> client;

  std::optional<Connector> connector;  ///< nullopt: not known yet, fits any
  bool alone = false;                  ///< one of ours without a connector, and the log says so
  bool is_tandem = false;              ///< answers /tandem/info: honours our error answers
  std::vector<std::string> models;     ///< the names that it serves; empty: not known
  bool look_again = true;              ///< it failed since it was last asked about itself
  bool silent = false;                 ///< it did not answer when it was last asked about itself, and the log says so
  std::string misfit;                  ///< why it cannot have this role, as it says itself: never chosen; empty: it can

  std::int64_t active_tokens = 0;  ///< millionths of a score
  std::int64_t active_kv = 0;      ///< millionths; prefillers only
  int failures_in_a_row = 0;
  TimePoint avoid_until{};      ///< tried last until then
  std::uint64_t last_turn = 0;  ///< which choice of the board it was last; 0: none yet

  bool listed = false;  ///< on the board; only then it has series
  obs::Gauge tokens_gauge, kv_gauge, up_gauge;
  obs::Counter failures;

  /// rc2: active_tokens + 0.3 * active_kv, times ten.
  std::int64_t priority() const { return 10 * active_tokens + 3 * active_kv; }
};

/// "prefiller host:port"
std::string title(const Instance& instance);
/// The same with a problem behind it, which may begin with the name already.
std::string with_problem(const Instance& instance, std::string_view problem);

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

/// What one request has tried, by ordinal.
class Tried {
 public:
  int times(const Instance& instance) const {
    const auto found = times_.find(instance.ordinal);
    return found == times_.end() ? 0 : found->second;
  }
  void count(const Instance& instance) { ++times_[instance.ordinal]; }
  /// It had the request and failed: what brought it down once is not given to it again.
  void spend(const Instance& instance) { times_[instance.ordinal] = kSpent; }
  bool spent(const Instance& instance) const { return times(instance) == kSpent; }

 private:
  static constexpr int kSpent = 1 << 30;
  std::map<std::size_t, int> times_;
};

class InstanceBoard {
 public:
  /// `tls`: for https instances.
  InstanceBoard(const boost::asio::any_io_executor& executor, const config::ProxyConfig& config,
                obs::Registry& registry, std::shared_ptr<boost::asio::ssl::context> tls = nullptr);

  const std::vector<std::shared_ptr<Instance>>& of(Role role) const {
    return role == Role::kPrefill ? prefillers_ : decoders_;
  }
  /// The one to ask: of decoders one whose connector some prefiller has, then not silent first, then least tried by
  /// this request, then not failed lately, then least loaded, then the one that was not chosen for longest, so that
  /// equals take turns. A silent one may be frozen and hold the request until its deadline, so it is the last resort:
  /// those that have no room are asked again before it. Null if the role has none that fits it and whose connector is,
  /// or may be, the one wanted (nullopt: any), or the request has spent them all.
  std::shared_ptr<Instance> best(Role role, std::optional<Connector> wanted, const Tried& tried, TimePoint now) const;
  /// The same, and counts the try and the turn.
  std::shared_ptr<Instance> choose(Role role, std::optional<Connector> wanted, Tried& tried, TimePoint now);

  /// What is wrong with the role's instances that do not fit it; empty if there are none.
  std::string misfits(Role role) const;
  /// Null if the role has no instance of that name; "localhost" and "127.0.0.1" are one.
  std::shared_ptr<Instance> find(Role role, std::string_view name) const;
  /// Whether https instances can be made.
  bool has_tls() const { return tls_ != nullptr; }
  /// Of every instance, if the configuration says so.
  std::optional<Connector> fixed_connector() const { return connector_; }
  /// An instance like those of the configuration, which choose() does not know yet.
  std::shared_ptr<Instance> make(Role role, const net::Endpoint& endpoint);
  void add(std::shared_ptr<Instance> instance);
  /// One that shall be added once it is ready, unless it is removed before.
  void expect(std::shared_ptr<Instance> instance) { expected_.push_back(std::move(instance)); }
  void give_up(const std::shared_ptr<Instance>& instance) { std::erase(expected_, instance); }
  bool expects(const std::shared_ptr<Instance>& instance) const;
  bool expects(Role role, std::string_view name) const;
  /// Not chosen, or expected, from now on, and without series; its requests go on. False if it is not there.
  bool remove(Role role, std::string_view name);

  /// The load of a request whose body has this many bytes.
  static LoadShare take_prefill(const std::shared_ptr<Instance>& instance, std::size_t body_bytes);
  static LoadShare take_decode(const std::shared_ptr<Instance>& instance, std::size_t body_bytes);

  /// Unreachable, broken or 5xx: avoided for a second, doubling to thirty. Overload (429, 503) is no failure.
  static void failed(Instance& instance, TimePoint now);
  static void succeeded(Instance& instance);
  /// Shows whether it answers, fits its role and is not avoided now.
  static void publish_up(Instance& instance, TimePoint now);

 private:
  void make_series(Instance& instance);
  bool has_prefiller(const Instance& decoder) const;

  boost::asio::any_io_executor executor_;
  obs::Registry& registry_;
  std::shared_ptr<boost::asio::ssl::context> tls_;
  std::optional<Connector> connector_;
  std::size_t next_ordinal_ = 0;
  std::uint64_t turn_ = 0;
  std::vector<std::shared_ptr<Instance>> prefillers_, decoders_, expected_;
};

}  // namespace tandem::proxy
