// SPDX-License-Identifier: Apache-2.0
#include "cluster/node_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"

namespace tandem::cluster {
namespace {

constexpr std::chrono::milliseconds kCommandLimit{10'000};
constexpr int kShortestPrefix = 16;  // host parts of four hexadecimal digits: names of interfaces are short
constexpr int kLongestPrefix = 30;
constexpr const char* kNodeInterface = "eth0";

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }
Status impossible(std::string message) { return Status(Code::kFailedPrecondition, std::move(message)); }

std::optional<std::uint32_t> parse_ipv4(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::string ipv4_text(std::uint32_t address) {
  return fmt::format("{}.{}.{}.{}", address >> 24, (address >> 16) & 255, (address >> 8) & 255, address & 255);
}

std::uint32_t mask_of(int prefix) { return ~std::uint32_t{0} << (32 - prefix); }

/// Names in a listing of `ip -o link show` ("7: NAME@if6: <...") or `ip netns list` ("NAME (id: 0)").
std::vector<std::string> names_in(const std::string& listing, bool numbered, const std::string& prefix) {
  std::vector<std::string> names;
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (numbered) words >> word;
    word = word.substr(0, word.find_first_of("@:"));
    if (word.starts_with(prefix)) names.push_back(word);
  }
  return names;
}

}  // namespace

Result<NodeNetworkSpec> parse_node_network(const std::string& address, std::vector<std::string> hosts) {
  NodeNetworkSpec spec;
  const std::size_t slash = address.find('/');
  const auto bridge = parse_ipv4(address.substr(0, slash));
  const std::string prefix = slash == std::string::npos ? "" : address.substr(slash + 1);
  const bool is_number =
      !prefix.empty() && prefix.size() < 3 && prefix.find_first_not_of("0123456789") == std::string::npos;
  spec.prefix = is_number ? std::stoi(prefix) : 0;
  if (!bridge || spec.prefix < kShortestPrefix || spec.prefix > kLongestPrefix)
    return invalid(fmt::format("address is '{}', expected an IPv4 address and a prefix of {} to {}, as 192.0.0.254/24",
                               address, kShortestPrefix, kLongestPrefix));
  spec.address = *bridge;
  for (const std::string& host : hosts) {
    const auto node = parse_ipv4(host);
    if (!node || ((*node ^ spec.address) & mask_of(spec.prefix)) != 0)
      return invalid(fmt::format("host '{}' is not an address in the network of {}", host, address));
    if (*node == spec.address) return invalid(fmt::format("host {} is the address of the bridge itself", host));
  }
  spec.hosts = std::move(hosts);
  return spec;
}

std::string node_network_name(const NodeNetworkSpec& spec) {
  return fmt::format("td{:08x}", spec.address & mask_of(spec.prefix));
}

Result<std::unique_ptr<NodeNetwork>> NodeNetwork::create(NodeNetworkSpec spec, std::unique_ptr<CommandRunner> runner) {
  if (geteuid() != 0)
    return impossible(
        "network: namespaces for the hosts need root; run as root (sudo), or take the network out of the file and give "
        "all instances one host");
  std::unique_ptr<NodeNetwork> network(new NodeNetwork(std::move(spec), std::move(runner)));
  TANDEM_TRY(network->lock());
  TANDEM_TRY(network->check_no_other_route());
  TANDEM_TRY(network->remove_all());  // of a run that was killed
  TANDEM_TRY(network->make_bridge());
  for (const std::string& host : network->spec_.hosts) TANDEM_TRY(network->make_node(host));
  return network;
}

NodeNetwork::~NodeNetwork() {
  if (lock_ < 0) return;
  if (auto removed = remove_all(); !removed) log::warning("{}", removed.error().message());
  close(lock_);
}

Result<int> NodeNetwork::open_namespace(const std::string& host) const {
  const std::string path = "/run/netns/" + node_name(host);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status(Code::kInternal, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  return fd;
}

std::string NodeNetwork::description() const {
  return fmt::format("{} in namespaces of their own, this machine is {} (bridge {})", fmt::join(spec_.hosts, ", "),
                     ipv4_text(spec_.address), node_network_name(spec_));
}

/// The kernel drops the lock when this process ends, however it ends.
Result<void> NodeNetwork::lock() {
  const std::string path = fmt::format("/run/tandem-{}.lock", node_network_name(spec_));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return impossible(fmt::format("network: cannot open {}: {}", path, std::strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return impossible(fmt::format("network: another `tandem up` has the network {}/{} now",
                                  ipv4_text(spec_.address & mask_of(spec_.prefix)), spec_.prefix));
  }
  lock_ = fd;
  return {};
}

/// Addresses of a real network must not be taken away from this machine.
Result<void> NodeNetwork::check_no_other_route() const {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0)
    return impossible(fmt::format("network: cannot list the interfaces: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    const std::uint32_t address = ntohl(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr);
    if (((address ^ spec_.address) & mask_of(spec_.prefix)) != 0) continue;
    if (node_network_name(spec_) == entry->ifa_name) continue;
    return impossible(fmt::format(
        "network: interface {} of this machine has {}, which is in {}/{}; choose other addresses", entry->ifa_name,
        ipv4_text(address), ipv4_text(spec_.address & mask_of(spec_.prefix)), spec_.prefix));
  }
  return {};
}

Result<void> NodeNetwork::remove_all() {
  const std::string name = node_network_name(spec_);
  TANDEM_ASSIGN(const std::string namespaces, ip({"netns", "list"}));
  for (const std::string& node : names_in(namespaces, false, name + "-")) TANDEM_TRY(ip({"netns", "delete", node}));
  // A namespace lives on while a process is in it, and its veth pair with it: the pair goes by its end on this side.
  TANDEM_ASSIGN(const std::string links, ip({"-o", "link", "show"}));
  for (const std::string& link : names_in(links, true, name)) {
    // It may go by itself just now, with its namespace.
    if (auto removed = ip({"link", "delete", link}); !removed && removed.error().code() != Code::kNotFound)
      return removed.error();
  }
  return {};
}

Result<void> NodeNetwork::make_bridge() {
  const std::string name = node_network_name(spec_);
  TANDEM_TRY(ip({"link", "add", name, "type", "bridge"}));
  TANDEM_TRY(ip({"address", "add", fmt::format("{}/{}", ipv4_text(spec_.address), spec_.prefix), "dev", name}));
  TANDEM_TRY(ip({"link", "set", name, "up"}));
  return {};
}

Result<void> NodeNetwork::make_node(const std::string& host) {
  const std::string name = node_name(host);
  TANDEM_TRY(ip({"netns", "add", name}));
  TANDEM_TRY(ip({"link", "add", name, "type", "veth", "peer", "name", kNodeInterface, "netns", name}));
  TANDEM_TRY(ip({"link", "set", name, "master", node_network_name(spec_), "up"}));
  TANDEM_TRY(ip({"-n", name, "address", "add", fmt::format("{}/{}", host, spec_.prefix), "dev", kNodeInterface}));
  TANDEM_TRY(ip({"-n", name, "link", "set", kNodeInterface, "up"}));
  TANDEM_TRY(ip({"-n", name, "link", "set", "lo", "up"}));
  TANDEM_TRY(ip({"-n", name, "route", "add", "default", "via", ipv4_text(spec_.address)}));
  return {};
}

Result<std::string> NodeNetwork::ip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ip");
  auto output = runner_->run(arguments, kCommandLimit);
  if (!output && output.error().code() == Code::kNotFound)
    return impossible("network: the program `ip` is not here; install iproute2");
  if (!output) return output.error().context("network");
  if (output->exit_code == 0) return std::move(output->text);
  std::string why = output->text.substr(0, output->text.find('\n'));
  const Code code = why.find("Cannot find device") != std::string::npos ? Code::kNotFound : Code::kFailedPrecondition;
  return Status(code, fmt::format("network: '{}' failed: {}", command_text(arguments), why));
}

std::string NodeNetwork::node_name(const std::string& host) const {
  const std::uint32_t address = parse_ipv4(host).value_or(0);
  return fmt::format("{}-{:x}", node_network_name(spec_), address & ~mask_of(spec_.prefix));
}

}  // namespace tandem::cluster
