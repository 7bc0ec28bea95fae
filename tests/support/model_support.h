// SPDX-License-Identifier: Apache-2.0
// For tests that run models: the golden models of tests/golden/models, and a runner that owns model, cache and threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kv/cache_memory.h"
#include "model/checkpoint.h"
#include "model/model.h"

namespace tandem::testing {

using Logits = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

struct GoldenModel {
  std::string name;
  std::string salt;
  model::ModelConfig config;
  std::map<std::string, Tokens> prompts;      ///< "P8", "P100"
  std::map<std::string, Logits> last_logits;  ///< after each prompt, float64 reference
  std::vector<Logits> all_logits_p8;          ///< after each token of P8
  Tokens greedy_after_p8;
  std::map<std::string, Logits> w8a8_last_logits;  ///< empty if the file has none
};

/// Names of the files in tests/golden/models.
std::vector<std::string> golden_names();
/// Ends the test program if the file is not there or not as expected.
GoldenModel load_golden(const std::string& name);

/// The instruction sets that this CPU can run.
std::vector<kernels::Isa> available_isas();

/// A model with a KV cache of its own and a table of blocks that are handed out in an irregular order.
class ModelRunner {
 public:
  ModelRunner(const model::Checkpoint& checkpoint, const model::ModelOptions& options, int threads = 1,
              std::int32_t block_size = 16, std::int32_t num_blocks = 64);

  /// Blocks for a new sequence of up to `positions` tokens.
  std::vector<kv::BlockId> allocate(std::int64_t positions);
  /// Runs the pass; one entry a row asked for.
  std::vector<Logits> forward(std::span<const model::SequenceInput> sequences);
  /// Logits after every token of `tokens`, fed in chunks of `chunk` (0: all at once) on fresh blocks.
  std::vector<Logits> all_logits(const Tokens& tokens, std::int64_t chunk = 0);
  /// `count` tokens after `prompt`, always the most likely one.
  Tokens greedy(const Tokens& prompt, int count);

  model::Model& model() { return *model_; }
  kv::CacheMemory& cache() { return *cache_; }

 private:
  kernels::ThreadTeam team_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::CacheMemory> cache_;
  std::int32_t next_block_ = 0;
};

float max_abs_difference(const Logits& a, const Logits& b);
/// |a - b| / |b| in the L2 norm.
double relative_l2(const Logits& a, const Logits& b);
std::int32_t argmax(const Logits& logits);

/// A folder under the system's temporary directory, removed with everything in it at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tandem::testing
