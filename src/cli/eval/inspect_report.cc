#include "cli/eval/inspect_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "cli/command.h"
#include "cli/eval/eval_report.h"
#include "generation/token_stream.h"

namespace kvasir::cli {
namespace {

using report::HeatMap;
using report::LineChart;
using report::Section;
using report::Series;
using report::Table;
using report::TokenText;

constexpr std::size_t kMostLines = 12;  // with more layers, a heat map replaces the lines
constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

std::string layer_name(std::size_t layer) {
  return fmt::format("layer {}", layer);
}

// Returns the mean over a part of a curve, ignoring missing values.
double part_mean(const std::vector<double>& curve, std::size_t begin, std::size_t end) {
  double sum = 0;
  int count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isnan(curve[i])) continue;
    sum += curve[i];
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

// Returns the mean of a square matrix's off-diagonal elements.
double mean_of_pairs(const std::vector<double>& matrix) {
  const auto side = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(matrix.size()))));
  double sum = 0;
  int count = 0;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    if (i / side == i % side || std::isnan(matrix[i])) continue;
    sum += matrix[i];
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

std::string number(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.3f}", value);
}

// Returns the mean number of tokens that a head of the layer holds at the end.
double kept_at_end(const std::vector<std::vector<TokenIndex>>& tables) {
  double sum = 0;
  for (const std::vector<TokenIndex>& ids : tables) sum += static_cast<double>(ids.size());
  return sum / static_cast<double>(tables.size());
}

// Draws a curve of every layer: as lines if there are few, otherwise as one heat map.
void add_curves(Section& section, const InspectResult& result, LineChart chart, const std::string& value,
                const std::vector<double> InspectedLayer::*curve) {
  chart.x_label = "Position, tokens";
  if (result.layers.size() <= kMostLines) {
    for (std::size_t layer = 0; layer < result.layers.size(); ++layer)
      chart.series.push_back({layer_name(layer), result.positions, result.layers[layer].*curve});
    section.blocks.emplace_back(std::move(chart));
    return;
  }
  HeatMap map{.title = chart.title,
              .note = chart.note,
              .x = {.label = chart.x_label},
              .y = {.label = "Layer"},
              .value_label = value,
              .rows = static_cast<std::int64_t>(result.layers.size()),
              .columns = static_cast<std::int64_t>(result.positions.size())};
  for (const double position : result.positions) map.x.names.push_back(fmt::format("{:.0f}", position));
  for (const InspectedLayer& layer : result.layers)
    for (const double point : layer.*curve) map.values.push_back(static_cast<float>(point));
  section.blocks.emplace_back(std::move(map));
}

Section summary(const InspectResult& result) {
  Section section{.title = "Summary"};
  std::vector<std::vector<std::string>> rows = inspect_table(result);
  Table table{.title = "Layers",
              .note =
                  "Sparsity is 0 where attention is spread evenly and 1 where one token has it all. Overlaps are "
                  "of top sets, 1 where they are the same."};
  table.header = std::move(rows.front());
  table.rows.assign(rows.begin() + 1, rows.end());
  section.blocks.emplace_back(std::move(table));
  return section;
}

Section sparsity(const InspectResult& result) {
  Section section{.title = "Sparsity over time"};
  add_curves(section, result,
             {.title = "Hoyer sparsity of attention",
              .note = "Of the mass summed over a layer's heads, on the tokens that it sees (Lethe, Fig. 1). Layers "
                      "that differ, and change, are why one budget does not suit all.",
              .y_label = "Hoyer sparsity"},
             "sparsity", &InspectedLayer::hoyer);
  return section;
}

