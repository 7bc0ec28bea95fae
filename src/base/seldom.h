// SPDX-License-Identifier: Apache-2.0
// Keeps what a peer can cause again and again from filling a log.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem {

/// One line a minute about each subject, and about a bounded number of them. Thread-safe.
class Seldom {
 public:
  bool due(std::string_view subject);

 private:
  std::mutex mutex_;
  std::map<std::string, std::chrono::steady_clock::time_point, std::less<>> said_;  // guarded by mutex_
};

}  // namespace tandem
