#include "report/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kvasir::report {
namespace {

using Json = nlohmann::ordered_json;

double nearest_decimal(double value) {
  const std::string five_digits = fmt::format("{:.5g}", value);
  const std::string four_decimals = fmt::format("{:.4f}", value);
  const double a = std::strtod(five_digits.c_str(), nullptr);
  const double b = std::strtod(four_decimals.c_str(), nullptr);
  return std::abs(a - value) <= std::abs(b - value) ? a : b;
}

Json encode_numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double value : values) out.push_back(encode_number(value));
  return out;
}

// Returns the upper 24 bits of a float, rounded to nearest even.
std::uint32_t upper_bits(float value) {
  constexpr std::uint32_t kNaN = 0x7fc000;
  constexpr std::uint32_t kLargest = 0x7f7fff;
  if (!std::isfinite(value)) return kNaN;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = ((bits & 0x7fffffff) + 0x7f + ((bits >> 8) & 1)) >> 8;
  return std::min(rounded, kLargest) | (bits >> 31) << 23;
}

Status check_length(std::size_t length, std::size_t expected, std::string_view what) {
  if (length == expected) return {};
  return invalid_argument("{}: {} values, and {} are expected", what, length, expected);
}

Result<Json> encode_block(const Paragraph& block) {
  return Json{{"type", "paragraph"}, {"text", block.text}};
}

Result<Json> encode_block(const LineChart& block) {
  Json series = Json::array();
  for (const Series& one : block.series) {
    KVASIR_RETURN_IF_ERROR(check_length(one.y.size(), one.x.size(), fmt::format("y of series '{}'", one.name)));
    series.push_back({{"name", one.name}, {"x", encode_numbers(one.x)}, {"y", encode_numbers(one.y)}});
  }
  return Json{{"type", "line"},           {"title", block.title},       {"note", block.note},
              {"x_label", block.x_label}, {"y_label", block.y_label},   {"x_log", block.x_log},
              {"y_log", block.y_log},     {"series", std::move(series)}};
}

Result<Json> encode_block(const BarChart& block) {
  Json series = Json::array();
  for (const BarSeries& one : block.series) {
    KVASIR_RETURN_IF_ERROR(
        check_length(one.values.size(), block.categories.size(), fmt::format("bars of '{}'", one.name)));
    series.push_back({{"name", one.name}, {"values", encode_numbers(one.values)}});
  }
  return Json{{"type", "bar"},
              {"title", block.title},
              {"note", block.note},
              {"category_label", block.category_label},
              {"value_label", block.value_label},
              {"log", block.log},
              {"categories", block.categories},
              {"series", std::move(series)}};
}

Result<Json> encode_axis(const HeatMapAxis& axis, std::int64_t cells, std::string_view what) {
  if (!axis.names.empty())
    KVASIR_RETURN_IF_ERROR(check_length(axis.names.size(), static_cast<std::size_t>(cells), what));
  if (axis.step < 1) return invalid_argument("{}: step is {}, and must be at least 1", what, axis.step);
  return Json{{"label", axis.label}, {"names", axis.names}, {"first", axis.first}, {"step", axis.step}};
}

Status check_range(const HeatMap& block) {
  for (const auto& end : {block.low, block.high}) {
    if (!end.has_value()) continue;
    if (!std::isfinite(*end)) return invalid_argument("an end of the colour scale is not finite");
    if (block.scale == ColourScale::kLog && *end <= 0)
      return invalid_argument("an end of a logarithmic colour scale is {}, and must be above zero", *end);
  }
  if (block.low.has_value() && block.high.has_value() && !(*block.low < *block.high))
    return invalid_argument("the colour scale runs from {} to {}: the first must be the lower", *block.low,
                            *block.high);
  return {};
}

std::string_view scale_name(ColourScale scale) {
  switch (scale) {
    case ColourScale::kLinear: return "linear";
    case ColourScale::kLog: return "log";
    case ColourScale::kDiverging: return "diverging";
  }
  return "linear";
}

Result<Json> encode_block(const HeatMap& block) {
  if (block.rows < 0 || block.columns < 0 || block.rows > kMostHeatMapCells || block.columns > kMostHeatMapCells)
    return invalid_argument("{} x {} cells, and at most {} x {} can be drawn: make the matrix smaller first",
                            block.rows, block.columns, kMostHeatMapCells, kMostHeatMapCells);
  KVASIR_RETURN_IF_ERROR(
      check_length(block.values.size(), static_cast<std::size_t>(block.rows * block.columns), "cells"));
  KVASIR_RETURN_IF_ERROR(check_range(block));
  KVASIR_ASSIGN_OR_RETURN(Json x, encode_axis(block.x, block.columns, "columns"));
  KVASIR_ASSIGN_OR_RETURN(Json y, encode_axis(block.y, block.rows, "rows"));
  const auto end = [](const std::optional<double>& value) { return value.has_value() ? Json(*value) : Json(nullptr); };
  return Json{{"type", "heatmap"},     {"title", block.title},     {"note", block.note},
              {"x", std::move(x)},     {"y", std::move(y)},        {"value_label", block.value_label},
              {"rows", block.rows},    {"columns", block.columns}, {"scale", scale_name(block.scale)},
              {"low", end(block.low)}, {"high", end(block.high)},  {"values", encode_floats(block.values)}};
}

