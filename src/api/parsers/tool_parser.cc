// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/tool_parser.h"

#include <boost/json.hpp>

namespace tandem::api {

std::unique_ptr<ToolParser> make_tool_parser(config::ToolFormat format, const boost::json::array* tools) {
  switch (format) {
    case config::ToolFormat::kNone:
      break;
    case config::ToolFormat::kHermes:
      return make_hermes_parser();
    case config::ToolFormat::kQwen3Coder:
      return make_qwen3_coder_parser(tools);
    case config::ToolFormat::kLlama3Json:
      return make_llama3_json_parser();
  }
  return nullptr;
}

}  // namespace tandem::api
