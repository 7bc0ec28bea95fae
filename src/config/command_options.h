// SPDX-License-Identifier: Apache-2.0
// The flags of each command, and the checks over several flags that can only be made at the end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/bench_config.h"
#include "config/check_config.h"
#include "config/flag_list.h"
#include "config/proxy_config.h"
#include "config/quantize_config.h"
#include "config/ranktable_config.h"
#include "config/serve_config.h"
#include "config/up_config.h"

namespace tandem::config {

/// Looks up an environment variable; nullopt if unset.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Adds flags to a list; `finish` makes the checked config once they are all set. Lives until then.
class ServeOptions {
 public:
  explicit ServeOptions(FlagList& flags);
  Result<ServeConfig> finish(const std::vector<std::string>& positional, const Environment& environment,
                             std::vector<std::string>& notes);

 private:
  void add_model(FlagList& flags);
  void add_cache(FlagList& flags);
  void add_scheduler(FlagList& flags);
  void add_frontend(FlagList& flags);  // serve_frontend_options.cc, with finish_frontend
  void add_logging(FlagList& flags);   // serve_logging_options.cc, with finish_logging
  void add_disaggregation(FlagList& flags);
  void add_parallel(FlagList& flags);  // serve_parallel_options.cc, with finish_parallel
  // serve_device_options.cc: what scripts for another device say.
  void add_device(FlagList& flags);
  void add_refused(FlagList& flags);
  void add_accepted(FlagList& flags);
  Result<void> read_compilation_config(const std::string& text, std::vector<std::string>& notes);
  void finish_planned_decodes(std::vector<std::string>& notes);
  Result<void> merge_hf_overrides();
  Result<void> finish_frontend(const Environment& environment);
  Result<void> finish_logging(const Environment& environment);
  Result<void> finish_parallel(const Environment& environment, std::vector<std::string>& notes);
  Result<void> become_external_rank(std::vector<std::string>& notes);
  Result<void> finish_kv_transfer(const Environment& environment, std::vector<std::string>& notes);
  void add_access(FlagList& flags);
  void add_templates_and_parsers(FlagList& flags);
  Result<void> take_place_in_slurm(const Environment& environment);
  Result<void> read_environment(const Environment& environment);

  ServeConfig config_;
  std::string model_flag_;
  std::optional<std::int32_t> max_num_seqs_;
  std::optional<std::int32_t> data_parallel_local_, data_parallel_start_rank_, data_parallel_rank_;
  std::optional<std::int32_t> num_data_parallel_ranks_;  ///< of all instances that an outside balancer joins
  bool external_balancer_ = false;
  std::int32_t api_server_count_ = 1;
  std::optional<std::string> data_parallel_address_;
  std::optional<std::string> rope_scaling_;
  std::optional<double> rope_theta_;
  std::optional<std::string> kv_transfer_config_;
  std::optional<std::int32_t> planned_decodes_;  ///< as asked for, before it is cut to max_num_seqs
  std::optional<std::string> log_level_;
  std::string http_log_level_ = "info";
  bool no_access_log_ = false;
  bool enforce_eager_ = false;
  bool binding_given_ = false;
};

class ProxyOptions {
 public:
  ProxyOptions(FlagList& flags, const Environment& environment);
  Result<ProxyConfig> finish(const std::vector<std::string>& positional);

 private:
  ProxyConfig config_;
  std::vector<Backend> prefiller_hosts_{{"localhost"}}, decoder_hosts_{{"localhost"}};  ///< ports follow
  std::vector<std::uint16_t> prefiller_ports_{8001}, decoder_ports_{8002};
  bool disable_access_log_ = false;
};

class UpOptions {
 public:
  explicit UpOptions(FlagList& flags);
  Result<UpConfig> finish(const std::vector<std::string>& positional, std::vector<std::string> rest);

 private:
  UpConfig config_;
};

class QuantizeOptions {
 public:
  explicit QuantizeOptions(FlagList& flags);
  Result<QuantizeConfig> finish(const std::vector<std::string>& positional);

 private:
  QuantizeConfig config_;
};

class RanktableOptions {
 public:
  RanktableOptions(FlagList& flags, const Environment& environment);
  Result<RanktableConfig> finish(const std::vector<std::string>& positional);

 private:
  RanktableConfig config_;
};

/// `tandem bench serve`.
class BenchOptions {
 public:
  explicit BenchOptions(FlagList& flags);
  Result<BenchConfig> finish(const std::vector<std::string>& positional, const Environment& environment);

 private:
  void add_target(FlagList& flags);
  void add_datasets(FlagList& flags);
  void add_fields(FlagList& flags);
  void add_load(FlagList& flags);
  void add_report(FlagList& flags);
  Result<void> finish_target(const Environment& environment);
  Result<void> finish_load();

  BenchConfig config_;
  std::string base_url_, host_ = "127.0.0.1", endpoint_;
  std::uint16_t port_ = 8000;
  std::optional<std::int32_t> input_len_, output_len_, ramp_up_start_, ramp_up_end_;
  bool disable_shuffle_ = false, no_oversample_ = false, disable_tqdm_ = false;
};

/// `tandem check network`.
class CheckNetworkOptions {
 public:
  CheckNetworkOptions(FlagList& flags, const Environment& environment);
  Result<CheckNetworkConfig> finish(const std::vector<std::string>& positional);

 private:
  CheckNetworkConfig config_;
  std::uint16_t port_ = kDefaultAgentPort;
};

/// `tandem check agent`.
class CheckAgentOptions {
 public:
  CheckAgentOptions(FlagList& flags, const Environment& environment);
  Result<CheckAgentConfig> finish(const std::vector<std::string>& positional);

 private:
  CheckAgentConfig config_;
};

}  // namespace tandem::config
