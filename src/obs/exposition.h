// SPDX-License-Identifier: Apache-2.0
// Text exposition (Prometheus 0.0.4) of collected families. Apart from metrics.cc only its tests include this.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace tandem::obs {

/// Families by name, series by labels, labels in alphabetical order (`le` of a bucket among them), so that two
/// expositions of the same values are the same text.
std::string expose_families(std::vector<prometheus::MetricFamily> families);

/// A number as vLLM's Python client writes it: "1.0", "0.005", "1e+06", "+Inf", "-Inf", "NaN".
std::string format_number(double value);

}  // namespace tandem::obs
