// SPDX-License-Identifier: Apache-2.0
// The first process of an instance that has several: which rank takes a request, and how a request gets to a rank in
// another process. That process has the same API at an internal port, for bearers of its token only, so streams,
// choices, logprobs and hand-overs work there as here. Server's thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/refusal.h"
#include "api/request.h"
#include "engine/rank_choice.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace tandem::api {

/// A process of the instance other than the first one.
struct OtherProcess {
  std::string name;  ///< "the process with data-parallel ranks 16 to 31 at 192.0.0.4"
  std::int32_t first_rank = 0;
  std::int32_t num_ranks = 0;
  net::Endpoint endpoint;  ///< its internal API
  std::string token;
  bool serving = false;  ///< there, and answering
};

/// What the first process knows of the others at the moment.
struct InstanceView {
  Status incomplete;  ///< not ok: no step can run anywhere; names who is missing
  std::vector<OtherProcess> others;
};

class Front {
 public:
  struct Options {
    std::function<InstanceView()> view;  ///< called on the server's thread
    std::int32_t num_own_ranks = 1;      ///< the first ones
    std::int32_t num_ranks = 1;
    std::int32_t block_size = 16;
    std::int32_t blocks_per_rank = 1;
    std::int32_t max_num_seqs = 1;  ///< of a rank; more are waiting there
  };
  explicit Front(Options options);

  /// Not ok: new requests are refused with this, and /health says 503.
  Status incomplete() const { return options_.view().incomplete; }
  std::vector<OtherProcess> others() const { return options_.view().others; }

  /// Where a request goes, by rank_choice.h over the ranks of all processes, or as the client said. nullopt: here.
  /// A job with one prompt is bound to the chosen rank; the choices of others may spread within the process.
  Outcome<std::optional<OtherProcess>> place(Job& job, const std::vector<engine::RankLoad>& own);
  /// Sends the exchange's request there as it is and its answer back. Every end is an answer: a process that is lost
  /// before its answer begins gives 503, later an error event or a broken connection.
  net::Task<void> forward(std::shared_ptr<net::Exchange> exchange, OtherProcess process, Job job);

  /// The same request to all others that are serving: answers of status 200, in the order of the ranks.
  net::Task<std::vector<std::string>> ask_others(boost::asio::any_io_executor executor, net::ClientRequest request);

  /// A process came or went: requests to those that are gone end now.
  void instance_changed();
  void forget_prompts() { choice_.forget(); }

 private:
  struct Open {
    std::int32_t first_rank = 0;
    net::Cancel cancel;
  };
  class Share;

  std::shared_ptr<net::HttpClient> client_of(const OtherProcess& process, boost::asio::any_io_executor executor);
  std::vector<engine::RankLoad> loads(const std::vector<engine::RankLoad>& own,
                                      const std::vector<OtherProcess>& others) const;
  net::Task<void> exchange_with(std::shared_ptr<net::Exchange> exchange, OtherProcess process,
                                net::ClientRequest request, net::Cancel cancel);

  const Options options_;
  engine::RankChoice choice_;
  std::vector<std::int32_t> forwarded_;  ///< requests under way, by rank
  std::list<Open> open_;
  std::map<std::string, std::shared_ptr<net::HttpClient>> clients_;  ///< by endpoint
};

}  // namespace tandem::api
