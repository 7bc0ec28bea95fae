// SPDX-License-Identifier: Apache-2.0
// A client's body through the proxy's rewriting: what is accepted comes out as valid JSON with the members that the
// protocol wants, and a second pass changes nothing.
#include <cstdint>
#include <cstdlib>

#include "proxy/client_body.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tandem::proxy::ClientBody;
  using tandem::proxy::JsonMembers;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = ClientBody::parse(text);
  if (!body) return 0;
  const auto prefill = JsonMembers::parse(body->for_prefill());
  if (!prefill || prefill->find("max_tokens") != "1" || prefill->find("min_tokens") != "1" ||
      prefill->find("stream") != "false" || prefill->find("stream_options")) {
    std::abort();
  }
  const std::string decode = body->for_decode("");
  const auto again = ClientBody::parse(decode);
  if (!again || again->for_decode("") != decode || again->stream() != body->stream()) std::abort();
  const auto with_params = JsonMembers::parse(body->for_decode(R"({"a":1})"));
  if (!with_params || with_params->find("kv_transfer_params") != R"({"a":1})") std::abort();
  (void)tandem::proxy::kv_params_of(text);
  return 0;
}