Section drift(const InspectResult& result, int top) {
  Section section{
      .title = "Drift and locality",
      .text = fmt::format("The top set of a KV head is the {} tokens that it attends to most, its query heads "
                          "max-pooled. Their overlap says how far the choice of one step serves another (SyncKV, "
                          "Fig. 2). Queries that see no more than {} tokens do not count.",
                          top, top)};
  LineChart lags{.title = "Temporal locality",
                 .note =
                     "Overlap of the top sets of two queries, by the tokens between them. By chance: what sets "
                     "drawn at random would share.",
                 .x_label = "Tokens apart",
                 .y_label = "Overlap",
                 .x_log = true};
  const std::vector<double> x(result.lags.begin(), result.lags.end());
  const std::size_t layers = result.layers.size();
  std::vector<double> mean(x.size(), 0), chance(x.size(), 0);
  for (const InspectedLayer& layer : result.layers)
    for (std::size_t lag = 0; lag < x.size(); ++lag) {
      mean[lag] += layer.locality[lag] / static_cast<double>(layers);
      chance[lag] += layer.by_chance[lag] / static_cast<double>(layers);
    }
  if (layers <= kMostLines)
    for (std::size_t layer = 0; layer < layers; ++layer)
      lags.series.push_back({layer_name(layer), x, result.layers[layer].locality});
  else
    lags.series.push_back({"mean of the layers", x, mean});
  lags.series.push_back({"by chance", x, chance});
  section.blocks.emplace_back(std::move(lags));
  add_curves(section, result,
             {.title = "Attention drift",
              .note = fmt::format("Overlap with the top set of the query at token {}.", result.reference),
              .y_label = "Overlap"},
             "overlap", &InspectedLayer::drift);
  return section;
}

HeatMap head_map(const InspectResult& result, std::string title, std::string note, const std::string& what,
                 const std::vector<double> InspectedLayer::*similarity) {
  const auto heads = static_cast<std::int64_t>(
      std::lround(std::sqrt(static_cast<double>((result.layers.front().*similarity).size()))));
  // Shows evenly spread layers if the map has too few rows for all.
  const std::vector<int> layers =
      spread_layers(static_cast<int>(std::max<std::int64_t>(report::kMostHeatMapCells / heads, 1)),
                    static_cast<int>(result.layers.size()));
  HeatMap map{.title = std::move(title),
              .note = std::move(note),
              .x = {.label = what},
              .y = {.label = "Layer and " + what},
              .value_label = "overlap",
              .rows = heads * std::ssize(layers),
              .columns = heads};
  for (std::int64_t head = 0; head < heads; ++head) map.x.names.push_back(fmt::format("{}", head));
  for (const int layer : layers) {
    for (std::int64_t head = 0; head < heads; ++head) map.y.names.push_back(fmt::format("{}.{}", layer, head));
    for (const double value : result.layers[static_cast<std::size_t>(layer)].*similarity)
      map.values.push_back(static_cast<float>(value));
  }
  return map;
}

Section heads(const InspectResult& result) {
  Section section{.title = "Heads of a layer",
                  .text =
                      "Mean overlap of the top sets of two heads of one layer, at the same query. Heads that agree "
                      "could share what one of them chooses."};
  if (result.layers.front().similarity.size() > 1)
    section.blocks.emplace_back(head_map(result, "Similarity of KV heads",
                                         "The query heads of a KV head are max-pooled.", "KV head",
                                         &InspectedLayer::similarity));
  if (result.layers.front().query_similarity.size() > 1)
    section.blocks.emplace_back(
        head_map(result, "Similarity of query heads", "", "query head", &InspectedLayer::query_similarity));
  return section;
}

Section matrices(const InspectResult& result, const std::vector<int>& layers) {
  Section section{
      .title = fmt::format("Attention under {}", result.reading.policy),
      .text = fmt::format("Mean over a layer's heads (Cascading KV, Fig. 8). A cell is {} of queries by as many "
                          "tokens: the queries' mean weight on all of its tokens, so that a row sums to 1. Empty: no "
                          "query of the cell sees any of its tokens.",
                          result.cell_tokens == 1 ? "one token" : fmt::format("{} tokens", result.cell_tokens))};
  for (const int layer : layers) {
    const report::HeatMapAxis axis{.label = "Token", .step = result.cell_tokens};
    HeatMap map{.title = fmt::format("Layer {}", layer),
                .x = axis,
                .y = axis,
                .value_label = "weight",
                .rows = result.cells,
                .columns = result.cells,
                .values = result.layers[static_cast<std::size_t>(layer)].matrix,
                .scale = report::ColourScale::kLog,
                .low = 1e-5,
                .high = 1.0};
    map.y.label = "Query";
    section.blocks.emplace_back(std::move(map));
  }
  return section;
}

std::vector<report::Token> tokens_of(const LoadedModel& model, const std::vector<TokenId>& text) {
  std::vector<report::Token> tokens;
  TokenStream stream(*model.tokenizer, true);
  for (std::size_t id = 0; id < text.size(); ++id)
    tokens.push_back({stream.push(text[id]), fmt::format("token {}", id)});
  tokens.back().text += stream.flush();
  return tokens;
}

