// SPDX-License-Identifier: Apache-2.0
#include "comm/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "base/byte_codec.h"

namespace tandem::comm {
namespace {

constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxProperties = 64;

void put(ByteWriter& out, const ProcessInfo& process) {
  out.number(process.first_rank);
  out.number(process.num_ranks);
  out.text(process.host, kMaxText);
  out.number(process.port);
  out.text(process.details, kMaxText);
}

ProcessInfo take_process(ByteReader& in) {
  ProcessInfo process;
  process.first_rank = in.number<std::int32_t>();
  process.num_ranks = in.number<std::int32_t>();
  process.host = in.text(kMaxText);
  process.port = in.number<std::uint16_t>();
  process.details = in.text(kMaxText);
  const bool sane = process.first_rank >= 0 && process.num_ranks >= 1 && process.first_rank < kMaxRanks &&
                    process.num_ranks <= kMaxRanks - process.first_rank;
  if (in.ok() && !sane) in.fail("has impossible ranks");
  return process;
}

void put(ByteWriter& out, const std::vector<ProcessInfo>& processes) {
  out.number(static_cast<std::uint32_t>(processes.size()));
  for (const ProcessInfo& process : processes) put(out, process);
}

/// Of the whole instance, so they follow each other without a gap.
std::vector<ProcessInfo> take_processes(ByteReader& in) {
  std::vector<ProcessInfo> processes;
  std::int32_t next_rank = 0;
  for (std::size_t left = in.count(kMaxRanks, sizeof(std::int32_t)); left > 0 && in.ok(); --left) {
    ProcessInfo process = take_process(in);
    if (!in.ok()) break;  // its ranks are any numbers: nothing may be computed from them
    if (process.first_rank != next_rank) in.fail("has a gap in its ranks");
    next_rank += process.num_ranks;
    processes.push_back(std::move(process));
  }
  if (in.ok() && processes.empty()) in.fail("has no process");
  return processes;
}

void put(ByteWriter& out, const std::vector<Property>& properties) {
  TANDEM_ASSERT(properties.size() <= kMaxProperties, "few things must be the same everywhere");
  out.number(static_cast<std::uint32_t>(properties.size()));
  for (const auto& [name, value] : properties) {
    out.text(name, kMaxText);
    out.text(value, kMaxText);
  }
}

std::vector<Property> take_properties(ByteReader& in) {
  std::vector<Property> properties;
  for (std::size_t left = in.count(kMaxProperties, 2 * sizeof(std::uint32_t)); left > 0 && in.ok(); --left) {
    std::string name = in.text(kMaxText);
    std::string value = in.text(kMaxText);
    properties.emplace_back(std::move(name), std::move(value));
  }
  return properties;
}

struct Encoder {
  ByteWriter& out;
  void operator()(const Hello& message) const {
    out.number(kProtocolVersion);
    out.number(message.total_ranks);
    put(out, message.process);
    put(out, message.properties);
  }
  void operator()(const Ready&) const {}
  void operator()(const Linked& message) const { out.number(message.epoch); }
  void operator()(const Suspect& message) const { ended(message); }
  void operator()(const Drop& message) const { ended(message); }
  void operator()(const Serving&) const {}
  void operator()(const Alive&) const {}
  void operator()(const Refused& message) const {
    out.number(static_cast<std::uint8_t>(message.final ? 1 : 0));
    out.text(message.why, kMaxText);
  }
  void operator()(const Waiting& message) const { out.text(message.text, kMaxText); }
  void operator()(const Roster& message) const { put(out, message.processes); }
  void operator()(const Form& message) const {
    out.number(message.epoch);
    put(out, message.processes);
  }
  void operator()(const Up& message) const { out.number(message.epoch); }
  void operator()(const LinkHello& message) const {
    out.number(kProtocolVersion);
    out.number(message.epoch);
    out.number(message.process);
  }

