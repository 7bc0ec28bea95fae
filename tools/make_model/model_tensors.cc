// SPDX-License-Identifier: Apache-2.0
#include "make_model/model_tensors.h"

#include <memory>
#include <string_view>
#include <utility>

#include "model/tensor_names.h"

namespace tandem::tools {
namespace {

using model::TensorSpec;
using model::TensorView;

// Tensors of one shape, one below the other.
class StackedRows : public model::RowSource {
 public:
  explicit StackedRows(std::vector<TensorView> views) : views_(std::move(views)) {}
  void read_row(std::int64_t row, std::int64_t, float* out) const override {
    const std::int64_t each = views_.front().rows;
    views_[static_cast<std::size_t>(row / each)].read_row(row % each, out);
  }

 private:
  std::vector<TensorView> views_;
};

// `first` is expert 0's tensor; "experts.0." of its name becomes "experts.<e>.", and `parts` its last part.
Result<NamedTensor> fuse(const model::Checkpoint& checkpoint, const TensorSpec& first,
                         const std::vector<std::string_view>& parts, std::string_view fused_part) {
  constexpr std::string_view kExperts = ".experts.";
  const std::string head = first.name.substr(0, first.name.find(kExperts) + kExperts.size());
  const std::int64_t experts = checkpoint.config().num_experts;
  std::vector<TensorView> views;
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (const std::string_view part : parts) {
      const std::string name = head + std::to_string(expert) + "." + std::string(part);
      TANDEM_ASSIGN(TensorView view, checkpoint.tensor(name, first.rows, first.cols));
      views.push_back(std::move(view));
    }
  NamedTensor fused{head + std::string(fused_part), views.front(), experts};
  fused.view.rows = first.rows * static_cast<std::int64_t>(views.size());
  fused.view.data = nullptr;
  fused.view.source = std::make_shared<StackedRows>(std::move(views));
  return fused;
}

}  // namespace

Result<std::vector<NamedTensor>> model_tensors(const model::Checkpoint& checkpoint, ExpertForm form) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : model::expected_tensors(checkpoint.config())) {
    if (spec.expert < 0 || form == ExpertForm::kSeparate) {
      TANDEM_ASSIGN(TensorView view, checkpoint.tensor(spec.name, spec.rows, spec.cols));
      tensors.push_back({spec.name, std::move(view)});
      continue;
    }
    if (spec.expert > 0) continue;
    const std::string_view part = std::string_view(spec.name).substr(spec.name.find(".experts.0.") + 11);
    if (form == ExpertForm::kFused) {
      TANDEM_ASSIGN(NamedTensor fused, fuse(checkpoint, spec, {part}, part));
      tensors.push_back(std::move(fused));
    } else if (part == "gate_proj.weight") {
      TANDEM_ASSIGN(NamedTensor fused, fuse(checkpoint, spec, {part, "up_proj.weight"}, "gate_up_proj"));
      tensors.push_back(std::move(fused));
    } else if (part == "down_proj.weight") {
      TANDEM_ASSIGN(NamedTensor fused, fuse(checkpoint, spec, {part}, "down_proj"));
      tensors.push_back(std::move(fused));
    }
  }
  return tensors;
}

}  // namespace tandem::tools
