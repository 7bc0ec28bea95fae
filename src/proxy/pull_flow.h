// SPDX-License-Identifier: Apache-2.0
// One request in pull mode (pd_protocol.md 4.1): a prefiller computes the prompt, its kv_transfer_params go to a
// decoder, the decoder's answer goes to the client. Decides what is tried again and what is not:
//
//   prefiller unreachable, broken, 5xx    another prefiller, up to max_retries
//   prefiller 4xx                         passed on; no backend is asked again
//   decoder unreachable, broken, 5xx
//     before the first byte               lease released, then all again with a new prefill, up to max_retries
//     afterwards                          never again; the broken end is made visible (answer_relay.h)
//   decoder 4xx                           passed on; lease released
//   client leaves                         the backend's connection is closed at once; lease released
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/cancel.h"
#include "net/http_server.h"
#include "proxy/client_body.h"
#include "proxy/lease_release.h"
#include "proxy/proxy_context.h"

namespace tandem::proxy {

class PullFlow : public std::enable_shared_from_this<PullFlow> {
 public:
  PullFlow(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange);
  ~PullFlow();
  PullFlow(const PullFlow&) = delete;
  PullFlow& operator=(const PullFlow&) = delete;

  /// Ends when the client has its answer or is gone. Everything taken (scores, lease, place) is given back by then.
  net::Task<void> run();

 private:
  enum class Next : std::uint8_t {
    kContinue,  ///< this stage is done, the next may begin
    kAgain,     ///< failed in a way that another instance may not
    kEnd,       ///< the client has an answer or is gone
  };

  net::Task<void> pair();
  net::Task<Next> prefill();
  net::Task<Next> ask_prefiller(std::shared_ptr<Instance> prefiller);
  net::Task<Next> decode();
  net::Task<Next> ask_decoder(std::shared_ptr<Instance> decoder);
  net::Task<Next> stream_answer(std::shared_ptr<Instance> decoder, std::unique_ptr<net::ClientResponse> answer,
                                std::string first_piece);
  /// A backend answered, but not with success: passes 4xx on, remembers the rest.
  net::Task<Next> refused(std::shared_ptr<Instance> instance, std::unique_ptr<net::ClientResponse> answer);
  net::Task<void> give_up();
  /// Waits retry_delay * 2^attempt; ends early when the client leaves.
  net::Task<void> pause(int attempt);

  net::ClientRequest backend_request(std::string body) const;
  Next failed(Instance& instance, const Status& error);
  Next client_left(std::string_view stage);
  void note_failure(const Instance& instance, std::string_view problem);

  std::shared_ptr<ProxyContext> context_;
  std::shared_ptr<net::Exchange> exchange_;
  net::Cancel cancel_;  ///< set when the client leaves
  ClientBody body_;
  TimePoint arrived_;
  std::string base_id_;
  std::string request_id_;  ///< of this attempt, at P and D
  int attempts_ = 0;        ///< prefills asked for
  Tried tried_prefillers_, tried_decoders_;
  LoadShare prefill_share_;
  PrefillLease lease_;
  std::string kv_params_;              ///< raw JSON from the prefiller; empty: none
  std::string prefill_timing_;         ///< the prefiller's X-Tandem-Timing, if the client asked for times
  std::vector<std::string> problems_;  ///< what was tried and how it failed
  int give_up_status_ = 503;
  std::string retry_after_;
  std::string_view outcome_ = "5xx";
};

}  // namespace tandem::proxy
