// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_serve.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>

#include "bench/arrivals.h"
#include "bench/dataset.h"
#include "bench/load_run.h"
#include "bench/report.h"
#include "bench/request_body.h"
#include "bench/summary.h"
#include "bench/target.h"

namespace tandem::bench {
namespace {

constexpr std::chrono::seconds kRetryEvery{1};
constexpr std::size_t kShownErrors = 10;
constexpr int kTooManyRequests = 429;
constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

TimePoint now() { return std::chrono::steady_clock::now(); }

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

bool is_local(const std::string& path) {
  std::error_code error;
  return !path.empty() && std::filesystem::exists(path, error);
}

/// A refusal that will be the same next time.
bool is_final(const StreamRecord& record) {
  return record.status >= 400 && record.status < 500 && record.status != kTooManyRequests;
}

/// Every stream is an open file; the usual soft limit is 1024.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // not allowed: streams past the limit fail and say so
}

class Bench {
 public:
  Bench(const config::BenchConfig& config, const OpenTokenizer& open) : config_(config), open_(open), signals_(io_) {}

  Result<void> run();

 private:
  Result<void> choose_model();
  Result<void> choose_tokenizer();
  Result<void> warm_up();
  net::Task<void> fetch_models(TimePoint deadline);
  net::Task<void> try_until_ready(TimePoint deadline);
  /// Once: whoever has mistyped a port should not have to wait for the end of the timeout to hear of it.
  void say_waiting(const std::string& error);
  /// Runs one stage's coroutine to its end on this thread.
  void run_stage(net::Task<void> stage);
  void announce() const;
  void count_missing_tokens(std::vector<StreamRecord>& records) const;
  bool saves_result() const { return config_.save_result || config_.append_result || config_.save_detailed; }
  Result<void> report(const LoadRun::Outcome& outcome) const;

