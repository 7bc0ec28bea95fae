// SPDX-License-Identifier: Apache-2.0
// The lines of --enable-log-requests and --enable-log-outputs, worded as vLLM words them.
#pragma once

#include <span>

#include "api/answer.h"

namespace tandem::api {

/// One line a prompt: its text, its parameters and its ids, each cut to --max-log-len. Nothing without the flag.
void log_request(const Context& context, const Job& job);
/// One line a choice, once the answer is complete. Nothing without the flag.
void log_answer(const Context& context, const Job& job, std::span<const Choice> choices);

}  // namespace tandem::api
