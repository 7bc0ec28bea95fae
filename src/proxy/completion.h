// SPDX-License-Identifier: Apache-2.0
// One client request through the proxy, and what both ways of pairing need: the rounds, asking a decoder, passing its
// answer on, and what is remembered for the error that the client gets when nobody could answer. The ways themselves
// are pull_flow.h and layerwise_flow.h; each decides one round.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/cancel.h"
#include "net/http_server.h"
#include "proxy/client_body.h"
#include "proxy/client_stream.h"
#include "proxy/proxy_context.h"
#include "proxy/timing.h"
#include "proxy/trace_context.h"

namespace tandem::proxy {

/// How a stage or a round ended.
enum class Next : std::uint8_t {
  kContinue,  ///< this stage is done, the next may begin
  kAgain,     ///< failed in a way that another instance may not
  kGiveUp,    ///< failed, and nobody is left to ask
  kEnd,       ///< the client has an answer or is gone
};

/// Used on the proxy's io thread only. Lives until the last coroutine that works for it has ended.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(std::shared_ptr<ProxyContext> context, std::shared_ptr<net::Exchange> exchange);
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  /// Ends when the client has its answer or is gone.
  net::Task<void> run();

  // For the flows.

  ProxyContext& context() { return *context_; }
  const std::shared_ptr<ProxyContext>& shared_context() { return context_; }
  const ClientBody& body() const { return body_; }
  const net::HttpRequest& client_request() const { return exchange_->request(); }
  bool chat() const;
  /// Cancelled when the client leaves, or when the proxy stops and waits no longer.
  const net::Cancel& cancel() const { return cancel_; }
  /// Of this attempt, at both sides. No id is used for two attempts.
  const std::string& request_id() const { return request_id_; }
  void new_attempt();
  void use_request_id(std::string id) { request_id_ = std::move(id); }

  /// Null if the role has no instance for this way (noted as a problem) or none that has not failed this request.
  std::shared_ptr<Instance> choose(Role role, Connector connector, Tried& tried);
  Tried& tried_prefillers() { return tried_prefillers_; }
  /// A request to an instance with the client's path, query and headers.
  net::ClientRequest backend_request(std::string body, std::string_view request_id) const;

  struct DecodeStage {
    std::shared_ptr<Instance> decoder;
    std::string body;
    net::Cancel cancel;  ///< cancelled with the client, or earlier by the flow (the stage then ends with kGiveUp)
    std::function<void()> begun;                         ///< the answer has begun
    std::function<bool()> excused;                       ///< a 5xx is not the decoder's fault; may be empty
    std::function<net::Task<StageTime>()> prefill_time;  ///< for X-Tandem-Timing
    bool overlapped = false;                             ///< the prefill runs during this stage
  };
  /// The body for a decoder.
  std::string decode_body(const Instance& decoder, std::string_view kv_params) const;
  /// Asks the decoder and passes its answer on. 4xx is passed on; other failures before the first byte are noted. A
  /// stream that breaks off later is kAgain if another decoder may go on with it.
  net::Task<Next> decode(DecodeStage stage);

  /// An instance answered, but not with success: passes 4xx on, notes the rest.
  net::Task<Next> refused(std::shared_ptr<Instance> instance, std::unique_ptr<net::ClientResponse> answer,
                          Tried& tried);
  /// Passes on a 4xx that is known already.
  net::Task<void> relay_refusal(int status, net::Headers headers, std::string body);
  /// No whole answer came. Unless no connection came about, the instance does not get this request again.
  Next failed(Instance& instance, const Status& error, Tried& tried);
  /// What a status other than success means for the instance; notes it. Unless it is overloaded, it does not get this
  /// request again.
  void note_status(const std::shared_ptr<Instance>& instance, int status, const net::Headers& headers,
                   std::string_view body, Tried& tried);
  Next client_left(std::string_view stage);
  void note_problem(std::string problem);
  /// Waits retry_delay * 2^attempt; ends early when cancelled.
  net::Task<void> pause(int attempt, net::Cancel cancel);

 private:
  /// Why no request is taken now; empty if there is room.
  std::string no_room() const;
  net::Task<void> pair();
  net::Task<Next> round(bool again);
  net::Task<Next> pass_on(const DecodeStage& stage, std::unique_ptr<net::ClientResponse> answer,
                          std::string first_piece, TimePoint asked);
  /// Whether a stream that `broken` breaks off can go on at another decoder.
  bool can_resume(const Instance& broken) const;
  net::Task<void> give_up();
  /// The proxy itself ended the request; its client is told, as far as that can be done.
  net::Task<void> say_stopping();

  std::shared_ptr<ProxyContext> context_;
  std::shared_ptr<net::Exchange> exchange_;
  ClientStream stream_;
  int resumes_left_ = 0;
  std::uint32_t seed_;  ///< of all attempts, if the client gave none
  net::Cancel cancel_;
  net::Cancel::Hook end_all_;
  bool whole_begun_ = false;  ///< the client has the head of an answer that is not a stream
  ClientBody body_;
  TraceContext trace_;
  TimePoint arrived_;
  bool timing_wanted_ = false;
  std::string base_id_;
  std::string request_id_;
  int attempts_ = 0;
  Tried tried_prefillers_, tried_decoders_;
  std::vector<std::string> problems_;  ///< what was tried and how it failed
  int give_up_status_ = 503;
  std::string retry_after_;
  std::string_view outcome_ = "5xx";
};

/// Statuses of an instance that works but has no room, or is not ready yet: others may have.
constexpr bool is_overload(int status) { return status == 429 || status == 503; }
/// A status that is the client's own fault, and its answer.
constexpr bool is_refusal(int status) { return status >= 400 && status < 500 && !is_overload(status); }
/// Deadlines of the two stages.
net::ClientTimeouts prefill_timeouts(const config::ProxyConfig& config);
net::ClientTimeouts decode_timeouts(const config::ProxyConfig& config, bool streamed);
/// Most bytes of a prefiller's answer, and of an error's body.
constexpr std::size_t kMostPrefillAnswer = 64U << 20;
constexpr std::size_t kMostErrorBody = 1U << 20;

}  // namespace tandem::proxy
