// SPDX-License-Identifier: Apache-2.0
// What others send the proxy about requests and instances: a decoder's post, /tandem/info, /instances/add, and the
// headers traceparent and X-Tandem-Timing. What is accepted keeps its promises.
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "proxy/client_body.h"
#include "proxy/instance_admin.h"
#include "proxy/instance_watch.h"
#include "proxy/metaserver.h"
#include "proxy/timing.h"
#include "proxy/trace_context.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem::proxy;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto post = MetaserverPost::parse(text)) {
    if (post->params != text) std::abort();
    if (!post->child.parent.starts_with("cmpl-") && !post->child.parent.starts_with("chatcmpl-")) std::abort();
    const auto body = ClientBody::parse(R"({"prompt":["a",[1]],"n":2})");
    const auto sent = JsonMembers::parse(body->for_push(body->prompts()[1], post->params));
    if (!sent || sent->find("prompt") != "[1]" || sent->find("n") != "1") std::abort();
  }
  if (const auto body = ClientBody::parse(text)) {
    for (const auto& prompt : body->prompts()) {
      if (!tandem::parse_json(prompt) && !tandem::parse_json("[" + prompt + "]")) std::abort();
    }
  }
  (void)InstanceInfo::parse(text);
  (void)InstanceChange::parse(text);
  (void)ChildId::parse(text);
  const auto trace = TraceContext::continue_from(text);
  if (trace && !TraceContext::continue_from(trace->traceparent())) std::abort();
  const std::string combined = combine_timing(1.0, {0.5, std::string(text)}, {0.4, std::string(text)}, size % 2 == 0);
  double sum = 0;
  for (std::size_t at = combined.find('='); at != std::string::npos; at = combined.find('=', at + 1)) {
    sum += std::strtod(combined.c_str() + at + 1, nullptr);
  }
  if (std::abs(sum - 1.0) > 1e-3) std::abort();
  return 0;
}
