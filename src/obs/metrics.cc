// SPDX-License-Identifier: Apache-2.0
// The registry over prometheus-cpp. A bad metric or label name is our own mistake, so it ends the process at start.
#include "obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>

#include <exception>
#include <functional>
#include <limits>
#include <utility>

#include "base/status.h"
#include "obs/exposition.h"
#include "obs/merge.h"

namespace tandem::obs {
namespace {

prometheus::Counter& as_counter(void* impl) {
  TANDEM_ASSERT(impl != nullptr, "a Counter is made by a Registry");
  return *static_cast<prometheus::Counter*>(impl);
}
prometheus::Gauge& as_gauge(void* impl) {
  TANDEM_ASSERT(impl != nullptr, "a Gauge is made by a Registry");
  return *static_cast<prometheus::Gauge*>(impl);
}

/// Runs a call into prometheus-cpp that throws on names it refuses.
template <class Call>
auto guarded(std::string_view name, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& exception) {
    const std::string message = "metric " + std::string(name) + ": " + exception.what();
    assertion_failed("prometheus-cpp accepts the metric", message.c_str(), __FILE__, __LINE__);
  }
}

}  // namespace

struct Registry::Impl {
  Impl(Labels labels, std::string prefix) : common(std::move(labels)), hidden_prefix(std::move(prefix)) {}

  /// Labels of one series; the common ones give way to labels of the same name.
  Labels all(Labels labels, bool with_common) const {
    if (with_common) labels.insert(common.begin(), common.end());
    return labels;
  }

  Labels common;
  std::string hidden_prefix;
  std::function<void()> refresh;
  prometheus::Registry registry;
};

void Counter::add(double amount) { as_counter(impl_).Increment(amount); }
double Counter::value() const { return as_counter(impl_).Value(); }

void Gauge::set(double value) { as_gauge(impl_).Set(value); }
void Gauge::add(double amount) { as_gauge(impl_).Increment(amount); }
double Gauge::value() const { return as_gauge(impl_).Value(); }

void Histogram::observe(double value) {
  TANDEM_ASSERT(impl_ != nullptr, "a Histogram is made by a Registry");
  static_cast<prometheus::Histogram*>(impl_)->Observe(value);
}

void Summary::observe(double value) {
  TANDEM_ASSERT(impl_ != nullptr, "a Summary is made by a Registry");
  static_cast<prometheus::Summary*>(impl_)->Observe(value);
}

Registry::Registry(Labels common, std::string hidden_prefix)
    : impl_(std::make_unique<Impl>(std::move(common), std::move(hidden_prefix))) {}
Registry::~Registry() = default;

Counter Registry::counter(std::string_view name, std::string_view help, Labels labels, bool with_common) {
  TANDEM_ASSERT(name.ends_with("_total"), "a counter's name ends in _total");
  Counter handle;
  handle.impl_ = guarded(name, [&] {
    auto& family = prometheus::BuildCounter().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
    handle.family_ = &family;
    return &family.Add(impl_->all(std::move(labels), with_common));
  });
  return handle;
}

Gauge Registry::gauge(std::string_view name, std::string_view help, Labels labels, bool with_common) {
  Gauge handle;
  handle.impl_ = guarded(name, [&] {
    auto& family = prometheus::BuildGauge().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
    handle.family_ = &family;
    return &family.Add(impl_->all(std::move(labels), with_common));
  });
  return handle;
}

Histogram Registry::histogram(std::string_view name, std::string_view help, std::vector<double> buckets, Labels labels,
                              bool with_common) {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const bool ascending = i == 0 || buckets[i - 1] < buckets[i];
    TANDEM_ASSERT(ascending && buckets[i] < std::numeric_limits<double>::infinity(),
                  "histogram buckets ascend and leave +Inf out");
  }
  Histogram handle;
  handle.impl_ = guarded(name, [&] {
    auto& family =
        prometheus::BuildHistogram().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
    return &family.Add(impl_->all(std::move(labels), with_common), buckets);
  });
  return handle;
}

Summary Registry::summary(std::string_view name, std::string_view help, Labels labels, bool with_common) {
  Summary handle;
  handle.impl_ = guarded(name, [&] {
    auto& family = prometheus::BuildSummary().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
    return &family.Add(impl_->all(std::move(labels), with_common), prometheus::Summary::Quantiles{});
  });
  return handle;
}

void Registry::remove(const Counter& counter) {
  static_cast<prometheus::Family<prometheus::Counter>*>(counter.family_)->Remove(&as_counter(counter.impl_));
}

void Registry::remove(const Gauge& gauge) {
  static_cast<prometheus::Family<prometheus::Gauge>*>(gauge.family_)->Remove(&as_gauge(gauge.impl_));
}

void Registry::before_expose(std::function<void()> refresh) { impl_->refresh = std::move(refresh); }

std::string Registry::expose(Format format, std::span<const std::string> others) const {
  if (impl_->refresh) impl_->refresh();
  std::vector<std::string> texts{expose_families(impl_->registry.Collect(), format)};
  if (others.empty() && impl_->hidden_prefix.empty()) return std::move(texts.front());
  texts.insert(texts.end(), others.begin(), others.end());
  return merge_expositions(texts, format, impl_->hidden_prefix);
}

Format format_for(std::string_view accept) {
  return accept.find("application/openmetrics-text") == std::string_view::npos ? Format::kText : Format::kOpenMetrics;
}

std::string_view content_type(Format format) {
  return format == Format::kText ? "text/plain; version=0.0.4; charset=utf-8"
                                 : "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

}  // namespace tandem::obs
