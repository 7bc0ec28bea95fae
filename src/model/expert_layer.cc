// SPDX-License-Identifier: Apache-2.0
#include "model/expert_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/expert_placement.h"

namespace tandem::model {
namespace {

/// Rows of one process that are worked on together; bounds the memory for their experts' results.
constexpr std::int64_t kRows = 1024;
/// Pairs between gate_up and down: bounds the widest activations.
constexpr std::size_t kPairs = 4096;
/// An expert with this many rows of its own is busy computing. One with fewer is busy reading its weights, and waits
/// for the other processes' rows so that it reads them once.
constexpr std::size_t kBusyRows = 16;

}  // namespace

ExpertLayer::ExpertLayer(const ModelConfig& config, const ExpertPlacement& placement, const kernels::Ops& ops,
                         kernels::ThreadTeam& team, std::uint64_t identity)
    : config_(config),
      ops_(ops),
      team_(team),
      group_(placement.group),
      identity_(identity),
      own_(own_experts(placement, config.num_experts)),
      hidden_(config.hidden_size),
      inner_(config.moe_intermediate_size) {
  // A step may choose any of them, however few the steps before did.
  const auto experts = static_cast<std::size_t>(own_.size());
  ends_.reserve(experts);
  gate_groups_.reserve(experts);
  down_groups_.reserve(experts);
  if (group_ == nullptr) return;
  for (int process = 0; process < group_->size(); ++process)
    process_of_.insert(process_of_.end(),
                       static_cast<std::size_t>(experts_of_process(placement, config.num_experts, process).size()),
                       process);
  peers_.resize(static_cast<std::size_t>(group_->size()));
  outgoing_.resize(peers_.size());
}

std::int64_t ExpertLayer::activation_floats(const ModelConfig& config, bool over_processes, std::int64_t rows) {
  const std::int64_t together = over_processes ? rows : std::min(rows, kRows);
  const std::int64_t pairs = together * config.experts_per_token;
  const std::int64_t inner = std::min(pairs, static_cast<std::int64_t>(kPairs)) * 3 * config.moe_intermediate_size;
  // Results; over processes also the others' answers, and the messages of both.
  const std::int64_t copies = over_processes ? 4 : 1;
  return together * config.num_experts + inner + copies * pairs * config.hidden_size;
}

Result<void> ExpertLayer::run(std::int32_t layer, const LayerWeights& weights, const float* normed, std::int64_t rows,
                              float* x) {
  if (group_ != nullptr) return run_with_others(layer, weights, normed, rows, x);
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const std::int64_t count = std::min(kRows, rows - first);
    const float* part = normed + first * hidden_;
    route(weights, part, count);
    items_.clear();
    for (std::size_t pair = 0; pair < chosen_.size(); ++pair)
      items_.push_back({part + static_cast<std::int64_t>(pair) / config_.experts_per_token * hidden_, &results_[pair],
                        chosen_[pair]});
    compute(weights, items_, output_);
    add_up(count, x + first * hidden_);
  }
  return {};
}

// Fills chosen_ and factors_, and makes room for the results.
void ExpertLayer::route(const LayerWeights& weights, const float* normed, std::int64_t rows) {
  const auto pairs = static_cast<std::size_t>(rows * config_.experts_per_token);
  chosen_.resize(pairs);
  factors_.resize(pairs);
  results_.assign(pairs, nullptr);
  float* logits = logits_.get(rows, config_.num_experts);
  ops_.linear(team_, *weights.router, normed, hidden_, rows, logits, config_.num_experts, kernels::Epilogue::kStore);
  ops_.choose_experts(team_, logits, rows, config_.num_experts, config_.experts_per_token, config_.norm_topk_prob,
                      chosen_.data(), factors_.data());
}

