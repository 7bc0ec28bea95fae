// SPDX-License-Identifier: Apache-2.0
// What another process of the instance may send in a layer with experts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "model/expert_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem;
  if (size == 0) return 0;
  // The first byte is the row width; the message's own first bytes are the right identity, or nothing gets past it.
  const std::int64_t hidden = 1 + data[0] % 8;
  const comm::Bytes message = std::as_bytes(std::span(data + 1, size - 1));
  model::RoundId id;
  if (message.size() >= sizeof(id.model) + sizeof(id.round)) {
    std::memcpy(&id.model, message.data(), sizeof(id.model));
    std::memcpy(&id.round, message.data() + sizeof(id.model), sizeof(id.round));
  }
  const model::ExpertRange own{2, 7};
  if (const auto dispatch = model::read_dispatch(message, id, hidden, own)) {
    if (dispatch->values.size() != static_cast<std::size_t>(dispatch->rows * hidden) * sizeof(float)) std::abort();
    for (const model::TokenExpert& pair : dispatch->pairs)
      if (pair.row >= dispatch->rows || !own.contains(pair.expert)) std::abort();
  }
  for (const std::size_t rows : {std::size_t{0}, std::size_t{3}})
    if (const auto values = model::read_combine(message, id, hidden, rows))
      if (values->size() != rows * static_cast<std::size_t>(hidden) * sizeof(float)) std::abort();
  return 0;
}
