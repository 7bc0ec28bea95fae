// SPDX-License-Identifier: Apache-2.0
#include "proxy/timing.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "proxy/trace_context.h"

namespace tandem::proxy {
namespace {

std::map<std::string, double> combined(double total, const StageTime& prefill, const StageTime& decode,
                                       bool overlapped) {
  std::map<std::string, double> parts;
  double sum = 0;
  for (const auto& [name, value] : parse_timing(combine_timing(total, prefill, decode, overlapped))) {
    EXPECT_GE(value, 0) << name;
    parts[name] = value;
    sum += value;
  }
  EXPECT_NEAR(sum, total, 1e-5);
  return parts;
}

TEST(Timing, PullPartsAddUp) {
  auto parts = combined(1.0, {0.5, "queue=0.1;prefill=0.3"}, {0.4, "queue=0.05;transfer=0.2"}, false);
  EXPECT_NEAR(parts["prefill.queue"], 0.1, 1e-9);
  EXPECT_NEAR(parts["prefill.other"], 0.1, 1e-9);
  EXPECT_NEAR(parts["decode.transfer"], 0.2, 1e-9);
  EXPECT_NEAR(parts["decode.other"], 0.15, 1e-9);
  EXPECT_NEAR(parts["proxy"], 0.1, 1e-9);
}

TEST(Timing, LayerwiseTakesThePrefillOutOfTheDecodersWait) {
  auto parts = combined(1.0, {0.5, "prefill=0.45"}, {0.9, "queue=0.1;transfer=0.6;first_step=0.2"}, true);
  EXPECT_NEAR(parts["prefill.prefill"], 0.45, 1e-9);
  EXPECT_NEAR(parts["prefill.other"], 0.05, 1e-9);
  EXPECT_NEAR(parts["decode.transfer"], 0.1, 1e-9) << "what the decoder waited after the prefill";
  EXPECT_NEAR(parts["decode.first_step"], 0.2, 1e-9);
  EXPECT_NEAR(parts["proxy"], 0.1, 1e-9);
}

TEST(Timing, StrangeAnswersBreakNothing) {
  combined(1.0, {}, {0.9, ""}, false);
  combined(1.0, {5.0, "prefill=7"}, {0.9, "transfer=3"}, true);
  combined(1.0, {0.3, "prefill=7"}, {0.9, "x=nan;y=-1;=2;Z=1;a=1e999;;b"}, true);
  combined(0.0, {0.3, "prefill=7"}, {0.9, "transfer=3"}, false);
  EXPECT_TRUE(parse_timing("x=nan;y=-1;=2;Z=1;a=1e999;;b;\"{}=3").empty());
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "a=1;";
  EXPECT_EQ(parse_timing(many).size(), 32U);
}

TEST(TraceContext, ContinuesTheClientsTraceOrStartsOne) {
  const std::string id = "4bf92f3577b34da6a3ce929d0e0e4736";
  const auto trace = TraceContext::continue_from("00-" + id + "-00f067aa0ba902b7-00");
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->trace_id, id);
  EXPECT_EQ(trace->flags, "00");
  EXPECT_NE(trace->span_id, "00f067aa0ba902b7") << "a span of our own";
  EXPECT_EQ(trace->traceparent().size(), 55U);
  EXPECT_TRUE(TraceContext::continue_from("01-" + id + "-00f067aa0ba902b7-01-more")) << "a later version";
  for (const std::string& bad : std::vector<std::string>{
           "", "00", "00-" + id + "-00f067aa0ba902b7-01-x", "ff-" + id + "-00f067aa0ba902b7-01",
           "00-" + std::string(32, '0') + "-00f067aa0ba902b7-01", "00-" + id + "-" + std::string(16, '0') + "-01",
           "00_" + id + "-00f067aa0ba902b7-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}) {
    EXPECT_FALSE(TraceContext::continue_from(bad)) << bad;
  }
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const auto started = TraceContext::start();
    ids.insert(started.trace_id);
    EXPECT_TRUE(TraceContext::continue_from(started.traceparent())) << started.traceparent();
  }
  EXPECT_EQ(ids.size(), 1000U);
}

}  // namespace
}  // namespace tandem::proxy
