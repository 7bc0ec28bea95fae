// SPDX-License-Identifier: Apache-2.0
// What a request wants its output to match: response_format, structured_outputs, guided_*, and the grammars of
// tool_choice. Spec: vllm_api.md 10, 11.1.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/fields.h"
#include "text/grammar.h"

namespace tandem::api {

/// A grammar that is not compiled yet.
struct Constraint {
  text::GrammarKind kind = text::GrammarKind::kJsonSchema;
  std::string source;
  std::string param;  ///< the member that it comes from
};

/// nullopt if the request has none; refuses more than one. `compact`, here and below: JSON without blanks; a request
/// may say otherwise in structured_outputs.
Outcome<std::optional<Constraint>> read_constraint(const Fields& body, bool compact);

/// The arguments of one tool of the request (its "parameters").
Outcome<Constraint> named_tool_constraint(const boost::json::array& tools, std::string_view name, bool compact);
/// An array of calls {"name", "parameters"} of any of the tools, at least one, and at most one without `parallel`.
Outcome<Constraint> required_tools_constraint(const boost::json::array& tools, bool parallel, bool compact);

/// 400 with the reason if it is none.
Outcome<std::shared_ptr<const text::Grammar>> compile(const text::GrammarCompiler& compiler,
                                                      const Constraint& constraint);

}  // namespace tandem::api
