// SPDX-License-Identifier: Apache-2.0
// Collected families as text. Apart from metrics.cc only its tests include this.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <string_view>
#include <vector>

#include "obs/metrics.h"

namespace tandem::obs {

/// How OpenMetrics ends.
inline constexpr std::string_view kEndOfOpenMetrics = "# EOF\n";

/// Families by name, series by labels, labels in alphabetical order (`le` of a bucket among them), so that two
/// expositions of the same values are the same text.
/// In OpenMetrics a counter's family goes without the _total that its series have.
std::string expose_families(std::vector<prometheus::MetricFamily> families, Format format);

/// A number as vLLM's Python client writes it: "1.0", "0.005", "1e+06", "+Inf", "-Inf", "NaN".
std::string format_number(double value);

}  // namespace tandem::obs
