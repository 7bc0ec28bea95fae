// SPDX-License-Identifier: Apache-2.0
// The tokenizer: encoding in the Rust crate, decoding here from a table of every token's bytes.
#include "text/tokenizer.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/utf8.h"
#include "text/bridge.h"

namespace tandem::text {
namespace {

/// Real files have up to some 20 MB.
constexpr std::size_t kMaxFileBytes = 256U << 20;

/// One blob, an end offset for each id.
class Pieces {
 public:
  Pieces(const rust::Vec<std::uint8_t>& bytes, const rust::Vec<std::uint32_t>& ends)
      : bytes_(bytes.begin(), bytes.end()), ends_(ends.begin(), ends.end()) {}

  std::size_t size() const { return ends_.size(); }
  std::string_view at(std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= ends_.size()) return {};
    const auto index = static_cast<std::size_t>(id);
    const std::uint32_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::uint32_t> ends_;
};

class CrateTokenizer final : public Tokenizer {
 public:
  CrateTokenizer(rust::Box<bridge::TextTokenizer> crate, const bridge::TokenTable& table)
      : crate_(std::move(crate)),
        bytes_(table.bytes, table.byte_ends),
        pieces_(table.pieces, table.piece_ends),
        special_(table.special.begin(), table.special.end()) {}

  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const override {
    try {
      const rust::Vec<std::uint32_t> ids = bridge::encode(*crate_, as_slice(text), add_special_tokens);
      return std::vector<std::int32_t>(ids.begin(), ids.end());
    } catch (const std::exception& error) {
      return bridge_error(error);
    }
  }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const std::int32_t id : ids) {
      if (!skip_special_tokens || !is_special(id)) bytes += bytes_.at(id);
    }
    return replace_ill_formed_utf8(bytes);
  }

  std::string token_bytes(std::int32_t id) const override { return std::string(bytes_.at(id)); }
  std::string id_to_piece(std::int32_t id) const override { return std::string(pieces_.at(id)); }

  std::int32_t piece_to_id(std::string_view piece) const override {
    return static_cast<std::int32_t>(bridge::piece_to_id(*crate_, as_slice(piece)));
  }

  bool is_special(std::int32_t id) const override {
    return id >= 0 && static_cast<std::size_t>(id) < special_.size() && special_[static_cast<std::size_t>(id)] != 0;
  }

  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(bytes_.size()); }

 private:
  rust::Box<bridge::TextTokenizer> crate_;
  Pieces bytes_;
  Pieces pieces_;
  std::vector<std::uint8_t> special_;
};

std::shared_ptr<const Tokenizer> with_table(rust::Box<bridge::TextTokenizer> crate) {
  const bridge::TokenTable table = bridge::token_table(*crate);
  return std::make_shared<CrateTokenizer>(std::move(crate), table);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status(Code::kNotFound, path + ": cannot be opened: " + std::strerror(errno));
  const std::streamoff size = file.tellg();
  if (size < 0 || static_cast<std::size_t>(size) > kMaxFileBytes) {
    return Status(Code::kInvalidArgument, path + ": not a regular file of at most " + std::to_string(kMaxFileBytes) +
                                              " bytes; a tokenizer.json is expected");
  }
  std::string json(static_cast<std::size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(json.data(), size)) return Status(Code::kDataLoss, path + ": cannot be read to its end");
  Result<std::shared_ptr<const Tokenizer>> tokenizer = from_json(json);
  if (!tokenizer) return tokenizer.error().context(path);
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json) {
  try {
    return with_table(bridge::tokenizer_from_json(as_slice(tokenizer_json)));
  } catch (const std::exception& error) {
    return bridge_error(error).context("tokenizer.json");
  }
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") {
    return Status(Code::kUnsupported, "GGUF tokenizer: tokenizer.ggml.model is \"" + vocabulary.model +
                                          "\"; only gpt2 (byte-level BPE) can be read");
  }
  try {
    const rust::Slice<const std::int32_t> types(vocabulary.token_types.data(), vocabulary.token_types.size());
    return with_table(bridge::tokenizer_from_gguf(as_slice(vocabulary.pre), vocabulary.tokens, types, vocabulary.merges,
                                                  vocabulary.add_bos ? vocabulary.bos_id : -1));
  } catch (const std::exception& error) {
    return bridge_error(error).context("GGUF tokenizer");
  }
}

}  // namespace tandem::text
