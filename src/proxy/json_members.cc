// SPDX-License-Identifier: Apache-2.0
#include "proxy/json_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/utf8.h"

namespace tandem::proxy {
namespace {

/// Far above what a request or an answer has; each one costs some hundred bytes, several times.
constexpr std::size_t kMostMembers = 4096;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Walks over text that a JSON parser has accepted before, so that only the shape matters here.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view take_string() {
    skip_space();
    const std::size_t begin = at_;
    skip_string();
    return text_.substr(begin, at_ - begin);
  }
  std::string_view take_value() {
    skip_space();
    const std::size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_space(c))) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
      if (depth == 0 && (c == '}' || c == ']')) break;
    }
    return text_.substr(begin, at_ - begin);
  }

 private:
  void skip_string() {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Result<std::string> decode_name(std::string_view quoted) {
  if (quoted.find('\\') == std::string_view::npos) return std::string(quoted.substr(1, quoted.size() - 2));
  TANDEM_ASSIGN(const auto value, parse_json(quoted));
  const auto& name = value.as_string();
  return std::string(name.data(), name.size());
}

}  // namespace

Result<JsonMembers> JsonMembers::parse(std::string_view text, JsonLimits limits) {
  TANDEM_TRY(check_json(text, limits));
  JsonMembers members;
  Scanner scanner(text);
  if (!scanner.take('{')) return Status(Code::kInvalidArgument, "the body must be a JSON object");
  while (!scanner.take('}')) {
    if (members.members_.size() == kMostMembers)
      return Status(Code::kInvalidArgument, fmt::format("the body has more than {} members", kMostMembers));
    const auto quoted = scanner.take_string();
    scanner.take(':');
    const auto raw = scanner.take_value();
    scanner.take(',');
    if (quoted.size() < 2 || raw.empty()) return Status(Code::kInvalidArgument, "the body is not a JSON object");
    TANDEM_ASSIGN(std::string name, decode_name(quoted));
    members.members_.emplace_back(std::move(name), std::string(quoted), std::string(raw));
  }
  return members;
}

std::optional<std::string_view> JsonMembers::find(std::string_view name) const {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (member->name == name) return std::string_view(member->value);
  }
  return std::nullopt;
}

void JsonMembers::set(std::string_view name, std::string_view raw) {
  const auto same = [name](const Member& member) { return member.name == name; };
  const auto first = std::find_if(members_.begin(), members_.end(), same);
  if (first == members_.end()) {
    members_.emplace_back(std::string(name), json_quote(name), std::string(raw));
    return;
  }
  first->value = raw;
  members_.erase(std::remove_if(first + 1, members_.end(), same), members_.end());
}

void JsonMembers::remove(std::string_view name) {
  std::erase_if(members_, [name](const Member& member) { return member.name == name; });
}

std::string JsonMembers::text() const {
  std::size_t size = 2;
  for (const auto& member : members_) size += member.raw_name.size() + member.value.size() + 2;
  std::string out;
  out.reserve(size);
  out += '{';
  for (const auto& member : members_) {
    if (out.size() > 1) out += ',';
    out += member.raw_name;
    out += ':';
    out += member.value;
  }
  out += '}';
  return out;
}

std::vector<std::string_view> json_elements(std::string_view array) {
  std::vector<std::string_view> elements;
  Scanner scanner(array);
  if (!scanner.take('[')) return elements;
  while (!scanner.take(']')) {
    const auto raw = scanner.take_value();
    if (raw.empty()) break;
    elements.push_back(raw);
    scanner.take(',');
  }
  return elements;
}

std::string json_quote(std::string_view text) {
  return boost::json::serialize(boost::json::value(replace_ill_formed_utf8(text)));
}

}  // namespace tandem::proxy
