// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem serve` that say how many ranks an instance has and where they are (vllm_api.md 14.2).
#include <fmt/format.h>

#include <chrono>

#include "config/command_options.h"
#include "config/slurm.h"

namespace tandem::config {
namespace {

constexpr std::int32_t kMaxRanks = 1024;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

}  // namespace

void ServeOptions::add_parallel(FlagList& flags) {
  flags.group("ParallelConfig");
  DataParallel& data = config_.data_parallel;
  flags
      .one("--tensor-parallel-size", "N", "ranks among which heads and KV are split, in this process", "1",
           integer_into(config_.tensor_parallel_size, 1, kMaxRanks))
      .short_form("-tp");
  flags
      .one("--data-parallel-size", "N", "ranks with a scheduler and KV of their own, on all hosts together", "1",
           integer_into(data.size, 1, kMaxRanks))
      .short_form("-dp");
  flags
      .one("--data-parallel-size-local", "N", "those of them in this process", "all from --data-parallel-start-rank on",
           [this](const std::string& value) -> Result<void> {
             std::int32_t local = 0;
             TANDEM_TRY(integer_into(local, 1, kMaxRanks)(value));
             data_parallel_local_ = local;
             return {};
           })
      .short_form("-dpl");
  flags
      .one("--data-parallel-start-rank", "N", "the first rank in this process", "0",
           [this](const std::string& value) -> Result<void> {
             std::int32_t start = 0;
             TANDEM_TRY(integer_into(start, 0, kMaxRanks - 1)(value));
             data_parallel_start_rank_ = start;
             return {};
           })
      .short_form("-dpr");
  flags
      .one("--data-parallel-address", "HOST", "where the first process listens for the others", data.address,
           [this](const std::string& value) -> Result<void> {
             data_parallel_address_ = value;
             return {};
           })
      .short_form("-dpa");
  flags
      .one("--data-parallel-rpc-port", "PORT", "the port there", std::to_string(data.rpc_port),
           integer_into(data.rpc_port, 1, 65535))
      .short_form("-dpp");
  flags.one("--data-parallel-start-timeout", "TIME",
            "how long processes wait for each other: to start, to load, to come "
            "back",
            "600", [&data](const std::string& value) -> Result<void> {
              TANDEM_ASSIGN(const std::int64_t milliseconds, parse_milliseconds(value));
              data.start_timeout = std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(milliseconds));
              return {};
            });
  flags.toggle("--headless", "ranks of an instance whose first process is elsewhere; no API here", data.headless,
               false);
  flags.toggle("--enable-expert-parallel", "spread the experts over all ranks", config_.expert_parallel);
  flags
      .one("--api-server-count", "N", "one thread serves HTTP, whatever the number; 0: --headless", "1",
           [this, &flags](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(const std::int64_t count, parse_integer(value, 0, 64));
             api_server_count_ = static_cast<std::int32_t>(count);
             if (count > 1)
               flags.notes().push_back(fmt::format(
                   "--api-server-count {} is ignored: one thread serves HTTP, and does no more than that", count));
             return {};
           })
      .short_form("-asc");
  const auto only_one = [&flags](std::string name, std::string short_name, std::string what) {
    flags
        .one(std::move(name), "N", what + "; only 1 in this version", "1",
             [what](const std::string& value) -> Result<void> {
               TANDEM_ASSIGN(const std::int64_t size, parse_integer(value, 1, 1 << 20));
               if (size != 1)
                 return Status(Code::kUnsupported, fmt::format("{} {} is not in this version; expected 1", what, size));
               return {};
             })
        .short_form(std::move(short_name));
  };
  only_one("--pipeline-parallel-size", "-pp", "pipeline-parallel size");
  only_one("--decode-context-parallel-size", "-dcp", "decode-context-parallel size");
  flags
      .one("--data-parallel-rank", "N",
           "an outside balancer joins instances of one rank each: which one this is. It is an instance of its own here",
           "none",
           [this](const std::string& value) -> Result<void> {
             std::int32_t rank = 0;
             TANDEM_TRY(integer_into(rank, 0, kMaxRanks - 1)(value));
             data_parallel_rank_ = rank;
             return {};
           })
      .short_form("-dpn");
  flags.toggle("--data-parallel-external-lb", "the same in words; needs --data-parallel-rank", external_balancer_);
  flags.refused(
      "--data-parallel-hybrid-lb", Arity::kNone,
      "several ranks a node behind an outside balancer are not in this version; use --data-parallel-size with "
      "--headless nodes, or --data-parallel-rank");
}

