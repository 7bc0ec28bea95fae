// SPDX-License-Identifier: Apache-2.0
// The server that is measured: where it is, how it is asked, how an answer becomes a record. One io thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/stream_record.h"
#include "config/bench_config.h"
#include "net/http_client.h"

namespace tandem::bench {

/// One entry of GET /v1/models.
struct ServedModel {
  std::string id;
  std::string root;  ///< where its files are, as the server sees it; may be empty
};

class Target {
 public:
  /// An error names what is wrong with the base URL or a file of --server-ca-certs and its like.
  static Result<std::unique_ptr<Target>> create(const boost::asio::any_io_executor& executor,
                                                const config::BenchConfig& config);

  /// Sends one request and fills `record` (which must live until the end), whatever comes of it.
  net::Task<void> ask(std::string body, std::string request_id, net::Cancel cancel, StreamRecord* record);
  net::Task<Result<std::vector<ServedModel>>> models(net::Cancel cancel);
  std::string url() const { return config_.base_url; }

 private:
  Target(const config::BenchConfig& config, std::string prefix);
  net::Task<Result<void>> read_stream(net::ClientResponse* response, StreamRecord* record);
  /// The error of an answer that is not 200.
  net::Task<Status> refusal(net::ClientResponse* response);

  const config::BenchConfig& config_;
  std::shared_ptr<net::HttpClient> client_;
  std::string prefix_;  ///< of every path: the base URL's own
  net::Headers headers_;
};

}  // namespace tandem::bench
