// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/json.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;

struct DtypeRow {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<TensorType> type;
};
const DtypeRow kDtypes[] = {
    {"F32", 4, TensorType::kF32},
    {"F16", 2, TensorType::kF16},
    {"BF16", 2, TensorType::kBf16},
    {"F64", 8, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
};

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t tensor = 0;
};

class Header {
 public:
  Header(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  Result<std::vector<StoredTensor>> parse() {
    TANDEM_ASSIGN(const json::value header, read_header());
    if (!header.is_object()) return bad("the header is not a JSON object");
    for (const auto& [key, value] : header.as_object()) {
      if (key == "__metadata__") continue;
      if (!value.is_object()) return bad(fmt::format("the entry of tensor '{}' is not an object", shown(key)));
      TANDEM_TRY(add_tensor(key, value.as_object()));
    }
    TANDEM_TRY(check_overlap());
    return std::move(tensors_);
  }

 private:
  Status bad(std::string_view what) const {
    return Status(Code::kInvalidArgument, fmt::format("{}: not a usable safetensors file: {}", path_, what));
  }
  static std::string shown(std::string_view name) { return std::string(name.substr(0, 200)); }

  Result<json::value> read_header() {
    if (file_.size() < 8) return bad(fmt::format("{} bytes, expected at least 8", file_.size()));
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(file_[i]) << (8 * i);
    if (length > kMaxHeaderBytes)
      return bad(fmt::format("the header says it has {} bytes, expected at most {}", length, kMaxHeaderBytes));
    if (length > file_.size() - 8)
      return bad(fmt::format("the header needs {} bytes, but only {} follow; is the download complete?", length,
                             file_.size() - 8));
    data_ = file_.subspan(8 + static_cast<std::size_t>(length));
    const auto* text = reinterpret_cast<const char*>(file_.data()) + 8;
    JsonLimits limits;
    limits.max_depth = 8;
    auto header = parse_json(std::string_view(text, static_cast<std::size_t>(length)), limits);
    if (!header) return bad(fmt::format("the header is {}", header.error().message()));
    return header;
  }

  Result<std::uint64_t> natural(const json::value& value, std::string_view what) const {
    if (value.is_int64() && value.as_int64() >= 0) return static_cast<std::uint64_t>(value.as_int64());
    return bad(
        fmt::format("{} is {}, expected a whole number of at least 0", what, json::serialize(value).substr(0, 60)));
  }

  Result<void> add_tensor(std::string_view name, const json::object& entry) {
    const auto field = [&](const char* key, bool array) -> const json::value* {
      const json::value* value = entry.if_contains(key);
      return value != nullptr && (array ? value->is_array() : value->is_string()) ? value : nullptr;
    };
    const json::value* dtype = field("dtype", false);
    const json::value* shape = field("shape", true);
    const json::value* offsets = field("data_offsets", true);
    if (dtype == nullptr || shape == nullptr || offsets == nullptr || offsets->as_array().size() != 2)
      return bad(
          fmt::format("tensor '{}' needs a string dtype, a list shape and data_offsets [begin, end]", shown(name)));
    const auto* row = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& candidate) {
      return candidate.name == std::string_view(dtype->as_string());
    });
    if (row == std::end(kDtypes))
      return bad(fmt::format("tensor '{}' has the unknown dtype '{}'", shown(name), shown(dtype->as_string())));
    StoredTensor tensor;
    tensor.name = tensor.stored_name = std::string(name);
    tensor.type_name = row->name;
    tensor.type = row->type;
    TANDEM_ASSIGN(const std::uint64_t bytes, read_shape(shape->as_array(), row->bytes, tensor));
    TANDEM_ASSIGN(const std::uint64_t begin, natural(offsets->as_array()[0], "data_offsets"));
    TANDEM_ASSIGN(const std::uint64_t end, natural(offsets->as_array()[1], "data_offsets"));
    if (begin > end || end > data_.size())
      return bad(
          fmt::format("tensor '{}' stands at bytes {} to {} of the data, but the file has {}; is the download "
                      "complete?",
                      shown(name), begin, end, data_.size()));
    if (end - begin != bytes)
      return bad(fmt::format("tensor '{}' has {} bytes, but its shape and dtype {} need {}", shown(name), end - begin,
                             row->name, bytes));
    tensor.data = data_.data() + begin;
    tensor.bytes = static_cast<std::size_t>(bytes);
    if (begin != end) ranges_.push_back({begin, end, tensors_.size()});
    tensors_.push_back(std::move(tensor));
    return {};
  }

  // Fills tensor.shape; returns the bytes that shape needs.
  Result<std::uint64_t> read_shape(const json::array& shape, std::uint64_t element_bytes, StoredTensor& tensor) const {
    if (shape.size() > kMaxRank)
      return bad(fmt::format("tensor '{}' has {} dimensions, at most {}", shown(tensor.name), shape.size(), kMaxRank));
    std::uint64_t bytes = element_bytes;
    for (const json::value& value : shape) {
      TANDEM_ASSIGN(const std::uint64_t size, natural(value, fmt::format("a dimension of '{}'", shown(tensor.name))));
      std::uint64_t product = 0;
      if (__builtin_mul_overflow(bytes, size, &product) || product > std::numeric_limits<std::int64_t>::max())
        return bad(fmt::format("tensor '{}' has a shape too large to exist", shown(tensor.name)));
      bytes = product;
      tensor.shape.push_back(static_cast<std::int64_t>(size));
    }
    return bytes;
  }

  Result<void> check_overlap() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges_.size(); ++i)
      if (ranges_[i].begin < ranges_[i - 1].end)
        return bad(fmt::format("tensors '{}' and '{}' overlap", shown(tensors_[ranges_[i - 1].tensor].name),
                               shown(tensors_[ranges_[i].tensor].name)));
    return {};
  }

  std::span<const std::byte> file_;
  const std::string& path_;
  std::span<const std::byte> data_;
  std::vector<StoredTensor> tensors_;
  std::vector<Range> ranges_;
};

}  // namespace

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  return Header(file, path).parse();
}

}  // namespace tandem::model
