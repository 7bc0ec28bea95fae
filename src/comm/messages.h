// SPDX-License-Identifier: Apache-2.0
// What the processes of an instance say to each other apart from the messages of rounds: who they are, whether all are
// there, and that one is gone. Bytes in, typed values out: what a peer sent is bounded and checked here and nowhere
// else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tandem::comm {

/// Processes with another one do not talk to each other.
inline constexpr std::uint32_t kProtocolVersion = 2;
/// In front of each message: what strangers say, and TLS where plain bytes are expected, is no message.
inline constexpr std::array<std::byte, 4> kFrameMagic{std::byte{'T'}, std::byte{'C'}, std::byte{'O'}, std::byte{'M'}};
inline constexpr std::int32_t kMaxRanks = 1024;

/// A process and where it is.
struct ProcessInfo {
  std::int32_t first_rank = 0;  ///< of the data-parallel ranks that are in it
  std::int32_t num_ranks = 0;
  std::string host;
  std::uint16_t port = 0;  ///< for links of rounds
  std::string details;     ///< whatever the process wants the others to know of it; at most 4 KiB

  bool operator==(const ProcessInfo&) const = default;
};
/// "the process with data-parallel ranks 16 to 31 at 192.0.0.4"
std::string describe(const ProcessInfo& process);

/// Something that must be the same in all processes: what it is called and what it is here.
using Property = std::pair<std::string, std::string>;
/// Not ok if the lists differ: names the first difference and both values.
Status compare_properties(std::span<const Property> expected, std::span<const Property> found);

// From a process to the first one.

struct Hello {
  std::int32_t total_ranks = 0;
  ProcessInfo process;
  std::vector<Property> properties;
};
/// Loaded; can take part in steps.
struct Ready {};
/// All links of the epoch stand.
struct Linked {
  std::uint64_t epoch = 0;
};
/// A round failed, because of that process as far as can be seen from here.
struct Suspect {
  std::uint64_t epoch = 0;
  std::int32_t process = 0;
  std::string why;
};
/// Answers the API's requests from now on.
struct Serving {};

// From the first process.

/// Not let in. `final`: it will be no better later.
struct Refused {
  bool final = false;
  std::string why;
};
/// Who is missing; empty: nobody.
struct Waiting {
  std::string text;
};
/// All processes in the order of their ranks.
struct Roster {
  std::vector<ProcessInfo> processes;
};
/// All are loaded: link up.
struct Form {
  std::uint64_t epoch = 0;
  std::vector<ProcessInfo> processes;
};
/// All are linked up: steps may start.
struct Up {
  std::uint64_t epoch = 0;
};
/// The epoch is over, because of that process.
struct Drop {
  std::uint64_t epoch = 0;
  std::int32_t process = 0;
  std::string why;
};

// Both ways.

struct Alive {};

// From one process to another that it links to.

struct LinkHello {
  std::uint64_t epoch = 0;
  std::int32_t process = 0;
};

using Message =
    std::variant<Hello, Ready, Linked, Suspect, Serving, Refused, Waiting, Roster, Form, Up, Drop, Alive, LinkHello>;

/// Payload bytes; the frame around them is in stream.h.
std::vector<std::byte> encode(const Message& message);
Result<Message> decode(std::span<const std::byte> payload);
inline constexpr std::size_t kMaxMessageBytes = std::size_t{8} << 20;

/// In front of each message of a round, as it lies in memory.
struct RoundHeader {
  std::uint64_t epoch = 0;
  std::uint64_t round = 0;
  std::uint64_t num_bytes = 0;
};
inline constexpr std::uint64_t kMaxRoundBytes = std::uint64_t{4} << 30;
/// Not ok if this is not the header that must come next: it names what was found and what was expected.
Status check_round_header(const RoundHeader& header, std::uint64_t epoch, std::uint64_t round);

}  // namespace tandem::comm
