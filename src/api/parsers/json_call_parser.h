// SPDX-License-Identifier: Apache-2.0
// What the formats have in common whose calls are JSON objects.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "api/parsers/call_reader.h"
#include "api/parsers/tool_parser.h"

namespace tandem::api {

class JsonCallParser : public ToolParser {
 protected:
  /// `without_arguments`: a call may lack them, which means {}.
  JsonCallParser(std::initializer_list<std::string_view> arguments_keys, bool without_arguments)
      : fresh_(arguments_keys), without_arguments_(without_arguments) {}

  /// A call begins; `opening` is the text since it began to look like one.
  void begin(std::string opening);
  /// One more character of the call. True when it is complete.
  bool read(char next, MessageDelta& news);
  /// The call is none: `next` cannot follow, or the text ends ("").
  void fail(std::string_view next, MessageDelta& news);

 private:
  CallReader fresh_;
  bool without_arguments_;
  std::optional<CallReader> reader_;  ///< of the call that is being read
  bool told_ = false;                 ///< its name and the beginning of its arguments are out
  std::size_t next_index_ = 0;
  std::string raw_;  ///< all of the call's text that is not out in any form
};

}  // namespace tandem::api
