// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace tandem::log {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("tandem");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void configure(Level lowest, std::string_view name) {
  logger().set_level(to_spdlog(lowest));
  const std::string tag = name.empty() ? std::string() : "[" + std::string(name) + "] ";
  logger().set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ " + tag + "%v");
}

bool enabled(Level level) { return logger().should_log(to_spdlog(level)); }

void write(Level level, std::string_view message) {
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace tandem::log
