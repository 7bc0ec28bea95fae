// SPDX-License-Identifier: Apache-2.0
// Constrained decoding over llguidance (the Rust crate in text/crate): grammars over a vocabulary, and where an output
// is in one. Spec: vllm_api.md 10.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace tandem::text {

enum class GrammarKind {
  kJsonSchema,  ///< JSON text of a schema; what llguidance cannot hold an output to is refused
  kRegex,       ///< Rust's syntax; matches all of the output
  kChoice,      ///< JSON array of strings, one of which the output is
  kLark,        ///< as llguidance extends it
  kGrammar,     ///< a client's: Lark, or GBNF (has "::=")
};

/// One output's place in a grammar. Used by one thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  /// The output goes on with `token`; an error if it must not.
  virtual Result<void> accept(std::int32_t token) = 0;
  /// The output is complete and nothing can follow it.
  virtual bool finished() const = 0;
  /// Which tokens may come next: bit i % 32 of word i / 32. At most some milliseconds, typically far below one.
  virtual Result<std::vector<std::uint32_t>> mask() = 0;
};

/// A compiled grammar. Thread-safe.
class Grammar {
 public:
  virtual ~Grammar() = default;
  /// A matcher at the beginning of an output.
  virtual Result<std::unique_ptr<GrammarMatcher>> start() const = 0;
};

/// Compiles grammars for one vocabulary, which it indexes at the first one (some tenths of a second for 150k tokens).
/// Thread-safe.
class GrammarCompiler {
 public:
  /// `vocab_size`: of the model, which may be larger than the tokenizer's. `eos`: the token that ends an output where
  /// the grammar allows more or nothing; -1 if there is none.
  GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t vocab_size, std::int32_t eos);
  ~GrammarCompiler();
  /// invalid_argument with the reason if `source` is no grammar. Milliseconds for usual schemas, bounded for all.
  Result<std::shared_ptr<const Grammar>> compile(GrammarKind kind, std::string_view source) const;

 private:
  struct Vocabulary;
  Result<std::shared_ptr<const Vocabulary>> vocabulary() const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int32_t vocab_size_;
  std::int32_t eos_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Vocabulary> vocabulary_;  ///< guarded by mutex_
};

}  // namespace tandem::text
