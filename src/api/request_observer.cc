// SPDX-License-Identifier: Apache-2.0
#include "api/request_observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "net/access_log.h"

namespace tandem::api {
namespace {

constexpr std::string_view kNotMeasured[] = {"/metrics", "/metrics/", "/health",     "/ping",
                                             "/load",    "/version",  "/server_info"};
constexpr std::string_view kMethods[] = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"};

class HttpMetrics {
 public:
  HttpMetrics(obs::Registry& registry, std::string root_path)
      : registry_(registry),
        root_path_(std::move(root_path)),
        latency_(registry.histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations.",
            {0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0,  1.5, 2.0,
             2.5,  3.0,   3.5,  4.0,   4.5, 5.0,  7.5, 10.0, 30.0, 60.0},
            {}, false)) {}

  void add(const net::RequestReport& report) {
    std::string_view handler = report.route;
    if (!root_path_.empty() && handler.starts_with(root_path_)) handler.remove_prefix(root_path_.size());
    if (std::find(std::begin(kNotMeasured), std::end(kNotMeasured), handler) != std::end(kNotMeasured)) return;
    // Nobody may make labels of his own.
    const auto* method = std::find(std::begin(kMethods), std::end(kMethods), report.request.method);
    Series& series = series_of(handler.empty() ? "none" : handler, method == std::end(kMethods) ? "other" : *method);
    latency_.observe(report.seconds);
    series.seconds.observe(report.seconds);
    series.request_bytes.observe(static_cast<double>(report.request.body.size()));
    series.response_bytes.observe(static_cast<double>(report.response_bytes));
    // A client that left before its answer got no status; the instrumentation calls that a failure of the server.
    const int status_class = report.status == 0 ? 5 : std::clamp(report.status / 100, 2, 5);
    series.by_status[static_cast<std::size_t>(status_class) - 2].add();
  }

 private:
  struct Series {
    std::array<obs::Counter, 4> by_status;  ///< 2xx to 5xx
    obs::Histogram seconds;
    obs::Summary request_bytes, response_bytes;
  };

  Series& series_of(std::string_view handler, std::string_view method) {
    const std::pair<std::string, std::string> key(handler, method);
    const auto known = series_.find(key);
    if (known != series_.end()) return known->second;
    const obs::Labels by_handler{{"handler", key.first}};
    const obs::Labels labels{{"handler", key.first}, {"method", key.second}};
    Series made;
    for (std::size_t i = 0; i < made.by_status.size(); ++i) {
      obs::Labels with_status = labels;
      with_status.emplace("status", fmt::format("{}xx", i + 2));
      made.by_status[i] =
          registry_.counter("http_requests_total", "Total number of requests by method, status and handler.",
                            std::move(with_status), false);
    }
    made.seconds = registry_.histogram("http_request_duration_seconds",
                                       "Latency with only few buckets by handler. Made to be only used if aggregation "
                                       "by handler is important.",
                                       {0.1, 0.5, 1.0}, labels, false);
    made.request_bytes = registry_.summary("http_request_size_bytes", "Content length of incoming requests by handler.",
                                           by_handler, false);
    made.response_bytes = registry_.summary("http_response_size_bytes",
                                            "Content length of outgoing responses by handler.", by_handler, false);
    return series_.emplace(key, made).first->second;
  }

  obs::Registry& registry_;
  std::string root_path_;
  obs::Histogram latency_;
  std::map<std::pair<std::string, std::string>, Series> series_;
};

}  // namespace

net::ServerObserver make_request_observer(const config::ServeConfig& config, obs::Registry& registry) {
  net::ServerObserver observer;
  if (config.access_log) {
    observer.answered = [](const net::HttpRequest& request, std::string_view version, int status) {
      // Our proxies ask this every ten seconds.
      if (request.path != "/tandem/info" || status != 200) net::log_answered(request, version, status);
    };
  }
  const auto metrics = std::make_shared<HttpMetrics>(registry, config.root_path);
  observer.over = [metrics](const net::RequestReport& report) { metrics->add(report); };
  return observer;
}

}  // namespace tandem::api
