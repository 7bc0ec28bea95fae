// SPDX-License-Identifier: Apache-2.0
// prometheus-cpp's own serializer prints `le="1"` and families in hash order; scrapers of vLLM match `le="1.0"`.
#include "obs/exposition.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace tandem::obs {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

void append_escaped(std::string& out, std::string_view text, bool escape_quotes) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && escape_quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

void append_sample(std::string& out, std::string_view name, const std::vector<Label>& labels, double value) {
  out += name;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    out += i == 0 ? '{' : ',';
    out += labels[i].name;
    out += "=\"";
    append_escaped(out, labels[i].value, true);
    out += '"';
  }
  if (!labels.empty()) out += '}';
  out += ' ';
  out += format_number(value);
  out += '\n';
}

void append_histogram(std::string& out, const std::string& name, const ClientMetric& metric) {
  for (const auto& bucket : metric.histogram.bucket) {
    std::vector<Label> labels = metric.label;
    const Label le{"le", format_number(bucket.upper_bound)};
    labels.insert(std::upper_bound(labels.begin(), labels.end(), le), le);
    append_sample(out, name + "_bucket", labels, static_cast<double>(bucket.cumulative_count));
  }
  append_sample(out, name + "_count", metric.label, static_cast<double>(metric.histogram.sample_count));
  append_sample(out, name + "_sum", metric.label, metric.histogram.sample_sum);
}

void append_summary(std::string& out, const std::string& name, const ClientMetric& metric) {
  append_sample(out, name + "_count", metric.label, static_cast<double>(metric.summary.sample_count));
  append_sample(out, name + "_sum", metric.label, metric.summary.sample_sum);
}

std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    case MetricType::Summary:
      return "summary";
    default:
      return "";  // Registry makes no others
  }
}

void append_head(std::string& out, const MetricFamily& family, Format format) {
  constexpr std::string_view kTotal = "_total";
  std::string_view name = family.name;
  const bool open = format == Format::kOpenMetrics;
  if (open && family.type == MetricType::Counter) name.remove_suffix(kTotal.size());
  out += "# HELP ";
  out += name;
  out += ' ';
  append_escaped(out, family.help, open);
  out += "\n# TYPE ";
  out += name;
  out += ' ';
  out += type_name(family.type);
  out += '\n';
}

void append_family(std::string& out, MetricFamily& family, Format format) {
  for (auto& metric : family.metric) std::sort(metric.label.begin(), metric.label.end());
  std::sort(family.metric.begin(), family.metric.end(),
            [](const ClientMetric& a, const ClientMetric& b) { return a.label < b.label; });
  if (type_name(family.type).empty()) return;
  append_head(out, family, format);
  for (const auto& metric : family.metric) {
    if (family.type == MetricType::Histogram) {
      append_histogram(out, family.name, metric);
    } else if (family.type == MetricType::Summary) {
      append_summary(out, family.name, metric);
    } else {
      const bool counter = family.type == MetricType::Counter;
      append_sample(out, family.name, metric.label, counter ? metric.counter.value : metric.gauge.value);
    }
  }
}

}  // namespace

std::string format_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0.0 || (magnitude >= 1e-4 && magnitude < 1e6);
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string expose_families(std::vector<MetricFamily> families, Format format) {
  std::sort(families.begin(), families.end(),
            [](const MetricFamily& a, const MetricFamily& b) { return a.name < b.name; });
  std::string out;
  for (auto& family : families) append_family(out, family, format);
  if (format == Format::kOpenMetrics) out += kEndOfOpenMetrics;
  return out;
}

}  // namespace tandem::obs
