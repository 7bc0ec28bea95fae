// SPDX-License-Identifier: Apache-2.0
#include "bench/load_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>

#include "bench/request_body.h"

namespace tandem::bench {
namespace {

constexpr std::chrono::milliseconds kProgressEvery{500};
constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

LoadRun::LoadRun(boost::asio::io_context& io, Target& target, const config::BenchConfig& config, std::string model,
                 std::span<const Sample> samples, std::span<const double> due, net::Cancel cancel)
    : io_(io),
      target_(target),
      config_(config),
      model_(std::move(model)),
      samples_(samples),
      due_(due),
      cancel_(std::move(cancel)),
      next_due_(io),
      progress_(io),
      records_(samples.size()) {
  TANDEM_ASSERT(due_.size() == samples_.size(), "every sample has its time");
}

LoadRun::Outcome LoadRun::run() {
  for (std::size_t i = 0; i < samples_.size(); ++i) records_[i].prompt_tokens = samples_[i].prompt_tokens;
  const auto on_end = [this](const std::exception_ptr& failure) {
    if (failure) std::rethrow_exception(failure);
    --helpers_;
    if (over()) progress_.cancel();
  };
  const net::Cancel::Hook hook = cancel_.on_cancel([this] { next_due_.cancel(); });
  begin_ = end_ = now();
  ++helpers_;
  boost::asio::co_spawn(io_, send_when_due(), on_end);
  if (config_.show_progress && isatty(STDERR_FILENO) != 0) {
    ++helpers_;
    boost::asio::co_spawn(io_, show_progress(), on_end);
  }
  io_.restart();
  // Not run(): it would also wait for signals and for deadlines that nobody needs any more.
  while (helpers_ > 0 || !over()) io_.run_one();
  Outcome outcome;
  outcome.records = std::move(records_);
  outcome.duration = seconds(end_ - begin_);
  return outcome;
}

net::Task<void> LoadRun::send_when_due() {
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const auto when = begin_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(due_[i]));
    if (when > now() && !cancel_.cancelled()) {
      next_due_.expires_at(when);
      (void)co_await next_due_.async_wait(kAwait);
    }
    launch(i);
  }
  all_due_ = true;
}

void LoadRun::launch(std::size_t index) {
  if (cancel_.cancelled()) {
    records_[index].error = "not sent: the run was interrupted";
  } else if (config_.max_concurrency && active_ >= static_cast<std::size_t>(*config_.max_concurrency)) {
    waiting_.push_back(index);
  } else {
    start(index);
  }
}

void LoadRun::start(std::size_t index) {
  ++active_;
  boost::asio::co_spawn(io_, ask(index), [this](const std::exception_ptr& failure) { on_done(failure); });
}

net::Task<void> LoadRun::ask(std::size_t index) {
  std::string body = request_body(config_, model_, samples_[index]);
  std::string id = config_.request_id_prefix + fmt::format("{}", index);
  StreamRecord* record = &records_[index];
  co_await target_.ask(std::move(body), std::move(id), cancel_, record);
}

void LoadRun::on_done(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
  --active_;
  ++finished_;
  end_ = now();
  // launch() marks what is left after an interruption, one after the other.
  while (!waiting_.empty() && (cancel_.cancelled() || active_ < static_cast<std::size_t>(*config_.max_concurrency))) {
    const std::size_t next = waiting_.front();
    waiting_.pop_front();
    launch(next);
  }
  if (over()) progress_.cancel();
}

net::Task<void> LoadRun::show_progress() {
  while (!over()) {
    std::fprintf(stderr, "\r%zu of %zu answered, %zu under way, %.0f s ", finished_, samples_.size(), active_,
                 seconds(now() - begin_));
    progress_.expires_after(kProgressEvery);
    (void)co_await progress_.async_wait(kAwait);
  }
  std::fprintf(stderr, "\r%zu of %zu answered in %.1f s                    \n", finished_, samples_.size(),
               seconds(end_ - begin_));
}

}  // namespace tandem::bench
