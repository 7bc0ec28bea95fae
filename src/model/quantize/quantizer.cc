// SPDX-License-Identifier: Apache-2.0
#include "model/quantize/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <ostream>

#include "base/float16.h"
#include "base/quantise.h"
#include "model/quantize/safetensors_writer.h"
#include "model/tensor_names.h"

namespace tandem::model {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::uintmax_t kMaxCopiedFile = std::uintmax_t{64} << 20;

template <class T>
void put(std::ostream& out, const std::vector<T>& values) {
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

/// One module on its way to the file: what its first tensor finds out, the later ones write.
struct Module {
  TensorView view;
  std::optional<kernels::StaticInput> input;
  std::vector<float> bias;  ///< only with `input`, which takes it into quant_bias
  std::vector<std::int8_t> values;
  std::vector<float> scale;
  std::vector<std::int32_t> quant_bias;
  double error = 0.0;

  float deq_scale(std::size_t row) const { return input->scale * scale[row]; }

  void quantise(kernels::ThreadTeam& team) {
    const auto rows = static_cast<std::size_t>(view.rows);
    values.resize(rows * static_cast<std::size_t>(view.cols));
    scale.resize(rows);
    if (input) quant_bias.resize(rows);
    std::vector<double> errors(rows), signals(rows);
    team.run([&](int thread) {
      std::vector<float> row(static_cast<std::size_t>(view.cols));
      for (std::int64_t i = view.rows * thread / team.size(); i < view.rows * (thread + 1) / team.size(); ++i) {
        view.read_row(i, row.data());
        quantise_row(static_cast<std::size_t>(i), row, errors, signals);
      }
    });
    double sum = 0.0;
    double signal = 0.0;
    for (std::size_t i = 0; i < rows; ++i) {
      sum += errors[i];
      signal += signals[i];
    }
    error = sum > 0 ? std::sqrt(sum / signal) : 0.0;
  }

  void quantise_row(std::size_t index, const std::vector<float>& row, std::vector<double>& errors,
                    std::vector<double>& signals) {
    const std::uint32_t max_bits = max_magnitude_bits(row.data(), view.cols);
    if (max_bits >= kInfinityBits) {  // the caller refuses such a module
      errors[index] = std::numeric_limits<double>::infinity();
      return;
    }
    float step = weight_step(max_bits);
    // A bias stands in quant_bias as a number of deq_scale steps, which must fit: rows near zero get larger steps.
    constexpr float kMostSteps = 1073741824.0F;
    if (input && !bias.empty()) step = std::max(step, std::abs(bias[index]) / (input->scale * kMostSteps));
    scale[index] = step;
    std::int8_t* out = values.data() + index * row.size();
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      out[i] = tandem::quantise(row[i], step);
      sum += out[i];
      const double error_of_one = static_cast<double>(row[i]) - static_cast<double>(out[i]) * step;
      errors[index] += error_of_one * error_of_one;
      signals[index] += static_cast<double>(row[i]) * row[i];
    }
    if (!input) return;
    const double steps = bias.empty() ? 0.0 : static_cast<double>(bias[index]) / deq_scale(index);
    quant_bias[index] = static_cast<std::int32_t>(
        std::nearbyint(steps - static_cast<double>(input->offset) * static_cast<double>(sum)));
  }
};

class Writer {
 public:
  Writer(const Checkpoint& checkpoint, const QuantizeOptions& options, kernels::ThreadTeam& team)
      : checkpoint_(checkpoint), options_(options), team_(team) {}

  Result<void> plan() {
    unused_ = options_.exclude;
    unused_.insert(unused_.end(), options_.dynamic.begin(), options_.dynamic.end());
    for (const TensorSpec& spec : expected_tensors(checkpoint_.config())) {
      TANDEM_ASSIGN(const TensorView view, checkpoint_.tensor(spec.name, spec.rows, spec.cols));
      report_.float_bytes += view.bytes;
      if (is_quantised(spec))
        TANDEM_TRY(add_module(spec, view));
      else
        add_copy(spec, view);
    }
    if (!unused_.empty())
      return Status(Code::kInvalidArgument,
                    fmt::format("the pattern {} matches no module; a name is like model.layers.0.mlp.down_proj",
                                unused_.front()));
    return {};
  }

  Result<QuantizeReport> write(const fs::path& target) {
    for (const OutputTensor& tensor : tensors_) report_.quantised_bytes += tensor.bytes;
    TANDEM_TRY(write_safetensors_folder(target.string(), tensors_, options_.shard_bytes));
    for (std::size_t i = 0; i < modules_.size(); ++i) report_.modules[rows_of_[i]].weight_error = modules_[i]->error;
    TANDEM_TRY(write_description(target / "quant_model_description.json"));
    return std::move(report_);
  }

