// SPDX-License-Identifier: Apache-2.0
// Structured output. A request's matcher follows its output token by token and is asked for a mask at each step, while
// the step computes; for a step that was planned ahead, when the token before it is known. It belongs to the output and
// not to KV: neither a preemption nor a hand-over concerns it, as a decoder computes the first token itself.
#include <utility>

#include "engine/engine_core.h"
#include "engine/engine_request.h"

namespace tandem::engine {

Status EngineCore::begin_grammar(Request& request) {
  if (!request.request.grammar) return {};
  auto started = request.request.grammar->start();
  if (!started) return started.error();
  request.grammar = std::move(*started);
  request.grammar_waits = request.request.grammar_after >= 0;
  return {};
}

std::shared_ptr<const worker::TokenMask> EngineCore::mask_for(Request& request, bool sampled_before) {
  if (!request.grammar || (request.grammar_waits && !sampled_before)) return nullptr;
  auto mask = std::make_shared<worker::TokenMask>();
  if (sampled_before)
    request.mask_ahead = mask;
  else
    untold_masks_.emplace_back(request.handle, mask);
  return mask;
}

void EngineCore::tell_mask_ahead(Request& request) const {
  const auto mask = std::exchange(request.mask_ahead, nullptr);
  if (mask == nullptr) return;
  if (request.grammar_waits) {
    const auto words = (static_cast<std::size_t>(env_.worker.vocab_size()) + 31) / 32;
    mask->set(std::vector<std::uint32_t>(words, ~0U));
  } else {
    mask->set(request.grammar->mask());
  }
}

void EngineCore::cancel_mask_ahead(Request& request) {
  const auto mask = std::exchange(request.mask_ahead, nullptr);
  if (mask != nullptr) mask->set(Status(Code::kCancelled, "the request has ended"));
}

void EngineCore::tell_masks() {
  for (const auto& [handle, mask] : std::exchange(untold_masks_, {})) {
    const auto request = requests_.find(handle);
    if (request == requests_.end())
      mask->set(Status(Code::kCancelled, "the request has ended"));
    else
      mask->set(request->second->grammar->mask());
  }
}

/// Ends the output with "stop" where its grammar does, also if it has just as many tokens as it may have.
Status EngineCore::follow_grammar(Request& request, std::int32_t token, std::optional<Finish>& end) {
  if (!request.grammar) return {};
  if (request.grammar_waits) {
    request.grammar_waits = token != request.request.grammar_after;
    return {};
  }
  if (end && end->by_token) return {};
  if (auto accepted = request.grammar->accept(token); !accepted) return accepted.error();
  if (request.grammar->finished()) end = Finish{FinishReason::kStop, std::monostate{}, false};
  return {};
}

}  // namespace tandem::engine
