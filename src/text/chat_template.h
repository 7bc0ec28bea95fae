// SPDX-License-Identifier: Apache-2.0
// Chat templates (Jinja) as transformers renders them: minijinja with Python methods, trim_blocks, lstrip_blocks,
// raise_exception, strftime_now, tojson without HTML escaping. Spec: model_formats.md 4. Thread-safe.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::text {

/// Special tokens as the template sees them (bos_token and so on); empty strings are left undefined.
struct TemplateTokens {
  std::string bos;
  std::string eos;
  std::string pad;
  std::string unk;
};

class ChatTemplate {
 public:
  /// Compiles; a syntax error names the line.
  static Result<std::shared_ptr<const ChatTemplate>> compile(std::string_view source, TemplateTokens tokens);
  virtual ~ChatTemplate() = default;

  struct Input {
    const boost::json::array* messages = nullptr;  ///< as they came (arguments of tool calls already objects)
    const boost::json::value* tools = nullptr;     ///< nullptr or null: None
    const boost::json::value* documents = nullptr;
    bool add_generation_prompt = true;
    const boost::json::object* extra = nullptr;  ///< chat_template_kwargs
  };
  /// Key order of JSON objects and the int/float kind of numbers are kept. An error is the template's own text.
  virtual Result<std::string> render(const Input& input) const = 0;
  /// Whether the template loops over message content (then it wants a list of parts, else one string).
  virtual bool wants_content_parts() const = 0;
};

}  // namespace tandem::text
