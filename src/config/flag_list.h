// SPDX-License-Identifier: Apache-2.0
// The flags of one command as data: name, form, group, help, default, and what to do with the value. command_line.cc
// turns a list into a parser and a help text.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/argument_forms.h"
#include "config/values.h"

namespace tandem::config {

/// Takes the value as written. An error is about the value only; the caller adds the flag's name.
using Setter = std::function<Result<void>(const std::string& value)>;

struct Flag {
  FlagForm form;
  std::vector<std::string> short_forms;  ///< "-tp"
  std::string group;
  std::string metavar;
  std::string help;
  std::string default_text;                                                 ///< "" if there is none
  std::function<Result<void>(const std::vector<std::string>& values)> set;  ///< a switch gets "true" or "false"

  Flag& short_form(std::string name) {
    short_forms.push_back(std::move(name));
    return *this;
  }
  Flag& nullable() {
    form.nullable = true;
    return *this;
  }
  Flag& json() {
    form.json = true;
    return *this;
  }
};

class FlagList {
 public:
  explicit FlagList(std::vector<std::string>& notes) : notes_(notes) {}

  void group(std::string name) { group_ = std::move(name); }
  Flag& one(std::string name, std::string metavar, std::string help, std::string default_text, Setter set);
  Flag& many(std::string name, std::string metavar, std::string help, std::string default_text,
             std::function<Result<void>(const std::vector<std::string>&)> set);
  /// --name and, if `negatable`, --no-name.
  Flag& toggle(std::string name, std::string help, bool& target, bool negatable = true);
  /// Accepted because people's scripts have it; `why` goes into the notes once it is given.
  Flag& ignored(std::string name, Arity arity, std::string why);
  /// Known, but what it asks for cannot be had; leaving it out silently would be wrong.
  Flag& refused(std::string name, Arity arity, std::string why);

  const std::vector<Flag>& flags() const { return flags_; }
  FlagForms forms() const;
  std::vector<std::string>& notes() { return notes_; }

 private:
  Flag& add(std::string name, Arity arity);

  std::vector<std::string>& notes_;
  std::string group_;
  std::vector<Flag> flags_;
};

// Setters for common types.
inline Setter text_into(std::string& target) {
  return [&target](const std::string& value) -> Result<void> {
    target = value;
    return {};
  };
}

template <class Integer>
Setter integer_into(Integer& target, std::int64_t low, std::int64_t high) {
  return [&target, low, high](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const std::int64_t number, parse_integer(value, low, high));
    target = static_cast<Integer>(number);
    return {};
  };
}

inline Setter milliseconds_into(std::chrono::milliseconds& target, bool zero_allowed = false) {
  return [&target, zero_allowed](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const std::int64_t count, parse_milliseconds(value, zero_allowed));
    target = std::chrono::milliseconds(count);
    return {};
  };
}

/// A size (32k, 32K) within a range. Target is an integer type or an optional of one.
template <class Target>
Setter size_into(Target& target, std::int64_t low, std::int64_t high) {
  return [&target, low, high](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(const std::int64_t number, parse_size(value));
    if (number < low || number > high)
      return Status(Code::kInvalidArgument,
                    value + " is out of range; allowed are " + std::to_string(low) + " to " + std::to_string(high));
    if constexpr (std::is_integral_v<Target>)
      target = static_cast<Target>(number);
    else
      target = static_cast<typename Target::value_type>(number);
    return {};
  };
}

template <class T>
Setter choice_into(T& target, std::vector<std::pair<std::string_view, T>> choices) {
  return [&target, choices = std::move(choices)](const std::string& value) -> Result<void> {
    TANDEM_ASSIGN(target, parse_choice(value, choices));
    return {};
  };
}

}  // namespace tandem::config
