// SPDX-License-Identifier: Apache-2.0
// Sends a run's requests when they are due and waits for all answers. One io_context and one thread: no locks, and
// every stream costs a socket and a coroutine.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/stream_record.h"
#include "bench/target.h"
#include "config/bench_config.h"
#include "net/cancel.h"

namespace tandem::bench {

class LoadRun {
 public:
  struct Outcome {
    std::vector<StreamRecord> records;  ///< one for each sample, in their order
    double duration = 0.0;              ///< seconds, from the start of the run to the end of the last answer
  };

  /// `model`: what requests say. `due`: seconds, ascending, one for each sample. `cancel` ends the run early: what is
  /// under way is broken off and counts as failed, as does what was not sent.
  LoadRun(boost::asio::io_context& io, Target& target, const config::BenchConfig& config, std::string model,
          std::span<const Sample> samples, std::span<const double> due, net::Cancel cancel);

  /// Blocks; runs the io_context on this thread.
  Outcome run();

 private:
  net::Task<void> send_when_due();
  net::Task<void> show_progress();
  net::Task<void> ask(std::size_t index);
  void launch(std::size_t index);
  void start(std::size_t index);
  void on_done(const std::exception_ptr& failure);
  bool over() const { return all_due_ && active_ == 0 && waiting_.empty(); }

  boost::asio::io_context& io_;
  Target& target_;
  const config::BenchConfig& config_;
  std::string model_;
  std::span<const Sample> samples_;
  std::span<const double> due_;
  net::Cancel cancel_;
  boost::asio::steady_timer next_due_, progress_;
  TimePoint begin_{}, end_{};
  std::vector<StreamRecord> records_;
  std::deque<std::size_t> waiting_;  ///< due, but --max-concurrency are under way
  std::size_t active_ = 0, finished_ = 0;
  int helpers_ = 0;  ///< coroutines beside those of the requests
  bool all_due_ = false;
};

}  // namespace tandem::bench
