// SPDX-License-Identifier: Apache-2.0
#include "model/expert_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

namespace tandem::model {
namespace {

constexpr std::uint32_t kGood = 0;
constexpr std::uint32_t kFailed = 1;
constexpr std::size_t kMaxReason = 1000;

struct Header {
  std::uint64_t model = 0;
  std::uint32_t round = 0;
  std::uint32_t state = kGood;
  std::uint32_t rows = 0;
  std::uint32_t pairs = 0;
};
static_assert(sizeof(Header) == 24);

void append(const void* data, std::size_t bytes, Message& out) {
  const auto* begin = static_cast<const std::byte*>(data);
  out.insert(out.end(), begin, begin + bytes);
}

Status broken(std::string message) { return Status(Code::kInvalidArgument, std::move(message), Scope::kPeer); }

std::string round_name(std::uint32_t round) {
  return fmt::format("{} of layer {}", round % 2 == 0 ? "dispatch" : "combine", round / 2);
}

/// A header of this round in a good state, or the sender's own failure.
Result<Header> read_header(comm::Bytes message, const RoundId& id) {
  Header header;
  if (message.size() < sizeof(header))
    return broken(fmt::format("a message of {} bytes is shorter than its header", message.size()));
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.model != id.model)
    return Status(Code::kFailedPrecondition,
                  fmt::format("it runs another model, placement of experts or instruction set than this process "
                              "({:016x}, here {:016x}); start all processes of an instance with the same options",
                              header.model, id.model),
                  Scope::kPeer);
  if (header.state == kFailed) {
    const auto reason = message.subspan(sizeof(header), std::min(kMaxReason, message.size() - sizeof(header)));
    return Status(Code::kUnavailable,
                  fmt::format("it could not go on: {}",
                              std::string_view(reinterpret_cast<const char*>(reason.data()), reason.size())),
                  Scope::kPeer);
  }
  if (header.state != kGood || header.round != id.round)
    return Status(Code::kFailedPrecondition,
                  fmt::format("it is at {} (state {}), this process at {}: they are not in the same step",
                              round_name(header.round), header.state, round_name(id.round)),
                  Scope::kPeer);
  return header;
}

void write_header(const RoundId& id, std::uint32_t state, std::uint32_t rows, std::size_t pairs, Message& out) {
  const Header header{id.model, id.round, state, rows, static_cast<std::uint32_t>(pairs)};
  out.clear();
  append(&header, sizeof(header), out);
}

}  // namespace

void write_dispatch_head(const RoundId& id, std::uint32_t rows, std::span<const TokenExpert> pairs, Message& out) {
  write_header(id, kGood, rows, pairs.size(), out);
  append(pairs.data(), pairs.size_bytes(), out);
}

void write_combine_head(const RoundId& id, std::uint32_t rows, Message& out) {
  write_header(id, kGood, rows, rows, out);
}

void append_row(const float* row, std::int64_t hidden, Message& out) {
  append(row, static_cast<std::size_t>(hidden) * sizeof(float), out);
}

void write_failure(const RoundId& id, std::string_view why, Message& out) {
  write_header(id, kFailed, 0, 0, out);
  append(why.data(), std::min(why.size(), kMaxReason), out);
}

Result<Dispatch> read_dispatch(comm::Bytes message, const RoundId& id, std::int64_t hidden, const ExpertRange& own) {
  TANDEM_ASSIGN(const Header header, read_header(message, id));
  const std::size_t pair_bytes = std::size_t{header.pairs} * sizeof(TokenExpert);
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * sizeof(float);
  const std::size_t expected = sizeof(header) + pair_bytes + std::size_t{header.rows} * row_bytes;
  if (message.size() != expected)
    return broken(fmt::format("a dispatch of {} rows and {} pairs has {} bytes, expected {}", header.rows, header.pairs,
                              message.size(), expected));
  Dispatch dispatch;
  dispatch.rows = header.rows;
  dispatch.pairs.resize(header.pairs);
  if (pair_bytes > 0) std::memcpy(dispatch.pairs.data(), message.data() + sizeof(header), pair_bytes);
  dispatch.values = message.subspan(sizeof(header) + pair_bytes);
  for (std::size_t i = 0; i < dispatch.pairs.size(); ++i) {
    const TokenExpert& pair = dispatch.pairs[i];
    if (pair.row >= header.rows || !own.contains(pair.expert))
      return broken(
          fmt::format("pair {} of a dispatch asks for expert {} on row {}; there are {} rows, and the experts "
                      "here are [{}, {})",
                      i, pair.expert, pair.row, header.rows, own.begin, own.end));
    if (i > 0) {
      const TokenExpert& before = dispatch.pairs[i - 1];
      if (std::tie(before.row, before.expert) >= std::tie(pair.row, pair.expert))
        return broken(fmt::format("pair {} of a dispatch is not above the one before it", i));
    }
  }
  return dispatch;
}

Result<comm::Bytes> read_combine(comm::Bytes message, const RoundId& id, std::int64_t hidden, std::size_t rows) {
  TANDEM_ASSIGN(const Header header, read_header(message, id));
  const std::size_t expected = sizeof(header) + rows * static_cast<std::size_t>(hidden) * sizeof(float);
  if (header.rows != rows || message.size() != expected)
    return broken(fmt::format("a combine of {} rows has {} bytes, expected {} rows and {} bytes", header.rows,
                              message.size(), rows, expected));
  return message.subspan(sizeof(header));
}

}  // namespace tandem::model
