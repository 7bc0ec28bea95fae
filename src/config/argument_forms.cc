// SPDX-License-Identifier: Apache-2.0
#include "config/argument_forms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <numeric>
#include <optional>

#include "base/json.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

bool looks_like_flag(const std::string& text) {
  if (text.size() < 2 || text[0] != '-') return false;
  return !(text[1] >= '0' && text[1] <= '9') && text[1] != '.';  // a negative number is a value
}

/// A flag as it was written: name with dashes, the dotted path behind it, and the value after '='.
struct Written {
  std::string name;
  std::string path;
  std::optional<std::string> value;
};

Written split_flag(const std::string& argument) {
  Written written;
  const std::size_t end = argument.find_first_of(".=");
  written.name = argument.substr(0, end);
  std::replace(written.name.begin() + 2, written.name.end(), '_', '-');
  if (end == std::string::npos) return written;
  std::size_t equals = argument.find('=', end);
  if (equals != std::string::npos) written.value = argument.substr(equals + 1);
  if (argument[end] == '.')
    written.path = argument.substr(end + 1, equals == std::string::npos ? equals : equals - end - 1);
  return written;
}

/// Which flag a written name means, and whether in its --no- form.
struct Meaning {
  const FlagForm* flag = nullptr;
  bool negative = false;
};

std::string negative_name(const FlagForm& flag) { return "--no-" + flag.name.substr(2); }