 private:
  static std::string module_name(const TensorSpec& spec) {
    return spec.name.substr(0, spec.name.size() - kWeightSuffix.size());
  }

  bool matches_any(const std::vector<std::string>& patterns, const std::string& module) {
    bool found = false;
    for (const std::string& pattern : patterns)
      if (matches_glob(pattern, module)) {
        found = true;
        std::erase(unused_, pattern);
      }
    return found;
  }

  bool is_quantised(const TensorSpec& spec) {
    if (spec.role != TensorRole::kLinear || spec.name == kHeadName) return false;
    const std::string module = module_name(spec);
    if (module.ends_with(".mlp.gate")) return false;  // a router: its choices must not move
    const bool out = matches_any(options_.exclude, module);
    if (out) report_.modules.push_back({module, "FLOAT", 0.0});
    return !out;
  }

  void add(std::string name, std::string_view type, std::string dtype, std::vector<std::int64_t> shape,
           std::size_t bytes, std::function<Result<void>(std::ostream&)> write) {
    types_[name] = type;
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), bytes, std::move(write)});
  }

  // Plain types as they are stored.
  void add_copy(const TensorSpec& spec, const TensorView& view) {
    std::vector<std::int64_t> shape{spec.cols};
    if (spec.role == TensorRole::kEmbedding || spec.role == TensorRole::kLinear) shape.insert(shape.begin(), spec.rows);
    if (view.data != nullptr) {
      add(spec.name, "FLOAT", std::string(tensor_type_name(view.type)), std::move(shape), view.bytes,
          [view](std::ostream& out) -> Result<void> {
            out.write(reinterpret_cast<const char*>(view.data), static_cast<std::streamsize>(view.bytes));
            return {};
          });
      return;
    }
    const auto bytes = static_cast<std::size_t>(spec.rows * spec.cols) * sizeof(bf16_t);
    add(spec.name, "FLOAT", "BF16", std::move(shape), bytes, [view](std::ostream& out) -> Result<void> {
      std::vector<float> row(static_cast<std::size_t>(view.cols));
      std::vector<bf16_t> rounded(row.size());
      for (std::int64_t i = 0; i < view.rows; ++i) {
        view.read_row(i, row.data());
        std::transform(row.begin(), row.end(), rounded.begin(), to_bf16);
        put(out, rounded);
      }
      return {};
    });
  }

  Result<void> add_module(const TensorSpec& spec, const TensorView& view) {
    const std::string name = module_name(spec);
    auto module = std::make_shared<Module>();
    module->view = view;
    const bool stays_dynamic = matches_any(options_.dynamic, name) || name.find(".experts.") != std::string::npos;
    if (const auto range = options_.ranges.find(name); range != options_.ranges.end() && !stays_dynamic)
      module->input = static_input_of(range->second);
    if (module->input && checkpoint_.has_tensor(name + ".bias")) {
      TANDEM_ASSIGN(const TensorView bias, checkpoint_.tensor(name + ".bias", 1, spec.rows));
      module->bias.resize(static_cast<std::size_t>(spec.rows));
      bias.read_row(0, module->bias.data());
    }
    const char* type = module->input ? "W8A8" : "W8A8_DYNAMIC";
    rows_of_.push_back(report_.modules.size());
    report_.modules.push_back({name, type, 0.0});
    modules_.push_back(module);
    const auto rows = static_cast<std::size_t>(spec.rows);
    add(spec.name, type, "I8", {spec.rows, spec.cols}, rows * static_cast<std::size_t>(spec.cols),
        [this, module, name](std::ostream& out) -> Result<void> {
          module->quantise(team_);
          if (!std::isfinite(module->error))
            return Status(Code::kInvalidArgument,
                          fmt::format("the weights of '{}' hold numbers that are not finite", name));
          put(out, module->values);
          module->values = {};
          return {};
        });
    if (module->input)
      add_static(name, spec.rows, module);
    else
      add_dynamic(name, spec.rows, module);
    return {};
  }

  void add_dynamic(const std::string& name, std::int64_t rows, const std::shared_ptr<Module>& module) {
    const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(float);
    add(name + ".weight_scale", "W8A8_DYNAMIC", "F32", {rows, 1}, bytes, [module](std::ostream& out) -> Result<void> {
      put(out, module->scale);
      return {};
    });
    add(name + ".weight_offset", "W8A8_DYNAMIC", "F32", {rows, 1}, bytes, [module](std::ostream& out) -> Result<void> {
      put(out, std::vector<float>(module->scale.size(), 0.0F));
      return {};
    });
  }

  void add_static(const std::string& name, std::int64_t rows, const std::shared_ptr<Module>& module) {
    const auto count = static_cast<std::size_t>(rows);
    add(name + ".input_scale", "W8A8", "F32", {1}, sizeof(float), [module](std::ostream& out) -> Result<void> {
      put(out, std::vector<float>{module->input->scale});
      return {};
    });
    add(name + ".input_offset", "W8A8", "F32", {1}, sizeof(float), [module](std::ostream& out) -> Result<void> {
      put(out, std::vector<float>{module->input->offset});
      return {};
    });
    add(name + ".quant_bias", "W8A8", "I32", {rows}, count * sizeof(std::int32_t),
        [module](std::ostream& out) -> Result<void> {
          put(out, module->quant_bias);
          return {};
        });
    // For float16 models the devices want the bits of the float32 in an int64.
    const bool as_integers = checkpoint_.config().dtype == "float16";
    add(name + ".deq_scale", "W8A8", as_integers ? "I64" : "F32", {rows}, count * (as_integers ? 8 : 4),
        [module, as_integers](std::ostream& out) -> Result<void> {
          for (std::size_t i = 0; i < module->scale.size(); ++i) {
            const std::uint64_t bits = std::bit_cast<std::uint32_t>(module->deq_scale(i));
            out.write(reinterpret_cast<const char*>(&bits), as_integers ? 8 : 4);
          }
          return {};
        });
  }

  Result<void> write_description(const fs::path& path) const {
    json::object description;
    for (const auto& [name, type] : types_) description[name] = type;
    description["model_quant_type"] = options_.ranges.empty() ? "W8A8_DYNAMIC" : "W8A8";
    description["version"] = "1.0.0";
    description["group_size"] = 0;
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << json::serialize(description) << "\n";
    out.close();
    if (out.fail()) return Status(Code::kInternal, fmt::format("cannot write {}", path.string()));
    return {};
  }

  const Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  kernels::ThreadTeam& team_;
  std::vector<std::string> unused_;  ///< patterns that matched nothing yet
  std::vector<OutputTensor> tensors_;
  std::map<std::string, std::string> types_;
  std::vector<std::shared_ptr<Module>> modules_;
  std::vector<std::size_t> rows_of_;  ///< where a module stands in the report
  QuantizeReport report_;
};

