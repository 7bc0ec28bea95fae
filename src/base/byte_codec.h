// SPDX-License-Identifier: Apache-2.0
// How the fields of messages between processes become bytes and are read back, within bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tandem {

static_assert(std::endian::native == std::endian::little, "numbers go to the wire as they lie in memory");

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <class T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof(T));
  }
  void text(std::string_view value, std::size_t most) {
    value = value.substr(0, most);
    number(static_cast<std::uint32_t>(value.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    out_.insert(out_.end(), bytes, bytes + value.size());
  }
  template <class T>
  void numbers(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    out_.insert(out_.end(), bytes, bytes + values.size() * sizeof(T));
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads within the payload; after the first failure all reads give zeros and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (rest_.size() < sizeof(T)) {
      fail("ends too early");
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  template <class Enum>
  Enum choice(Enum highest) {
    const auto value = number<std::uint8_t>();
    if (value > static_cast<std::uint8_t>(highest)) fail("has an unknown choice");
    return ok() ? static_cast<Enum>(value) : Enum{};
  }
  std::string text(std::size_t most) {
    const auto size = number<std::uint32_t>();
    if (size > most || size > rest_.size()) {
      fail("has too long a text");
      return {};
    }
    std::string value(reinterpret_cast<const char*>(rest_.data()), size);
    rest_ = rest_.subspan(size);
    return value;
  }
  /// A count of things of `each` bytes, of which the payload must still have that many.
  std::size_t count(std::size_t most, std::size_t each) {
    const auto value = number<std::uint32_t>();
    if (value > most || value > rest_.size() / each) {
      fail("has an impossible count");
      return 0;
    }
    return value;
  }
  std::vector<std::uint32_t> numbers(std::size_t count) {
    if (count > rest_.size() / sizeof(std::uint32_t)) {
      fail("ends too early");
      return {};
    }
    std::vector<std::uint32_t> values(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(std::uint32_t));
    rest_ = rest_.subspan(count * sizeof(std::uint32_t));
    return values;
  }
  std::size_t left() const { return rest_.size(); }
  void fail(const char* why) {
    if (why_ == nullptr) why_ = why;
    rest_ = {};
  }
  bool ok() const { return why_ == nullptr; }
  const char* why() const { return why_; }

 private:
  std::span<const std::byte> rest_;
  const char* why_ = nullptr;
};

}  // namespace tandem
