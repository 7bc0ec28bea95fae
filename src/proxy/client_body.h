// SPDX-License-Identifier: Apache-2.0
// What of a client's body goes to a prefiller and what to a decoder (pd_protocol.md 2.5, 2.6, 4.2 and 7.2):
//
//   member                  prefiller                decoder
//   kv_transfer_params      pull: do_remote_decode,  pull: what the prefiller answered (a client's own is dropped)
//                           and the members below    push: do_remote_prefill and the metaserver
//                           as sent
//                           push: what the decoder
//                           posted
//   prompt (push)           the one that is wanted   as sent
//   stream                  false                    as sent
//   max_tokens, min_tokens  1                        as sent
//   max_completion_tokens   1 if present             as sent
//   n                       1 if present             as sent
//   stream_options          dropped                  as sent
//   seed                    as sent                  as sent; a stream without one gets ours, if it is for an instance
//                                                    of ours: another decoder can then draw the same numbers
//   everything else         as sent                  as sent
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "proxy/json_members.h"

namespace tandem::proxy {

class ClientBody {
 public:
  /// What is wrong with a member that no instance gets to see, in an instance's words.
  struct Fault {
    std::string message, param;
  };

  /// An error is the client's fault (400).
  static Result<ClientBody> parse(std::string_view text);
  /// Of the client's own kv_transfer_params, which are dropped: 400 too.
  const std::optional<Fault>& fault() const { return fault_; }

  std::string for_prefill() const;
  /// Layerwise: `prompt` is one of prompts(), or empty for a chat; `params` is the decoder's object.
  std::string for_push(std::string_view prompt, std::string_view params) const;
  /// Raw JSON of each prompt: a text or a list of token ids. Empty if there is no such member (a chat).
  std::vector<std::string> prompts() const;
  /// `params`: raw JSON of kv_transfer_params; empty: the decoder prefills by itself. `seed`: for a stream without one.
  std::string for_decode(std::string_view params, std::optional<std::uint32_t> seed = {}) const;
  /// The member "request_id" if it can be a header's value, else "".
  std::string request_id() const;
  bool stream() const { return members_.is_true("stream"); }
  bool has_messages() const { return members_.find("messages").has_value(); }
  /// Length of what the client sent: the measure of the load scores.
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  JsonMembers members_;
  std::optional<Fault> fault_;
  std::size_t num_bytes_ = 0;
};

/// The raw `kv_transfer_params` of a prefiller's answer; empty if absent, null or empty. An error if the answer is not
/// a JSON object.
Result<std::string> kv_params_of(std::string_view prefill_answer);

}  // namespace tandem::proxy
