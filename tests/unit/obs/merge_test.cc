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
      merge_expositions(texts),
      "# HELP a_total What a counts.\n# TYPE a_total counter\na_total{engine=\"0\"} 2.0\na_total{engine=\"16\"} 3.0\n"
      "# HELP b Only there.\n# TYPE b gauge\nb{engine=\"16\"} 1.0\n");
  EXPECT_EQ(merge_expositions({}), "");
  const std::vector<std::string> odd{"no family\n", "# HELP c last line without an end"};
  EXPECT_EQ(merge_expositions(odd), "# HELP c last line without an end");
}

}  // namespace
}  // namespace tandem::obs