bool is_weight_file(const std::string& name) {
  for (const std::string_view end : {".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf"})
    if (name.ends_with(end)) return true;
  return name.starts_with("quant_model_description") || name == "pytorch_model.bin.index.json";
}

Result<void> copy_small_files(const fs::path& source, const fs::path& target) {
  std::error_code error;
  for (fs::directory_iterator it(source, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!it->is_regular_file() || is_weight_file(name) || it->file_size() > kMaxCopiedFile) continue;
    std::error_code failed;
    fs::copy_file(it->path(), target / name, fs::copy_options::overwrite_existing, failed);
    if (failed)
      return Status(Code::kInternal,
                    fmt::format("cannot copy {} to {}: {}", it->path().string(), target.string(), failed.message()));
  }
  if (error) return Status(Code::kInternal, fmt::format("cannot list {}: {}", source.string(), error.message()));
  return {};
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::optional<kernels::StaticInput> static_input_of(const InputRange& range) {
  const float low = std::min(0.0F, range.min);
  const float scale = (std::max(0.0F, range.max) - low) / 255.0F;
  if (!(scale > 0.0F) || !std::isfinite(scale)) return std::nullopt;
  const float offset = std::clamp(std::round(-low / scale) - 128.0F, -128.0F, 127.0F);
  return kernels::StaticInput{scale, offset, 0};
}

Result<QuantizeReport> quantize_checkpoint(const Checkpoint& checkpoint, const std::string& source_folder,
                                           const std::string& target, const QuantizeOptions& options,
                                           kernels::ThreadTeam& team) {
  if (!checkpoint.quantization().empty())
    return Status(Code::kInvalidArgument, fmt::format("{} is quantised already ({}); give the float checkpoint",
                                                      source_folder, checkpoint.quantization()));
  std::error_code error;
  fs::create_directories(target, error);
  if (error) return Status(Code::kInternal, fmt::format("cannot make the folder {}: {}", target, error.message()));
  if (!fs::is_empty(target, error) || error)
    return Status(Code::kAlreadyExists,
                  fmt::format("the folder {} is not empty; give one that is, or a new one", target));
  Writer writer(checkpoint, options, team);
  TANDEM_TRY(writer.plan());
  TANDEM_TRY(copy_small_files(source_folder, target));
  return writer.write(target);
}

}  // namespace tandem::model
