// SPDX-License-Identifier: Apache-2.0
#include "text/grammar.h"

#include <utility>

#include "text/bridge.h"

namespace tandem::text {
namespace {

std::string_view kind_name(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kChoice:
      return "choice";
    case GrammarKind::kLark:
      return "lark";
    case GrammarKind::kGrammar:
      break;
  }
  return "grammar";
}

class CrateMatcher final : public GrammarMatcher {
 public:
  explicit CrateMatcher(rust::Box<bridge::GrammarMatcher> crate) : crate_(std::move(crate)) {}

  Result<void> accept(std::int32_t token) override {
    try {
      bridge::matcher_accept(*crate_, static_cast<std::uint32_t>(token));
      return {};
    } catch (const std::exception& error) {
      return bridge_error(error).context("grammar");
    }
  }
  bool finished() const override { return bridge::matcher_finished(*crate_); }
  Result<std::vector<std::uint32_t>> mask() override {
    try {
      const rust::Vec<std::uint32_t> words = bridge::matcher_mask(*crate_);
      return std::vector<std::uint32_t>(words.begin(), words.end());
    } catch (const std::exception& error) {
      return bridge_error(error).context("grammar");
    }
  }

 private:
  rust::Box<bridge::GrammarMatcher> crate_;
};

class CrateGrammar final : public Grammar {
 public:
  explicit CrateGrammar(rust::Box<bridge::GrammarMatcher> fresh) : fresh_(std::move(fresh)) {}

  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    const std::lock_guard lock(mutex_);
    try {
      return std::unique_ptr<GrammarMatcher>(std::make_unique<CrateMatcher>(bridge::matcher_copy(*fresh_)));
    } catch (const std::exception& error) {
      return bridge_error(error).context("grammar");
    }
  }

 private:
  mutable std::mutex mutex_;
  rust::Box<bridge::GrammarMatcher> fresh_;
};

}  // namespace

struct GrammarCompiler::Vocabulary {
  explicit Vocabulary(rust::Box<bridge::Vocabulary> built) : crate(std::move(built)) {}
  rust::Box<bridge::Vocabulary> crate;
};

GrammarCompiler::GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t vocab_size, std::int32_t eos)
    : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), eos_(eos) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const GrammarCompiler::Vocabulary>> GrammarCompiler::vocabulary() const {
  const std::lock_guard lock(mutex_);
  if (vocabulary_) return vocabulary_;
  std::string bytes;
  std::vector<std::uint32_t> ends;
  std::vector<std::uint8_t> special;
  for (std::int32_t id = 0; id < vocab_size_; ++id) {
    bytes += tokenizer_->token_bytes(id);
    ends.push_back(static_cast<std::uint32_t>(bytes.size()));
    special.push_back(tokenizer_->is_special(id) ? 1 : 0);
  }
  try {
    vocabulary_ = std::make_shared<const Vocabulary>(bridge::vocabulary_new(as_slice(bytes), {ends.data(), ends.size()},
                                                                            {special.data(), special.size()},
                                                                            static_cast<std::uint32_t>(eos_)));
    return vocabulary_;
  } catch (const std::exception& error) {
    return bridge_error(error).context("grammar");
  }
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(GrammarKind kind, std::string_view source) const {
  TANDEM_ASSIGN(const auto shared, vocabulary());
  try {
    return std::shared_ptr<const Grammar>(std::make_shared<CrateGrammar>(
        bridge::grammar_compile(*shared->crate, as_slice(kind_name(kind)), as_slice(source))));
  } catch (const std::exception& error) {
    return bridge_error(error);
  }
}

}  // namespace tandem::text
