// SPDX-License-Identifier: Apache-2.0
#include "config/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/json.h"

namespace tandem::config {
namespace {

namespace json = boost::json;

constexpr std::string_view kFlag = "--config";
constexpr std::streamoff kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxDepth = 16;

Status invalid(const std::string& file, std::string_view what) {
  return {Code::kInvalidArgument, fmt::format("argument --config: {}: {}", file, what)};
}

Result<std::string> read_file(const std::string& path) {
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) return invalid(path, "expected a .yaml or .yml file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return invalid(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  if (file.tellg() < 0 || file.tellg() > kMaxFileBytes)
    return invalid(path, fmt::format("not a regular file of at most {} bytes", kMaxFileBytes));
  file.seekg(0);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A plain YAML scalar is the JSON that it reads as, else text.
json::value to_json(const YAML::Node& node, std::size_t depth) {
  if (depth > kMaxDepth) throw YAML::Exception(node.Mark(), "too many mappings in each other");
  if (node.IsMap()) {
    json::object object;
    for (const auto& member : node) object[member.first.as<std::string>()] = to_json(member.second, depth + 1);
    return object;
  }
  if (node.IsSequence()) {
    json::array list;
    for (const auto& each : node) list.push_back(to_json(each, depth + 1));
    return list;
  }
  if (node.IsNull()) return nullptr;
  const auto text = node.as<std::string>();
  if (node.Tag() != "!") {  // not quoted
    if (auto value = parse_json(text); value && value->is_primitive()) return *value;
  }
  return json::value(json::string(text));
}

/// One member of the file as arguments.
void append_flag(const std::string& name, const YAML::Node& value, std::vector<std::string>& arguments) {
  if (value.IsNull() || (value.IsScalar() && value.Tag() != "!" && value.Scalar() == "false")) return;
  arguments.push_back("--" + name);
  if (value.IsMap())
    arguments.push_back(json::serialize(to_json(value, 0)));
  else if (value.IsSequence())
    for (const auto& each : value) arguments.push_back(each.as<std::string>());
  else if (value.Tag() == "!" || value.Scalar() != "true")
    arguments.push_back(value.as<std::string>());
}

Result<ExpandedArguments> flags_of(const std::string& path) {
  TANDEM_ASSIGN(const std::string text, read_file(path));
  ExpandedArguments expanded;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return invalid(path, "expected one mapping of flags to values");
    for (const auto& member : root) {
      const auto name = member.first.as<std::string>();
      if (name == "model" || name == "model_tag")
        expanded.model = member.second.as<std::string>();
      else
        append_flag(name, member.second, expanded.arguments);
    }
  } catch (const YAML::Exception& error) {
    return invalid(path, fmt::format("line {}: {}", error.mark.line + 1, error.msg));
  }
  return expanded;
}

}  // namespace

Result<ExpandedArguments> expand_config_file(std::span<const std::string> arguments) {
  ExpandedArguments rest;
  std::optional<std::string> file;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == kFlag) {
      if (i + 1 == arguments.size()) return Status(Code::kInvalidArgument, "argument --config: expected a file");
      file = arguments[++i];
    } else if (argument.starts_with("--config=")) {
      file = argument.substr(kFlag.size() + 1);
    } else {
      rest.arguments.push_back(argument);
    }
  }
  if (!file) return rest;
  TANDEM_ASSIGN(ExpandedArguments all, flags_of(*file));
  all.arguments.insert(all.arguments.end(), rest.arguments.begin(), rest.arguments.end());
  return all;
}

}  // namespace tandem::config
