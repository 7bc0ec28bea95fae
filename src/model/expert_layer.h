// SPDX-License-Identifier: Apache-2.0
// The MLP of a layer with experts (spec: model_formats.md 1.3, "MoE block", and 7): router, the chosen experts, and the
// weighted sum of their results, over one process or over all processes of a group.
//
// Cost: (token, expert) pairs are sorted by expert, and each expert multiplies its rows in one piece of a grouped
// linear layer, so that a pass costs what the chosen experts cost and each expert's weights are read once.
//
// Bits: a token's result depends on that token alone. Router and experts work row by row (kernels.h, "Batch
// invariance"), and the results of a token's experts are summed at home by ascending expert, in float32. Where an
// expert is, and which tokens it gets besides, changes nothing.
//
// Over processes a layer is two rounds of the group. Dispatch: the rows that go to another process's experts, each row
// once for each process. Combine: a float32 row back for each (token, expert). A process takes part in both whether it
// has tokens or not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/expert_messages.h"
#include "model/model.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace tandem::model {

class ExpertLayer {
 public:
  /// `identity` is equal on all processes that may work together.
  ExpertLayer(const ModelConfig& config, const ExpertPlacement& placement, const kernels::Ops& ops,
              kernels::ThreadTeam& team, std::uint64_t identity);

  /// About how many floats run() keeps for itself, for `rows` rows here and, over processes, as many elsewhere.
  static std::int64_t activation_floats(const ModelConfig& config, bool over_processes, std::int64_t rows);

  /// Whether run() must be called for each layer with experts even by a process without tokens.
  bool has_group() const { return group_ != nullptr; }

  /// x += the experts' results for `normed`; both [rows, hidden]. rows may be 0. An error comes from the group or from
  /// what another process sent; it ends the step, and nothing else.
  Result<void> run(std::int32_t layer, const LayerWeights& weights, const float* normed, std::int64_t rows, float* x);

 private:
  /// A row that an expert has to work on, and where the address of its result belongs.
  struct Item {
    const float* input;
    const float** result;
    std::int32_t expert;
  };
  /// What this process asks of another one, and what it owes it, in this layer.
  struct Peer {
    std::vector<TokenExpert> asked;
    std::vector<std::int64_t> rows;      ///< the rows of this process that go there
    std::vector<const float**> results;  ///< where the answers to `asked` belong
    std::vector<const float*> answers;   ///< results for the peer, in its order
    Message message;
  };

  void route(const LayerWeights& weights, const float* normed, std::int64_t rows);
  void compute(const LayerWeights& weights, std::span<const Item> items, Scratch& output);
  void make_groups(const LayerWeights& weights, std::size_t begin, std::size_t end);
  void add_up(std::int64_t rows, float* x) const;

  Result<void> run_with_others(std::int32_t layer, const LayerWeights& weights, const float* normed, std::int64_t rows,
                               float* x);
  void share_out(const float* normed, std::int64_t rows);
  Result<void> dispatch(const RoundId& id, const LayerWeights& weights, const float* normed);
  Result<void> take_in(const RoundId& id, std::span<const comm::Bytes> messages);
  Result<void> combine(const RoundId& id, const Result<void>& dispatched);
  Result<void> begin_round();

  const ModelConfig& config_;
  const kernels::Ops& ops_;
  kernels::ThreadTeam& team_;
  comm::Group* const group_;
  const std::uint64_t identity_;
  const ExpertRange own_;
  const std::int64_t hidden_;
  const std::int64_t inner_;
  std::vector<int> process_of_;  ///< [num_experts], with a group only

  // The layer in work. Pair r * experts_per_token + j is the j-th expert of row r.
  std::vector<std::int32_t> chosen_;   ///< [pairs] experts
  std::vector<float> factors_;         ///< [pairs] their weights
  std::vector<const float*> results_;  ///< [pairs]
  std::vector<Item> items_;            ///< pairs of this process's experts
  std::vector<Peer> peers_;
  std::vector<comm::Bytes> outgoing_;

  // compute()
  std::vector<std::size_t> ends_;     ///< [own experts] where an expert's items end in `order_`
  std::vector<const Item*> order_;    ///< items by expert
  std::vector<const float*> inputs_;  ///< rows of the linear layer in work
  std::vector<kernels::RowGroup> gate_groups_;
  std::vector<kernels::RowGroup> down_groups_;
  Scratch logits_;     ///< [rows, experts]
  Scratch gate_up_;    ///< [kPairs, 2 M]
  Scratch activated_;  ///< [kPairs, M]
  Scratch early_;      ///< [pairs, H], results computed while the dispatch was under way
  Scratch output_;     ///< [pairs, H], all others
  Scratch received_;   ///< [rows, H] from the other processes
  Scratch combined_;   ///< [pairs, H] results from the other processes
};

}  // namespace tandem::model
