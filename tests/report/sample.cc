#include "report/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>

namespace kvasir::report::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The same on every standard library, unlike its distributions.
class Noise {
 public:
  double operator()() { return static_cast<double>(engine_()) / static_cast<double>(std::mt19937::max()); }

 private:
  std::mt19937 engine_{7};
};

LineChart perplexity_over_position() {
  Noise noise;
  LineChart chart{.title = "Perplexity over position",
                  .note = "Mean over a window of 256 tokens. The trained context ends at 2,048.",
                  .x_label = "Tokens read",
                  .y_label = "Perplexity"};
  const std::string_view names[] = {"full", "streaming:sinks=4,window=1020", "window:size=1024", "recompute:stride=64",
                                    "streaming:sinks=4,window=252"};
  double level = 37;
  for (const std::string_view name : names) {
    Series series{.name = std::string(name), .x = {}, .y = {}};
    for (int i = 0; i < 500; ++i) {
      const double past = std::max(0, i - 125) / 500.0;
      series.x.push_back(16.0 * (i + 1));
      series.y.push_back(level + 26 * std::exp(-i / 30.0) + 5 * noise() + (name == "full" ? 90 * past * past : 0));
    }
    chart.series.push_back(std::move(series));
    level += 2.5;
  }
  return chart;
}

// A logarithmic axis of one decade in points that are no ticks, where labels come close to each other.
LineChart quality_over_time() {
  return {
      .title = "Quality over time",
      .x_label = "Seconds",
      .x_log = true,
      .series = {{"full", {0.0617, 0.1213, 0.2441, 0.6127}, {4, 3, 2, 1}}, {"streaming", {0.0713, 0.3147}, {3, 2}}}};
}

