// SPDX-License-Identifier: Apache-2.0
#include "config/flag_list.h"

#include <fmt/format.h>

namespace tandem::config {

Flag& FlagList::add(std::string name, Arity arity) {
  Flag& flag = flags_.emplace_back();
  flag.form.name = std::move(name);
  flag.form.arity = arity;
  flag.group = group_;
  return flag;
}

Flag& FlagList::one(std::string name, std::string metavar, std::string help, std::string default_text, Setter set) {
  Flag& flag = add(std::move(name), Arity::kOne);
  flag.metavar = std::move(metavar);
  flag.help = std::move(help);
  flag.default_text = std::move(default_text);
  flag.set = [set = std::move(set)](const std::vector<std::string>& values) { return set(values.front()); };
  return flag;
}

Flag& FlagList::many(std::string name, std::string metavar, std::string help, std::string default_text,
                     std::function<Result<void>(const std::vector<std::string>&)> set) {
  Flag& flag = add(std::move(name), Arity::kMany);
  flag.metavar = std::move(metavar);
  flag.help = std::move(help);
  flag.default_text = std::move(default_text);
  flag.set = std::move(set);
  return flag;
}

Flag& FlagList::toggle(std::string name, std::string help, bool& target, bool negatable) {
  Flag& flag = add(std::move(name), Arity::kNone);
  flag.form.negatable = negatable;
  flag.help = std::move(help);
  if (negatable) flag.default_text = target ? "on" : "off";
  flag.set = [&target](const std::vector<std::string>& values) -> Result<void> {
    target = values.front() == "true";
    return {};
  };
  return flag;
}

Flag& FlagList::ignored(std::string name, Arity arity, std::string why) {
  Flag& flag = add(name, arity);
  flag.form.negatable = arity == Arity::kNone;
  flag.form.json = arity == Arity::kOne;
  flag.metavar = arity == Arity::kNone ? "" : "VALUE";
  flag.help = "accepted, does nothing: " + why;
  flag.set = [this, name = std::move(name), why = std::move(why)](const std::vector<std::string>&) -> Result<void> {
    notes_.push_back(fmt::format("{} is ignored: {}", name, why));
    return {};
  };
  return flag;
}

Flag& FlagList::refused(std::string name, Arity arity, std::string why) {
  Flag& flag = add(std::move(name), arity);
  flag.group.clear();  // not shown: it is no offer
  flag.set = [why = std::move(why)](const std::vector<std::string>&) -> Result<void> {
    return Status(Code::kUnsupported, why);
  };
  return flag;
}

FlagForms FlagList::forms() const {
  FlagForms forms;
  for (const Flag& flag : flags_) {
    forms.flags.push_back(flag.form);
    for (const std::string& name : flag.short_forms) forms.short_forms.emplace_back(name, flag.form.name);
  }
  return forms;
}

}  // namespace tandem::config
