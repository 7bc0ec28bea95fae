// SPDX-License-Identifier: Apache-2.0
// The registry over prometheus-cpp. A bad metric or label name is our own mistake, so it ends the process at start.
#include "obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <utility>

#include "base/status.h"
#include "obs/exposition.h"

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
  explicit Impl(Labels labels) : common(std::move(labels)) {}

  /// Labels of one series; the common ones give way to labels of the same name.
  Labels all(Labels labels, bool with_common) const {
    if (with_common) labels.insert(common.begin(), common.end());
    return labels;
  }

  Labels common;
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

Registry::Registry(Labels common) : impl_(std::make_unique<Impl>(std::move(common))) {}
Registry::~Registry() = default;

Counter Registry::counter(std::string_view name, std::string_view help, Labels labels, bool with_common) {
  TANDEM_ASSERT(name.ends_with("_total"), "a counter's name ends in _total");
  Counter handle;
  handle.impl_ = guarded(name, [&] {
    auto& family = prometheus::BuildCounter().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
    return &family.Add(impl_->all(std::move(labels), with_common));
  });
  return handle;
}

Gauge Registry::gauge(std::string_view name, std::string_view help, Labels labels, bool with_common) {
  Gauge handle;
  handle.impl_ = guarded(name, [&] {
    auto& family = prometheus::BuildGauge().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
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

std::string Registry::expose() const { return expose_families(impl_->registry.Collect()); }

void add_process_start_time(Registry& registry) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  registry.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", {}, false)
      .set(std::chrono::duration<double>(now).count());
}

}  // namespace tandem::obs
