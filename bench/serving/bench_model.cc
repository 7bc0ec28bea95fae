// SPDX-License-Identifier: Apache-2.0
// tandem-bench-model: our model runner (worker, model, kernels; no HTTP, no scheduler) as a process that measures on
// request, so that run.py can alternate it with a peer that stays loaded too. Requests are lines on stdin:
//   prefill SLOT TOKENS          runs a prompt from position 0 into sequence SLOT, samples one token
//   decode BATCH TOKENS STEPS    STEPS steps of one token for each of the sequences 0..BATCH-1, from position TOKENS on
// Each is answered by one JSON line on stdout with "seconds" (wall time, request to last token). The first line says
// that the model is ready, and what it is.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <future>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>

#include "model/checkpoint.h"
#include "worker/model_worker.h"

namespace {

using namespace tandem;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::int32_t kMaxBatch = 8;
constexpr auto kStepDeadline = std::chrono::minutes(5);

struct Flags {
  std::string model;
  std::string compute = "w8a8";
  std::string isa;
  std::int32_t threads = 0;
  std::int32_t context = 640;
  std::int32_t batched_tokens = 512;
};

double seconds_since(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int fail(const std::string& message) {
  fmt::print(stderr, "tandem-bench-model: {}\n", message);
  return 1;
}

Result<kernels::Isa> isa_of(const std::string& name) {
  if (name.empty()) return kernels::detect_isa();
  for (const auto isa : kernels::kAllIsas) {
    if (kernels::isa_name(isa) == name) return isa;
  }
  return Status(Code::kInvalidArgument,
                fmt::format("--isa {}: expected portable, avx2, avx512, neon or dotprod", name));
}

Result<worker::ModelWorkerOptions> worker_options(const Flags& flags) {
  worker::ModelWorkerOptions options;
  TANDEM_ASSIGN(options.model.isa, isa_of(flags.isa));
  options.model.compute = flags.compute == "w8a8"       ? model::ComputeType::kW8A8
                          : flags.compute == "bfloat16" ? model::ComputeType::kBf16
                                                        : model::ComputeType::kFloat32;
  options.model.max_positions = flags.context;
  options.block_size = 16;
  options.num_blocks = kMaxBatch * ((flags.context + 15) / 16);
  options.max_num_batched_tokens = flags.batched_tokens;
  options.num_threads = flags.threads;
  return options;
}

/// Plays the engine: one step after the other, greedy.
class Runner {
 public:
  Runner(worker::ModelWorker& worker, const Flags& flags) : worker_(worker), flags_(flags) {
    auto greedy = std::make_shared<worker::SamplingParams>();
    greedy->temperature = 0.0;
    greedy_ = std::move(greedy);
  }

  Result<double> prefill(std::int32_t slot, std::int32_t tokens) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int32_t done = 0; done < tokens;) {
      const std::int32_t count = std::min(tokens - done, flags_.batched_tokens);
      auto plan = std::make_shared<worker::StepPlan>();
      plan->sequences.push_back(sequence(slot, done, count));
      for (std::int32_t i = 0; i < count; ++i) {
        plan->sequences[0].tokens[i] = (slot * 7919 + (done + i) * 37 + 11) % worker_.vocab_size();
      }
      done += count;
      plan->sequences[0].sample = done == tokens;
      TANDEM_TRY(step(std::move(plan)));
    }
    return seconds_since(start);
  }

  Result<double> decode(std::int32_t batch, std::int32_t context, std::int32_t steps) {
    std::vector<std::int32_t> next(static_cast<std::size_t>(batch), 1);
    const auto start = std::chrono::steady_clock::now();
    for (std::int32_t i = 0; i < steps; ++i) {
      auto plan = std::make_shared<worker::StepPlan>();
      for (std::int32_t slot = 0; slot < batch; ++slot) {
        plan->sequences.push_back(sequence(slot, context + i, 1));
        plan->sequences.back().tokens[0] = next[slot];
        plan->sequences.back().sample = true;
      }
      TANDEM_ASSIGN(const worker::StepResult result, step(std::move(plan)));
      for (std::int32_t slot = 0; slot < batch; ++slot) next[slot] = result.sampled[slot].token;
    }
    return seconds_since(start);
  }

