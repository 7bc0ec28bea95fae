// SPDX-License-Identifier: Apache-2.0
// Layerwise push: a decoder says where it wants a prompt's KV by an HTTP request to the proxy's metaserver
// (pd_protocol.md 7.2). The engine does no HTTP; whoever builds it gives it this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace tandem::engine {

struct Announcement {
  std::string host;
  std::uint16_t port = 0;
  bool tls = false;         ///< https
  std::string target;       ///< path and query
  std::string body;         ///< JSON
  std::string traceparent;  ///< sent on if not empty
};
using AnnouncementId = std::uint64_t;

class Announcer {
 public:
  virtual ~Announcer() = default;
  /// Posts; never blocks. `done` is called exactly once, on a thread of the announcer's: ok if the metaserver said so
  /// (the prefill is over then), else an error within a deadline.
  virtual AnnouncementId announce(Announcement announcement, std::function<void(Status)> done) = 0;
  /// Gives up and closes the connection, by which the metaserver learns of it. `done` is still called, with kCancelled
  /// unless it had been. Unknown ids are ignored.
  virtual void cancel(AnnouncementId id) = 0;
};

}  // namespace tandem::engine
