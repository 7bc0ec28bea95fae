// SPDX-License-Identifier: Apache-2.0
#include "api/context.h"

#include <algorithm>
#include <boost/json.hpp>

#include "api/front.h"
#include "base/json.h"

namespace tandem::api {
namespace {

/// Normalisers may shorten text a little before it is cut into tokens.
constexpr std::size_t kNormalizerSlack = 4;

std::size_t longest_token_bytes(const text::Tokenizer* tokenizer) {
  std::size_t longest = 1;
  if (tokenizer == nullptr) return longest;
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id)
    longest = std::max(longest, tokenizer->token_bytes(id).size());
  return longest;
}

}  // namespace

Context::Context(const config::ServeConfig& serve_config, ServiceParts service_parts)
    : config(serve_config), parts(std::move(service_parts)), random_(std::random_device{}()) {
  TANDEM_ASSERT(parts.engine != nullptr && parts.metrics != nullptr, "a service needs an engine and metrics");
  TANDEM_ASSERT(!config.served_model_names.empty(), "a service needs a model name");
  auto defaults = parse_json(config.default_chat_template_kwargs);  // checked where the flag was read
  template_defaults = std::make_shared<const boost::json::object>(
      defaults && defaults->is_object() ? std::move(defaults->get_object()) : boost::json::object());
  max_text_bytes = static_cast<std::size_t>(std::max<std::int64_t>(1, max_model_len())) *
                   longest_token_bytes(parts.tokenizer.get()) * kNormalizerSlack;
  if (parts.tokenizer) {
    const std::vector<std::int32_t>& eos = parts.engine->options().eos_token_ids;
    grammars.emplace(parts.tokenizer, parts.vocab_size, eos.empty() ? -1 : eos.front());
  }
  if (!parts.instance_view) return;
  const config::DataParallel& data = config.data_parallel;
  front =
      std::make_shared<Front>(Front::Options{.view = parts.instance_view,
                                             .num_own_ranks = data.local,
                                             .num_ranks = data.size,
                                             .block_size = config.block_size,
                                             .blocks_per_rank = std::max(1, engine().stats().num_blocks / data.local),
                                             .max_num_seqs = config.max_num_seqs});
}

bool Context::knows_model(const std::string& name) const {
  if (name.empty()) return true;
  return std::find(config.served_model_names.begin(), config.served_model_names.end(), name) !=
         config.served_model_names.end();
}

std::string Context::random_hex(int digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const std::lock_guard lock(random_mutex_);
  std::string out;
  for (std::uint64_t bits = 0; digits > 0; --digits, bits >>= 4) {
    if (out.size() % 16 == 0) bits = random_();
    out.push_back(kDigits[bits & 15U]);
  }
  return out;
}

}  // namespace tandem::api
