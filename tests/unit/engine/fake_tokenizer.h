// SPDX-License-Identifier: Apache-2.0
// A tokenizer whose vocabulary a test makes up: ids count from 0 in the order of add().
#pragma once

#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace tandem::engine::testing {

class FakeTokenizer final : public text::Tokenizer {
 public:
  std::int32_t add(std::string bytes, bool special = false) {
    pieces_.push_back({std::move(bytes), special});
    return static_cast<std::int32_t>(pieces_.size()) - 1;
  }

  Result<std::vector<std::int32_t>> encode(std::string_view /*text*/, bool /*add_special_tokens*/) const override {
    return Status(Code::kUnsupported, "the fake tokenizer only decodes");
  }
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (!(skip_special_tokens && is_special(id))) text += token_bytes(id);
    }
    return replace_ill_formed_utf8(text);
  }
  std::string token_bytes(std::int32_t id) const override {
    return known(id) ? pieces_[static_cast<std::size_t>(id)].bytes : std::string();
  }
  std::string id_to_piece(std::int32_t id) const override { return token_bytes(id); }
  std::int32_t piece_to_id(std::string_view piece) const override {
    for (std::size_t id = 0; id < pieces_.size(); ++id) {
      if (pieces_[id].bytes == piece) return static_cast<std::int32_t>(id);
    }
    return -1;
  }
  bool is_special(std::int32_t id) const override { return known(id) && pieces_[static_cast<std::size_t>(id)].special; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(pieces_.size()); }

 private:
  struct Piece {
    std::string bytes;
    bool special = false;
  };
  bool known(std::int32_t id) const { return id >= 0 && static_cast<std::size_t>(id) < pieces_.size(); }
  std::vector<Piece> pieces_;
};

}  // namespace tandem::engine::testing
