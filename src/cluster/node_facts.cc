// SPDX-License-Identifier: Apache-2.0
// Collecting: threads over devices, and the measurements between two hosts.
#include "cluster/node_facts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <thread>

#include "cluster/check_agent.h"
#include "cluster/line_socket.h"

namespace tandem::cluster {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kMaxThreads = 32;
constexpr int kRoundTrips = 50;

/// Runs task(0..count-1) on a few threads. Each index writes its own slot.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < std::min(count, kMaxThreads); ++i) threads.emplace_back(work);
}

template <class T, class Text>
Reading reading_of(const Result<T>& result, Text text) {
  if (!result) return Reading{false, result.error().message()};
  return Reading{true, text(*result)};
}

Reading text_reading(const Result<std::string>& result) {
  return reading_of(result, [](const std::string& value) { return value; });
}

template <class T>
Result<T> asked(const Hccn& hccn, int device, const char* option, Result<T> (*parse)(std::string_view)) {
  TANDEM_ASSIGN(const std::string output, hccn.ask(device, {option, "-g"}));
  return parse(output);
}

DeviceFacts ask_device(const Hccn& hccn, int id, bool a3) {
  DeviceFacts facts;
  facts.id = id;
  auto& readings = facts.readings;
  readings["lldp"] = text_reading(asked(hccn, id, "-lldp", parse_lldp));
  readings["link"] = text_reading(asked(hccn, id, "-link", parse_link));
  readings["net_health"] = text_reading(asked(hccn, id, "-net_health", parse_net_health));
  readings["netdetect"] = text_reading(asked(hccn, id, "-netdetect", parse_netdetect));
  readings["gateway"] =
      reading_of(asked(hccn, id, "-gateway", parse_gateway), [](const Gateway& gateway) { return gateway.address; });
  readings["ip"] = text_reading(asked(hccn, id, "-ip", parse_device_ip));
  readings["tls"] =
      reading_of(asked(hccn, id, "-tls", parse_tls_switch), [](int value) { return std::to_string(value); });
  if (!a3) return facts;
  const auto vnic = asked(hccn, id, "-vnic", parse_vnic);
  readings["vnic"] = reading_of(vnic, [](const Vnic& value) { return value.address; });
  readings["vnic_link"] = reading_of(vnic, [](const Vnic& value) { return value.status; });
  return facts;
}

PingResult ping(const Hccn& hccn, int device, const std::string& option, const std::string& address) {
  PingResult result{device, option, address, {}};
  auto output = hccn.ask(device, {option, "-g", "address", address});
  if (!output) {
    result.answer = Reading{false, output.error().message()};
    return result;
  }
  const auto count = parse_ping(*output);
  result.answer =
      reading_of(count, [](const PingCount& value) { return fmt::format("{:g} % loss", value.loss_percent); });
  if (count && count->loss_percent > 0) result.answer.ok = false;
  return result;
}

/// An agent's echo or sink after its answer to the question; the stream then belongs to the measurement.
Result<LineSocket> measuring(const std::string& host, std::uint16_t port, std::string_view ask, TimePoint deadline,
                             const std::atomic<bool>* stop) {
  TANDEM_ASSIGN(LineSocket socket, LineSocket::connect(host, port, deadline, stop));
  TANDEM_TRY(socket.send(fmt::format("{{\"ask\": \"{}\"}}\n", ask), deadline));
  TANDEM_ASSIGN(const std::string line, socket.receive_line(kMaxAgentLine, deadline));
  TANDEM_TRY(check_agent_answer(line));
  return socket;
}

