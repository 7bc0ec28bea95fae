// SPDX-License-Identifier: Apache-2.0
#include "transfer/wire.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "base/channel.h"
#include "transfer/checksum.h"
#include "transfer/wire_codec.h"

namespace tandem::transfer::wire {
namespace {

constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kMaxFingerprint = 16 * 1024;
constexpr std::size_t kMaxErrorText = 4096;

/// What all ranks agree in, then the heads and place of each.
void write(Writer& out, const std::vector<kv::Layout>& ranks) {
  const kv::Layout& common = ranks.front();
  for (const std::int32_t value :
       {common.num_layers, common.num_blocks, common.block_size, common.total_kv_heads, common.head_dim}) {
    out.number(value);
  }
  out.number(common.element);
  out.text(common.fingerprint, kMaxFingerprint);
  out.number(static_cast<std::uint32_t>(ranks.size()));
  for (const kv::Layout& rank : ranks) {
    out.number(rank.first_kv_head);
    out.number(rank.num_kv_heads);
    out.number(static_cast<std::uint64_t>(rank.base));
  }
}

std::vector<kv::Layout> read_ranks(Reader& in) {
  kv::Layout common;
  for (std::int32_t* field :
       {&common.num_layers, &common.num_blocks, &common.block_size, &common.total_kv_heads, &common.head_dim}) {
    *field = in.number<std::int32_t>();
  }
  common.element = in.choice(kv::ElementType::kInt8);
  common.fingerprint = in.text(kMaxFingerprint);
  std::vector<kv::Layout> ranks(in.count(kMaxRanks, 16), common);
  for (kv::Layout& rank : ranks) {
    rank.first_kv_head = in.number<std::int32_t>();
    rank.num_kv_heads = in.number<std::int32_t>();
    rank.base = in.number<std::uint64_t>();
  }
  if (in.ok() &&
      (!check_ranks(ranks).ok() || pieces_per_block(common.num_layers, common.total_kv_heads) > kMaxPiecesPerBlock)) {
    in.fail("has impossible KV layouts");
  }
  return ranks;
}

void write(Writer& out, const Identity& identity) {
  out.text(identity.engine_id, kMaxName);
  out.number(identity.incarnation);
  out.text(identity.boot_id, kMaxName);
  write(out, identity.ranks);
}

Identity read_identity(Reader& in) {
  Identity identity;
  identity.engine_id = in.text(kMaxName);
  identity.incarnation = in.number<std::uint64_t>();
  identity.boot_id = in.text(kMaxName);
  identity.ranks = read_ranks(in);
  return identity;
}

// One write and one read a message, in the order of the variant.

void write(Writer& out, const Hello& message) { write(out, message.identity); }
void read(Reader& in, Hello& message) { message.identity = read_identity(in); }

void write(Writer& out, const Welcome& message) {
  write(out, message.identity);
  out.number(message.lease_term_ms);
  out.text(message.shm_name, kMaxName);
}
void read(Reader& in, Welcome& message) {
  message.identity = read_identity(in);
  message.lease_term_ms = in.number<std::uint32_t>();
  message.shm_name = in.text(kMaxName);
  if (message.lease_term_ms == 0) in.fail("has a lease term of zero");
}

void write(Writer& out, const Hold& message) { out.lease(message.lease); }
void read(Reader& in, Hold& message) { message.lease = in.lease(); }

void write(Writer& out, const Renew& message) {
  out.number(message.sequence);
  out.number(static_cast<std::uint32_t>(message.leases.size()));
  for (const LeaseId lease : message.leases) out.lease(lease);
}
void read(Reader& in, Renew& message) {
  message.sequence = in.number<std::uint64_t>();
  message.leases.resize(in.count(kMaxLeases, 16));
  for (LeaseId& lease : message.leases) lease = in.lease();
}

void write(Writer& out, const RenewReply& message) { out.number(message.sequence); }
void read(Reader& in, RenewReply& message) { message.sequence = in.number<std::uint64_t>(); }

void write(Writer& out, const LeasesEnded& message) {
  out.number(static_cast<std::uint32_t>(message.leases.size()));
  for (const auto& [lease, reason] : message.leases) {
    out.lease(lease);
    out.number(reason);
  }
}
void read(Reader& in, LeasesEnded& message) {
  message.leases.resize(in.count(kMaxLeases, 17));
  for (auto& [lease, reason] : message.leases) {
    lease = in.lease();
    reason = in.choice(Ended::kUnknown);
  }
}

void write(Writer& out, const Done& message) { out.lease(message.lease); }
void read(Reader& in, Done& message) { message.lease = in.lease(); }
void write(Writer& out, const Drop& message) { out.lease(message.lease); }
void read(Reader& in, Drop& message) { message.lease = in.lease(); }

void write(Writer& out, const FetchRequest& message) {
  out.number(message.fetch);
  out.lease(message.lease);
  out.number(message.via);
  out.number(message.extent.first_layer);
  out.number(message.extent.end_layer);
  out.number(message.extent.first_token);
  out.number(message.extent.end_token);
}
void read(Reader& in, FetchRequest& message) {
  message.fetch = in.number<std::uint64_t>();
  message.lease = in.lease();
  message.via = in.choice(Via::kTcp);
  Extent& extent = message.extent;
  extent.first_layer = in.number<std::int32_t>();
  extent.end_layer = in.number<std::int32_t>();
  extent.first_token = in.number<std::int64_t>();
  extent.end_token = in.number<std::int64_t>();
  if (extent.first_layer < 0 || extent.end_layer <= extent.first_layer) in.fail("has an impossible range of layers");
  if (extent.first_token < 0 || extent.end_token <= extent.first_token) in.fail("has an impossible token range");
}

void write(Writer& out, const Grant& message) {
  out.number(message.fetch);
  out.number(message.token);
  out.number(message.num_blocks);
  out.number(message.pieces_per_block);
}
void read(Reader& in, Grant& message) {
  message.fetch = in.number<std::uint64_t>();
  message.token = in.number<std::uint64_t>();
  message.num_blocks = in.number<std::uint32_t>();
  message.pieces_per_block = in.number<std::uint32_t>();
  if (message.pieces_per_block > kMaxPiecesPerBlock) in.fail("has too many checksums a block");
}

void write(Writer& out, const GrantBlocks& message) {
  out.number(message.fetch);
  out.number(message.first);
  out.number(static_cast<std::uint32_t>(message.blocks.size()));
  for (const GrantedBlock& block : message.blocks) {
    out.number(block.block);
    out.number(block.generation);
  }
  out.numbers(message.checksums);
}
void read(Reader& in, GrantBlocks& message) {
  message.fetch = in.number<std::uint64_t>();
  message.first = in.number<std::uint32_t>();
  message.blocks.resize(in.count(kMaxPayload / 8, 8));
  for (GrantedBlock& block : message.blocks) {
    block.block = in.number<std::int32_t>();
    block.generation = in.number<std::uint32_t>();
    if (block.block < 0) in.fail("has a negative block id");
  }
  message.checksums = in.numbers(in.left() / sizeof(std::uint32_t));
}

void write(Writer& out, const FetchEnded& message) { out.number(message.fetch); }
void read(Reader& in, FetchEnded& message) { message.fetch = in.number<std::uint64_t>(); }

Code read_code(Reader& in) {
  const Code code = in.choice(Code::kInternal);
  if (in.ok() && code == Code::kOk) in.fail("is an error without a code");
  return code;
}

void write(Writer& out, const FetchError& message) {
  out.number(message.fetch);
  out.number(message.code);
  out.text(message.message, kMaxErrorText);
}
void read(Reader& in, FetchError& message) {
  message.fetch = in.number<std::uint64_t>();
  message.code = read_code(in);
  message.message = in.text(kMaxErrorText);
}

void write(Writer& out, const Attach& message) {
  out.number(message.incarnation);
  out.number(message.token);
}
void read(Reader& in, Attach& message) {
  message.incarnation = in.number<std::uint64_t>();
  message.token = in.number<std::uint64_t>();
}

void write(Writer& out, const Pull& message) {
  out.number(static_cast<std::uint32_t>(message.runs.size()));
  for (const Run& run : message.runs) {
    out.number(run.offset);
    out.number(run.length);
  }
}
void read(Reader& in, Pull& message) {
  message.runs.resize(in.count(kMaxRuns, 12));
  for (Run& run : message.runs) {
    run.offset = in.number<std::uint64_t>();
    run.length = in.number<std::uint32_t>();
    if (run.length == 0 || run.length > kMaxRunBytes) in.fail("has a run of impossible length");
  }
}

void write(Writer& out, const Refused& message) {
  out.number(message.code);
  out.text(message.message, kMaxErrorText);
}
void read(Reader& in, Refused& message) {
  message.code = read_code(in);
  message.message = in.text(kMaxErrorText);
}

void write(Writer& out, const Progress& message) {
  out.lease(message.lease);
  out.number(message.first_layer);
  out.number(message.end_layer);
  out.number(message.end_token);
}
void read(Reader& in, Progress& message) {
  message.lease = in.lease();
  message.first_layer = in.number<std::int32_t>();
  message.end_layer = in.number<std::int32_t>();
  message.end_token = in.number<std::int64_t>();
  if (message.first_layer < 0 || message.end_layer <= message.first_layer) in.fail("has an impossible range of layers");
  if (message.end_token < 0) in.fail("has an impossible token");
}

void write(Writer& out, const Offer& message) {
  out.number(message.incarnation);
  out.number(message.reception);
  write(out, message.owner);
  const Handover& source = message.source;
  out.text(source.engine_id, kMaxName);
  out.text(source.host, kMaxName);
  out.number(source.port);
  out.lease(source.lease);
  out.number(source.num_tokens);
  out.number(source.prompt_hash);
  out.number(source.block_size);
  out.number(source.tp_size);
}
void read(Reader& in, Offer& message) {
  message.incarnation = in.number<std::uint64_t>();
  message.reception = in.number<std::uint64_t>();
  message.owner = read_identity(in);
  Handover& source = message.source;
  source.engine_id = in.text(kMaxName);
  source.host = in.text(kMaxName);
  source.port = in.number<std::uint16_t>();
  source.lease = in.lease();
  source.num_tokens = in.number<std::int64_t>();
  source.prompt_hash = in.number<std::uint64_t>();
  source.block_size = in.number<std::int32_t>();
  source.tp_size = in.number<std::int32_t>();
  if (source.engine_id.empty() || source.host.empty() || source.port == 0 || source.num_tokens < 0 ||
      source.block_size < 1 || source.tp_size < 1) {
    in.fail("has an impossible hand-over");
  }
}

void write(Writer& out, const OfferReply& message) {
  out.number(message.code);
  out.text(message.message, kMaxErrorText);
}
void read(Reader& in, OfferReply& message) {
  message.code = in.choice(Code::kInternal);
  message.message = in.text(kMaxErrorText);
}

Status broken(std::string why) {
  return Status(Code::kInvalidArgument, "transfer protocol: " + std::move(why), Scope::kPeer);
}

template <std::size_t Index = 0>
Result<Message> parse_as(std::size_t index, std::span<const std::byte> payload) {
  if constexpr (Index < std::variant_size_v<Message>) {
    if (index != Index) return parse_as<Index + 1>(index, payload);
    Reader in(payload);
    std::variant_alternative_t<Index, Message> message;
    read(in, message);
    if (in.ok() && in.left() > 0) in.fail("has bytes after its end");
    if (!in.ok()) return broken(fmt::format("message of type {} {}", Index + 1, in.why()));
    return Message(std::move(message));
  } else {
    return broken(fmt::format("unknown message type {}", index + 1));
  }
}

}  // namespace

HeaderBytes make_header(std::uint8_t type, std::uint32_t length) {
  HeaderBytes bytes{};
  std::memcpy(bytes.data(), &kMagic, 4);
  bytes[4] = static_cast<std::byte>(kVersion);
  bytes[5] = static_cast<std::byte>(type);
  std::memcpy(bytes.data() + 8, &length, 4);
  return bytes;
}

Result<Header> parse_header(std::span<const std::byte, kHeaderBytes> bytes) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, bytes.data(), 4);
  if (begins_like_tls(bytes)) return speaks_tls_error();
  if (magic != kMagic) {
    return broken(fmt::format("frame starts with {:#010x}, expected {:#010x}; is this a KV port?", magic, kMagic));
  }
  const auto version = static_cast<std::uint8_t>(bytes[4]);
  if (version != kVersion) {
    return Status(
        Code::kFailedPrecondition,
        fmt::format("peer speaks version {} of the transfer protocol, ours is {}; run the same release on both",
                    version, kVersion),
        Scope::kPeer);
  }
  Header header;
  header.type = static_cast<std::uint8_t>(bytes[5]);
  std::memcpy(&header.length, bytes.data() + 8, 4);
  const bool known = (header.type >= 1 && header.type <= kNumMessages) || header.type == kDataType;
  if (!known) return broken(fmt::format("unknown frame type {}", header.type));
  if (bytes[6] != std::byte{0} || bytes[7] != std::byte{0}) return broken("reserved bits are set");
  if (header.length > kMaxPayload) {
    return broken(fmt::format("frame of {} bytes, the limit is {}", header.length, kMaxPayload));
  }
  return header;
}

