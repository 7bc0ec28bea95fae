// SPDX-License-Identifier: Apache-2.0
// Files of the text tests. Paths are relative to the repository root, the working directory of the tests.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::text {

/// Throws, which fails the test with this message, if the file is missing.
inline std::string read_test_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path + " is missing in the working directory (the repository root is expected). " +
                             "Files under .cache come from tools/fetch_test_data.sh: run it once.");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline boost::json::value read_test_json(const std::string& path) { return boost::json::parse(read_test_file(path)); }

/// `name`: "qwen3" or "llama3_1". Loaded once in a program: reading one takes about a second.
inline std::shared_ptr<const Tokenizer> real_tokenizer(const std::string& name) {
  static std::map<std::string, std::shared_ptr<const Tokenizer>> loaded;
  std::shared_ptr<const Tokenizer>& tokenizer = loaded[name];
  if (!tokenizer) {
    const std::string path = ".cache/tokenizers/" + name + "/tokenizer.json";
    read_test_file(path);
    Result<std::shared_ptr<const Tokenizer>> result = Tokenizer::from_file(path);
    if (!result) throw std::runtime_error(result.error().to_string());
    tokenizer = *result;
  }
  return tokenizer;
}

inline std::vector<std::int32_t> to_ids(const boost::json::value& array) {
  std::vector<std::int32_t> ids;
  for (const boost::json::value& id : array.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_int64()));
  return ids;
}

}  // namespace tandem::text
