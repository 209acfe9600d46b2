#include "cli/eval/eval_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "base/counted.h"
#include "cli/command.h"
#include "cli/eval/eval.h"
#include "retention/policy_spec.h"

namespace kvasir::cli {
namespace {

using report::Align;
using report::BarChart;
using report::HeatMap;
using report::LineChart;
using report::Section;
using report::Series;
using report::Table;

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

// Formats the title of a report on some runs.
template <class Run>
std::string title_of(const std::string& what, std::span<const Run> runs) {
  std::size_t policies = 1;
  for (std::size_t i = 1; i < runs.size(); ++i) policies += runs[i].policy != runs[i - 1].policy;
  if (policies == 1) return fmt::format("{} under {}", what, runs.front().policy);
  return fmt::format("{} under {} policies", what, policies);
}

// Returns alignments for a table whose first column is text and whose others are numbers.
std::vector<Align> names_and_numbers(std::size_t columns) {
  std::vector<Align> align(columns, Align::kRight);
  align.front() = Align::kLeft;
  return align;
}

// Returns whether the values span more than a decade, so that the axis should be logarithmic.
bool spans_decade(const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const double value : values) {
    if (!(value > 0)) return false;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return high > 10 * low;
}

// Returns the policy's name without options, such as "snapkv+tova".
std::string family(const std::string& spec) {
  const Result<PolicySpec> parsed = PolicySpec::parse(spec);
  if (!parsed.ok()) return spec;
  std::string names;
  for (const PolicyOptions& part : parsed->parts) names += (names.empty() ? "" : "+") + part.name();
  return names;
}

// -- Perplexity --

std::string how_read(const PerplexityOptions& options) {
  const std::string passes = options.chunk == 1   ? "one token per pass"
                             : options.chunk == 0 ? "passes of the policy's own size"
                                                  : fmt::format("passes of {} tokens", options.chunk);
  if (options.prefill > 0)
    return fmt::format(
        "{}; the first {} are a prompt, read in {}, and the others come one at a time; tokens behind the "
        "first {} are scored.",
        options.window > 0 ? fmt::format("Windows of {} tokens, each read afresh", grouped(options.window))
                           : "One stream",
        grouped(options.prefill), passes, grouped(first_scored_row(options) + 1));
  if (options.window > 0)
    return fmt::format("Windows of {} tokens, each read afresh in {}; {} is scored.", grouped(options.window), passes,
                       options.whole_windows ? "all of each" : "the second half of each");
  if (options.first_scored > 0)
    return fmt::format("One stream, {}; the first {} read but not scored.", passes,
                       options.first_scored == 1 ? "token is" : grouped(options.first_scored) + " tokens are");
  return fmt::format("One stream, {}; every token is scored.", passes);
}

Table summary_table(std::span<const PerplexityResult> runs, const std::string& note) {
  const bool compared = runs.front().full.has_value();
  Table table{
      .title = "Runs", .note = note, .header = {"policy", "codec", "tokens", "ppl", "± error", "nats per token"}};
  const bool paired = runs.size() > 1 && runs[1].difference;
  if (compared) table.header.insert(table.header.end(), {"KL mean", "KL p99", "top-1"});
  if (paired) table.header.insert(table.header.end(), {"nats more than the first", "± of them"});
  for (const char* name : {"kept, mean", "kept, most", "dead slots", "KV peak", "ms/token", "forward ms", "cache ms"})
    table.header.emplace_back(name);
  table.align = names_and_numbers(table.header.size());
  table.align[1] = Align::kLeft;
  for (const PerplexityResult& r : runs) {
    std::vector<std::string> row = {r.policy,
                                    r.codec,
                                    grouped(r.tokens),
                                    fmt::format("{:.3f}", r.ppl),
                                    fmt::format("{:.3f}", r.ppl_error),
                                    fmt::format("{:.4f}", r.nll)};
    if (compared)
      row.insert(row.end(), {fmt::format("{:.5f}", r.full->kld_mean), fmt::format("{:.4f}", r.full->kld_p99),
                             fmt::format("{:.2f}%", r.full->top1_agree * 100)});
    if (paired)
      row.insert(row.end(), {r.difference ? fmt::format("{:.5f}", r.difference->mean) : "-",
                             r.difference ? fmt::format("{:.5f}", r.difference->error) : "-"});
    row.insert(row.end(),
               {fmt::format("{:.1f}", r.kept_mean), grouped(r.kept_max), fmt::format("{:.1f}%", r.dead_share * 100),
                human_bytes(r.kv_bytes_peak), fmt::format("{:.3f}", r.tpot_ms), fmt::format("{:.3f}", r.forward_ms),
                fmt::format("{:.4f}", r.cache_op_ms)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

template <class Run>
bool codecs_differ(std::span<const Run> runs) {
  return std::ranges::any_of(runs, [&](const Run& run) { return run.codec != runs.front().codec; });
}

template <class Run>
std::string name_of(const Run& run, std::span<const Run> runs) {
  return run_name(run.policy, run.codec, codecs_differ(runs));
}

template <class Value>
BarChart bars(std::span<const PerplexityResult> runs, const std::string& title, const std::string& note,
              const std::string& label, const Value& value) {
  BarChart chart{.title = title, .note = note, .value_label = label, .series = {{}}};
  for (const PerplexityResult& run : runs) {
    chart.categories.push_back(name_of(run, runs));
    chart.series.front().values.push_back(value(run));
  }
  return chart;
}

// Draws one line per kind of policy, over its sizes.
template <class X, class Y>
LineChart trade_off(std::span<const PerplexityResult> runs, LineChart chart, const X& x, const Y& y) {
  struct Point {
    double x, y;
  };
  std::map<std::string, std::vector<Point>> points;
  std::vector<std::string> order;
  std::vector<double> all;
  for (const PerplexityResult& run : runs) {
    const std::string kind = run_name(family(run.policy), run.codec, codecs_differ(runs));
    std::vector<Point>& of_kind = points[kind];
    if (of_kind.empty()) order.push_back(kind);
    of_kind.push_back({x(run), y(run)});
    all.push_back(x(run));
  }
  chart.x_log = spans_decade(all);
  for (const std::string& kind : order) {
    std::vector<Point>& of_kind = points[kind];
    std::ranges::stable_sort(of_kind, {}, &Point::x);
    Series series{.name = kind};
    for (const Point& point : of_kind) {
      series.x.push_back(point.x);
      series.y.push_back(point.y);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

double kept(const PerplexityResult& run) {
  return run.kept_mean;
}
double mebibytes(const PerplexityResult& run) {
  return static_cast<double>(run.kv_bytes_peak) / (1 << 20);
}
double perplexity(const PerplexityResult& run) {
  return run.ppl;
}
double divergence(const PerplexityResult& run) {
  return run.full->kld_mean;
}

Section trade_offs(std::span<const PerplexityResult> runs) {
  Section section{.title = "Quality against memory",
                  .text =
                      "A line for each kind of policy, through the sizes that were run. Lower and further left is "
                      "better."};
  section.blocks.emplace_back(trade_off(
      runs,
      {.title = "Perplexity against tokens kept", .x_label = "Tokens that a row sees, mean", .y_label = "Perplexity"},
      kept, perplexity));
  section.blocks.emplace_back(trade_off(
      runs, {.title = "Perplexity against KV memory", .x_label = "KV memory at its peak, MiB", .y_label = "Perplexity"},
      mebibytes, perplexity));
  if (runs.front().full)
    section.blocks.emplace_back(trade_off(runs,
                                          {.title = "KL divergence against tokens kept",
                                           .x_label = "Tokens that a row sees, mean",
                                           .y_label = "KL divergence from the full cache, nats"},
                                          kept, divergence));
  return section;
}

template <class Y>
LineChart over_position(std::span<const PerplexityResult> runs, LineChart chart, const Y& y) {
  chart.x_label = "Position, tokens";
  for (const PerplexityResult& run : runs) {
    Series series{.name = name_of(run, runs)};
    for (const PerplexityCurvePoint& point : run.curve) {
      series.x.push_back(point.position);
      series.y.push_back(y(point));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Section curves(std::span<const PerplexityResult> runs, const PerplexityOptions& options) {
  Section section{.title = "Over position",
                  .text = fmt::format("Means over the tokens of each of {} equal parts of the {}.", options.bins,
                                      options.window > 0 ? "positions scored in a window" : "positions scored")};
  section.blocks.emplace_back(
      over_position(runs, {.title = "Negative log-likelihood over position", .y_label = "Nats per token"},
                    [](const PerplexityCurvePoint& point) { return point.nll; }));
  if (runs.front().full)
    section.blocks.emplace_back(over_position(
        runs, {.title = "KL divergence from the full cache over position", .y_label = "KL divergence, nats"},
        [](const PerplexityCurvePoint& point) { return point.kld; }));
  section.blocks.emplace_back(over_position(runs,
                                            {.title = "Tokens kept over position",
                                             .note = "What a pass sees, mean over layers and KV heads.",
                                             .y_label = "Tokens"},
                                            [](const PerplexityCurvePoint& point) { return point.kept; }));
  return section;
}

template <class Cell>
Table by_text(std::span<const TextRuns> texts, std::span<const PerplexityResult> pooled, Table table,
              const Cell& cell) {
  table.header = {"text", "tokens"};
  for (const PerplexityResult& run : pooled) table.header.push_back(name_of(run, pooled));
  table.align = names_and_numbers(table.header.size());
  const auto add = [&](const std::string& name, std::span<const PerplexityResult> runs) {
    std::int64_t tokens = 0;
    for (const PerplexityResult& run : runs) tokens = std::max(tokens, run.tokens);
    std::vector<std::string> row = {name, grouped(tokens)};
    for (const PerplexityResult& run : runs) row.push_back(cell(run));
    table.rows.push_back(std::move(row));
  };
  for (const TextRuns& text : texts) add(text_name(text.file), text.runs);
  add("all", pooled);
  return table;
}

Section text_tables(std::span<const TextRuns> texts, std::span<const PerplexityResult> pooled) {
  Section section{.title = "Text by text"};
  section.blocks.emplace_back(by_text(texts, pooled, {.title = "Perplexity by text"},
                                      [](const PerplexityResult& r) { return fmt::format("{:.3f}", r.ppl); }));
  if (!pooled.front().full) return section;
  section.blocks.emplace_back(
      by_text(texts, pooled, {.title = "KL divergence by text", .note = "Mean over tokens, nats."},
              [](const PerplexityResult& r) { return fmt::format("{:.5f}", r.full->kld_mean); }));
  section.blocks.emplace_back(
      by_text(texts, pooled, {.title = "Top-1 agreement by text"},
              [](const PerplexityResult& r) { return fmt::format("{:.2f}%", r.full->top1_agree * 100); }));
  return section;
}

// -- Needle --

template <class Value>
HeatMap needle_map(const NeedleResult& run, const std::string& name, const NeedleOptions& options, const Value& value) {
  HeatMap map{.title = name,
              .x = {.label = "Tokens of the prompt"},
              .y = {.label = "Depth of the fact, 0 front to 1 end"},
              .rows = static_cast<std::int64_t>(options.depths.size()),
              .columns = static_cast<std::int64_t>(options.lengths.size())};
  for (const std::int64_t length : options.lengths) map.x.names.push_back(grouped(length));
  for (const double depth : options.depths) map.y.names.push_back(fmt::format("{:g}", depth));
  for (std::size_t depth = 0; depth < options.depths.size(); ++depth)
    for (std::size_t length = 0; length < options.lengths.size(); ++length)
      map.values.push_back(static_cast<float>(value(run.cells[length * options.depths.size() + depth])));
  return map;
}

Table needle_table(std::span<const NeedleResult> runs) {
  Table table{.title = "Runs", .note = "Means over all lengths and depths."};
  table.header = {"policy", "codec", "exact", "nats per token", "kept, most", "KV peak"};
  table.align = names_and_numbers(table.header.size());
  table.align[1] = Align::kLeft;
  for (const NeedleResult& run : runs)
    table.rows.push_back({run.policy, run.codec, fmt::format("{:.1f}%", run.exact * 100),
                          fmt::format("{:.3f}", run.logprob), grouped(run.kept_max), human_bytes(run.kv_bytes_peak)});
  return table;
}

// -- Restream --

Table restream_table(std::span<const RestreamResult> runs) {
  Table table{.title = "Runs"};
  table.header = {"policy", "codec", "distance", "first ppl", "ppl again", "kept, most", "KV peak"};
  table.align = names_and_numbers(table.header.size());
  table.align[1] = Align::kLeft;
  for (const RestreamResult& run : runs)
    for (const RestreamPoint& point : run.points)
      table.rows.push_back({run.policy, run.codec, grouped(point.distance), fmt::format("{:.3f}", point.first_ppl),
                            fmt::format("{:.3f}", point.ppl), grouped(run.kept_max), human_bytes(run.kv_bytes_peak)});
  return table;
}

template <class Y>
Series over_distance(const RestreamResult& run, const std::string& name, const Y& y) {
  std::vector<RestreamPoint> points = run.points;
  std::ranges::stable_sort(points, {}, &RestreamPoint::distance);
  Series series{.name = name};
  for (const RestreamPoint& point : points) {
    series.x.push_back(static_cast<double>(point.distance));
    series.y.push_back(y(point));
  }
  return series;
}

}  // namespace

std::string text_name(const std::string& path) {
  return path == "-" ? "standard input" : std::filesystem::path(path).filename().string();
}

std::string machine_line(const LoadedModel& model) {
  return fmt::format("{}, {} kernels, {}", text_name(model.options.model), model.kernels->name,
                     counted(model.threads->threads(), "thread"));
}

report::Report perplexity_report(const LoadedModel& model, const PerplexityOptions& options,
                                 std::span<const TextRuns> texts, std::span<const PerplexityResult> pooled) {
  const std::span<const PerplexityResult> runs = pooled.empty() ? std::span(texts.front().runs) : pooled;
  report::Report page{.title = title_of("Perplexity", runs)};
  page.subtitle =
      fmt::format("{}. {}", texts.size() == 1 ? text_name(texts.front().file) : fmt::format("{} texts", texts.size()),
                  machine_line(model));
  std::string note = "Times are of each policy's own passes: medians for ms/token, means for the other two.";
  if (options.compare_full) note += " As the policies take turns, times are longer than those of a policy alone.";
  Section summary{.title = "Summary", .text = how_read(options)};
  if (texts.size() > 1) summary.text += " Every token of every text counts the same.";
  summary.blocks.emplace_back(summary_table(runs, note));
  summary.blocks.emplace_back(bars(runs, "Perplexity", "Lower is better.", "Perplexity", perplexity));
  page.sections.push_back(std::move(summary));
  if (runs.front().full) {
    Section full{
        .title = "Distance from the full cache",
        .text = "Every policy's predictions against those of the full cache with f16 pages, on the same tokens."};
    full.blocks.emplace_back(bars(runs, "KL divergence",
                                  "KL(full || policy) over the whole vocabulary, mean over tokens.", "Nats per token",
                                  divergence));
    full.blocks.emplace_back(bars(runs, "Top-1 agreement", "Tokens at which both find the same token likeliest.",
                                  "Share of tokens, %",
                                  [](const PerplexityResult& r) { return r.full->top1_agree * 100; }));
    page.sections.push_back(std::move(full));
  }
  if (runs.size() > 1) page.sections.push_back(trade_offs(runs));
  if (options.bins > 0) page.sections.push_back(curves(runs, options));
  if (!pooled.empty()) page.sections.push_back(text_tables(texts, pooled));
  return page;
}

report::Report needle_report(const LoadedModel& model, const NeedleOptions& options,
                             std::span<const NeedleResult> runs) {
  report::Report page{.title = title_of("Recall of a fact", runs), .subtitle = machine_line(model)};
  Section summary{.title = "Summary",
                  .text = fmt::format("A fact stands somewhere in a long text: “{}” At its end the text asks: “{}” "
                                      "{} of each length and depth, seed {}.",
                                      options.fact, options.ask, counted(options.trials, "prompt"), options.seed)};
  summary.blocks.emplace_back(needle_table(runs));
  Section exact{.title = "Exact answers", .text = "Share of prompts that greedy continuation answers exactly."};
  Section nats{.title = "Log-probability of the answer",
               .text = "Mean over the answer's tokens, each given the right ones before it. 0 is certainty."};
  double lowest = -1;
  for (const NeedleResult& run : runs)
    for (const NeedleCell& cell : run.cells) lowest = std::min(lowest, cell.logprob);
  for (const NeedleResult& run : runs) {
    HeatMap map = needle_map(run, name_of(run, runs), options, [](const NeedleCell& cell) { return cell.exact * 100; });
    map.value_label = "Exact, %";
    map.low = 0;
    map.high = 100;
    exact.blocks.emplace_back(std::move(map));
    map = needle_map(run, name_of(run, runs), options, [](const NeedleCell& cell) { return cell.logprob; });
    map.value_label = "Nats per token";
    map.low = std::floor(lowest);
    map.high = 0;
    nats.blocks.emplace_back(std::move(map));
  }
  page.sections = {std::move(summary), std::move(exact), std::move(nats)};
  return page;
}

report::Report restream_report(const LoadedModel& model, std::int64_t fill, std::span<const RestreamResult> runs) {
  report::Report page{.title = title_of("Text read again", runs), .subtitle = machine_line(model)};
  Section section{.text =
                      fmt::format("{} tokens are read; then the last of them once more, as if the text went on with "
                                  "them. What is still in the cache is easy the second time.",
                                  grouped(fill))};
  LineChart chart{.title = "Perplexity over distance",
                  .note =
                      "Of the tokens read again, by how far back they begin; and of the same tokens in the first "
                      "reading.",
                  .x_label = "Distance, tokens",
                  .y_label = "Perplexity"};
  std::vector<double> distances;
  std::vector<double> perplexities;
  for (const RestreamResult& run : runs) {
    for (const RestreamPoint& point : run.points) {
      distances.push_back(static_cast<double>(point.distance));
      perplexities.push_back(point.ppl);
      perplexities.push_back(point.first_ppl);
    }
    chart.series.push_back(over_distance(run, run.policy, [](const RestreamPoint& point) { return point.ppl; }));
  }
  chart.series.push_back(over_distance(runs.front(), runs.front().policy + ", first reading",
                                       [](const RestreamPoint& point) { return point.first_ppl; }));
  chart.x_log = spans_decade(distances);
  chart.y_log = spans_decade(perplexities);
  section.blocks.emplace_back(std::move(chart));
  section.blocks.emplace_back(restream_table(runs));
  page.sections.push_back(std::move(section));
  return page;
}

}  // namespace kvasir::cli
