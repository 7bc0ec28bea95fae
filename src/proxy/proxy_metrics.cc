// SPDX-License-Identifier: Apache-2.0
#include "proxy/proxy_metrics.h"

namespace tandem::proxy {
namespace {

const std::vector<double>& second_buckets() {
  static const std::vector<double> buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                              0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 120.0};
  return buckets;
}

obs::Counter retries(obs::Registry& registry, std::string stage) {
  return registry.counter("tandem:proxy_retries_total", "Attempts after the first one, by stage.",
                          {{"stage", std::move(stage)}});
}

obs::Counter releases(obs::Registry& registry, std::string result) {
  return registry.counter("tandem:proxy_releases_total",
                          "Leases of prefillers given back because no decoder will take the KV.",
                          {{"result", std::move(result)}});
}

obs::Counter metaserver_posts(obs::Registry& registry, int status) {
  return registry.counter("tandem:proxy_metaserver_posts_total", "Posts of decoders to /v1/metaserver, by status.",
                          {{"status", std::to_string(status)}});
}

}  // namespace

ProxyMetrics::ProxyMetrics(obs::Registry& owner)
    : registry(owner),
      inflight(owner.gauge("tandem:proxy_inflight_requests", "Requests between their arrival and their end.")),
      prefill_retries(retries(owner, "prefill")),
      decode_retries(retries(owner, "decode")),
      stream_resumes(owner.counter("tandem:proxy_stream_resumes_total",
                                   "Streams whose decoder broke off and that another one was to go on with.")),
      local_prefills(
          owner.counter("tandem:proxy_local_prefills_total",
                        "Requests whose decoder got no KV from a prefiller: it prefilled or had it cached.")),
      releases_ok(releases(owner, "ok")),
      releases_unsupported(releases(owner, "unsupported")),
      releases_failed(releases(owner, "failed")),
      prefill_seconds(owner.histogram("tandem:proxy_prefill_seconds", "From asking a prefiller to its whole answer.",
                                      second_buckets())),
      first_byte_seconds(owner.histogram("tandem:proxy_time_to_first_byte_seconds",
                                         "From a request's arrival to the first byte of its answer.",
                                         second_buckets())) {
  for (const char* endpoint : {"/v1/completions", "/v1/chat/completions"}) {
    for (const char* outcome : {"2xx", "4xx", "5xx", "client_gone", "broken"}) {
      (void)registry.counter("tandem:proxy_requests_total", "Requests by endpoint and outcome.",
                             {{"endpoint", endpoint}, {"outcome", outcome}});
    }
  }
  for (const int status : {200, 404, 502}) (void)metaserver_posts(registry, status);
}

void ProxyMetrics::count_request(std::string_view endpoint, std::string_view outcome) {
  registry
      .counter("tandem:proxy_requests_total", "Requests by endpoint and outcome.",
               {{"endpoint", std::string(endpoint)}, {"outcome", std::string(outcome)}})
      .add();
}

void ProxyMetrics::count_metaserver_post(int status) { metaserver_posts(registry, status).add(); }

std::string_view status_class(int status) {
  if (status < 300) return "2xx";
  if (status < 400) return "3xx";
  return status < 500 ? "4xx" : "5xx";
}

}  // namespace tandem::proxy
