// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only. The bytes stay valid while the object lives.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace tandem::model {

class MappedFile {
 public:
  /// Errors name the path: missing, not a regular file, empty, not mappable.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Takes what was read so far out of this process's memory; reading it again brings it back. Any thread, any time.
  void release_pages() const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tandem::model
