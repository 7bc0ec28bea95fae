// SPDX-License-Identifier: Apache-2.0
#include "proxy/forwarding.h"

#include <fmt/format.h>

#include <random>

#include "net/relay.h"
#include "proxy/json_members.h"

namespace tandem::proxy {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 404:
      return "NotFoundError";
    case 429:
      return "TooManyRequestsError";
    case 502:
      return "BadGatewayError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "GatewayTimeoutError";
    default:
      return status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

}  // namespace

net::Headers backend_headers(const net::Headers& client, std::string_view request_id,
                             const config::ProxyConfig& config) {
  net::Headers headers = net::request_headers(client);
  headers.set("x-request-id", std::string(request_id));
  if (!config.instance_api_key.empty())
    headers.set("authorization", fmt::format("Bearer {}", config.instance_api_key));
  else if (!headers.find("authorization") && !config.fallback_api_key.empty())
    headers.add("authorization", fmt::format("Bearer {}", config.fallback_api_key));
  return headers;
}

std::string make_uuid() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  const std::uint64_t high = (random() & ~0xf000ULL) | 0x4000ULL;
  const std::uint64_t low = (random() & ~(3ULL << 62)) | (1ULL << 63);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff, high & 0xffff, low >> 48,
                     low & 0xffffffffffffULL);
}

std::string random_hex(std::size_t digits) {
  std::string hex = make_uuid();
  std::erase(hex, '-');
  // The first of the last 16 digits is the variant of a UUID, which is not zero.
  return hex.substr(hex.size() - std::min(digits, hex.size()));
}

std::string random_secret() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string error_body(int status, std::string_view message, std::string_view param) {
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}})", json_quote(message),
                     error_type(status), param.empty() ? "null" : json_quote(param), status);
}

std::string error_event(int status, std::string_view message) {
  return fmt::format("data: {{\"error\": {{\"message\": {}, \"type\": \"{}\", \"param\": null, \"code\": {}}}}}\n\n",
                     json_quote(message), error_type(status), status);
}

net::HttpResponse error_response(int status, std::string_view message, std::string_view param) {
  net::HttpResponse response(status, "application/json", error_body(status, message, param));
  if (status == 503) response.headers.add("retry-after", "1");
  return response;
}

}  // namespace tandem::proxy
