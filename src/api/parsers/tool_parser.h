// SPDX-License-Identifier: Apache-2.0
// Finds the tool calls in a model's output. A parser is a state machine over characters: text comes in pieces of any
// size, and what comes out, joined, does not depend on where the pieces end. So a stream and a whole answer agree by
// construction. Spec: vllm_api.md 11.
//
// Arguments are the model's own text, in streams and in whole answers; vLLM writes them anew in whole answers, which
// differs in white space and escapes only.
//
// A call is told once its name is known and its arguments have begun, name and arguments together, and stays a call.
// What begins like a call and is none becomes content: all of it if the call was not told yet, else what is left of it;
// all later text is content too, and malformed() is set. A call that is cut off has the arguments as far as they go.
// That holds for whole answers as for streams; vLLM's whole answers have no calls then and all of the text as content,
// which a stream cannot do, as it has told of the calls before.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "api/parsers/message_delta.h"
#include "config/serve_config.h"

namespace tandem::api {

class ToolParser {
 public:
  virtual ~ToolParser() = default;

  /// The next piece of text; its news are added to `news`.
  void feed(std::string_view text, MessageDelta& news) {
    for (const char next : text) {
      if (rest_is_content_)
        news.content += next;
      else
        step(next, news);
    }
  }
  /// The text ends here.
  void finish(MessageDelta& news) {
    if (!rest_is_content_) end(news);
  }
  /// Some call was not whole or not a call.
  bool malformed() const { return malformed_; }

 protected:
  virtual void step(char next, MessageDelta& news) = 0;
  virtual void end(MessageDelta& news) = 0;
  /// All further text is content; `text` is its beginning.
  void give_up(std::string_view text, MessageDelta& news) {
    news.content += text;
    rest_is_content_ = malformed_ = true;
  }
  /// The same for text that did not even begin like a call.
  void take_as_content(std::string_view text, MessageDelta& news) {
    news.content += text;
    rest_is_content_ = true;
  }
  void set_malformed() { malformed_ = true; }

 private:
  bool rest_is_content_ = false;
  bool malformed_ = false;
};

/// The parser of --tool-call-parser. `tools` (the request's, may be nullptr) tell the types of arguments where the
/// format does not; they outlive the parser.
std::unique_ptr<ToolParser> make_tool_parser(config::ToolFormat format, const boost::json::array* tools);

/// <tool_call>{"name": "f", "arguments": {...}}</tool_call>, repeated (Hermes, Qwen 2.5 and 3).
std::unique_ptr<ToolParser> make_hermes_parser();
/// <tool_call><function=f><parameter=key>value</parameter></function></tool_call>, repeated (Qwen3-Coder).
std::unique_ptr<ToolParser> make_qwen3_coder_parser(const boost::json::array* tools);
/// {"name": "f", "parameters": {...}}, several with ';' between them, perhaps after <|python_tag|> (Llama 3).
std::unique_ptr<ToolParser> make_llama3_json_parser();
/// [{"name": "f", "parameters": {...}}, ...]: what tool_choice "required" makes a model write.
std::unique_ptr<ToolParser> make_required_parser();
/// All text is the arguments of one call: tool_choice with a name.
std::unique_ptr<ToolParser> make_named_parser(std::string name);

}  // namespace tandem::api
