#include "report/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/decode.h"

namespace kvasir::report {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string number(double value) {
  return encode_number(value).dump();
}

// The only block of a report's only section.
nlohmann::ordered_json block_of(const Block& block) {
  const auto json = encode({.title = "r", .subtitle = "", .sections = {{.title = "s", .text = "", .blocks = {block}}}});
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? (*json)["sections"][0]["blocks"][0] : nlohmann::ordered_json();
}

std::string error_of(const Block& block) {
  const auto json =
      encode({.title = "r", .subtitle = "", .sections = {{.title = "Sec", .text = "", .blocks = {block}}}});
  EXPECT_FALSE(json.ok());
  EXPECT_EQ(json.status().code(), StatusCode::kInvalidArgument);
  return json.status().message();
}

TEST(EncodeNumber, KeepsIntegersExact) {
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(-0.0), "0");
  EXPECT_EQ(number(-17), "-17");
  EXPECT_EQ(number(123456789), "123456789");
  EXPECT_EQ(number(9007199254740992), "9007199254740992");
  EXPECT_EQ(encode_number(1e300).get<double>(), 1e300);
}

TEST(EncodeNumber, RoundsToFiveDigitsOrFourDecimals) {
  EXPECT_EQ(number(0.1), "0.1");
  EXPECT_EQ(number(1.0 / 3), "0.33333");
  EXPECT_EQ(number(-0.000012345678), "-1.2346e-05");
  EXPECT_EQ(number(40.80712345), "40.8071");
  EXPECT_EQ(number(123456.78901), "123456.789");
}

TEST(EncodeNumber, MakesGapsOfWhatIsNotFinite) {
  for (const double value : {kInf, -kInf, std::nan("")}) EXPECT_EQ(number(value), "null");
}

TEST(EncodeFloats, TakesFourCharactersPerValueWithinItsErrorBound) {
  std::vector<float> values = {0, -0.0f, 1, -1, 0.1f, 3.14159274f, 65504, 1e-38f, 1e-42f, 3.4e38f, -3.40282347e38f};
  for (int i = 0; i < 2000; ++i) values.push_back(std::ldexp(1.0f + static_cast<float>(i) / 2000.0f, i % 250 - 125));
  const std::string text = encode_floats(values);
  ASSERT_EQ(text.size(), values.size() * 4);
  const std::vector<float> decoded = test::decode_floats(text);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float smallest_step = std::ldexp(1.0f, -149 + 8);  // between subnormal numbers of 24 bits
    EXPECT_LE(std::abs(decoded[i] - values[i]), std::max(std::abs(values[i]) * std::ldexp(1.0f, -16), smallest_step))
        << values[i];
  }
  EXPECT_EQ(decoded[3], -1.0f);
  EXPECT_TRUE(std::isfinite(decoded[10]));
}

