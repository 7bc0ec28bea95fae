// SPDX-License-Identifier: Apache-2.0
#include "api/json_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "api/refusal.h"

namespace tandem::api {
namespace {

TEST(JsonWriter, CommasAndNesting) {
  JsonWriter writer;
  writer.begin_object()
      .member("a", std::int64_t{1})
      .key("b")
      .begin_array()
      .integer(1)
      .begin_object()
      .end_object()
      .null()
      .end_array();
  writer.member("c", "x").member("d", true).null_member("e").end_object();
  EXPECT_EQ(writer.text(), R"({"a":1,"b":[1,{},null],"c":"x","d":true,"e":null})");
}

TEST(JsonWriter, EscapesOnlyWhatMustBe) {
  JsonWriter writer;
  writer.string("q\"\\\n\t\x01/é🙂");
  EXPECT_EQ(writer.text(), "\"q\\\"\\\\\\n\\t\\u0001/é🙂\"");
}

TEST(JsonWriter, NumbersAreFiniteAndKeepTheirPoint) {
  JsonWriter writer;
  writer.begin_array()
      .real(-0.5)
      .real(2.0)
      .real(-std::numeric_limits<double>::infinity())
      .real(std::numeric_limits<float>::quiet_NaN());
  writer.real(-0.1F).real(1e-7).end_array();
  EXPECT_EQ(writer.text(), "[-0.5,2.0,-9999.0,-9999.0,-0.1,1e-07]");
}

TEST(ErrorBody, IsTextWhateverItQuotes) {
  EXPECT_EQ(error_body(bad_request("a\xff")),
            "{\"error\":{\"message\":\"a\xef\xbf\xbd\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}");
}

}  // namespace
}  // namespace tandem::api