/// vLLM's ranks of such a set step together because experts are spread over them. Here each has all experts, so that
/// nothing crosses between them and each is an instance of one rank.
Result<void> ServeOptions::become_external_rank(std::vector<std::string>& notes) {
  DataParallel& data = config_.data_parallel;
  if (!data_parallel_rank_) {
    if (external_balancer_)
      return invalid("--data-parallel-external-lb needs --data-parallel-rank: which rank this is");
    return {};
  }
  if (*data_parallel_rank_ >= data.size)
    return invalid(
        fmt::format("--data-parallel-rank {} is not below --data-parallel-size {}", *data_parallel_rank_, data.size));
  if (data_parallel_local_.value_or(1) != 1 || data_parallel_start_rank_ || data.headless)
    return invalid(
        "--data-parallel-rank makes an instance of one rank; --data-parallel-size-local is 1 then, and "
        "--data-parallel-start-rank and --headless do not go with it");
  if (config_.expert_parallel)
    notes.push_back("--enable-expert-parallel: with --data-parallel-rank each process has all experts");
  num_data_parallel_ranks_ = data.size;
  data.external_rank = data_parallel_rank_;
  data.size = 1;
  data_parallel_local_ = 1;
  config_.expert_parallel = false;
  return {};
}

/// Under srun each process finds its own place, as far as the flags leave it open.
Result<void> ServeOptions::take_place_in_slurm(const Environment& environment) {
  DataParallel& data = config_.data_parallel;
  if (data.size == 1 || data.headless || data_parallel_start_rank_) return {};
  TANDEM_ASSIGN(const auto place, slurm_place(environment));
  if (!place) return {};
  if (!data_parallel_local_ && data.size % place->num_processes != 0)
    return invalid(
        fmt::format("--data-parallel-size {} cannot be spread evenly over the {} processes that srun starts; "
                    "give --data-parallel-size-local, or another number of either",
                    data.size, place->num_processes));
  if (!data_parallel_local_) data_parallel_local_ = data.size / place->num_processes;
  data_parallel_start_rank_ = place->process * *data_parallel_local_;
  data.headless = place->process > 0;
  if (!data_parallel_address_) data_parallel_address_ = place->first_host;
  return {};
}

Result<void> ServeOptions::finish_parallel(const Environment& environment, std::vector<std::string>& notes) {
  DataParallel& data = config_.data_parallel;
  if (data.headless && api_server_count_ > 1)
    return invalid(fmt::format("--api-server-count {} and --headless: a headless node has no API", api_server_count_));
  if (api_server_count_ == 0) data.headless = true;
  if (data.headless && !config_.uds.empty()) return invalid("--uds and --headless: a headless node has no API");
  TANDEM_TRY(become_external_rank(notes));
  TANDEM_TRY(take_place_in_slurm(environment));
  data.start_rank = data_parallel_start_rank_.value_or(0);
  if (data_parallel_address_) data.address = *data_parallel_address_;
  if (data.start_rank >= data.size)
    return invalid(
        fmt::format("--data-parallel-start-rank {} is not below --data-parallel-size {}", data.start_rank, data.size));
  data.local = data_parallel_local_.value_or(data.size - data.start_rank);
  if (data.start_rank + data.local > data.size)
    return invalid(
        fmt::format("--data-parallel-start-rank {} and --data-parallel-size-local {} go past "
                    "--data-parallel-size {}",
                    data.start_rank, data.local, data.size));
  if (data.headless && data.start_rank == 0)
    return invalid("--headless is for the nodes after the first one; expected --data-parallel-start-rank above 0");
  if (!data.headless && data.start_rank != 0)
    return invalid(fmt::format("--data-parallel-start-rank {} without --headless: the first rank is where the API is",
                               data.start_rank));
  return {};
}

}  // namespace tandem::config