// The results of all items, in `output`.
void ExpertLayer::compute(const LayerWeights& weights, std::span<const Item> items, Scratch& output) {
  if (items.empty()) return;
  // Counting sort by expert; items of one expert stay in order.
  ends_.assign(static_cast<std::size_t>(own_.size()), 0);
  for (const Item& item : items) ++ends_[static_cast<std::size_t>(item.expert - own_.begin)];
  std::size_t before = 0;
  for (std::size_t& end : ends_) {
    const std::size_t count = end;
    end = before;
    before += count;
  }
  order_.resize(items.size());
  for (const Item& item : items) order_[ends_[static_cast<std::size_t>(item.expert - own_.begin)]++] = &item;

  float* out = output.get(static_cast<std::int64_t>(items.size()), hidden_);
  for (std::size_t begin = 0; begin < items.size(); begin += kPairs) {
    const std::size_t end = std::min(begin + kPairs, items.size());
    const auto count = static_cast<std::int64_t>(end - begin);
    float* gate_up = gate_up_.get(count, 2 * inner_);
    float* activated = activated_.get(count, inner_);
    make_groups(weights, begin, end);
    inputs_.clear();
    for (std::size_t i = begin; i < end; ++i) inputs_.push_back(order_[i]->input);
    ops_.grouped_linear(team_, gate_groups_, inputs_.data(), gate_up, 2 * inner_);
    ops_.silu_mul(team_, gate_up, count, inner_, activated);
    for (std::size_t i = 0; i < end - begin; ++i) inputs_[i] = activated + static_cast<std::int64_t>(i) * inner_;
    ops_.grouped_linear(team_, down_groups_, inputs_.data(), out + static_cast<std::int64_t>(begin) * hidden_, hidden_);
  }
  for (std::size_t i = 0; i < items.size(); ++i) *order_[i]->result = out + static_cast<std::int64_t>(i) * hidden_;
}

// The experts of order_[begin, end).
void ExpertLayer::make_groups(const LayerWeights& weights, std::size_t begin, std::size_t end) {
  gate_groups_.clear();
  down_groups_.clear();
  std::size_t expert_begin = 0;
  for (std::size_t expert = 0; expert < ends_.size(); ++expert) {
    const std::size_t from = std::max(begin, expert_begin);
    const std::size_t to = std::min(end, ends_[expert]);
    expert_begin = ends_[expert];
    if (from >= to) continue;
    const auto rows = static_cast<std::int64_t>(to - from);
    gate_groups_.push_back({weights.experts[expert].gate_up.get(), rows});
    down_groups_.push_back({weights.experts[expert].down.get(), rows});
  }
}

void ExpertLayer::add_up(std::int64_t rows, float* x) const {
  ops_.add_weighted(team_, results_.data(), factors_.data(), config_.experts_per_token, rows, hidden_, x);
}

Result<void> ExpertLayer::run_with_others(std::int32_t layer, const LayerWeights& weights, const float* normed,
                                          std::int64_t rows, float* x) {
  const RoundId id{identity_, 2 * static_cast<std::uint32_t>(layer)};
  route(weights, normed, rows);
  share_out(normed, rows);
  TANDEM_TRY(dispatch(id, weights, normed));
  TANDEM_ASSIGN(const std::span<const comm::Bytes> messages, group_->finish());
  const Result<void> taken = take_in(id, messages);
  if (taken) compute(weights, items_, output_);
  // Also after a failure: the others are told, so that the step ends for all at the same round.
  TANDEM_TRY(combine({identity_, id.round + 1}, taken));
  add_up(rows, x);
  return {};
}

// Pairs of own experts to items_, the others to their process.
void ExpertLayer::share_out(const float* normed, std::int64_t rows) {
  items_.clear();
  for (Peer& peer : peers_) {
    peer.asked.clear();
    peer.rows.clear();
    peer.results.clear();
  }
  const std::int32_t top_k = config_.experts_per_token;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int32_t j = 0; j < top_k; ++j) {
      const auto pair = static_cast<std::size_t>(row * top_k + j);
      const std::int32_t expert = chosen_[pair];
      if (own_.contains(expert)) {
        items_.push_back({normed + row * hidden_, &results_[pair], expert});
        continue;
      }
      Peer& peer = peers_[static_cast<std::size_t>(process_of_[static_cast<std::size_t>(expert)])];
      if (peer.rows.empty() || peer.rows.back() != row) peer.rows.push_back(row);
      peer.asked.push_back({static_cast<std::uint32_t>(peer.rows.size() - 1), static_cast<std::uint32_t>(expert)});
      peer.results.push_back(&results_[pair]);
    }
}