  template <class T>
  void ended(const T& message) const {
    out.number(message.epoch);
    out.number(message.process);
    out.text(message.why, kMaxText);
  }
};

void check_version(ByteReader& in) {
  if (in.number<std::uint32_t>() != kProtocolVersion && in.ok())
    in.fail("is of another version of Tandem; run the same one everywhere");
}

std::int32_t take_index(ByteReader& in) {
  const auto index = in.number<std::int32_t>();
  if (in.ok() && (index < 0 || index >= kMaxRanks)) in.fail("has an impossible process number");
  return index;
}

template <class T>
T take(ByteReader& in) {
  T message;
  if constexpr (std::is_same_v<T, Hello>) {
    check_version(in);
    message.total_ranks = in.number<std::int32_t>();
    message.process = take_process(in);
    message.properties = take_properties(in);
  } else if constexpr (std::is_same_v<T, Linked> || std::is_same_v<T, Up>) {
    message.epoch = in.number<std::uint64_t>();
  } else if constexpr (std::is_same_v<T, Suspect> || std::is_same_v<T, Drop>) {
    message.epoch = in.number<std::uint64_t>();
    message.process = take_index(in);
    message.why = in.text(kMaxText);
  } else if constexpr (std::is_same_v<T, Refused>) {
    message.final = in.number<std::uint8_t>() != 0;
    message.why = in.text(kMaxText);
  } else if constexpr (std::is_same_v<T, Waiting>) {
    message.text = in.text(kMaxText);
  } else if constexpr (std::is_same_v<T, Roster>) {
    message.processes = take_processes(in);
  } else if constexpr (std::is_same_v<T, Form>) {
    message.epoch = in.number<std::uint64_t>();
    message.processes = take_processes(in);
  } else if constexpr (std::is_same_v<T, LinkHello>) {
    check_version(in);
    message.epoch = in.number<std::uint64_t>();
    message.process = take_index(in);
  }
  return message;
}

template <std::size_t kIndex = 0>
Message take_kind(std::size_t kind, ByteReader& in) {
  if constexpr (kIndex == std::variant_size_v<Message>) {
    in.fail("is of an unknown kind");
    return Alive{};
  } else {
    if (kind == kIndex) return take<std::variant_alternative_t<kIndex, Message>>(in);
    return take_kind<kIndex + 1>(kind, in);
  }
}

}  // namespace

std::string describe(const ProcessInfo& process) {
  const std::int32_t last = process.first_rank + process.num_ranks - 1;
  const std::string ranks =
      process.num_ranks == 1 ? fmt::format("rank {}", last) : fmt::format("ranks {} to {}", process.first_rank, last);
  return fmt::format("the process with data-parallel {} at {}", ranks, process.host);
}

Status compare_properties(std::span<const Property> expected, std::span<const Property> found) {
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    static const Property kNothing{"(nothing)", "(nothing)"};
    const Property& want = i < expected.size() ? expected[i] : kNothing;
    const Property& have = i < found.size() ? found[i] : kNothing;
    if (want == have) continue;
    if (want.first == have.first)
      return {Code::kFailedPrecondition,
              fmt::format("{} is {} there and {} in the first process; it must be the same in all processes of an "
                          "instance",
                          want.first, have.second, want.second)};
    return {Code::kFailedPrecondition,
            fmt::format("it compares '{}' where the first process compares '{}'; run the same version everywhere",
                        have.first, want.first)};
  }
  return {};
}

std::vector<std::byte> encode(const Message& message) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.number(static_cast<std::uint8_t>(message.index()));
  std::visit(Encoder{out}, message);
  return bytes;
}

Result<Message> decode(std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto kind = in.number<std::uint8_t>();
  Message message = take_kind(kind, in);
  if (in.ok() && in.left() > 0) in.fail("has bytes behind its end");
  if (!in.ok())
    return Status(Code::kInvalidArgument, fmt::format("a message of {} bytes {}", payload.size(), in.why()));
  return message;
}

Status check_round_header(const RoundHeader& header, std::uint64_t epoch, std::uint64_t round) {
  if (header.epoch != epoch)
    return {Code::kFailedPrecondition,
            fmt::format("it sent a message of epoch {:x}, expected {:x}", header.epoch, epoch)};
  if (header.round != round)
    return {Code::kFailedPrecondition,
            fmt::format("it is in round {} of the epoch, this process in {}: they do not run the same steps",
                        header.round, round)};
  if (header.num_bytes > kMaxRoundBytes)
    return {Code::kResourceExhausted,
            fmt::format("it sends a message of {} bytes; at most {} are allowed", header.num_bytes, kMaxRoundBytes)};
  return {};
}

}  // namespace tandem::comm
