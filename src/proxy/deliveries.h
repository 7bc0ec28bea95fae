// SPDX-License-Identifier: Apache-2.0
// The prefills of one attempt in layerwise mode: for every child of the client's request (one prompt, one choice) whose
// decoder has said where the KV shall go, a prefiller computes that one prompt and pushes. (vLLM-Ascend's proxy sends a
// list of prompts as one request whose further destinations only one of its connectors reads; one request a child is
// right for all.) What is tried again and what is not:
//
//   prefiller unreachable, broken, 429,  another prefiller, up to max_retries; the same one only if it was unreachable
//     5xx                                or overloaded (429, 503). Safe: one that answers or is gone pushes no more, a
//                                        decoder takes one offer at a time, and equal prompts give equal KV
//   prefiller silent until its deadline  not tried again: it may still push
//   prefiller 4xx                        not tried again; the client gets that answer
//   the attempt ends                     prefills are aborted, unless the decoder's answer has begun: then they end
//                                        by themselves
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/cancel.h"
#include "proxy/completion.h"
#include "proxy/metaserver.h"

namespace tandem::proxy {

struct DeliveryResult {
  int status = 0;  ///< of the metaserver's answer
  std::string message;
};

/// Used on the proxy's io thread only.
class Deliveries : public std::enable_shared_from_this<Deliveries> {
 public:
  /// `decoder_decides`: the decoder honours status 502 (it may compute the prompt itself); others are cut off, which is
  /// the only way to end their wait.
  Deliveries(std::shared_ptr<Completion> completion, bool decoder_decides);

  /// One post of the decoder. Ends when a prefiller has answered or the attempt is over.
  net::Task<DeliveryResult> deliver(ChildId child, std::string params);

  /// The decoder's request must end: the client left, or the prefill failed.
  const net::Cancel& decode_cancel() const { return decode_cancel_; }
  void answer_begun() { begun_ = true; }
  /// The attempt is over: no post is taken any more, and those that wait for a prefill that is aborted are answered.
  void end();

  bool failed() const { return failed_ || refusal_.has_value(); }
  /// A prefiller's 4xx, which is the client's answer.
  struct Refusal {
    int status = 0;
    net::Headers headers;
    std::string body;
  };
  std::optional<Refusal>& refusal() { return refusal_; }
  bool any() const { return !all_.empty(); }
  /// Of the prefill that took longest; waits a moment for answers that are on their way.
  net::Task<StageTime> time();

 private:
  struct Delivery {
    explicit Delivery(const boost::asio::any_io_executor& executor) : changed(executor) {}
    bool done = false;
    DeliveryResult result;
    StageTime time;
    Tried tried;
    std::vector<std::string> problems;
    boost::asio::steady_timer changed;  ///< cancelled when it is done
  };
  enum class Asked : std::uint8_t { kOk, kAgain, kFailed };

  bool known(const ChildId& child) const;
  net::Task<void> prefill(std::shared_ptr<Delivery> delivery, std::string body, std::string request_id);
  net::Task<Asked> ask(std::shared_ptr<Instance> prefiller, std::shared_ptr<Delivery> delivery, std::string body,
                       std::string request_id);
  net::Task<Asked> take_refusal(std::shared_ptr<Instance> prefiller, std::shared_ptr<Delivery> delivery,
                                std::unique_ptr<net::ClientResponse> answer);
  void finish(Delivery& delivery, Asked how);

  std::shared_ptr<Completion> completion_;
  const bool decoder_decides_;
  std::vector<std::string> prompts_;
  net::Cancel decode_cancel_, prefill_cancel_;
  net::Cancel::Hook client_left_;
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<Delivery>> all_;  ///< by prompt and choice
  std::optional<Refusal> refusal_;
  bool failed_ = false;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace tandem::proxy
