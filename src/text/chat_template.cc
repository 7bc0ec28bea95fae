// SPDX-License-Identifier: Apache-2.0
// The chat template: its variables go to the Rust crate as one JSON object, in the order and number kinds they came in.
#include "text/chat_template.h"

#include <array>
#include <boost/json.hpp>
#include <utility>

#include "text/bridge.h"

namespace tandem::text {
namespace {

namespace json = boost::json;

class CrateTemplate final : public ChatTemplate {
 public:
  CrateTemplate(rust::Box<bridge::ChatTemplate> crate, TemplateTokens tokens)
      : crate_(std::move(crate)), tokens_(std::move(tokens)) {}

  Result<std::string> render(const Input& input) const override {
    Result<std::string> context = context_of(input);
    if (!context) return context.error();
    try {
      const rust::Vec<std::uint8_t> text = bridge::template_render(*crate_, as_slice(*context));
      return std::string(text.begin(), text.end());
    } catch (const std::exception& error) {
      return bridge_error(error).context("chat template");
    }
  }

  bool wants_content_parts() const override { return bridge::template_wants_content_parts(*crate_); }

 private:
  /// Later keys override earlier ones: first the tokens, then the request's chat_template_kwargs. What the server
  /// itself passes cannot be overridden.
  Result<std::string> context_of(const Input& input) const {
    constexpr std::array<std::string_view, 3> kReserved = {"messages", "tools", "documents"};
    std::string context = "{";
    const auto add = [&](std::string_view key, std::string_view value) {
      if (context.size() > 1) context += ',';
      context += json::serialize(json::string_view(key));
      context += ':';
      context += value;
    };
    try {
      add_tokens(add);
      add("messages", input.messages == nullptr ? "[]" : json::serialize(*input.messages));
      add("tools", input.tools == nullptr ? "null" : json::serialize(*input.tools));
      add("documents", input.documents == nullptr ? "null" : json::serialize(*input.documents));
      add("add_generation_prompt", input.add_generation_prompt ? "true" : "false");
      if (input.extra != nullptr) {
        for (const auto& [key, value] : *input.extra) {
          for (const std::string_view reserved : kReserved) {
            if (std::string_view(key.data(), key.size()) == reserved) {
              return Status(Code::kInvalidArgument, "chat_template_kwargs: \"" + std::string(reserved) +
                                                        "\" is set by the request itself and cannot be given here");
            }
          }
          add(key, json::serialize(value));
        }
      }
    } catch (const std::exception& error) {
      return Status(Code::kInternal, std::string("chat template: its variables cannot be written: ") + error.what());
    }
    context += '}';
    return context;
  }

  template <class Add>
  void add_tokens(const Add& add) const {
    const auto add_token = [&](std::string_view name, const std::string& token) {
      if (!token.empty()) add(name, json::serialize(json::string_view(token)));
    };
    add_token("bos_token", tokens_.bos);
    add_token("eos_token", tokens_.eos);
    add_token("pad_token", tokens_.pad);
    add_token("unk_token", tokens_.unk);
  }

  rust::Box<bridge::ChatTemplate> crate_;
  TemplateTokens tokens_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(std::string_view source, TemplateTokens tokens) {
  try {
    return std::shared_ptr<const ChatTemplate>(
        std::make_shared<CrateTemplate>(bridge::template_compile(as_slice(source)), std::move(tokens)));
  } catch (const std::exception& error) {
    return bridge_error(error).context("chat template");
  }
}

}  // namespace tandem::text