void append_frame(const Message& message, std::vector<std::byte>& out) {
  const std::size_t start = out.size();
  out.resize(start + kHeaderBytes);
  Writer writer(out);
  std::visit([&writer](const auto& alternative) { write(writer, alternative); }, message);
  const std::size_t length = out.size() - start - kHeaderBytes;
  TANDEM_ASSERT(length <= kMaxPayload, "a message is longer than a frame");
  const HeaderBytes header =
      make_header(static_cast<std::uint8_t>(message.index() + 1), static_cast<std::uint32_t>(length));
  std::memcpy(out.data() + start, header.data(), kHeaderBytes);
}

Result<Message> parse_payload(std::uint8_t type, std::span<const std::byte> payload) {
  if (type == 0) return broken("unknown message type 0");
  return parse_as(static_cast<std::size_t>(type) - 1, payload);
}

void FrameReader::append(std::span<const std::byte> bytes) {
  // What was consumed goes away before the buffer grows: it never holds more than one frame and one read.
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at_));
  at_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> FrameReader::next() {
  const std::span<const std::byte> rest = std::span<const std::byte>(buffer_).subspan(at_);
  if (rest.size() < kHeaderBytes) {
    if (begins_like_tls(rest)) return speaks_tls_error();  // an alert is shorter than a header
    return std::optional<Message>();
  }
  TANDEM_ASSIGN(const Header header, parse_header(rest.first<kHeaderBytes>()));
  if (header.type == kDataType) return broken("raw data where a message was expected");
  if (rest.size() < kHeaderBytes + header.length) return std::optional<Message>();
  TANDEM_ASSIGN(Message message, parse_payload(header.type, rest.subspan(kHeaderBytes, header.length)));
  at_ += kHeaderBytes + header.length;
  return std::optional<Message>(std::move(message));
}

}  // namespace tandem::transfer::wire
