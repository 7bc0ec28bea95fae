// SPDX-License-Identifier: Apache-2.0
// `tandem serve`. Ports are taken first, then the model is loaded on a thread of its own while the main thread waits
// for signals, then the server accepts. One thread (this one) does all HTTP.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "api/service.h"
#include "app/commands.h"
#include "app/instance.h"
#include "app/port_reservation.h"
#include "app/rank_place.h"
#include "base/log.h"
#include "net/http_server.h"
#include "net/tls.h"

namespace tandem::app {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kDrain{3000};  // for answers that are being written when we stop
constexpr std::chrono::milliseconds kDrainLook{20};
constexpr std::chrono::seconds kHealthInterval{1};
constexpr std::chrono::seconds kDeadEngineGrace{4};  // clients see their errors before the process goes
constexpr std::size_t kMaxBodyBytes = 64U << 20;

class ServeSession {
 public:
  explicit ServeSession(const config::ServeConfig& config)
      : config_(config), signals_(io_, SIGINT, SIGTERM), health_(io_), drain_(io_) {}
  ~ServeSession() {
    if (loader_.joinable()) loader_.join();
    if (stopper_.joinable()) stopper_.join();
  }
  ServeSession(const ServeSession&) = delete;
  ServeSession& operator=(const ServeSession&) = delete;

  Result<void> run() {
    TANDEM_TRY(reserve_ports());
    make_server();
    TANDEM_TRY(answer_while_loading());
    wait_for_signal();
    loader_ = std::thread([this] { load(); });
    io_.run();
    if (loader_.joinable()) loader_.join();
    if (stopper_.joinable()) stopper_.join();
    {
      const std::scoped_lock lock(news_->mutex);
      news_->over = true;
    }
    service_.reset();
    server_.reset();
    return outcome_;
  }

 private:
  Result<void> reserve_ports() {
    if (config_.uds.empty()) {
      auto http = PortReservation::reserve(config_.host, config_.port);
      // Nobody but the first process asks for the port of another one, and it is told which it is.
      if (!http && config_.data_parallel.headless) http = PortReservation::reserve(config_.host, 0);
      if (!http) return http.error();
      http_port_.emplace(std::move(*http));
    }
    if (!config_.kv_transfer || !config_.kv_transfer->listens() || config_.kv_transfer->port == 0) return {};
    const config::KvTransferConfig& kv = *config_.kv_transfer;
    const std::string host = kv.bind_host.empty() ? advertised_host(config_) : kv.bind_host;
    // As in vLLM-Ascend an instance owns one port a rank from kv_port on, although one is enough to serve them all: a
    // deployment that is laid out too tightly is told now, and not by the other program.
    const int first = config_.data_parallel.start_rank * config_.tensor_parallel_size;
    const int end = first + config_.data_parallel.local * config_.tensor_parallel_size;
    for (int rank = first; rank < end; ++rank) {
      auto port = PortReservation::reserve(host, static_cast<std::uint16_t>(kv.port + rank));
      if (!port)
        return port.error().context(
            fmt::format("kv_port {} (rank {}), at the address of VLLM_HOST_IP, HCCL_IF_IP or --host", kv.port, rank));
      kv_ports_.push_back(std::move(*port));
    }
    return {};
  }

  void make_server() {
    net::ServerLimits limits;
    limits.max_body_bytes = kMaxBodyBytes;
    limits.keep_alive_timeout = config_.keep_alive;
    server_ = net::HttpServer::create(io_.get_executor(), limits);
  }

  /// The first of several processes waits for the others, perhaps for long: it says so to whoever asks.
  Result<void> answer_while_loading() {
    if (config_.data_parallel.one_process() || config_.data_parallel.headless) return {};
    api::install_starting(*server_, config_, [this] {
      const auto processes = this->processes();
      if (!processes) return std::string("the model is being opened");
      const Status complete = processes->cluster().complete();
      return complete.ok() ? std::string("warming up") : complete.message();
    });
    return listen();
  }

  Result<void> listen() {
    const config::ServerTls& tls = config_.tls;
    if (tls.on() && !config_.data_parallel.headless) {
      TANDEM_TRY(server_->use_tls(
          {tls.certfile, tls.keyfile, tls.cert_reqs > 0 ? tls.ca_certs : "", tls.cert_reqs == 2, tls.ciphers}));
    }
    listening_ = true;
    if (!config_.uds.empty()) return server_->listen_unix(config_.uds);
    TANDEM_ASSIGN(listening_port_, server_->listen(config_.host, http_port_->port()));
    http_port_->release();
    return {};
  }