Result<Meaning> find_flag(const std::string& name, const FlagForms& forms) {
  std::vector<std::string> all, matches;
  Meaning found;
  for (const FlagForm& flag : forms.flags) {
    for (const bool negative : {false, true}) {
      if (negative && !flag.negatable) continue;
      const std::string full = negative ? negative_name(flag) : flag.name;
      if (full == name) return Meaning{&flag, negative};
      all.push_back(full);
      if (name.size() > 2 && full.starts_with(name)) {
        matches.push_back(full);
        found = Meaning{&flag, negative};
      }
    }
  }
  if (matches.size() == 1) return found;
  if (matches.size() > 1)
    return Status(Code::kInvalidArgument,
                  fmt::format("ambiguous option: {} could match {}", name, fmt::join(matches, ", ")));
  const std::string near = nearest_name(name, all);
  return Status(Code::kInvalidArgument, fmt::format("unrecognized arguments: {}{}", name,
                                                    near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

json::value json_or_text(const std::string& text) {
  auto parsed = parse_json(text, JsonLimits{.max_depth = 32, .max_bytes = 1U << 20});
  if (parsed) return *parsed;
  return json::value(json::string(text));
}

/// Puts `text` at `path` ("a.b", or "a.list+" to append) of an object, making objects on the way.
Status put(json::object& root, std::string path, const std::string& text) {
  const bool append = path.ends_with('+');
  if (append) path.pop_back();
  json::object* at = &root;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.')) {
    json::value& child = (*at)[path.substr(0, dot)];
    if (!child.is_object()) child = json::object();
    at = &child.as_object();
    path.erase(0, dot + 1);
  }
  if (path.empty()) return Status(Code::kInvalidArgument, "a name is missing after a dot");
  json::value& leaf = (*at)[path];
  if (!append) {
    leaf = json_or_text(text);
    return {};
  }
  if (!leaf.is_array()) leaf = json::array();
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    leaf.as_array().push_back(json_or_text(text.substr(start, comma - start)));
    start = comma + 1;
  }
  return {};
}

class Canonicalizer {
 public:
  Canonicalizer(std::span<const std::string> arguments, const FlagForms& forms)
      : arguments_(arguments), forms_(forms) {}

  Result<Arguments> run() {
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (argument == "--") {
        result_.rest.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(next_), arguments_.end());
        break;
      }
      if (!looks_like_flag(argument)) {
        result_.positional.push_back(argument);
        continue;
      }
      TANDEM_TRY(take_flag(argument));
    }
    for (const auto& [name, object] : dotted_) given_[name] = {name + "=" + std::string(json::serialize(object))};
    for (const std::string& name : order_)
      if (auto it = given_.find(name); it != given_.end()) {
        for (const std::string& part : it->second) result_.canonical.push_back(part);
        given_.erase(it);
      }
    return std::move(result_);
  }

 private:
  Result<void> take_flag(const std::string& argument) {
    Written written;
    if (argument.starts_with("--")) {
      written = split_flag(argument);
    } else {
      const std::size_t end = argument.find_first_of(".=");
      const std::string name = argument.substr(0, end);
      const auto form = std::find_if(forms_.short_forms.begin(), forms_.short_forms.end(),
                                     [&](const auto& pair) { return pair.first == name; });
      if (form != forms_.short_forms.end()) {
        written = split_flag(form->second + (end == std::string::npos ? "" : argument.substr(end)));
      } else {
        TANDEM_ASSIGN(written, attached_value(argument));
      }
    }
    TANDEM_ASSIGN(const Meaning meaning, find_flag(written.name, forms_));
    if (!written.path.empty()) return take_dotted(*meaning.flag, written);
    order_.push_back(meaning.flag->name);
    switch (meaning.flag->arity) {
      case Arity::kNone:
        return take_switch(meaning, written);
      case Arity::kOne:
        return take_one(*meaning.flag, written);
      case Arity::kMany:
        return take_many(*meaning.flag, written);
    }
    return {};
  }

  /// "-O3": a one-letter form with its value attached.
  Result<Written> attached_value(const std::string& argument) const {
    for (const auto& [form, name] : forms_.short_forms)
      if (form.size() == 2 && argument.size() > 2 && argument.starts_with(form))
        return Written{.name = name, .path = "", .value = argument.substr(2)};
    return Status(Code::kInvalidArgument, fmt::format("unrecognized arguments: {}", argument));
  }

  Result<void> take_switch(const Meaning& meaning, const Written& written) {
    if (written.value)
      return Status(Code::kInvalidArgument,
                    fmt::format("argument {}: ignored explicit argument '{}'; it takes no value", meaning.flag->name,
                                *written.value));
    given_[meaning.flag->name] = {meaning.negative ? negative_name(*meaning.flag) : meaning.flag->name};
    return {};
  }

  Result<std::string> value_of(const FlagForm& flag, const Written& written) {
    if (written.value) return *written.value;
    if (next_ >= arguments_.size() || looks_like_flag(arguments_[next_]))
      return Status(Code::kInvalidArgument, fmt::format("argument {}: expected one argument", flag.name));
    return arguments_[next_++];
  }

  Result<void> take_one(const FlagForm& flag, const Written& written) {
    TANDEM_ASSIGN(const std::string value, value_of(flag, written));
    if (flag.nullable && (value.empty() || value == "None"))
      given_.erase(flag.name);
    else
      given_[flag.name] = {flag.name + "=" + value};
    return {};
  }

  Result<void> take_many(const FlagForm& flag, const Written& written) {
    std::vector<std::string> parts{flag.name};
    if (written.value) parts.push_back(*written.value);
    while (next_ < arguments_.size() && arguments_[next_] != "--" && !looks_like_flag(arguments_[next_]))
      parts.push_back(arguments_[next_++]);
    if (parts.size() == 1)
      return Status(Code::kInvalidArgument, fmt::format("argument {}: expected at least one argument", flag.name));
    given_[flag.name] = std::move(parts);
    return {};
  }

  Result<void> take_dotted(const FlagForm& flag, const Written& written) {
    if (!flag.json)
      return Status(Code::kInvalidArgument, fmt::format("argument {}: it is not a JSON flag, so {}.{} means nothing",
                                                        flag.name, flag.name, written.path));
    TANDEM_ASSIGN(const std::string value, value_of(flag, written));
    if (Status status = put(dotted_[flag.name], written.path, value); !status.ok())
      return status.context("argument " + flag.name);
    order_.push_back(flag.name);
    return {};
  }

  std::span<const std::string> arguments_;
  const FlagForms& forms_;
  std::size_t next_ = 0;
  Arguments result_;
  std::vector<std::string> order_;                         ///< flag names in order of appearance
  std::map<std::string, std::vector<std::string>> given_;  ///< the last spelling of each flag
  std::map<std::string, json::object> dotted_;
};

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

Result<Arguments> canonical_arguments(std::span<const std::string> arguments, const FlagForms& forms) {
  return Canonicalizer(arguments, forms).run();
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  if (name.size() > 200) return best;
  for (const std::string& candidate : known)
    if (const std::size_t distance = edit_distance(name, candidate); distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  return best;
}

}  // namespace tandem::config
