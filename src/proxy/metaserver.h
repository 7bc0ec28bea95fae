// SPDX-License-Identifier: Apache-2.0
// POST /v1/metaserver, the proxy's half of layerwise push (pd_protocol.md 7.1 and 9.8): a decoder says where a
// request's KV shall go, the proxy has a prefiller push it there and answers when that is over.
//
//   200 {"status":"ok"}   the prefiller has answered: everything was pushed
//   400                   not the message of a decoder
//   404                   no request of that id is open: unknown, answered, or its client has left
//   413                   a body over 4 MiB
//   502                   no prefiller could do it; the error names what each said
//
// A second post of the same id joins the first one: the prompt is prefilled once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http_server.h"

namespace tandem::proxy {

struct ProxyContext;
class Deliveries;

/// A decoder's own id of one child of a client's request: "[<choice>_]cmpl-<id>-<prompt>" or "[<choice>_]chatcmpl-<id>"
/// (pd_protocol.md 2.3).
struct ChildId {
  std::string parent;      ///< "cmpl-<id>" or "chatcmpl-<id>"
  std::size_t prompt = 0;  ///< index in the list of prompts
  std::size_t choice = 0;  ///< with n > 1

  static std::optional<ChildId> parse(std::string_view request_id);
};

struct MetaserverPost {
  ChildId child;
  std::string params;  ///< the object as it came: what the prefiller gets as kv_transfer_params

  /// The error names the member.
  static Result<MetaserverPost> parse(std::string_view body);
};

/// Requests that wait for, or have, pushed KV, by a name each: the parent id of its children, or what new_name() gave.
/// Used on the io thread only.
class OpenRequests {
 public:
  /// Open until it is destroyed.
  class Entry {
   public:
    Entry(OpenRequests& owner, std::string name) : owner_(owner), name_(std::move(name)) {}
    ~Entry() { owner_.by_name_.erase(name_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    OpenRequests& owner_;
    std::string name_;
  };

  bool contains(const std::string& name) const { return by_name_.count(name) > 0; }
  /// A number that was no name before; a post has it in its URL ("?request=<name>").
  std::string new_name() { return std::to_string(++last_name_); }
  /// `name` must not be open yet.
  std::unique_ptr<Entry> open(std::string name, std::shared_ptr<Deliveries> deliveries);
  std::shared_ptr<Deliveries> find(const std::string& name) const;

 private:
  std::map<std::string, std::shared_ptr<Deliveries>> by_name_;
  std::uint64_t last_name_ = 0;
};

void add_metaserver(net::HttpServer& server, const std::shared_ptr<ProxyContext>& context);

}  // namespace tandem::proxy
