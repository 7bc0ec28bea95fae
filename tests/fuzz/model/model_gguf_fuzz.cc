// SPDX-License-Identifier: Apache-2.0
// Any bytes behind a GGUF file's magic and version: first the container, then, written to a memory file, the whole
// checkpoint reader.
#include <sys/mman.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/gguf.h"
#include "model/gguf_checkpoint.h"

namespace {

void read_last_rows(const tandem::model::GgufFile& file) {
  for (const auto& tensor : file.tensors) {
    if (!tensor.type || tensor.shape.size() != 2) continue;
    tandem::model::TensorView view;
    view.type = *tensor.type;
    view.rows = tensor.shape[0];
    view.cols = tensor.shape[1];
    view.data = tensor.data;
    view.bytes = tensor.bytes;
    std::vector<float> row(static_cast<std::size_t>(view.cols));
    view.read_row(view.rows - 1, row.data());
  }
}

void open_checkpoint(const std::string& text) {
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  const auto checkpoint = tandem::model::open_gguf("/proc/self/fd/" + std::to_string(fd), {});
  ::close(fd);
  if (!checkpoint) return;
  (void)(*checkpoint)->tokenizer_source();
  (void)(*checkpoint)->chat_template(true);
  for (const char* role : {"bos", "eos", "pad", "unk"}) (void)(*checkpoint)->special_token(role);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  tandem::log::configure(tandem::log::Level::kError, "");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text("GGUF\3\0\0\0", 8);
  text.append(reinterpret_cast<const char*>(data), size);
  const auto file = tandem::model::parse_gguf({reinterpret_cast<const std::byte*>(text.data()), text.size()}, "fuzz");
  if (!file) return 0;
  read_last_rows(*file);
  open_checkpoint(text);
  return 0;
}
