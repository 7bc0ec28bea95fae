// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace tandem::model {
namespace {

constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxTensors = 262'144;
constexpr std::uint64_t kMaxKeyBytes = 65'535;
constexpr std::uint64_t kMaxStringBytes = 64U << 20;
constexpr std::uint64_t kMaxArray = 16U << 20;
constexpr std::uint64_t kMaxDimensions = 4;
constexpr std::int64_t kMaxAlignment = 1 << 20;

enum ValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct TypeRow {
  std::uint32_t id;
  std::string_view name;
  std::optional<TensorType> type;
};
const TypeRow kTensorTypes[] = {
    {0, "F32", TensorType::kF32},
    {1, "F16", TensorType::kF16},
    {2, "Q4_0", TensorType::kQ4_0},
    {3, "Q4_1", TensorType::kQ4_1},
    {6, "Q5_0", TensorType::kQ5_0},
    {7, "Q5_1", TensorType::kQ5_1},
    {8, "Q8_0", TensorType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", TensorType::kQ4_K},
    {13, "Q5_K", TensorType::kQ5_K},
    {14, "Q6_K", TensorType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", TensorType::kBf16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  Result<GgufFile> parse() {
    TANDEM_TRY(read_header());
    for (std::uint64_t i = 0; i < num_keys_; ++i) TANDEM_TRY(read_key());
    TANDEM_TRY(read_alignment());
    for (std::uint64_t i = 0; i < num_tensors_; ++i) TANDEM_TRY(read_tensor_info());
    TANDEM_TRY(place_tensors());
    return std::move(result_);
  }

 private:
  Status bad(std::string_view what) const {
    return Status(Code::kInvalidArgument, fmt::format("{}: not a usable GGUF file: {}", path_, what));
  }
  std::size_t left() const { return file_.size() - at_; }

  template <class T>
  Result<T> read() {
    if (left() < sizeof(T)) return bad(fmt::format("it ends at byte {}; is the download complete?", file_.size()));
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<std::string> read_string(std::uint64_t limit, std::string_view what) {
    TANDEM_ASSIGN(const std::uint64_t length, read<std::uint64_t>());
    if (length > limit || length > left())
      return bad(fmt::format("{} at byte {} has {} bytes, but at most {} are allowed and {} are left in the file", what,
                             at_, length, limit, left()));
    std::string text(reinterpret_cast<const char*>(file_.data() + at_), static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return text;
  }

  Result<void> read_header() {
    TANDEM_ASSIGN(const std::uint32_t magic, read<std::uint32_t>());
    if (magic != 0x46554747U) return bad("it does not begin with 'GGUF'");
    TANDEM_ASSIGN(const std::uint32_t version, read<std::uint32_t>());
    if (version == 0x03000000U || version == 0x02000000U)
      return Status(Code::kUnsupported, fmt::format("{}: big-endian GGUF files are not supported", path_));
    if (version != 2 && version != 3)
      return Status(Code::kUnsupported,
                    fmt::format("{}: GGUF version {} is not supported; supported: 2 and 3", path_, version));
    TANDEM_ASSIGN(num_tensors_, read<std::uint64_t>());
    TANDEM_ASSIGN(num_keys_, read<std::uint64_t>());
    if (num_tensors_ > kMaxTensors || num_keys_ > kMaxKeys)
      return bad(fmt::format("it says it has {} tensors and {} metadata keys, expected at most {} and {}", num_tensors_,
                             num_keys_, kMaxTensors, kMaxKeys));
    return {};
  }

  template <class T>
  Result<GgufValue> read_number() {
    TANDEM_ASSIGN(const T value, read<T>());
    if constexpr (std::is_floating_point_v<T>)
      return GgufValue(static_cast<double>(value));
    else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return bad(fmt::format("an integer of {} is out of range", value));
      return GgufValue(static_cast<std::int64_t>(value));
    } else {
      return GgufValue(static_cast<std::int64_t>(value));
    }
  }

  Result<GgufValue> read_value(std::uint32_t type, const std::string& key) {
    switch (type) {
      case kUint8:
        return read_number<std::uint8_t>();
      case kInt8:
        return read_number<std::int8_t>();
      case kUint16:
        return read_number<std::uint16_t>();
      case kInt16:
        return read_number<std::int16_t>();
      case kUint32:
        return read_number<std::uint32_t>();
      case kInt32:
        return read_number<std::int32_t>();
      case kUint64:
        return read_number<std::uint64_t>();
      case kInt64:
        return read_number<std::int64_t>();
      case kFloat32:
        return read_number<float>();
      case kFloat64:
        return read_number<double>();
      case kBool: {
        TANDEM_ASSIGN(const std::uint8_t value, read<std::uint8_t>());
        return GgufValue(value != 0);
      }
      case kString: {
        TANDEM_ASSIGN(std::string text, read_string(kMaxStringBytes, fmt::format("the value of '{}'", key)));
        return GgufValue(std::move(text));
      }
      case kArray:
        return read_array(key);
      default:
        return bad(fmt::format("metadata key '{}' has the unknown value type {}", key, type));
    }
  }

  static std::size_t least_bytes(std::uint32_t type) {
    switch (type) {
      case kUint8:
      case kInt8:
      case kBool:
        return 1;
      case kUint16:
      case kInt16:
        return 2;
      case kUint64:
      case kInt64:
      case kFloat64:
      case kString:
        return 8;
      default:
        return 4;
    }
  }

  Result<GgufValue> read_array(const std::string& key) {
    TANDEM_ASSIGN(const std::uint32_t type, read<std::uint32_t>());
    TANDEM_ASSIGN(const std::uint64_t count, read<std::uint64_t>());
    if (type == kArray) return bad(fmt::format("metadata key '{}' is an array of arrays", key));
    if (count > kMaxArray || count > left() / least_bytes(type))
      return bad(
          fmt::format("the array '{}' says it has {} values, but the file has {} bytes left and at most {} are allowed",
                      key, count, left(), kMaxArray));
    if (type == kString) return collect<std::string>(type, count, key);
    if (type == kFloat32 || type == kFloat64) return collect<double>(type, count, key);
    return collect<std::int64_t>(type, count, key);
  }

  template <class T>
  Result<GgufValue> collect(std::uint32_t type, std::uint64_t count, const std::string& key) {
    std::vector<T> values;
    values.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      TANDEM_ASSIGN(GgufValue value, read_value(type, key));
      if (const bool* flag = std::get_if<bool>(&value)) value = GgufValue(static_cast<std::int64_t>(*flag));
      values.push_back(std::move(std::get<T>(value)));
    }
    return GgufValue(std::move(values));
  }

  Result<void> read_key() {
    TANDEM_ASSIGN(const std::string key, read_string(kMaxKeyBytes, "a metadata key"));
    TANDEM_ASSIGN(const std::uint32_t type, read<std::uint32_t>());
    TANDEM_ASSIGN(GgufValue value, read_value(type, key.substr(0, 200)));
    if (!result_.metadata.emplace(key, std::move(value)).second)
      return bad(fmt::format("metadata key '{}' stands there twice", key.substr(0, 200)));
    return {};
  }

  Result<void> read_alignment() {
    const auto found = result_.metadata.find("general.alignment");
    if (found == result_.metadata.end()) return {};
    const auto* value = std::get_if<std::int64_t>(&found->second);
    if (value == nullptr || *value < 1 || *value > kMaxAlignment || (*value & (*value - 1)) != 0)
      return bad(fmt::format("general.alignment is not a power of two in 1..{}", kMaxAlignment));
    alignment_ = static_cast<std::uint64_t>(*value);
    return {};
  }

  Result<void> read_tensor_info() {
    GgufTensor tensor;
    TANDEM_ASSIGN(tensor.name, read_string(kMaxKeyBytes, "a tensor's name"));
    const std::string shown = tensor.name.substr(0, 200);
    TANDEM_ASSIGN(const std::uint32_t rank, read<std::uint32_t>());
    if (rank < 1 || rank > kMaxDimensions)
      return bad(fmt::format("tensor '{}' has {} dimensions, expected 1..{}", shown, rank, kMaxDimensions));
    std::uint64_t count = 1;
    for (std::uint32_t i = 0; i < rank; ++i) {
      TANDEM_ASSIGN(const std::uint64_t size, read<std::uint64_t>());
      // A quarter of the range leaves room for the multiplication by block bytes.
      if (size == 0 || __builtin_mul_overflow(count, size, &count) || count > (std::uint64_t{1} << 52))
        return bad(fmt::format("tensor '{}' has a shape that cannot exist", shown));
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    TANDEM_ASSIGN(tensor.type_id, read<std::uint32_t>());
    TANDEM_ASSIGN(const std::uint64_t offset, read<std::uint64_t>());
    if (offset % alignment_ != 0)
      return bad(fmt::format("tensor '{}' stands at offset {}, which is not a multiple of the alignment {}", shown,
                             offset, alignment_));
    tensor.type = gguf_tensor_type(tensor.type_id);
    if (tensor.type) {
      const auto block = static_cast<std::uint64_t>(tensor_block_values(*tensor.type));
      if (static_cast<std::uint64_t>(tensor.shape.back()) % block != 0)
        return bad(fmt::format("tensor '{}' of type {} has rows of {} values, expected a multiple of {}", shown,
                               tensor_type_name(*tensor.type), tensor.shape.back(), block));
      tensor.bytes = static_cast<std::size_t>(count / block * tensor_block_bytes(*tensor.type));
    }
    offsets_.push_back(offset);
    result_.tensors.push_back(std::move(tensor));
    return {};
  }

  // Data begin at the next aligned byte after the infos.
  Result<void> place_tensors() {
    const std::size_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    const std::size_t size = start <= file_.size() ? file_.size() - start : 0;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = result_.tensors[i];
      if (!tensor.type) continue;
      if (offsets_[i] > size || tensor.bytes > size - offsets_[i])
        return bad(
            fmt::format("tensor '{}' needs bytes {} to {} of the data, but the file has {}; is the download complete?",
                        tensor.name.substr(0, 200), offsets_[i], offsets_[i] + tensor.bytes, size));
      tensor.data = file_.data() + start + offsets_[i];
      order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return offsets_[a] < offsets_[b]; });
    for (std::size_t i = 1; i < order.size(); ++i)
      if (offsets_[order[i]] < offsets_[order[i - 1]] + result_.tensors[order[i - 1]].bytes)
        return bad(fmt::format("tensors '{}' and '{}' overlap", result_.tensors[order[i - 1]].name.substr(0, 200),
                               result_.tensors[order[i]].name.substr(0, 200)));
    return {};
  }

  std::span<const std::byte> file_;
  const std::string& path_;
  std::size_t at_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_keys_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<std::uint64_t> offsets_;
  GgufFile result_;
};

}  // namespace

std::string gguf_type_name(std::uint32_t type_id) {
  for (const TypeRow& row : kTensorTypes)
    if (row.id == type_id) return row.type ? std::string(row.name) : fmt::format("type {} ({})", type_id, row.name);
  return fmt::format("type {}", type_id);
}

std::optional<TensorType> gguf_tensor_type(std::uint32_t type_id) {
  for (const TypeRow& row : kTensorTypes)
    if (row.id == type_id) return row.type;
  return std::nullopt;
}

std::uint32_t gguf_type_id(TensorType type) {
  for (const TypeRow& row : kTensorTypes)
    if (row.type == type) return row.id;
  TANDEM_ASSERT(false, "every tensor type has a GGUF id");
}

Result<GgufFile> parse_gguf(std::span<const std::byte> file, const std::string& path) {
  return Reader(file, path).parse();
}

}  // namespace tandem::model