// Shows the tokens that a layer, or each of its KV heads, retains.
Section kept(const LoadedModel& model, const std::vector<TokenId>& text, const InspectResult& result) {
  Section section{.title = "What is kept"};
  add_curves(section, result,
             {.title = "Tokens that a query sees", .note = "Mean over a layer's KV heads.", .y_label = "Tokens"},
             "tokens", &InspectedLayer::kept);
  TokenText ages{.title = "The text, by layer",
                 .note = "The tokens held behind the last one, coloured by age.",
                 .value_label = "position",
                 .low_label = "oldest",
                 .high_label = "newest",
                 .tokens = tokens_of(model, text)};
  TokenText shares = ages;
  shares.title = "The text, by how many keep it";
  shares.note = result.reading.by_head ? "Share of the KV heads of all layers that hold a token behind the last one."
                                       : "Share of the layers that hold a token behind the last one.";
  shares.value_label = "share";
  shares.low_label = "none";
  shares.high_label = "all";
  const std::size_t count = text.size();
  std::vector<float> holders(count, 0);
  std::size_t tables = 0;
  for (std::size_t layer = 0; layer < result.layers.size(); ++layer) {
    const auto& of_layer = result.reading.final[layer];
    for (std::size_t head = 0; head < of_layer.size(); ++head, ++tables) {
      report::TokenLayer colours{
          of_layer.size() > 1 ? fmt::format("{}, KV head {}", layer_name(layer), head) : layer_name(layer),
          std::vector<float>(count, kNothing)};
      for (const TokenIndex id : of_layer[head]) {
        const auto at = static_cast<std::size_t>(id);
        colours.values[at] = static_cast<float>(at) / static_cast<float>(std::max<std::size_t>(count - 1, 1));
        holders[at] += 1;
      }
      ages.layers.push_back(std::move(colours));
    }
  }
  for (float& holder : holders) holder = holder > 0 ? holder / static_cast<float>(tables) : kNothing;
  shares.layers.push_back({"all layers", std::move(holders)});
  section.blocks.emplace_back(std::move(ages));
  section.blocks.emplace_back(std::move(shares));
  return section;
}

}  // namespace

std::vector<int> spread_layers(int shown, int count) {
  shown = std::min(shown, count);
  std::vector<int> layers;
  for (int i = 0; i < shown; ++i) layers.push_back(shown > 1 ? i * (count - 1) / (shown - 1) : 0);
  return layers;
}

std::vector<std::vector<std::string>> inspect_table(const InspectResult& result) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "sparsity", "first 1/4", "last 1/4", "next token", "64 apart", "drift", "KV heads", "kept"}};
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const InspectedLayer& layer = result.layers[i];
    const std::size_t bins = layer.hoyer.size();
    const std::size_t quarter = std::max<std::size_t>(bins / 4, 1);
    rows.push_back({fmt::format("{}", i), number(layer.hoyer_mean), number(part_mean(layer.hoyer, 0, quarter)),
                    number(part_mean(layer.hoyer, bins - quarter, bins)), number(layer.locality.front()),
                    number(layer.locality.back()), number(part_mean(layer.drift, bins - quarter, bins)),
                    number(mean_of_pairs(layer.similarity)),
                    fmt::format("{:g}", kept_at_end(result.reading.final[i]))});
  }
  return rows;
}

report::Report inspect_report(const LoadedModel& model, const std::string& file, const std::vector<TokenId>& text,
                              const InspectOptions& options, const InspectResult& result,
                              const std::vector<int>& matrix_layers) {
  const std::string how =
      result.reading.chunk == 0 ? "one at a time"
      : options.reading.prefill == result.tokens
          ? fmt::format("in passes of {}", result.reading.chunk)
          : fmt::format("the first {} in passes of {}", options.reading.prefill, result.reading.chunk);
  return {.title = "Attention under " + result.reading.policy,
          .subtitle = fmt::format("{}: {} tokens, {}. {}", text_name(file), result.tokens, how, machine_line(model)),
          .sections = {summary(result), sparsity(result), drift(result, options.top), heads(result),
                       matrices(result, matrix_layers), kept(model, text, result)}};
}

}  // namespace kvasir::cli
