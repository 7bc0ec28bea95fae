// SPDX-License-Identifier: Apache-2.0
// Several processes' metrics as one text.
#pragma once

#include <span>
#include <string>

namespace tandem::obs {

/// Joins expositions as Registry::expose() writes them: each family once, with the series of all. What is before the
/// first family's "# HELP" line is left out.
std::string merge_expositions(std::span<const std::string> texts);

}  // namespace tandem::obs
