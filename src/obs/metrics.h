// SPDX-License-Identifier: Apache-2.0
// Metrics of a process. Handles are cheap to copy and thread-safe; prometheus-cpp stays behind this header.
// A series exists with value 0 from the moment its handle is made.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::obs {

using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  void add(double amount = 1.0);
  double value() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

class Gauge {
 public:
  void set(double value);
  void add(double amount);
  double value() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

class Histogram {
 public:
  void observe(double value);

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

class Registry {
 public:
  /// `common` labels are added to every series made with `with_common` true (vLLM's engine and model_name).
  explicit Registry(Labels common = {});
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// `name` as exposed; a counter's name ends in _total. The same name and labels give the same series.
  Counter counter(std::string_view name, std::string_view help, Labels labels = {}, bool with_common = true);
  Gauge gauge(std::string_view name, std::string_view help, Labels labels = {}, bool with_common = true);
  /// `buckets`: upper bounds, ascending, without +Inf.
  Histogram histogram(std::string_view name, std::string_view help, std::vector<double> buckets, Labels labels = {},
                      bool with_common = true);

  /// Prometheus text format 0.0.4: labels in alphabetical order, le as a float ("1.0", "+Inf").
  std::string expose() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Adds the gauge process_start_time_seconds (without common labels) with the time of this call: call it once, first.
void add_process_start_time(Registry& registry);

}  // namespace tandem::obs