/// The median of a number of round trips of one byte, in microseconds.
Result<double> measure_latency(const std::string& host, std::uint16_t port, const NodeTools& tools) {
  const TimePoint deadline = Steady::now() + tools.timeout;
  TANDEM_ASSIGN(LineSocket socket, measuring(host, port, "echo", deadline, tools.stop));
  std::vector<double> times;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = Steady::now();
    TANDEM_TRY(socket.send("x", deadline));
    char byte = 0;
    TANDEM_ASSIGN(const std::size_t got, socket.receive(&byte, 1, deadline));
    if (got == 0) return Status(Code::kUnavailable, "the agent closed the connection", Scope::kPeer);
    times.push_back(std::chrono::duration<double, std::micro>(Steady::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + kRoundTrips / 2, times.end());
  return times[kRoundTrips / 2];
}

/// Sends for `measure` and divides by the time until the agent has all.
Result<double> measure_bandwidth(const std::string& host, std::uint16_t port, milliseconds measure,
                                 const NodeTools& tools) {
  const TimePoint start = Steady::now();
  const TimePoint deadline = start + measure + tools.timeout;
  TANDEM_ASSIGN(LineSocket socket, measuring(host, port, "sink", deadline, tools.stop));
  const std::string piece(1U << 18, 'b');
  const TimePoint begin = Steady::now();
  std::uint64_t sent = 0;
  do {
    if (auto done = socket.send(piece, deadline); !done)
      return done.error().context(fmt::format("after {} bytes", sent));
    sent += piece.size();
  } while (Steady::now() < begin + measure);
  socket.shutdown_send();
  TANDEM_ASSIGN(const std::string line, socket.receive_line(kMaxAgentLine, deadline));
  TANDEM_ASSIGN(const std::uint64_t received, read_sink_answer(line));
  if (received != sent)
    return Status(Code::kDataLoss, fmt::format("{} bytes were sent and {} arrived", sent, received), Scope::kPeer);
  return static_cast<double>(sent) * 8e-9 / seconds(Steady::now() - begin);
}

PathResult probe_path(const std::string& host, std::uint16_t port, milliseconds measure, const NodeTools& tools) {
  PathResult path;
  path.peer = fmt::format("{}:{}", host, port);
  const auto route = route_to(host);
  path.route = reading_of(route, [](const Route& value) {
    return fmt::format("{} {}", value.interface_name.empty() ? "?" : value.interface_name, value.source);
  });
  if (route) {
    path.interface_name = route->interface_name;
    path.mtu = route->mtu;
  }
  const auto start = Steady::now();
  const auto socket = LineSocket::connect(host, port, start + tools.timeout, tools.stop);
  const auto took = std::chrono::duration_cast<microseconds>(Steady::now() - start).count();
  path.connect = reading_of(socket, [&](const LineSocket&) { return fmt::format("{} us", took); });
  if (!socket) {
    path.latency = path.bandwidth = Reading{false, "no connection"};
    return path;
  }
  const auto latency = measure_latency(host, port, tools);
  path.latency = reading_of(latency, [](double us) { return fmt::format("{:.0f} us", us); });
  path.latency_us = latency.value_or(0);
  const auto bandwidth = measure_bandwidth(host, port, measure, tools);
  path.bandwidth = reading_of(bandwidth, [](double gbit) { return fmt::format("{:.2f} Gbit/s", gbit); });
  path.gbit_per_s = bandwidth.value_or(0);
  return path;
}

bool stopped(const NodeTools& tools) { return tools.stop != nullptr && tools.stop->load(std::memory_order_relaxed); }

}  // namespace

bool file_exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

NodeFacts collect_facts(const FactsRequest& request, const NodeTools& tools) {
  NodeFacts facts;
  facts.interfaces = host_interfaces();
  facts.tool = tools.hccn_tool;
  if (request.host_only) return facts;
  facts.npu_present = tools.exists("/dev/davinci0");
  facts.tool_present = tools.exists(tools.hccn_tool);
  auto conf = read_hccn_conf(tools.hccn_conf);
  facts.hccn_conf = reading_of(conf, [&](const HccnConf&) { return tools.hccn_conf; });
  if (conf) facts.conf = std::move(*conf);
  if (!facts.tool_present) return facts;
  const Hccn hccn(tools.runner, tools.hccn_tool, tools.timeout);
  facts.devices.resize(static_cast<std::size_t>(std::clamp(request.num_devices, 0, kMaxDevices)));
  in_parallel(facts.devices.size(), [&](std::size_t i) {
    if (!stopped(tools)) facts.devices[i] = ask_device(hccn, static_cast<int>(i), request.a3);
    facts.devices[i].id = static_cast<int>(i);
  });
  return facts;
}

NodeProbes collect_probes(const ProbesRequest& request, const NodeTools& tools) {
  NodeProbes probes;
  const Hccn hccn(tools.runner, tools.hccn_tool, tools.timeout);
  std::vector<std::vector<PingResult>> pings(request.devices.size());
  in_parallel(request.devices.size(), [&](std::size_t i) {
    for (const auto& [option, addresses] :
         {std::pair("-ping", &request.ping_addresses), std::pair("-hccs_ping", &request.hccs_addresses)})
      for (const std::string& address : *addresses) {
        if (stopped(tools)) return;
        pings[i].push_back(ping(hccn, request.devices[i], option, address));
      }
  });
  for (auto& list : pings) probes.pings.insert(probes.pings.end(), list.begin(), list.end());
  for (const auto& [host, port] : request.peers) {
    if (stopped(tools)) break;
    probes.paths.push_back(probe_path(host, port, std::min(request.measure, kMaxMeasure), tools));
  }
  return probes;
}

}  // namespace tandem::cluster
