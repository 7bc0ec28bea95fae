// SPDX-License-Identifier: Apache-2.0
#include "proxy/lease_release.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/log.h"

namespace tandem::proxy {
namespace {

constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
constexpr int kTries = 4;
constexpr std::chrono::milliseconds kFirstPause{50};

net::ClientTimeouts release_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.connect = std::chrono::seconds(1);
  timeouts.head = std::chrono::seconds(2);
  timeouts.idle = std::chrono::seconds(1);
  timeouts.total = std::chrono::seconds(3);
  return timeouts;
}

/// Lets a stopping proxy wait for what is being said.
class Counted {
 public:
  explicit Counted(int& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& count_;
};

net::Task<int> post_release(std::shared_ptr<Instance> prefiller, net::ClientRequest request, std::string& problem) {
  auto response = co_await prefiller->client->send(std::move(request), release_timeouts(), net::Cancel());
  if (!response) {
    problem = response.error().message();
    co_return 0;
  }
  const int status = (*response)->status();
  (void)co_await (*response)->read_all(64U << 10);  // so that the connection can be used again
  if (status >= 300) problem = fmt::format("status {}", status);
  co_return status;
}

net::Task<void> release_lease(std::shared_ptr<ProxyContext> context, std::shared_ptr<Instance> prefiller,
                              std::string params, net::Headers headers) {
  const Counted counted(context->releases_in_flight);
  boost::asio::steady_timer pause(context->executor);
  std::string problem;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    net::ClientRequest request("POST", "/tandem/release");
    request.headers = headers;
    request.body = params.empty() ? "{}" : fmt::format(R"({{"kv_transfer_params":{}}})", params);
    const int status = co_await post_release(prefiller, std::move(request), problem);
    if (status >= 200 && status < 300) {
      context->metrics.releases_ok.add();
      co_return;
    }
    if (status == 404 || status == 405 || status == 501) {
      context->metrics.releases_unsupported.add();
      co_return;
    }
    if (status >= 400 && status < 500) break;  // it will not like it any better the next time
    pause.expires_after(kFirstPause * (1 << attempt));
    co_await pause.async_wait(kAwait);
  }
  context->metrics.releases_failed.add();
  log::warning("prefiller {} could not be told to release a request's KV ({}); it is freed when its lease ends",
               prefiller->name, problem);
}

}  // namespace

PrefillLease::PrefillLease(std::shared_ptr<ProxyContext> context, std::shared_ptr<Instance> prefiller,
                           std::string params, net::Headers headers)
    : context_(std::move(context)),
      prefiller_(std::move(prefiller)),
      params_(std::move(params)),
      headers_(std::move(headers)) {}

PrefillLease& PrefillLease::operator=(PrefillLease&& other) noexcept {
  if (this != &other) {
    release();
    context_ = std::move(other.context_);
    prefiller_ = std::move(other.prefiller_);
    params_ = std::move(other.params_);
    headers_ = std::move(other.headers_);
  }
  return *this;
}

void PrefillLease::release() {
  if (!prefiller_) return;
  boost::asio::co_spawn(
      context_->executor,
      release_lease(context_, std::exchange(prefiller_, nullptr), std::move(params_), std::move(headers_)),
      boost::asio::detached);
}

}  // namespace tandem::proxy
