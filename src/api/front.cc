// SPDX-License-Identifier: Apache-2.0
#include "api/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "net/relay.h"

namespace tandem::api {
namespace {

using namespace std::chrono_literals;

/// How long an answer takes nobody knows; that the other process is alive is watched all the while.
constexpr auto kNoLimit = 24h;
constexpr auto kAskLimit = 3s;
constexpr std::size_t kMostAnswerBytes = 64U << 20;
/// So loaded that any rank that is there is preferred, and sums stay far from the type's end.
constexpr std::int32_t kMissing = std::numeric_limits<std::int32_t>::max() / 16;

bool has_rank(const OtherProcess& process, std::int32_t rank) {
  return rank >= process.first_rank && rank < process.first_rank + process.num_ranks;
}

Refusal unavailable(std::string message) { return {503, "ServiceUnavailableError", std::move(message)}; }

net::ClientTimeouts answer_timeouts() {
  net::ClientTimeouts timeouts;
  timeouts.head = timeouts.idle = kNoLimit;
  return timeouts;
}

}  // namespace

/// A request's part in the load of its rank, and in the list of open ones.
class Front::Share {
 public:
  Share(Front& front, std::int32_t rank, std::int32_t count, std::int32_t first_rank, net::Cancel cancel)
      : front_(front), rank_(static_cast<std::size_t>(rank)), count_(count) {
    front_.forwarded_[rank_] += count_;
    front_.open_.push_front({first_rank, std::move(cancel)});
    open_ = front_.open_.begin();
  }
  ~Share() {
    front_.forwarded_[rank_] -= count_;
    front_.open_.erase(open_);
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  Front& front_;
  const std::size_t rank_;
  const std::int32_t count_;
  std::list<Open>::iterator open_;
};

Front::Front(Options options)
    : options_(std::move(options)),
      choice_(options_.num_ranks, options_.block_size, options_.blocks_per_rank),
      forwarded_(static_cast<std::size_t>(options_.num_ranks)) {}

std::vector<engine::RankLoad> Front::loads(const std::vector<engine::RankLoad>& own,
                                           const std::vector<OtherProcess>& others) const {
  std::vector<engine::RankLoad> loads = own;
  for (auto rank = static_cast<std::int32_t>(own.size()); rank < options_.num_ranks; ++rank) {
    const bool there = std::any_of(others.begin(), others.end(), [rank](const OtherProcess& process) {
      return process.serving && has_rank(process, rank);
    });
    const std::int32_t count = forwarded_[static_cast<std::size_t>(rank)];
    const std::int32_t running = std::min(count, options_.max_num_seqs);
    loads.push_back({.num_running = there ? running : kMissing, .num_waiting = count - running});
  }
  return loads;
}

Outcome<std::optional<OtherProcess>> Front::place(Job& job, const std::vector<engine::RankLoad>& own) {
  const InstanceView view = options_.view();
  if (!view.incomplete.ok()) return unavailable(view.incomplete.message());
  const std::vector<std::int32_t>& prompt = job.prompts.front().ids;
  std::int32_t rank = 0;
  if (job.rank) {
    rank = *job.rank;
    choice_.placed(rank, prompt, job.cache_salt);
  } else {
    const std::vector<engine::RankLoad> all = loads(own, view.others);
    rank = choice_.choose(all, prompt, job.cache_salt);
    if (job.num_choices() == 1) job.rank = rank;
  }
  if (rank < options_.num_own_ranks) return std::optional<OtherProcess>();
  const auto found = std::find_if(view.others.begin(), view.others.end(),
                                  [rank](const OtherProcess& process) { return has_rank(process, rank); });
  if (found == view.others.end() || !found->serving)
    return unavailable(fmt::format("data-parallel rank {} is missing: {} is not there", rank,
                                   found == view.others.end() ? "its process" : found->name));
  return std::optional(*found);
}

net::Task<void> Front::forward(std::shared_ptr<net::Exchange> exchange, OtherProcess process, Job job) {
  const net::HttpRequest& from = exchange->request();
  net::ClientRequest request(from.method, from.query.empty() ? from.path : from.path + "?" + from.query);
  request.headers = net::request_headers(from.headers);
  request.headers.set("authorization", "Bearer " + process.token);
  if (job.rank) request.headers.set("x-data-parallel-rank", std::to_string(*job.rank));
  request.body = from.body;
  net::Cancel cancel;
  const Share share(*this, job.rank.value_or(process.first_rank), static_cast<std::int32_t>(job.num_choices()),
                    process.first_rank, cancel);
  std::function<void()> gone = [cancel]() mutable { cancel.cancel(); };
  exchange->on_client_gone(std::move(gone));
  co_await exchange_with(exchange, std::move(process), std::move(request), cancel);
  exchange->on_client_gone({});
}

net::Task<void> Front::exchange_with(std::shared_ptr<net::Exchange> exchange, OtherProcess process,
                                     net::ClientRequest request, net::Cancel cancel) {
  const auto client = client_of(process, exchange->executor());
  const net::ClientTimeouts timeouts = answer_timeouts();
  auto answer = co_await client->send(std::move(request), timeouts, cancel);
  Status failure = answer ? Status() : answer.error();
  std::string first;
  if (answer) {
    auto piece = co_await (*answer)->read_piece();
    if (piece)
      first = std::move(*piece);
    else
      failure = piece.error();
  }
  if (exchange->client_gone()) co_return;
  const std::string lost = fmt::format("{} was lost while it worked on the request", process.name);
  if (!failure.ok()) {
    log::warning("{}: {}", process.name, failure.message());
    const Refusal refusal = unavailable(cancel.cancelled() ? lost : process.name + ": " + failure.message());
    net::HttpResponse response = error_response(refusal);
    const auto sent = co_await exchange->respond(std::move(response));
    if (!sent) log::debug("{}", sent.error().message());
    co_return;
  }
  net::Headers extra;
  net::ErrorEvent event = [lost](std::string_view) { return error_event(unavailable(lost)); };
  const net::RelayOutcome outcome =
      co_await net::relay_answer(exchange, std::move(*answer), std::move(first), std::move(extra), std::move(event));
  if (outcome.end == net::RelayOutcome::End::kBroken)
    log::warning("an answer of {} broke off after {} bytes: {}", process.name, outcome.num_bytes,
                 outcome.error.message());
}

net::Task<std::vector<std::string>> Front::ask_others(boost::asio::any_io_executor executor,
                                                      net::ClientRequest request) {
  std::vector<std::string> answers;
  net::ClientTimeouts timeouts;
  timeouts.connect = timeouts.head = timeouts.idle = timeouts.total = kAskLimit;
  for (OtherProcess& process : others()) {
    if (!process.serving) continue;
    const auto client = client_of(process, executor);
    net::ClientRequest copy = request;
    copy.headers.set("authorization", "Bearer " + process.token);
    const net::Cancel never;
    auto answer = co_await client->send(std::move(copy), timeouts, never);
    Status failure = answer ? Status() : answer.error();
    if (answer) {
      const int status = (*answer)->status();
      auto body = co_await (*answer)->read_all(kMostAnswerBytes);
      if (body && status == 200) {
        answers.push_back(std::move(*body));
        continue;
      }
      failure = body ? Status(Code::kUnavailable, fmt::format("status {}", status)) : body.error();
    }
    log::warning("{} did not answer {}: {}", process.name, request.target, failure.message());
  }
  co_return answers;
}

void Front::instance_changed() {
  const std::vector<OtherProcess> all = others();
  std::vector<net::Cancel> lost;
  for (const Open& open : open_) {
    const bool there = std::any_of(all.begin(), all.end(), [&](const OtherProcess& process) {
      return process.first_rank == open.first_rank && process.serving;
    });
    if (!there) lost.push_back(open.cancel);
  }
  for (net::Cancel& cancel : lost) cancel.cancel();  // this may end requests, and change open_
}

std::shared_ptr<net::HttpClient> Front::client_of(const OtherProcess& process, boost::asio::any_io_executor executor) {
  const std::string name = process.endpoint.to_string();
  std::shared_ptr<net::HttpClient>& client = clients_[name];
  if (!client) client = net::HttpClient::create(std::move(executor), process.endpoint, net::ClientLimits());
  return client;
}

}  // namespace tandem::api