LineChart attention_over_distance() {
  LineChart chart{.title = "Attention mass over distance",
                  .note = "Mean over queries and heads. Both axes are logarithmic.",
                  .x_label = "Distance to the query, tokens",
                  .y_label = "Attention mass per token",
                  .x_log = true,
                  .y_log = true};
  Noise noise;
  for (int layer = 0; layer < 10; ++layer) {
    Series series{.name = fmt::format("layer {}", layer), .x = {}, .y = {}};
    for (int i = 0; i < 24; ++i) {
      const double distance = std::pow(2.0, i * 0.5);
      series.x.push_back(std::round(distance));
      series.y.push_back(0.3 * std::pow(distance, -0.6 - 0.08 * layer) * (0.8 + 0.4 * noise()));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

HeatMap attention_map(std::int64_t side, std::int64_t step) {
  Noise noise;
  HeatMap map{.title = fmt::format("Attention, {} × {}", side, side),
              .note = step == 1 ? "Layer 3, head 5. Above the diagonal lies the future."
                                : "Layer 3, mean of all heads; each cell is the maximum of several tokens.",
              .x = {.label = "Key position", .step = step},
              .y = {.label = "Query position", .step = step},
              .value_label = "Attention weight",
              .rows = side,
              .columns = side,
              .scale = ColourScale::kLog};
  for (std::int64_t row = 0; row < side; ++row) {
    for (std::int64_t column = 0; column < side; ++column) {
      const double distance = static_cast<double>(row - column);
      double weight = 0.3 * std::exp(-distance / 6) + 0.004 * noise() * noise() / (1 + distance / 40);
      if (column < 2) weight += 0.25;
      if (column % 37 == 11) weight += 0.02 * noise();
      map.values.push_back(column > row ? kNaN : static_cast<float>(weight));
    }
  }
  return map;
}

HeatMap head_similarity(ColourScale scale) {
  const bool diverging = scale == ColourScale::kDiverging;
  HeatMap map{.title = diverging ? "Correlation of heads" : "Similarity of heads",
              .note = diverging ? "Pearson correlation of attention between pairs of heads, layer 0."
                                : "Cosine of the attention of each pair of heads, layer 0.",
              .x = {.label = "Head"},
              .y = {.label = "Head"},
              .value_label = diverging ? "Correlation" : "Cosine",
              .rows = 12,
              .columns = 12,
              .scale = scale};
  for (int i = 0; i < 12; ++i) {
    map.x.names.push_back(fmt::format("h{}", i));
    map.y.names.push_back(fmt::format("h{}", i));
    for (int j = 0; j < 12; ++j) {
      const double close = i == j ? 1 : (i / 4 == j / 4 ? 0.85 : 0.2) + 0.1 * std::cos(i * j);
      map.values.push_back(static_cast<float>(diverging && i != j ? 1.6 * close - 0.8 : close));
    }
  }
  return map;
}

HeatMap kept_per_layer() {
  HeatMap map{.title = "Tokens kept per layer over time",
              .note = "Share of the cache's cap in use.",
              .x = {.label = "Tokens read", .step = 64},
              .y = {.label = "Layer"},
              .value_label = "Share of cap",
              .rows = 6,
              .columns = 120,
              .low = 0.0,
              .high = 1.0};
  for (int layer = 0; layer < 6; ++layer)
    for (int i = 0; i < 120; ++i)
      map.values.push_back(static_cast<float>(std::min(1.0, i / (20.0 + 12 * layer)) * (0.9 + 0.1 * std::cos(i))));
  return map;
}

Table runs() {
  Table table{
      .title = "Runs",
      .note = "One text, all policies. Times are medians per token.",
      .header = {"policy", "codec", "tokens", "ppl", "± error", "KLD", "kept", "KV peak", "ms/token", "cache ms"},
      .rows = {},
      .align = {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight,
                Align::kRight, Align::kRight, Align::kRight}};
  Noise noise;
  for (int i = 0; i < 20; ++i) {
    const std::string policy = i == 0 ? "full" : fmt::format("streaming:sinks=4,window={}", 64 * i - 4);
    table.rows.push_back(
        {policy,
         i % 3 == 0   ? "f16"
         : i % 3 == 1 ? "q8_0"
                      : "q4_0",
         "20,000", fmt::format("{:.3f}", 36 + 12.0 / (i + 1) + noise()), fmt::format("{:.2f}", 0.3 + 0.1 * noise()),
         i == 0 ? "–" : fmt::format("{:.4f}", 0.4 / (i + 1)), fmt::format("{}", i == 0 ? 20000 : 64 * i),
         fmt::format("{:.1f} MiB", i == 0 ? 78.1 : 0.25 * i), fmt::format("{:.3f}", 0.31 + 0.01 * i),
         fmt::format("{:.4f}", 0.002 * i)});
  }
  return table;
}

TokenText coloured_text() {
  static constexpr std::string_view kWords[] = {
      "In",  " the", " old",  " town",  " by",  " the",   " river", " there",  " lived", " a",       " lamp", "light",
      "er",  " who", " went", " up",    " and", " down",  " the",   " stairs", " each",  " evening", ",",     " and",
      " no", " one", " ever", " asked", " him", " where", " he",    " kept",   " the",   " fire",    ".",     "\n"};
  TokenText text{.title = "What the cache still holds",
                 .note = "A token's colour says how much attention it has received lately; grey tokens were dropped.",
                 .value_label = "Attention received",
                 .low_label = "little",
                 .high_label = "much"};
  constexpr int kTokens = 600;
  for (int i = 0; i < kTokens; ++i)
    text.tokens.push_back(
        {std::string(kWords[i % 36]), fmt::format("position {}, key norm {:.2f}", i, 3 + std::sin(i))});
  Noise noise;
  for (int layer = 0; layer < 6; ++layer) {
    TokenLayer values{.name = fmt::format("layer {}", layer), .values = {}};
    for (int i = 0; i < kTokens; ++i) {
      const double keep = i < 4 ? 1 : i > kTokens - 60 - 60 * layer ? 1 : noise() * 1.4 - 0.9;
      values.values.push_back(keep <= 0 ? kNaN : static_cast<float>(std::pow(noise(), 2.0) * std::min(1.0, keep)));
    }
    text.layers.push_back(std::move(values));
  }
  return text;
}

BarChart throughput() {
  return {.title = "Decode speed at depth",
          .note = "Tokens per second, median of five; the cache holds 16-bit floats.",
          .category_label = "Tokens in the cache",
          .value_label = "Tokens per second",
          .log = false,
          .categories = {"0", "4,096", "16,384", "65,536"},
          .series = {{.name = "full", .values = {22.6, 19.8, 12.7, 5.1}},
                     {.name = "streaming:cap=1024", .values = {22.6, 22.1, 22.1, 22.0}}}};
}

BarChart divergence() {
  return {.title = "Divergence from the full cache",
          .note = "Mean KL divergence over 4,000 tokens.",
          .category_label = "",
          .value_label = "KL divergence, nats",
          .log = true,
          .categories = {"streaming:sinks=4,window=1020", "streaming:sinks=4,window=252", "window:size=1024",
                         "recompute:stride=64", "full, q8_0"},
          .series = {{.name = "", .values = {0.0184, 0.061, 1.94, 0.0121, 0.00037}}}};
}

// What remains when an evaluation had nothing to show, or one value only.
Section empty() {
  HeatMap one{.title = "One value",
              .note = "",
              .x = {},
              .y = {},
              .value_label = "",
              .rows = 1,
              .columns = 1,
              .values = {0.5f},
              .scale = ColourScale::kLog};
  return {.title = "Empty figures",
          .text = "",
          .blocks = {LineChart{.title = "No series"},
                     LineChart{.title = "No value above zero", .y_log = true, .series = {{"", {1, 2}, {0, -1}}}},
                     BarChart{.title = "No bars"}, HeatMap{.title = "No cells"}, one,
                     Table{.title = "No rows", .header = {"a", "b"}},
                     TokenText{.title = "No tokens", .layers = {{"", {}}}}, Paragraph{""}}};
}

Section hostile() {
  TokenText text{.title = kHostile, .note = kHostile, .value_label = kHostile, .low_label = "0", .high_label = "1"};
  text.tokens = {{kHostile, kHostile},
                 {"\xff\xfe", ""},
                 {std::string("\0\x1b\t", 3), ""},
                 {"", ""},
                 {"مرحبا", ""},
                 {"\xe2\x80\xae"
                  "reversed",
                  ""},
                 {"{{data}} ${x} \\u003c \\", ""},
                 {"\n", ""},
                 {"名前 🦉", ""}};
  text.layers = {{kHostile, {0, 0.2f, 0.4f, 0.6f, 0.8f, 1, kNaN, 0.5f, 0.5f}}, {"b", std::vector<float>(9, kNaN)}};
  HeatMap map{.title = kHostile,
              .x = {.label = kHostile, .names = {"<b>bold</b>", kHostile}},
              .y = {.label = "y", .names = {"a", "<br>"}}};
  map.rows = map.columns = 2;
  map.values = {-1, 2, kNaN, 4};
  return {.title = kHostile,
          .text = kHostile,
          .blocks = {Paragraph{kHostile},
                     LineChart{.title = kHostile,
                               .x_label = kHostile,
                               .y_label = kHostile,
                               .series = {{kHostile, {1, 2, 3}, {1, kNaN, 3}}, {"", {2}, {2}}, {"none", {}, {}}}},
                     BarChart{.title = kHostile,
                              .category_label = kHostile,
                              .value_label = kHostile,
                              .categories = {kHostile, "<a href=\"javascript:window.hostile=1\">a</a>"},
                              .series = {{kHostile, {1, 2}}, {"b", {kNaN, 3}}}},
                     map, Table{.title = kHostile, .header = {kHostile, "\xff"}, .rows = {{kHostile, "1"}}}, text}};
}

}  // namespace

Report sample_report() {
  return {
      .title = "What a bounded cache keeps, and what that costs",
      .subtitle = "kvasir-mini-3m, Q8_0, a tale of 20,000 tokens under five policies",
      .sections = {
          {.title = "Quality",
           .text = "Every policy reads the same text, token by token, and is scored on each. Lower is better. "
                   "A policy whose budget covers the text equals the full cache bit for bit.",
           .blocks = {perplexity_over_position(), runs(), divergence()}},
          {.title = "Attention",
           .text = "Where heads look, averaged over the evaluation.\n\nHeads that look alike can share what they keep.",
           .blocks = {attention_over_distance(), attention_map(64, 1), head_similarity(ColourScale::kLinear),
                      head_similarity(ColourScale::kDiverging), attention_map(512, 16), kept_per_layer()}},
          {.title = "Retention", .blocks = {coloured_text()}},
          {.title = "Speed", .blocks = {throughput(), quality_over_time()}},
          empty(),
          hostile()}};
}

}  // namespace kvasir::report::test
