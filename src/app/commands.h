// SPDX-License-Identifier: Apache-2.0
// The subcommands of `tandem`: each builds its objects from a checked config and runs until SIGINT or SIGTERM. Ok means
// a clean stop; an error is what stands on stderr before exit code 1.
#pragma once

#include "base/status.h"
#include "config/bench_config.h"
#include "config/check_config.h"
#include "config/proxy_config.h"
#include "config/quantize_config.h"
#include "config/ranktable_config.h"
#include "config/serve_config.h"
#include "config/up_config.h"

namespace tandem::app {

Result<void> run_serve(const config::ServeConfig& config);
Result<void> run_proxy(const config::ProxyConfig& config);
Result<void> run_up(const config::UpConfig& config);
Result<void> run_quantize(const config::QuantizeConfig& config);
Result<void> run_ranktable(const config::RanktableConfig& config);
Result<void> run_check_network(const config::CheckNetworkConfig& config);
Result<void> run_check_agent(const config::CheckAgentConfig& config);
Result<void> run_bench(const config::BenchConfig& config);

}  // namespace tandem::app
