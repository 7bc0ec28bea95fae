// SPDX-License-Identifier: Apache-2.0
#include "make_model/file_writer.h"

#include <fmt/format.h>

#include <vector>

#include "make_model/encode.h"

namespace tandem::tools {

FileWriter::FileWriter(const std::string& path) : path_(path), out_(path, std::ios::binary | std::ios::trunc) {}

void FileWriter::bytes(const void* data, std::size_t size) {
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  written_ += size;
}

void FileWriter::align(std::size_t alignment) {
  while (written_ % alignment != 0) number<std::uint8_t>(0);
}

void FileWriter::encoded(const model::TensorView& view, model::TensorType type, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(view.cols));
  std::vector<std::byte> encoded_row(row_bytes(type, view.cols));
  view.read_row(row, values.data());
  encode_row(type, values.data(), view.cols, encoded_row.data());
  bytes(encoded_row.data(), encoded_row.size());
}

Result<void> FileWriter::close() {
  out_.close();
  if (out_.fail())
    return Status(Code::kInternal,
                  fmt::format("cannot write {} ({} bytes): is there room, and may it be written?", path_, written_));
  return {};
}

}  // namespace tandem::tools
