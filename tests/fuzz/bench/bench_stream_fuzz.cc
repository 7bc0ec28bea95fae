// SPDX-License-Identifier: Apache-2.0
// Lines of any bytes as the events of an answer, one a second: a record that is called a success had a token and an
// end, and its times fit together.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "bench/stream_record.h"

namespace {

void check(tandem::config::BenchBackend backend, std::string_view bytes) {
  tandem::bench::StreamRecord record;
  record.start = tandem::TimePoint() + std::chrono::seconds(1);
  tandem::bench::StreamAccount account(backend, record);
  tandem::TimePoint now = record.start;
  bool failed = false;
  while (!bytes.empty() && !failed) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    now += std::chrono::seconds(1);
    failed = !account.on_event(line, now);
  }
  const bool whole = !failed && account.finish();
  if (record.success != whole) std::abort();
  if (!whole) return;
  double last = record.ttft;
  for (const float gap : record.itls) last += double{gap};
  if (record.ttft < 1.0 || record.latency < last - 1e-3 || record.latency > tandem::seconds(now - record.start))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(tandem::config::BenchBackend::kCompletions, bytes);
  check(tandem::config::BenchBackend::kChat, bytes);
  return 0;
}