TEST(EncodeFloats, KeepsGaps) {
  const auto decoded =
      test::decode_floats(encode_floats(std::vector<float>{kNaN, 2, std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::isnan(decoded[0]));
  EXPECT_EQ(decoded[1], 2);
  EXPECT_TRUE(std::isnan(decoded[2]));
}

TEST(Encode, KeepsLinesAsTheyAre) {
  const auto json = block_of(LineChart{.title = "t",
                                       .note = "n",
                                       .x_label = "x",
                                       .y_label = "y",
                                       .x_log = true,
                                       .y_log = false,
                                       .series = {{"a", {1, 2.5}, {kInf, -3}}, {"", {}, {}}}});
  EXPECT_EQ(json.dump(),
            R"({"type":"line","title":"t","note":"n","x_label":"x","y_label":"y","x_log":true,"y_log":false,)"
            R"("series":[{"name":"a","x":[1,2.5],"y":[null,-3]},{"name":"","x":[],"y":[]}]})");
}

TEST(Encode, KeepsBarsAsTheyAre) {
  const auto json = block_of(BarChart{.title = "t",
                                      .category_label = "c",
                                      .value_label = "v",
                                      .log = true,
                                      .categories = {"p", "q"},
                                      .series = {{"a", {1, 2}}}});
  EXPECT_EQ(json.dump(), R"({"type":"bar","title":"t","note":"","category_label":"c","value_label":"v","log":true,)"
                         R"("categories":["p","q"],"series":[{"name":"a","values":[1,2]}]})");
}

TEST(Encode, KeepsHeatMaps) {
  const auto json = block_of(HeatMap{.title = "t",
                                     .note = "",
                                     .x = {.label = "k", .names = {"a", "b", "c"}},
                                     .y = {.label = "q", .first = 8, .step = 4},
                                     .value_label = "w",
                                     .rows = 2,
                                     .columns = 3,
                                     .values = {0, 1, 2, 3, kNaN, 5},
                                     .scale = ColourScale::kLog,
                                     .low = 0.5});
  EXPECT_EQ(json["x"].dump(), R"({"label":"k","names":["a","b","c"],"first":0,"step":1})");
  EXPECT_EQ(json["y"].dump(), R"({"label":"q","names":[],"first":8,"step":4})");
  EXPECT_EQ(json["scale"], "log");
  EXPECT_EQ(json["low"], 0.5);
  EXPECT_TRUE(json["high"].is_null());
  const auto values = test::decode_floats(json["values"].get<std::string>());
  ASSERT_EQ(values.size(), 6u);
  EXPECT_EQ(values[3], 3);
  EXPECT_TRUE(std::isnan(values[4]));
}

TEST(Encode, AlignsColumnsOfNumbersToTheRight) {
  const Table table{.title = "",
                    .note = "",
                    .header = {"policy", "ppl", "change", "size", "mixed"},
                    .rows = {{"full", "40.8", "-", "20,000", "1"}, {"4x", "1e-5", "+3.2 %", "64", "one"}}};
  EXPECT_EQ(block_of(table)["align"].dump(), R"(["left","right","right","right","left"])");
  Table given = table;
  given.align = {Align::kRight, Align::kLeft};
  EXPECT_EQ(block_of(given)["align"].dump(), R"(["right","left","right","right","left"])");
  given.rows.clear();
  EXPECT_EQ(block_of(given)["align"].dump(), R"(["right","left","left","left","left"])");
}

TEST(Encode, KeepsColouredText) {
  const auto json = block_of(TokenText{.title = "t",
                                       .note = "",
                                       .value_label = "age",
                                       .tokens = {{" a", ""}, {"\n", "tip"}},
                                       .layers = {{"l0", {0, kNaN}}, {"l1", {1, 0.5f}}}});
  EXPECT_EQ(json["tokens"].dump(), R"([" a","\n"])");
  EXPECT_EQ(json["tooltips"].dump(), R"(["","tip"])");
  EXPECT_EQ(json["layers"][1]["name"], "l1");
  EXPECT_TRUE(std::isnan(test::decode_floats(json["layers"][0]["values"].get<std::string>())[1]));
  EXPECT_EQ(test::decode_floats(json["layers"][1]["values"].get<std::string>()), (std::vector<float>{1, 0.5f}));
}

TEST(Encode, LeavesOutTooltipsThatNobodyGave) {
  EXPECT_EQ(block_of(TokenText{
                .title = "", .note = "", .value_label = "", .tokens = {{"a", ""}}, .layers = {{"", {0}}}})["tooltips"]
                .dump(),
            "[]");
}

TEST(Encode, RefusesWhatDoesNotFitAndSaysWhere) {
  EXPECT_EQ(error_of(LineChart{.title = "Fig", .series = {{"a", {1, 2}, {1}}}}),
            "report, section 'Sec', figure 'Fig': y of series 'a': 1 values, and 2 are expected");
  EXPECT_EQ(error_of(BarChart{.title = "Fig", .categories = {"a"}, .series = {{"s", {}}}}),
            "report, section 'Sec', figure 'Fig': bars of 's': 0 values, and 1 are expected");
  EXPECT_EQ(error_of(Table{.title = "Fig", .header = {"a", "b"}, .rows = {{"1"}}}),
            "report, section 'Sec', figure 'Fig': a row of the table: 1 values, and 2 are expected");
  EXPECT_EQ(error_of(TokenText{.title = "Fig", .tokens = {{"a", ""}}, .layers = {{"l", {0, 1}}}}),
            "report, section 'Sec', figure 'Fig': tokens of 'l': 2 values, and 1 are expected");
  EXPECT_EQ(error_of(TokenText{.title = "Fig", .tokens = {{"a", ""}}, .layers = {{"l", {1.5f}}}}),
            "report, section 'Sec', figure 'Fig': tokens of 'l': 1.5 is not in 0 to 1");
  EXPECT_NE(error_of(TokenText{.title = "Fig"}).find("at least one layer"), std::string::npos);
}

TEST(Encode, RefusesHeatMapsThatCannotBeDrawn) {
  const auto with = [](auto change) {
    HeatMap map{
        .title = "", .note = "", .x = {}, .y = {}, .value_label = "", .rows = 1, .columns = 2, .values = {1, 2}};
    change(map);
    return error_of(map);
  };
  EXPECT_NE(with([](HeatMap& map) { map.rows = 2; }).find("cells: 2 values, and 4"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.rows = 4096; }).find("at most 2048 x 2048"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.columns = -1; }).find("at most 2048 x 2048"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.x.names = {"a"}; }).find("columns: 1 values, and 2"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.y.step = 0; }).find("rows: step is 0"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.low = kInf; }).find("not finite"), std::string::npos);
  EXPECT_NE(with([](HeatMap& map) { map.low = map.high = 3; }).find("from 3 to 3"), std::string::npos);
  const auto log_from_zero = [](HeatMap& map) {
    map.scale = ColourScale::kLog;
    map.low = 0;
  };
  EXPECT_NE(with(log_from_zero).find("above zero"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::report
