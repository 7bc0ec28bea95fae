// SPDX-License-Identifier: Apache-2.0
// Any JSON as config.json (with overrides), tokenizer_config.json and generation_config.json.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "model/config.h"
#include "model/hf_metadata.h"
#include "model/rope.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  tandem::log::configure(tandem::log::Level::kError, "");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem;
  const auto parsed = parse_json({reinterpret_cast<const char*>(data), size});
  if (!parsed || !parsed->is_object()) return 0;
  const boost::json::object& object = parsed->as_object();
  const boost::json::value* overrides = object.if_contains("overrides");
  const boost::json::object none;
  auto config =
      model::parse_config(object, overrides != nullptr && overrides->is_object() ? overrides->as_object() : none);
  if (config) {
    model::limit_context(*config, 1234.0);
    if (config->max_context < 1) std::abort();
    for (const double frequency : model::rope_frequencies(config->rope, config->head_dim))
      if (!(frequency >= 0.0)) std::abort();
  }
  (void)model::parse_generation_config(object);
  if (const auto tokenizer = model::parse_tokenizer_config(object))
    (void)model::choose_template(tokenizer->templates, true);
  return 0;
}
