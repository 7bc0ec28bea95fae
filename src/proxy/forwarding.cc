// SPDX-License-Identifier: Apache-2.0
#include "proxy/forwarding.h"

#include <fmt/format.h>

#include <array>
#include <random>

#include "proxy/json_members.h"

namespace tandem::proxy {
namespace {

constexpr std::array<std::string_view, 9> kHopByHop = {
    "connection",        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade"};

void remove_hop_by_hop(net::Headers& headers) {
  std::vector<std::string> named;
  for (const auto& [name, value] : headers.fields()) {
    net::Headers probe;
    probe.add(name, "");
    if (!probe.find("connection")) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const auto comma = std::min(rest.find(','), rest.size());
      auto token = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      while (token.starts_with(' ')) token.remove_prefix(1);
      while (token.ends_with(' ')) token.remove_suffix(1);
      if (!token.empty()) named.emplace_back(token);
    }
  }
  for (const auto& name : named) headers.remove(name);
  for (const auto name : kHopByHop) headers.remove(name);
}

std::string_view error_type(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 404:
      return "NotFoundError";
    case 408:
      return "RequestTimeoutError";
    case 413:
      return "RequestTooLargeError";
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

net::Headers backend_headers(const net::Headers& client, std::string_view request_id, std::string_view api_key) {
  net::Headers headers = client;
  remove_hop_by_hop(headers);
  for (const char* name : {"host", "content-length", "expect", "accept-encoding"}) headers.remove(name);
  headers.set("content-type", "application/json");
  headers.set("x-request-id", std::string(request_id));
  if (!headers.find("authorization") && !api_key.empty()) {
    headers.add("authorization", fmt::format("Bearer {}", api_key));
  }
  return headers;
}

net::Headers client_headers(const net::Headers& backend) {
  net::Headers headers = backend;
  remove_hop_by_hop(headers);
  headers.remove("date");
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

std::string error_body(int status, std::string_view message) {
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":null,"code":{}}}}})", json_quote(message),
                     error_type(status), status);
}

net::HttpResponse error_response(int status, std::string_view message) {
  net::HttpResponse response(status, "application/json", error_body(status, message));
  if (status == 503) response.headers.add("retry-after", "1");
  return response;
}

}  // namespace tandem::proxy
