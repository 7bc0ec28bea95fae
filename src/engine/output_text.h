// SPDX-License-Identifier: Apache-2.0
// The text of one output stream: detokenises token by token, looks for stop strings, and holds back what might become
// one, so that a client never sees the beginning of a stop string. Belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "text/tokenizer.h"
#include "worker/sampling_params.h"

namespace tandem::engine {

class OutputText {
 public:
  /// `prompt`: only its last tokens matter (a character may be split between prompt and output).
  OutputText(std::shared_ptr<const text::Tokenizer> tokenizer, std::shared_ptr<const worker::SamplingParams> params,
             std::span<const std::int32_t> prompt);

  struct Piece {
    std::string text;                         ///< for the client now
    std::optional<std::string> stop_matched;  ///< the entry that ended the text; then append() is not called again
  };
  /// Adds a token. `hidden`: an eos or stop id, whose own text is left out (unless include_stop_str_in_output).
  Piece append(std::int32_t token, bool hidden);
  /// What was held back and is no stop string after all; for the end of the stream.
  std::string flush();

 private:
  std::shared_ptr<const worker::SamplingParams> params_;
  text::StreamDecoder decoder_;
  std::size_t hold_back_ = 0;  ///< characters: one less than the longest stop string has
  std::int32_t num_tokens_ = 0;
  std::string window_;    ///< the last characters in which a stop string may still begin
  std::size_t sent_ = 0;  ///< bytes of window_ that the client has
};

}  // namespace tandem::engine
