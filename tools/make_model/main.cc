// SPDX-License-Identifier: Apache-2.0
// tandem-make-model: models from the weight generator as files, for tests and for benchmarks against other engines.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "make_model/encode.h"
#include "make_model/gguf_writer.h"
#include "make_model/hf_writer.h"
#include "make_model/shapes.h"
#include "make_model/tokenizer_files.h"
#include "model/generator.h"

namespace tandem::tools {
namespace {

struct Arguments {
  std::string shape;
  std::string config;
  std::string salt;
  std::string output;
  std::string type;
  std::string tokenizer;
  int shards = 1;
};

struct Source {
  model::ModelConfig config;
  std::string salt = "tandem:";
};

Result<Source> read_source(const Arguments& arguments) {
  Source source;
  boost::json::value config;
  if (!arguments.shape.empty()) {
    TANDEM_ASSIGN(const NamedShape shape, find_shape(arguments.shape));
    TANDEM_ASSIGN(config, parse_json(shape.config));
    source.salt = shape.salt;
  } else {
    TANDEM_ASSIGN(config, read_json_file(arguments.config));
  }
  if (!config.is_object())
    return Status(Code::kInvalidArgument, fmt::format("{} does not hold a JSON object", arguments.config));
  TANDEM_ASSIGN(source.config, model::parse_config(config.as_object(), {}));
  if (!arguments.salt.empty()) source.salt = arguments.salt;
  return source;
}

Result<void> write_gguf_file(const model::Checkpoint& checkpoint, const Arguments& arguments) {
  GgufOptions options;
  TANDEM_ASSIGN(options.type, writable_type(arguments.type.empty() ? "q8_0" : arguments.type));
  const std::int32_t vocab = checkpoint.config().vocab_size;
  TANDEM_ASSIGN(options.vocabulary,
                arguments.tokenizer.empty() ? byte_vocabulary(vocab) : folder_vocabulary(arguments.tokenizer, vocab));
  std::error_code error;  // a folder that cannot be made shows when the file is written
  std::filesystem::create_directories(std::filesystem::path(arguments.output).parent_path(), error);
  return write_gguf(checkpoint, arguments.output, options);
}

Result<void> write_folder(const model::Checkpoint& checkpoint, const Arguments& arguments) {
  HfOptions options;
  TANDEM_ASSIGN(options.type, writable_type(arguments.type.empty() ? "bf16" : arguments.type));
  options.shards = arguments.shards;
  TANDEM_TRY(write_hf_folder(checkpoint, arguments.output, options));
  if (!arguments.tokenizer.empty()) return copy_tokenizer_files(arguments.tokenizer, arguments.output);
  TANDEM_ASSIGN(const Vocabulary vocabulary, byte_vocabulary(checkpoint.config().vocab_size));
  return write_tokenizer_files(vocabulary, arguments.output);
}

Result<void> make(const Arguments& arguments) {
  TANDEM_ASSIGN(Source source, read_source(arguments));
  // The tokenizers made here put <|im_end|> last.
  if (arguments.tokenizer.empty()) source.config.eos_token_ids = {source.config.vocab_size - 1};
  const auto checkpoint = model::make_synthetic_checkpoint(source.config, source.salt);
  const bool gguf = std::filesystem::path(arguments.output).extension() == ".gguf";
  return gguf ? write_gguf_file(*checkpoint, arguments) : write_folder(*checkpoint, arguments);
}

std::string shape_names() {
  std::string names;
  for (const NamedShape& shape : named_shapes()) names += (names.empty() ? "" : ", ") + std::string(shape.name);
  return names;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{
      "Writes a model with generated weights as a Hugging Face folder, or as a GGUF file if the output ends in "
      ".gguf"};
  auto* source = app.add_option_group("model", "What to make");
  source->add_option("--shape", arguments.shape, "A shape by name: " + shape_names());
  source->add_option("--config", arguments.config, "A config.json");
  source->require_option(1);
  app.add_option("--output", arguments.output, "Folder, or a file that ends in .gguf")->required();
  app.add_option("--type", arguments.type,
                 "bf16 (folders' default), f16, f32; in GGUF also q8_0 (its default), q4_0, q4_1, q5_0, q5_1");
  app.add_option("--shards", arguments.shards, "Number of safetensors files")->check(CLI::Range(1, 1000));
  app.add_option("--tokenizer", arguments.tokenizer,
                 "Folder with a tokenizer.json to take; without it a byte-level tokenizer is made");
  app.add_option("--salt", arguments.salt, "Salt of the weight generator (default: the shape's own)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (auto made = make(arguments); !made) {
    fmt::print(stderr, "tandem-make-model: {}\n", made.error().message());
    return 1;
  }
  fmt::print("{}\n", arguments.output);
  return 0;
}

}  // namespace
}  // namespace tandem::tools

int main(int argc, char** argv) { return tandem::tools::run(argc, argv); }
