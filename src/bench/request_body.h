// SPDX-License-Identifier: Apache-2.0
// The body of one request, field for field what `vllm bench serve` sends (vllm_api.md 17.1).
#pragma once

#include <string>

#include "base/status.h"
#include "bench/dataset.h"
#include "config/bench_config.h"

namespace tandem::bench {

/// `model`: what the request says. `config.extra_body` is a JSON object (checked by its flag).
std::string request_body(const config::BenchConfig& config, const std::string& model, const Sample& sample);

}  // namespace tandem::bench
