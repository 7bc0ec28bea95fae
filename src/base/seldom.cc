// SPDX-License-Identifier: Apache-2.0
#include "base/seldom.h"

namespace tandem {
namespace {

constexpr auto kPause = std::chrono::minutes(1);
constexpr std::size_t kMaxSubjects = 256;

}  // namespace

bool Seldom::due(std::string_view subject) {
  const auto now = std::chrono::steady_clock::now();
  const std::scoped_lock lock(mutex_);
  std::erase_if(said_, [now](const auto& entry) { return now - entry.second >= kPause; });
  if (said_.size() >= kMaxSubjects || said_.contains(subject)) return false;
  said_.emplace(subject, now);
  return true;
}

}  // namespace tandem
