// SPDX-License-Identifier: Apache-2.0
// Fields of messages that only the transfer engine has, for wire.cc alone.
#pragma once

#include "base/byte_codec.h"
#include "transfer/handover.h"

namespace tandem::transfer::wire {

class Writer : public ByteWriter {
 public:
  using ByteWriter::ByteWriter;
  void lease(LeaseId value) {
    number(value.incarnation);
    number(value.id);
  }
};

class Reader : public ByteReader {
 public:
  using ByteReader::ByteReader;
  LeaseId lease() {
    LeaseId value;
    value.incarnation = number<std::uint64_t>();
    value.id = number<std::uint64_t>();
    return value;
  }
};

}  // namespace tandem::transfer::wire
