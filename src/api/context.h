// SPDX-License-Identifier: Apache-2.0
// What all endpoints share: the settings of the server and the things they work with. Used on the server's thread;
// const functions and random_hex() also on the helper's.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "api/handed_over.h"
#include "api/sampling_fields.h"
#include "api/unknown_fields.h"
#include "config/serve_config.h"
#include "engine/engine.h"
#include "obs/metrics.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace tandem::api {

class Front;
struct InstanceView;

/// What GET /tandem/info says of KV transfer; empty texts without a connector.
struct TransferInfo {
  std::string engine_id;
  std::string connector;
  std::string role;
  std::uint64_t incarnation = 0;
  std::int32_t tp_size = 1;
};

/// Given by `app`, which joins the parts.
struct ServiceParts {
  engine::Engine* engine = nullptr;                         ///< outlives the service
  std::shared_ptr<const text::Tokenizer> tokenizer;         ///< nullptr: token ids only
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< nullptr: chat is refused unless a request brings one
  std::shared_ptr<const text::ChatTemplate> tool_template;  ///< for requests with tools; nullptr: the one above
  text::TemplateTokens template_tokens;                     ///< for templates that come with a request
  obs::Registry* metrics = nullptr;                         ///< outlives the service
  SamplingDefaults defaults;
  std::int32_t vocab_size = 0;  ///< of the model
  TransferInfo transfer;
  std::string tokenizer_config;  ///< JSON for /tokenizer_info; "" if there is none
  /// First process of several: what it knows of the others; called on the server's thread. Empty: there are none.
  std::function<InstanceView()> instance_view;
  std::string bearer;  ///< other processes than the first: only requests with this token are answered; "": all are
};

struct Context {
  Context(const config::ServeConfig& serve_config, ServiceParts service_parts);

  engine::Engine& engine() const { return *parts.engine; }
  std::int64_t max_model_len() const { return parts.engine->options().max_model_len; }
  const std::string& model_name() const { return config.served_model_names.front(); }
  bool knows_model(const std::string& name) const;
  SamplingLimits limits() const { return SamplingLimits{parts.vocab_size, config.max_logprobs}; }
  bool produces_kv() const { return config.kv_transfer && config.kv_transfer->produces(); }
  bool consumes_kv() const { return config.kv_transfer && config.kv_transfer->consumes(); }
  std::string random_hex(int digits);
  /// A thread for long pieces of work (aside.h).
  boost::asio::thread_pool& helper() { return helper_; }

  config::ServeConfig config;
  ServiceParts parts;
  /// Text longer than this many bytes cannot fit into max_model_len tokens, whatever it says: refused untokenised.
  std::size_t max_text_bytes = 0;
  std::int64_t in_flight = 0;  ///< generation requests being answered
  std::int64_t under_way = 0;  ///< requests of any kind that are being answered
  bool draining = false;       ///< what is under way may finish, nothing new begins
  HandedOver handed_over;
  UnknownFields unknown_fields;
  /// --default-chat-template-kwargs, parsed; never nullptr.
  std::shared_ptr<const boost::json::object> template_defaults;
  std::optional<text::GrammarCompiler> grammars;  ///< none without a tokenizer
  std::shared_ptr<Front> front;                   ///< nullptr: no ranks elsewhere

 private:
  std::mutex random_mutex_;
  std::mt19937_64 random_;              // guarded by random_mutex_
  boost::asio::thread_pool helper_{1};  // last: what it still does may use everything above
};

}  // namespace tandem::api