 private:
  worker::SequencePlan sequence(std::int32_t slot, std::int32_t first, std::int32_t count) const {
    worker::SequencePlan plan;
    plan.sequence = static_cast<std::uint64_t>(slot);
    plan.tokens.resize(static_cast<std::size_t>(count));
    plan.first_position = first;
    plan.sampling = greedy_;
    const std::int32_t blocks_a_slot = (flags_.context + 15) / 16;
    plan.block_table.resize(static_cast<std::size_t>((first + count + 15) / 16));
    std::iota(plan.block_table.begin(), plan.block_table.end(), slot * blocks_a_slot);
    return plan;
  }

  Result<worker::StepResult> step(std::shared_ptr<worker::StepPlan> plan) {
    auto promise = std::make_shared<std::promise<Result<worker::StepResult>>>();
    auto future = promise->get_future();
    worker_.submit(std::move(plan),
                   [promise](Result<worker::StepResult> result) { promise->set_value(std::move(result)); });
    if (future.wait_for(kStepDeadline) != std::future_status::ready) {
      return Status(Code::kDeadlineExceeded, "a step took more than five minutes");
    }
    auto result = future.get();
    if (!result) return result;
    for (const auto& sampled : result->sampled) {
      if (!sampled.error.ok()) return sampled.error;
    }
    return result;
  }

  worker::ModelWorker& worker_;
  const Flags& flags_;
  std::shared_ptr<const worker::SamplingParams> greedy_;
};

Result<double> answer(Runner& runner, const Flags& flags, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::int32_t first = -1;
  std::int32_t tokens = 0;
  words >> verb >> first >> tokens;
  if (verb == "prefill" && first >= 0 && first < kMaxBatch && tokens > 0 && tokens <= flags.context) {
    return runner.prefill(first, tokens);
  }
  std::int32_t steps = 0;
  words >> steps;
  if (verb == "decode" && first > 0 && first <= kMaxBatch && tokens > 0 && steps > 0 &&
      tokens + steps <= flags.context) {
    return runner.decode(first, tokens, steps);
  }
  return Status(
      Code::kInvalidArgument,
      fmt::format("'{}': expected 'prefill SLOT TOKENS' or 'decode BATCH TOKENS STEPS' with at most {} sequences "
                  "and {} positions",
                  line, kMaxBatch, flags.context));
}

int serve(const Flags& flags) {
  const auto start = std::chrono::steady_clock::now();
  auto checkpoint = model::Checkpoint::open(flags.model, {});
  if (!checkpoint) return fail(checkpoint.error().message());
  auto options = worker_options(flags);
  if (!options) return fail(options.error().message());
  auto created = worker::ModelWorker::create(**checkpoint, *options);
  if (!created) return fail(created.error().message());
  worker::ModelWorker& worker = **created;
  std::cout << fmt::format(R"({{"ready": true, "compute": "{}", "isa": "{}", "threads": {}, "weight_bytes": {}, )"
                           R"("load_seconds": {:.3f}}})",
                           flags.compute, kernels::isa_name(options->model.isa), worker.num_threads(),
                           worker.model().weight_bytes(), seconds_since(start))
            << std::endl;
  Runner runner(worker, flags);
  for (std::string line; std::getline(std::cin, line);) {
    const double cpu_before = cpu_seconds();
    const auto seconds = answer(runner, flags, line);
    if (!seconds) return fail(seconds.error().message());
    std::cout << fmt::format(R"({{"seconds": {:.6f}, "cpu_seconds": {:.6f}}})", *seconds, cpu_seconds() - cpu_before)
              << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the model runner; see bench/README.md", "tandem-bench-model");
  Flags flags;
  app.add_option("--model", flags.model, "Checkpoint: a folder or a .gguf file")->required();
  app.add_option("--compute", flags.compute)
      ->check(CLI::IsMember({"w8a8", "bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--isa", flags.isa, "portable, avx2 or avx512; default: the best this CPU has");
  app.add_option("--threads", flags.threads, "default: one for each usable CPU")->check(CLI::Range(0, 1024));
  app.add_option("--context", flags.context, "positions of each sequence")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--batched-tokens", flags.batched_tokens, "prompt tokens in one step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return serve(flags);
}
