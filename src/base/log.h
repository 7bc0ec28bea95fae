// SPDX-License-Identifier: Apache-2.0
// Logging. One line an event, to stderr: time, level, part, message. spdlog stays behind this header.
// Log once, where an error is decided; everything else passes it on as a value.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace tandem::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Sets the lowest level that is printed. `name` (may be empty) stands in every line, to tell processes apart.
void configure(Level lowest, std::string_view name);
bool enabled(Level level);
void write(Level level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning)) write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tandem::log