  config::BenchConfig config_;
  const OpenTokenizer& open_;
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_;
  net::Cancel cancel_;
  std::unique_ptr<Target> target_;
  Result<std::vector<ServedModel>> served_ = std::vector<ServedModel>();
  std::string root_;  ///< of the model, as the server says; "": not asked
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::vector<Sample> samples_;
  StreamRecord first_;  ///< of the request before the run
  bool said_waiting_ = false;
};

void Bench::run_stage(net::Task<void> stage) {
  bool done = false;
  boost::asio::co_spawn(io_, std::move(stage), [&done](const std::exception_ptr& failure) {
    done = true;
    if (failure) std::rethrow_exception(failure);
  });
  io_.restart();
  while (!done) io_.run_one();  // not run(): signals are waited for, too
}

void Bench::say_waiting(const std::string& error) {
  if (!said_waiting_)
    say(fmt::format("Waiting up to {} s for the server: {}",
                    std::chrono::duration_cast<std::chrono::seconds>(config_.ready_check_timeout).count(), error));
  said_waiting_ = true;
}

net::Task<void> Bench::fetch_models(TimePoint deadline) {
  boost::asio::steady_timer pause(io_);
  for (;;) {
    served_ = co_await target_->models(cancel_);
    // Only a server that cannot be reached may still be starting; one that answers has said what it has to say.
    if (served_ || served_.error().scope() != Scope::kPeer || now() + kRetryEvery > deadline || cancel_.cancelled())
      co_return;
    say_waiting(served_.error().message());
    pause.expires_after(kRetryEvery);
    (void)co_await pause.async_wait(kAwait);
  }
}

Result<void> Bench::choose_model() {
  const bool tokenizer_known = !config_.tokenizer.empty() || is_local(config_.model);
  if (config_.model.empty() || !tokenizer_known) {
    run_stage(fetch_models(now() + config_.ready_check_timeout));
    if (!served_) return served_.error().context(target_->url() + "/v1/models");
    const ServedModel* found = &served_->front();
    for (const ServedModel& served : *served_)
      if (served.id == config_.model || served.id == config_.served_model_name) found = &served;
    root_ = found->root;
    if (config_.model.empty()) config_.model = found->id;
  }
  if (config_.served_model_name.empty()) config_.served_model_name = config_.model;
  return {};
}

Result<void> Bench::choose_tokenizer() {
  if (config_.tokenizer.empty()) config_.tokenizer = is_local(config_.model) ? config_.model : root_;
  if (!is_local(config_.tokenizer))
    return Status(Code::kNotFound,
                  fmt::format("the model's tokenizer is not here: '{}' is no local path. Name a model folder, a "
                              "tokenizer.json or a .gguf file with --tokenizer",
                              config_.tokenizer));
  auto tokenizer = open_(config_.tokenizer);
  if (!tokenizer) return tokenizer.error().context("tokenizer " + config_.tokenizer);
  tokenizer_ = std::move(*tokenizer);
  return {};
}

net::Task<void> Bench::try_until_ready(TimePoint deadline) {
  boost::asio::steady_timer pause(io_);
  for (;;) {
    first_ = StreamRecord();
    std::string body = request_body(config_, config_.served_model_name, samples_.front());
    std::string id = config_.request_id_prefix + "ready";
    co_await target_->ask(std::move(body), std::move(id), cancel_, &first_);
    if (first_.success || is_final(first_) || now() + kRetryEvery > deadline || cancel_.cancelled()) co_return;
    say_waiting(first_.error);
    pause.expires_after(kRetryEvery);
    (void)co_await pause.async_wait(kAwait);
  }
}

Result<void> Bench::warm_up() {
  if (config_.ready_check_timeout.count() == 0) {
    say("Skipping endpoint ready check.");
  } else {
    say("Starting initial single prompt test run...");
    run_stage(try_until_ready(now() + config_.ready_check_timeout));
    if (!first_.success)
      return Status(Code::kUnavailable, fmt::format("the first request to {}{} failed, so the run was not begun: {}",
                                                    config_.base_url, config_.endpoint, first_.error));
    say("Initial test run completed.");
  }
  if (config_.num_warmups == 0) return {};
  say(fmt::format("Warming up with {} requests...", config_.num_warmups));
  const std::vector<Sample> samples(static_cast<std::size_t>(config_.num_warmups), samples_.front());
  const std::vector<double> due(samples.size(), 0.0);
  (void)LoadRun(io_, *target_, config_, config_.served_model_name, samples, due, cancel_).run();
  say("Warmup run completed.");
  return {};
}

void Bench::announce() const {
  say("Starting main benchmark run...");
  if (config_.ramp_up == config::RampUp::kNone) {
    say("Traffic request rate: " + (config_.request_rate ? python_float(*config_.request_rate) : "inf"));
  } else {
    say(fmt::format("Traffic ramp-up strategy: {}.",
                    config_.ramp_up == config::RampUp::kLinear ? "linear" : "exponential"));
    say(fmt::format("Will increase RPS from {} to {} RPS over the duration of the benchmark.",
                    config_.ramp_up_start_rps, config_.ramp_up_end_rps));
  }
  say(fmt::format("Burstiness factor: {} ({})", python_float(config_.burstiness),
                  config_.burstiness == 1.0 ? "Poisson process" : "Gamma distribution"));
  say("Maximum request concurrency: " +
      (config_.max_concurrency ? fmt::format("{}", *config_.max_concurrency) : "None"));
}

/// For servers that send no usage.
void Bench::count_missing_tokens(std::vector<StreamRecord>& records) const {
  for (StreamRecord& record : records) {
    if (!record.success || record.output_tokens > 0) continue;
    if (const auto ids = tokenizer_->encode(record.text, false); ids)
      record.output_tokens = static_cast<std::int64_t>(ids->size());
  }
}

Result<void> Bench::report(const LoadRun::Outcome& outcome) const {
  const Summary summary = summarise(outcome.records, outcome.duration, config_);
  std::fputs(table_text(summary, config_).c_str(), stdout);
  std::fflush(stdout);
  std::map<std::string, std::size_t> errors;
  for (const StreamRecord& record : outcome.records)
    if (!record.success) ++errors[record.error];
  std::size_t shown = 0;
  for (const auto& [error, count] : errors) {
    if (shown++ < kShownErrors) std::fprintf(stderr, "%zu failed: %s\n", count, error.c_str());
  }
  if (errors.size() > kShownErrors)
    std::fprintf(stderr, "%zu more kinds of failure; --save-detailed writes all\n", errors.size() - kShownErrors);
  if (saves_result()) {
    const RunFacts facts{config_.model, config_.tokenizer, date_text(std::time(nullptr))};
    const std::string path = result_path(facts, config_);
    TANDEM_TRY(write_result(path, json_text(summary, outcome.records, facts, config_), config_.append_result));
    say("Result written to " + path);
  }
  if (summary.completed > 0) return {};
  return Status(Code::kUnavailable, fmt::format("none of {} requests succeeded", outcome.records.size()));
}

Result<void> Bench::run() {
  raise_file_limit();
  if (saves_result()) TANDEM_TRY(check_result_folder(config_));
  if (config_.request_id_prefix.empty())
    config_.request_id_prefix = fmt::format("bench-{:08x}-", static_cast<std::uint32_t>(std::random_device()()));
  TANDEM_ASSIGN(target_, Target::create(io_.get_executor(), config_));
  TANDEM_TRY(choose_model());
  TANDEM_TRY(choose_tokenizer());
  TANDEM_ASSIGN(samples_, make_samples(config_, *tokenizer_));
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  signals_.async_wait([this](const boost::system::error_code& error, int) {
    if (!error) cancel_.cancel();
  });
  TANDEM_TRY(warm_up());
  announce();
  const std::vector<double> due = arrival_times(config_, samples_.size());
  LoadRun::Outcome outcome = LoadRun(io_, *target_, config_, config_.served_model_name, samples_, due, cancel_).run();
  count_missing_tokens(outcome.records);
  return report(outcome);
}

}  // namespace

Result<void> bench_serve(const config::BenchConfig& config, const OpenTokenizer& open_tokenizer) {
  return Bench(config, open_tokenizer).run();
}

}  // namespace tandem::bench
