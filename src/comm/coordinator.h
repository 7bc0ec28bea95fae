// SPDX-License-Identifier: Apache-2.0
// The first process's side of the links that keep an instance together: hears of all processes, tells them who is
// there. Assembly decides; this moves the messages and notices who is silent.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/channel.h"
#include "comm/assembly.h"

namespace tandem::comm {

/// Times of a link between a process and the first one. A process that says nothing for `silence` is taken for dead.
struct LinkTimes {
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{3'000};
};

class Coordinator {
 public:
  /// `changed` is called, on any thread, after the state of a process changed; it must only post or wake.
  Coordinator(Assembly::Options options, LinkTimes times, std::function<void()> changed);
  ~Coordinator() = default;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// One link from its Hello to its end; on a thread of its own.
  void serve(Channel channel, const Hello& hello, const std::stop_token& stop);

  std::vector<Assembly::Seat> seats() const;
  bool up() const;
  bool roster_known() const;
  std::string waiting_for() const;

 private:
  Result<void> converse(LinkId id, Channel& channel, const std::stop_token& stop);
  void carry_out(const Orders& orders);  // with mutex_
  void run(const std::stop_token& stop);

  const LinkTimes times_;
  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  Assembly assembly_;                    // guarded by mutex_
  std::map<LinkId, Channel*> channels_;  // guarded by mutex_, as is sending to them
  LinkId next_link_ = 1;                 // guarded by mutex_
  std::jthread thread_;                  // last: uses all of the above
};

}  // namespace tandem::comm
