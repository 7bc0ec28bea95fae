// SPDX-License-Identifier: Apache-2.0
// Looks for tags in text that comes in pieces of any size: what may become a tag is held back until it is one or not.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::api {

class TagFinder {
 public:
  /// The tags outlive the finder; none begins another.
  TagFinder(std::initializer_list<std::string_view> tags) : tags_(tags) {}

  /// The tag that `next` completes, else "". What turned out to be no part of a tag is appended to `plain`.
  std::string_view push(char next, std::string& plain) {
    held_ += next;
    while (!held_.empty()) {
      for (const std::string_view tag : tags_) {
        if (held_ != tag) continue;
        held_.clear();
        return tag;
      }
      if (std::any_of(tags_.begin(), tags_.end(), [this](std::string_view tag) { return tag.starts_with(held_); }))
        break;
      plain += held_.front();
      held_.erase(0, 1);
    }
    return {};
  }
  /// The beginning of a tag that has not gone on.
  std::string take() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string_view> tags_;
  std::string held_;
};

}  // namespace tandem::api
