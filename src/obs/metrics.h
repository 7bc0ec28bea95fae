// SPDX-License-Identifier: Apache-2.0
// Metrics of a process. Handles are cheap to copy and thread-safe; prometheus-cpp stays behind this header.
// A series exists with value 0 from the moment its handle is made.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
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
  void* family_ = nullptr;
};

class Gauge {
 public:
  void set(double value);
  void add(double amount);
  double value() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
  void* family_ = nullptr;
};

class Histogram {
 public:
  void observe(double value);

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

/// Count and sum only, no quantiles.
class Summary {
 public:
  void observe(double value);

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

/// In which text metrics are told.
enum class Format {
  kText,         ///< Prometheus text 0.0.4
  kOpenMetrics,  ///< OpenMetrics 1.0.0
};
/// What a client's Accept header asks for; kText unless OpenMetrics is among it.
Format format_for(std::string_view accept);
std::string_view content_type(Format format);

class Registry {
 public:
  /// `common` labels are added to every series made with `with_common` true (vLLM's engine and model_name). Families
  /// whose name begins with `hidden_prefix` are counted but not exposed; "": all are.
  explicit Registry(Labels common = {}, std::string hidden_prefix = "");
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// `name` as exposed; a counter's name ends in _total. The same name and labels give the same series.
  Counter counter(std::string_view name, std::string_view help, Labels labels = {}, bool with_common = true);
  Gauge gauge(std::string_view name, std::string_view help, Labels labels = {}, bool with_common = true);
  /// `buckets`: upper bounds, ascending, without +Inf.
  Histogram histogram(std::string_view name, std::string_view help, std::vector<double> buckets, Labels labels = {},
                      bool with_common = true);

  Summary summary(std::string_view name, std::string_view help, Labels labels = {}, bool with_common = true);

  /// The series is gone, and whatever was counted in it; no handle of it may be used any more.
  static void remove(const Counter& counter);
  static void remove(const Gauge& gauge);

  /// Called at the beginning of each expose(), for what is read and not counted. Set it before others expose.
  void before_expose(std::function<void()> refresh);

  /// Labels in alphabetical order, le as a float ("1.0", "+Inf"). `others`: what the registries of other processes
  /// expose in the same format. Each family comes once with the series of all; series that several have are added up.
  std::string expose(Format format = Format::kText, std::span<const std::string> others = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::obs
