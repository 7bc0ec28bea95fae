// SPDX-License-Identifier: Apache-2.0
// Structural tags: text of which some parts are free and others hold to a schema, as one Lark grammar. Both forms that
// vLLM takes: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, and XGrammar's {"format": {...}}.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "api/json_style.h"
#include "api/refusal.h"

namespace tandem::api {

/// Types of "format": const_string, json_schema, regex, any_text, tag, sequence, or, triggered_tags and
/// tags_with_separator. Free text (any_text, triggered_tags) must have an end that can be looked for: that of the tag
/// it is in, or the output's. `style` is that of all schemas in it. 400 that names `param` for all else.
Outcome<std::string> structural_tag_grammar(const boost::json::value& value, const JsonStyle& style,
                                            const std::string& param);

}  // namespace tandem::api
