// SPDX-License-Identifier: Apache-2.0
// The prefiller's first word in a layerwise push: tells a decoder, over a short connection to its own port, from which
// lease to take a prompt's KV. From then on the decoder reads like any other. Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "transfer/connection.h"
#include "transfer/context.h"
#include "transfer/delivery.h"
#include "transfer/dialer.h"

namespace tandem::transfer {

class Offers {
 public:
  explicit Offers(Context& context) : context_(context) {}

  /// `told` is called once, on a later turn of the loop: ok, or why the decoder did not accept within connect_timeout.
  void make(const Delivery& to, const Handover& source, std::function<void(Status)> told);
  /// All that wait hear kCancelled.
  void stop();

 private:
  using CallId = std::uint64_t;
  struct Call {
    std::string name;  ///< of the decoder, for messages
    std::function<void(Status)> told;
    std::shared_ptr<Dialer> dialer;
    std::shared_ptr<Connection> connection;
    EventLoop::TimerId deadline;
  };
  void on_connected(CallId id, Socket socket, const wire::Offer& offer);
  void on_message(CallId id, const wire::Message& message);
  void end(CallId id, Status status);

  Context& context_;
  std::map<CallId, Call> calls_;
  CallId next_ = 1;
};

}  // namespace tandem::transfer
