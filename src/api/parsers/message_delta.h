// SPDX-License-Identifier: Apache-2.0
// What a piece of a model's output text turned out to be: reasoning, content, parts of tool calls.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

struct MessageDelta {
  /// News of one call: `name` is set in its first one only; `arguments` is the next part of their text, never empty.
  struct Call {
    std::size_t index = 0;
    bool first = false;
    std::string name;
    std::string arguments;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;  ///< by index, at most one for each call

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void begin_call(std::size_t index, std::string name) { calls.push_back({index, true, std::move(name), {}}); }
  void add_arguments(std::size_t index, std::string_view text) {
    if (text.empty()) return;
    if (calls.empty() || calls.back().index != index) calls.push_back({index, false, {}, {}});
    calls.back().arguments += text;
  }
};

}  // namespace tandem::api
