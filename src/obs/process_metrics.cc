// SPDX-License-Identifier: Apache-2.0
// Names and meaning as in the Python client, read from /proc (Linux).
#include "obs/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

namespace tandem::obs {
namespace {

/// /proc/self/stat from its third field on; the second one, the name, may hold spaces.
struct Stat {
  double cpu_seconds = 0.0;
  double start_seconds = 0.0;  ///< since boot
  double virtual_bytes = 0.0;
  double resident_bytes = 0.0;
};

Stat read_stat() {
  Stat stat;
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::string field;
  for (int number = 3; fields >> field; ++number) {  // numbers of proc(5)
    const double value = number == 3 ? 0.0 : std::strtod(field.c_str(), nullptr);
    if (number == 14 || number == 15) stat.cpu_seconds += value / ticks;
    if (number == 22) stat.start_seconds = value / ticks;
    if (number == 23) stat.virtual_bytes = value;
    if (number == 24) stat.resident_bytes = value * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  return stat;
}

/// Unix seconds.
double boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0.0;
    if (word == "btime" && file >> seconds) return seconds;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0.0;
}

double open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return 0.0;
  return static_cast<double>(std::distance(begin(files), end(files)) - 1);  // without the one that reads the folder
}

double most_files() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<double>(limit.rlim_cur) : 0.0;
}

}  // namespace

void add_process_metrics(Registry& registry) {
  const auto gauge = [&](std::string_view name, std::string_view help) {
    return registry.gauge(name, help, {}, /*with_common=*/false);
  };
  gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
      .set(boot_time() + read_stat().start_seconds);
  gauge("process_max_fds", "Maximum number of open file descriptors.").set(most_files());
  Gauge virtual_bytes = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
  Gauge resident_bytes = gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
  Gauge files = gauge("process_open_fds", "Number of open file descriptors.");
  Counter cpu =
      registry.counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", {}, false);
  registry.before_expose([=]() mutable {
    const Stat stat = read_stat();
    virtual_bytes.set(stat.virtual_bytes);
    resident_bytes.set(stat.resident_bytes);
    files.set(open_files());
    cpu.add(std::max(0.0, stat.cpu_seconds - cpu.value()));
  });
}

}  // namespace tandem::obs
