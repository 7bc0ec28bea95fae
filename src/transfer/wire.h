// SPDX-License-Identifier: Apache-2.0
// The wire between instances (L2): frames and typed messages. README.md of this folder tells who sends what when.
//
// A frame is a 12-byte header and a payload; all numbers little endian:
//   u32 magic "TKV\x01"  u8 version  u8 type  u16 zero  u32 payload bytes (at most kMaxPayload)
// Everything a peer sends is bounded and parsed here, once, into a value of Message; nothing later sees bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"
#include "transfer/handover.h"
#include "transfer/plan.h"

namespace tandem::transfer::wire {

inline constexpr std::uint32_t kMagic = 0x01564b54;
inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 20;
inline constexpr std::size_t kMaxLeases = 8192;          ///< in one Renew or LeasesEnded
inline constexpr std::size_t kMaxRuns = 4096;            ///< in one Pull
inline constexpr std::uint32_t kMaxRunBytes = 4U << 20;  ///< of one run
/// Checksums of one block; a block's entry must fit into a frame.
inline constexpr std::uint32_t kMaxPiecesPerBlock = 200'000;

/// Who a peer is; the first message of a control connection, each way.
struct Identity {
  std::string engine_id;
  std::uint64_t incarnation = 0;
  std::string boot_id;  ///< of the kernel: equal means the same host
  /// Of every rank of the process; check_ranks() holds. They differ in heads and base only.
  std::vector<kv::Layout> ranks;
  friend bool operator==(const Identity&, const Identity&) = default;
};
/// reader -> owner
struct Hello {
  Identity identity;
  friend bool operator==(const Hello&, const Hello&) = default;
};
/// owner -> reader. Sent even if the layouts do not fit, so that the reader can say how; fetches are then refused.
struct Welcome {
  Identity identity;
  std::uint32_t lease_term_ms = 0;
  std::string shm_name;  ///< abstract Unix socket that gives the memory; empty: none
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
/// reader -> owner: I hold this lease for a term from now. Of a growing lease it is answered by its Progress so far.
struct Hold {
  LeaseId lease;
  friend bool operator==(const Hold&, const Hold&) = default;
};
/// reader -> owner: the same for all leases of this owner (heartbeat). Answered by RenewReply.
struct Renew {
  std::uint64_t sequence = 0;
  std::vector<LeaseId> leases;
  friend bool operator==(const Renew&, const Renew&) = default;
};
struct RenewReply {
  std::uint64_t sequence = 0;
  friend bool operator==(const RenewReply&, const RenewReply&) = default;
};
/// owner -> reader: why these leases are no more.
enum class Ended : std::uint8_t { kDone, kDropped, kExpired, kPeerDied, kRevoked, kUnknown };
struct LeasesEnded {
  std::vector<std::pair<LeaseId, Ended>> leases;
  friend bool operator==(const LeasesEnded&, const LeasesEnded&) = default;
};
/// reader -> owner: I have what I wanted / I do not want it.
struct Done {
  LeaseId lease;
  friend bool operator==(const Done&, const Done&) = default;
};
struct Drop {
  LeaseId lease;
  friend bool operator==(const Drop&, const Drop&) = default;
};
enum class Via : std::uint8_t { kShm, kTcp };
/// reader -> owner: grant me tokens [first, end) in layers [first, end). `fetch` names this attempt, never reused by a
/// reader.
struct FetchRequest {
  std::uint64_t fetch = 0;
  LeaseId lease;
  Via via = Via::kTcp;
  Extent extent;
  friend bool operator==(const FetchRequest&, const FetchRequest&) = default;
};
/// owner -> reader, followed by num_blocks entries in GrantBlocks messages.
struct Grant {
  std::uint64_t fetch = 0;
  std::uint64_t token = 0;  ///< secret that opens a data connection
  std::uint32_t num_blocks = 0;
  std::uint32_t pieces_per_block = 0;  ///< layers asked for * 2 * KV heads of the model
  friend bool operator==(const Grant&, const Grant&) = default;
};
struct GrantedBlock {
  kv::BlockId block = 0;
  std::uint32_t generation = 0;
  friend bool operator==(const GrantedBlock&, const GrantedBlock&) = default;
};
/// Consecutive blocks of the range from its `first`-th block on; checksums are in order block, layer, K|V, head.
struct GrantBlocks {
  std::uint64_t fetch = 0;
  std::uint32_t first = 0;
  std::vector<GrantedBlock> blocks;
  std::vector<std::uint32_t> checksums;
  friend bool operator==(const GrantBlocks&, const GrantBlocks&) = default;
};
/// reader -> owner: this attempt reads no more (whatever its outcome).
struct FetchEnded {
  std::uint64_t fetch = 0;
  friend bool operator==(const FetchEnded&, const FetchEnded&) = default;
};
/// owner -> reader, on the control connection or instead of data.
struct FetchError {
  std::uint64_t fetch = 0;
  Code code = Code::kInternal;
  std::string message;
  friend bool operator==(const FetchError&, const FetchError&) = default;
};
/// reader -> owner: first message of a data connection, and again for every further grant that it serves.
struct Attach {
  std::uint64_t incarnation = 0;  ///< the owner's
  std::uint64_t token = 0;
  friend bool operator==(const Attach&, const Attach&) = default;
};
struct Run {
  std::uint64_t offset = 0;  ///< into the KV memory of the owner's process
  std::uint32_t length = 0;
  friend bool operator==(const Run&, const Run&) = default;
};
/// reader -> owner: send these runs, in this order, as Data frames. Each Pull is a credit: at most kMaxPulls wait.
struct Pull {
  std::vector<Run> runs;
  friend bool operator==(const Pull&, const Pull&) = default;
};
inline constexpr std::size_t kMaxPulls = 4;
/// Either way: the connection is refused or given up; it is closed after this.
struct Refused {
  Code code = Code::kInternal;
  std::string message;
  friend bool operator==(const Refused&, const Refused&) = default;
};

/// owner -> reader: the KV of tokens [0, end_token) in these layers of a growing lease is there. To every holder as it
/// is published, and as it stands to one that comes later.
struct Progress {
  LeaseId lease;
  std::int32_t first_layer = 0;
  std::int32_t end_layer = 0;
  std::int64_t end_token = 0;
  friend bool operator==(const Progress&, const Progress&) = default;
};
/// owner -> a decoder's own port, the only message of its connection: take your KV from this lease. Handover::blocks
/// and last_token stay here; grants name the blocks.
struct Offer {
  std::uint64_t incarnation = 0;  ///< the decoder's
  std::uint64_t reception = 0;
  Identity owner;
  Handover source;
  friend bool operator==(const Offer&, const Offer&) = default;
};
/// decoder -> owner: accepted (kOk), or why not.
struct OfferReply {
  Code code = Code::kOk;
  std::string message;
  friend bool operator==(const OfferReply&, const OfferReply&) = default;
};

using Message = std::variant<Hello, Welcome, Hold, Renew, RenewReply, LeasesEnded, Done, Drop, FetchRequest, Grant,
                             GrantBlocks, FetchEnded, FetchError, Attach, Pull, Refused, Progress, Offer, OfferReply>;
/// Frame types: a Message's is its place in the variant + 1; raw bytes for pool memory have their own.
inline constexpr std::uint8_t kNumMessages = static_cast<std::uint8_t>(std::variant_size_v<Message>);
inline constexpr std::uint8_t kDataType = 64;

struct Header {
  std::uint8_t type = 0;
  std::uint32_t length = 0;
};
using HeaderBytes = std::array<std::byte, kHeaderBytes>;
HeaderBytes make_header(std::uint8_t type, std::uint32_t length);
/// An error for a foreign magic, another version (naming both), an unknown type or too long a payload.
Result<Header> parse_header(std::span<const std::byte, kHeaderBytes> bytes);

/// Appends the whole frame. The message must keep the bounds above (our own invariant).
void append_frame(const Message& message, std::vector<std::byte>& out);
Result<Message> parse_payload(std::uint8_t type, std::span<const std::byte> payload);

/// Cuts a byte stream into messages. Data frames are an error here: their readers take them apart themselves.
class FrameReader {
 public:
  void append(std::span<const std::byte> bytes);
  /// The next message, nullopt if it is not complete yet. After an error the stream is unusable.
  Result<std::optional<Message>> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t at_ = 0;
};

}  // namespace tandem::transfer::wire
