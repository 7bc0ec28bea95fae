// SPDX-License-Identifier: Apache-2.0
#include "obs/merge.h"

#include <gtest/gtest.h>

#include <vector>

#include "obs/metrics.h"

namespace tandem::obs {
namespace {

TEST(MergeExpositions, EachFamilyOnceWithTheSeriesOfAll) {
  Registry first(Labels{{"engine", "0"}});
  Registry second(Labels{{"engine", "16"}});
  first.counter("a_total", "What a counts.").add(2);
  second.counter("a_total", "What a counts.").add(3);
  second.gauge("b", "Only there.").set(1);
  const std::vector<std::string> texts{first.expose(), second.expose()};
  EXPECT_EQ(
      merge_expositions(texts, Format::kText),
      "# HELP a_total What a counts.\n# TYPE a_total counter\na_total{engine=\"0\"} 2.0\na_total{engine=\"16\"} 3.0\n"
      "# HELP b Only there.\n# TYPE b gauge\nb{engine=\"16\"} 1.0\n");
  EXPECT_EQ(merge_expositions({}, Format::kText), "");
  EXPECT_EQ(merge_expositions({}, Format::kOpenMetrics), "# EOF\n");
  const std::vector<std::string> odd{"no family\n", "# HELP c last line without an end",
                                     "# HELP d\nno_value\nd x\nd 1"};
  EXPECT_EQ(merge_expositions(odd, Format::kText), "# HELP c last line without an end\n# HELP d\nd x\n");
}

TEST(MergeExpositions, SeriesOfSeveralProcessesAreAddedUp) {
  Registry first;
  Registry second;
  for (Registry* registry : {&first, &second}) {
    registry->counter("bytes_total", "B.", {{"transport", "tcp"}}).add(1.5e9);
    registry->histogram("seconds", "S.", {1}).observe(0.5);
  }
  second.counter("bytes_total", "B.", {{"transport", "shm"}}).add(7);
  const std::vector<std::string> others{second.expose(Format::kOpenMetrics)};
  EXPECT_EQ(first.expose(Format::kOpenMetrics, others),
            "# HELP bytes B.\n# TYPE bytes counter\nbytes_total{transport=\"tcp\"} 3e+09\n"
            "bytes_total{transport=\"shm\"} 7.0\n"
            "# HELP seconds S.\n# TYPE seconds histogram\nseconds_bucket{le=\"1.0\"} 2.0\n"
            "seconds_bucket{le=\"+Inf\"} 2.0\nseconds_count 2.0\nseconds_sum 1.0\n"
            "# EOF\n");
}

}  // namespace
}  // namespace tandem::obs