// Returns true for a number as written in tables: digits, with an optional sign, separators, exponent and unit of one
// character.
bool looks_like_number(std::string_view cell) {
  if (cell.empty() || cell == "-") return true;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t signs = cell[0] == '+' || cell[0] == '-' ? 1 : 0;
  if (cell.size() == signs || !(is_digit(cell[signs]) || cell[signs] == '.')) return false;
  return std::all_of(cell.begin(), cell.end(), [&](char c) {
    return is_digit(c) || std::string_view("+-.,'eE% x").find(c) != std::string_view::npos;
  });
}

std::string_view column_align(const Table& block, std::size_t column) {
  if (column < block.align.size()) return block.align[column] == Align::kRight ? "right" : "left";
  const bool numbers = std::all_of(block.rows.begin(), block.rows.end(),
                                   [&](const auto& row) { return looks_like_number(row[column]); });
  return numbers && !block.rows.empty() ? "right" : "left";
}

Result<Json> encode_block(const Table& block) {
  for (const auto& row : block.rows)
    KVASIR_RETURN_IF_ERROR(check_length(row.size(), block.header.size(), "a row of the table"));
  Json align = Json::array();
  for (std::size_t column = 0; column < block.header.size(); ++column) align.push_back(column_align(block, column));
  return Json{{"type", "table"},        {"title", block.title},      {"note", block.note},
              {"header", block.header}, {"align", std::move(align)}, {"rows", block.rows}};
}

Result<Json> encode_block(const TokenText& block) {
  if (block.layers.empty()) return invalid_argument("a coloured text needs the values of at least one layer");
  Json texts = Json::array();
  Json tooltips = Json::array();
  bool any_tooltip = false;
  for (const Token& token : block.tokens) {
    texts.push_back(token.text);
    tooltips.push_back(token.tooltip);
    any_tooltip = any_tooltip || !token.tooltip.empty();
  }
  Json layers = Json::array();
  for (const TokenLayer& layer : block.layers) {
    KVASIR_RETURN_IF_ERROR(
        check_length(layer.values.size(), block.tokens.size(), fmt::format("tokens of '{}'", layer.name)));
    for (const float value : layer.values)
      if (value < 0 || value > 1) return invalid_argument("tokens of '{}': {} is not in 0 to 1", layer.name, value);
    layers.push_back({{"name", layer.name}, {"values", encode_floats(layer.values)}});
  }
  return Json{{"type", "tokens"},
              {"title", block.title},
              {"note", block.note},
              {"value_label", block.value_label},
              {"low_label", block.low_label},
              {"high_label", block.high_label},
              {"missing_label", block.missing_label},
              {"layer_label", block.layer_label},
              {"tokens", std::move(texts)},
              {"tooltips", any_tooltip ? std::move(tooltips) : Json::array()},
              {"layers", std::move(layers)}};
}

std::string title_of(const Block& block) {
  return std::visit(
      [](const auto& one) -> std::string {
        if constexpr (requires { one.title; }) return one.title;
        return {};
      },
      block);
}

}  // namespace

Json encode_number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53: doubles represent every integer up to here
  if (!std::isfinite(value)) return nullptr;
  if (std::trunc(value) == value && std::abs(value) <= kExact) return static_cast<std::int64_t>(value);
  return std::abs(value) > kExact ? value : nearest_decimal(value);
}

std::string encode_floats(std::span<const float> values) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(values.size() * 4);
  for (const float value : values) {
    const std::uint32_t bits = upper_bits(value);
    const std::uint32_t bytes =
        (bits & 0xff) << 16 | (bits & 0xff00) | bits >> 16;  // base64 takes the first byte as the highest
    for (const int shift : {18, 12, 6, 0}) out.push_back(kDigits[bytes >> shift & 63]);
  }
  return out;
}

Result<Json> encode(const Report& report) {
  Json sections = Json::array();
  for (const Section& section : report.sections) {
    Json blocks = Json::array();
    for (const Block& block : section.blocks) {
      auto encoded = std::visit([](const auto& one) { return encode_block(one); }, block);
      if (!encoded.ok())
        return make_status(encoded.status().code(), "report, section '{}', figure '{}': {}", section.title,
                           title_of(block), encoded.status().message());
      blocks.push_back(*std::move(encoded));
    }
    sections.push_back({{"title", section.title}, {"text", section.text}, {"blocks", std::move(blocks)}});
  }
  return Json{{"title", report.title}, {"subtitle", report.subtitle}, {"sections", std::move(sections)}};
}

}  // namespace kvasir::report
