// SPDX-License-Identifier: Apache-2.0
// Several processes' metrics as one text. Apart from metrics.cc only its tests include this.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "obs/metrics.h"

namespace tandem::obs {

/// Joins expositions as expose_families() writes them: each family once, with the series of all. Series that several
/// texts have are added up: they are counts of an instance whose processes count apart. Families whose name begins with
/// `hidden_prefix` (if it is not empty) are left out, and so is what stands before the first "# HELP" line.
std::string merge_expositions(std::span<const std::string> texts, Format format, std::string_view hidden_prefix = "");

}  // namespace tandem::obs
