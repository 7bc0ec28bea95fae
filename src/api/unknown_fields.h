// SPDX-License-Identifier: Apache-2.0
// Members of bodies that no schema lists: taken, without effect, and told in the log in vLLM's words. A client must not
// be able to fill the log by them, so each name is told once and only so many names are.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "api/request_schema.h"

namespace tandem::api {

class UnknownFields {
 public:
  static constexpr std::size_t kMostNames = 100;      ///< told in the life of a server
  static constexpr std::size_t kMostCharacters = 64;  ///< of a name

  /// The line about what is new in this body; nullopt if there is nothing to tell. Any thread.
  std::optional<std::string> line_about(const boost::json::object& body, Schema schema);

 private:
  std::mutex mutex_;
  std::set<std::string, std::less<>> told_;  // guarded by mutex_; names as they stand in the log
};

}  // namespace tandem::api
