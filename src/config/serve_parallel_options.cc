// SPDX-License-Identifier: Apache-2.0
// Flags of `tandem serve` that say how many ranks an instance has and where they are (vllm_api.md 14.2).
#include <fmt/format.h>

#include <algorithm>

#include "config/command_options.h"

namespace tandem::config {
namespace {

constexpr std::int32_t kMaxRanks = 1024;

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

}  // namespace

void ServeOptions::add_parallel(FlagList& flags) {
  flags.group("Parallel");
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
           integer_into(data.start_rank, 0, kMaxRanks - 1))
      .short_form("-dpr");
  flags
      .one("--data-parallel-address", "HOST", "where the first process listens for the others", data.address,
           text_into(data.address))
      .short_form("-dpa");
  flags
      .one("--data-parallel-rpc-port", "PORT", "the port there", std::to_string(data.rpc_port),
           integer_into(data.rpc_port, 1, 65535))
      .short_form("-dpp");
  flags.toggle("--headless", "ranks of an instance whose first process is elsewhere; no API here", data.headless,
               false);
  flags.toggle("--enable-expert-parallel", "spread the experts over all ranks", config_.expert_parallel, false);
  flags
      .one("--api-server-count", "N", "processes that serve HTTP in vLLM; here one thread does", "1",
           [&flags](const std::string& value) -> Result<void> {
             TANDEM_ASSIGN(const std::int64_t count, parse_integer(value, 1, 64));
             if (count > 1)
               flags.notes().push_back(fmt::format(
                   "--api-server-count {}: does nothing here, one thread serves all HTTP and is not what limits",
                   count));
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
  const std::string balancers =
      "instances that an outside balancer joins to one are not in this version; "
      "use --data-parallel-size with --headless nodes, or tandem proxy over several instances";
  flags.refused("--data-parallel-rank", Arity::kOne, balancers);
  flags.refused("--data-parallel-hybrid-lb", Arity::kNone, balancers);
  flags.refused("--data-parallel-external-lb", Arity::kNone, balancers);
}

Result<void> ServeOptions::finish_parallel() {
  DataParallel& data = config_.data_parallel;
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