  std::shared_ptr<Processes> processes() {
    const std::scoped_lock lock(processes_mutex_);
    return processes_;
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      if (!ready_ || stopping_ || drain_until_) {
        // Loading cannot be interrupted, and who asks twice does not want to wait. The kernel frees all we hold.
        log::info("stopped by signal {}", number);
        std::_Exit(ready_ ? 1 : 0);
      }
      log::info("stopping on signal {}", number);
      if (config_.shutdown_timeout.count() > 0)
        begin_drain();
      else
        begin_stop();
      wait_for_signal();
    });
  }

  void begin_drain() {
    log::info("running requests have {} s to finish; a second signal ends them",
              std::chrono::duration<double>(config_.shutdown_timeout).count());
    service_->begin_drain();
    drain_until_ = std::chrono::steady_clock::now() + config_.shutdown_timeout;
    watch_drain();
  }

  /// Until nothing is left to wait for. Of an instance over several processes only the first one knows all requests, so
  /// that one is to be stopped before the others.
  void watch_drain() {
    drain_.expires_after(kDrainLook);
    drain_.async_wait([this](const boost::system::error_code& error) {
      if (error || stopping_) return;
      if (service_->drained()) {
        begin_stop();
      } else if (std::chrono::steady_clock::now() >= *drain_until_) {
        log::warning("--shutdown-timeout is over: what still runs is ended");
        begin_stop();
      } else {
        watch_drain();
      }
    });
  }

  /// On the loader's thread.
  void load() {
    Instance::Hooks hooks;
    hooks.before_transfer = [this] { kv_ports_.clear(); };
    hooks.on_processes = [this](std::shared_ptr<Processes> processes) {
      const std::scoped_lock lock(processes_mutex_);
      processes_ = std::move(processes);
    };
    hooks.processes_changed = [this, news = news_] {
      const std::scoped_lock lock(news->mutex);
      if (news->over) return;
      asio::post(io_, [this] {
        if (service_) service_->instance_changed();
      });
    };
    hooks.http_port = http_port_ ? http_port_->port() : 0;
    auto instance = Instance::load(config_, hooks);
    auto loaded = std::make_shared<Result<std::unique_ptr<Instance>>>(std::move(instance));
    asio::post(io_, [this, loaded] { on_loaded(std::move(*loaded)); });
  }

  void on_loaded(Result<std::unique_ptr<Instance>> loaded) {
    if (!loaded) {
      fail(loaded.error());
      return;
    }
    instance_ = std::move(*loaded);
    service_.emplace(config_, instance_->service_parts());
    service_->install(*server_);
    if (!listening_) {
      if (const auto listening = listen(); !listening) {
        fail(listening.error());
        return;
      }
    }
    if (instance_->processes()) instance_->processes()->cluster().serving();
    ready_ = true;
    watch_health();
    const bool headless = config_.data_parallel.headless;
    const std::string host = config_.host.empty() ? "0.0.0.0" : config_.host;
    if (headless) {
      log::info("Starting Tandem internal API server on http://{}:{}", host, listening_port_);
    } else {
      // Scripts look for these lines, so they are vLLM's.
      const std::string where =
          config_.uds.empty() ? fmt::format("{}://{}:{}", config_.tls.on() ? "https" : "http", host, listening_port_)
                              : "unix:" + config_.uds;
      log::info("Starting vLLM API server 0 on {}", where);
      service_->log_routes();
    }
    log::info("Application startup complete.");
  }

  /// The process goes a few seconds after its engine: whoever watches it can start another one.
  void watch_health() {
    health_.expires_after(kHealthInterval);
    health_.async_wait([this](const boost::system::error_code& error) {
      if (error || stopping_) return;
      const auto now = std::chrono::steady_clock::now();
      if (instance_->processes() && !instance_->processes()->cluster().failure().ok()) {
        outcome_ = instance_->processes()->cluster().failure();
        begin_stop();
        return;
      }
      if (instance_->engine().healthy()) {
        sick_since_.reset();
      } else if (!sick_since_) {
        sick_since_ = now;
      } else if (now - *sick_since_ >= kDeadEngineGrace && !config_.keep_alive_on_engine_death) {
        outcome_ = Status(Code::kInternal, "the engine is dead; its log says why", Scope::kProcess);
        begin_stop();
        return;
      }
      watch_health();
    });
  }

  void fail(const Status& error) {
    outcome_ = error;
    io_.stop();
  }

  /// The engine aborts its requests on another thread, while this one still sends their last words.
  void begin_stop() {
    stopping_ = true;
    health_.cancel();
    drain_.cancel();
    stopper_ = std::thread([this] { instance_->stop(); });
    asio::co_spawn(io_, server_->stop(kDrain), [this](const std::exception_ptr&) { io_.stop(); });
  }

  /// The links between processes live as long as the instance, longer than io_.
  struct News {
    std::mutex mutex;
    bool over = false;  // guarded by mutex: nobody may post any more
  };

  const config::ServeConfig& config_;
  const std::shared_ptr<News> news_ = std::make_shared<News>();
  std::unique_ptr<Instance> instance_;  // before io_: suspended handlers, which use the engine, die with io_
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::steady_timer health_;
  asio::steady_timer drain_;
  std::optional<PortReservation> http_port_;
  std::vector<PortReservation> kv_ports_;
  std::unique_ptr<net::HttpServer> server_;
  std::optional<api::Service> service_;
  std::mutex processes_mutex_;
  std::shared_ptr<Processes> processes_;  // guarded by processes_mutex_
  std::uint16_t listening_port_ = 0;      ///< 0: not yet, or on a Unix socket
  bool listening_ = false;
  std::thread loader_;
  std::thread stopper_;
  std::optional<std::chrono::steady_clock::time_point> sick_since_;
  std::optional<std::chrono::steady_clock::time_point> drain_until_;  ///< set: running requests may finish until then
  bool ready_ = false;
  bool stopping_ = false;
  Result<void> outcome_;
};

}  // namespace

Result<void> run_serve(const config::ServeConfig& config) {
  config::ServeConfig placed = config;
  if (placed.advertised_host.empty() && !placed.advertised_interface.empty()) {
    auto address = interface_address(placed.advertised_interface);
    if (!address) return address.error().context("HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME or TP_SOCKET_IFNAME");
    placed.advertised_host = std::move(*address);
  }
  if (placed.kv_transfer && placed.kv_transfer->kind == config::KvConnector::kRankTable)
    TANDEM_TRY(take_place_in_rank_table(placed, host_addresses()));
  return ServeSession(placed).run();
}

}  // namespace tandem::app