Result<void> ExpertLayer::begin_round() {
  for (std::size_t i = 0; i < peers_.size(); ++i) outgoing_[i] = peers_[i].message;
  return group_->begin(outgoing_);
}

// Begins the dispatch round and computes what does not profit from waiting; the rest stays in items_.
Result<void> ExpertLayer::dispatch(const RoundId& id, const LayerWeights& weights, const float* normed) {
  for (Peer& peer : peers_) {
    write_dispatch_head(id, static_cast<std::uint32_t>(peer.rows.size()), peer.asked, peer.message);
    for (const std::int64_t row : peer.rows) append_row(normed + row * hidden_, hidden_, peer.message);
  }
  TANDEM_TRY(begin_round());
  ends_.assign(static_cast<std::size_t>(own_.size()), 0);
  for (const Item& item : items_) ++ends_[static_cast<std::size_t>(item.expert - own_.begin)];
  const auto middle = std::partition(items_.begin(), items_.end(), [&](const Item& item) {
    return ends_[static_cast<std::size_t>(item.expert - own_.begin)] >= kBusyRows;
  });
  compute(weights, {items_.begin(), middle}, early_);
  items_.erase(items_.begin(), middle);
  return {};
}

// The other processes' rows, as items behind those that are left of this one's.
Result<void> ExpertLayer::take_in(const RoundId& id, std::span<const comm::Bytes> messages) {
  std::vector<Dispatch> dispatches(messages.size());
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i == static_cast<std::size_t>(group_->rank())) continue;
    auto read = read_dispatch(messages[i], id, hidden_, own_);
    if (!read) return read.error().context(fmt::format("process {} of the instance", i));
    dispatches[i] = std::move(*read);
    rows += dispatches[i].rows;
  }
  float* to = received_.get(rows, hidden_);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Dispatch& from = dispatches[i];
    peers_[i].answers.assign(from.pairs.size(), nullptr);
    for (std::size_t j = 0; j < from.pairs.size(); ++j)
      items_.push_back(
          {to + from.pairs[j].row * hidden_, &peers_[i].answers[j], static_cast<std::int32_t>(from.pairs[j].expert)});
    if (!from.values.empty()) std::memcpy(to, from.values.data(), from.values.size());
    to += from.rows * hidden_;
  }
  return {};
}

// The combine round: answers out, or why there are none; the other processes' answers to results_.
Result<void> ExpertLayer::combine(const RoundId& id, const Result<void>& dispatched) {
  for (Peer& peer : peers_) {
    if (!dispatched) {
      write_failure(id, dispatched.error().message(), peer.message);
      continue;
    }
    write_combine_head(id, static_cast<std::uint32_t>(peer.answers.size()), peer.message);
    for (const float* answer : peer.answers) append_row(answer, hidden_, peer.message);
  }
  TANDEM_TRY(begin_round());
  TANDEM_ASSIGN(const std::span<const comm::Bytes> messages, group_->finish());
  if (!dispatched) return dispatched.error();
  std::int64_t total = 0;
  for (const Peer& peer : peers_) total += static_cast<std::int64_t>(peer.results.size());
  float* to = combined_.get(total, hidden_);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i == static_cast<std::size_t>(group_->rank())) continue;
    const auto rows = read_combine(messages[i], id, hidden_, peers_[i].results.size());
    if (!rows) return rows.error().context(fmt::format("process {} of the instance", i));
    if (!rows->empty()) std::memcpy(to, rows->data(), rows->size());
    for (const float** result : peers_[i].results) {
      *result = to;
      to += hidden_;
    }
  }
  return {};
}

}  // namespace tandem::model
