// SPDX-License-Identifier: Apache-2.0
#include "app/commands.h"
#include "app/text_source.h"
#include "bench/bench_serve.h"

namespace tandem::app {

Result<void> run_bench(const config::BenchConfig& config) { return bench::bench_serve(config, open_tokenizer); }

}  // namespace tandem::app
