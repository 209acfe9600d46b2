#include "cli/eval/cells_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/ordered_json.h"

namespace kvasir::cli {
namespace {

std::string setting_name(const Cell& cell) {
  return cell.setting.policy.empty() ? "the server" : cell.setting.policy + " " + cell.setting.codec;
}

// A policy without its size: what a line of a chart joins.
std::string family_of(const std::string& policy) {
  return policy.substr(0, policy.find(':'));
}

// Whether the questions of a cell are the tokens of texts.
bool scores_tokens(const Cell& cell) {
  return cell.json.value("task", "") == "perplexity";
}

// REQUIRES: they are known.
double kv_mebibytes(const TaskSummary& summary) {
  return *summary.kv_bytes_mean / (1 << 20);
}

report::Table table_of(const std::vector<Cell>& cells, const std::string& metric) {
  report::Table table;
  table.title = metric;
  table.note = fmt::format("The difference is taken from {}, {}.", setting_name(cells.front()),
                           scores_tokens(cells.front())
                               ? "token by token"
                               : "question by question. Standard errors take questions on one context as one draw");
  table.header = {"policy",     "codec",       "mean", "standard error", "n",
                  "difference", "error of it", "kept", "KV MiB",         "seconds"};
  table.align = {report::Align::kLeft, report::Align::kLeft};
  for (const Cell& cell : cells) {
    const auto found = cell.summary.metrics.find(metric);
    if (found == cell.summary.metrics.end()) continue;
    const Mean difference = paired_difference(cell.questions, cells.front().questions, metric);
    table.rows.push_back({cell.setting.policy, cell.setting.codec, fmt::format("{:.4f}", found->second.mean),
                          std::isnan(found->second.error) ? "-" : fmt::format("{:.4f}", found->second.error),
                          fmt::format("{}", found->second.count),
                          difference.count > 0 ? fmt::format("{:.4f}", difference.mean) : "-",
                          std::isnan(difference.error) ? "-" : fmt::format("{:.4f}", difference.error),
                          cell.summary.kept_mean ? fmt::format("{:.0f}", *cell.summary.kept_mean) : "-",
                          cell.summary.kv_bytes_mean ? fmt::format("{:.2f}", kv_mebibytes(cell.summary)) : "-",
                          shares_prompts(cell) ? "-" : fmt::format("{:.1f}", cell.summary.wall_seconds)});
  }
  return table;
}

// The Pareto frontier: settings that no other one beats in memory and quality, by memory.
report::Table frontier_of(const std::vector<Cell>& cells, const std::string& metric) {
  struct Point {
    const Cell* cell;
    double mebibytes;
    double mean;
    double loss;  // the mean or its negative: less is better
  };
  const bool grows = !scores_tokens(cells.front()) && !metric.ends_with("_perplexity") && metric != "bits_per_byte";
  std::vector<Point> points;
  for (const Cell& cell : cells)
    if (const auto found = cell.summary.metrics.find(metric); found != cell.summary.metrics.end())
      points.push_back(
          {&cell, kv_mebibytes(cell.summary), found->second.mean, grows ? -found->second.mean : found->second.mean});
  std::ranges::stable_sort(points, [](const Point& a, const Point& b) {
    return a.mebibytes != b.mebibytes ? a.mebibytes < b.mebibytes : a.loss < b.loss;
  });
  report::Table table;
  table.title = metric + ": what no other setting beats";
  table.note = "Every other setting takes as much memory as one of these, or more, for a mean that is no better.";
  table.header = {"policy", "codec", "KV MiB", "mean"};
  table.align = {report::Align::kLeft, report::Align::kLeft};
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : points) {
    if (point.loss >= least) continue;
    least = point.loss;
    table.rows.push_back({point.cell->setting.policy, point.cell->setting.codec, fmt::format("{:.2f}", point.mebibytes),
                          fmt::format("{:.4f}", point.mean)});
  }
  return table;
}

// What made each row: who was asked, by which program, and how.
report::Table origins_of(const std::vector<Cell>& cells) {
  report::Table table;
  table.title = "how each row was made";
  table.note =
      "The fingerprint is of the model's header and of both ends of each of its tensors, the build of the "
      "program's file. Answers are greedy: a seed draws generated items alone.";
  table.header = {"policy", "codec", "model", "fingerprint", "version", "build", "seed", "command"};
  table.align = std::vector(table.header.size(), report::Align::kLeft);
  const auto text = [](const Json& json, const char* field) {
    return json.contains(field) && json[field].is_string() ? json[field].get<std::string>() : "-";
  };
  for (const Cell& cell : cells) {
    const Json& subject = cell.json.at("subject");
    table.rows.push_back({cell.setting.policy, cell.setting.codec, text(subject, "model"), text(subject, "fingerprint"),
                          text(subject, "version"), text(subject, "build"),
                          cell.json.contains("seed") ? dump_line(cell.json["seed"]) : "-", text(cell.json, "command")});
  }
  return table;
}

// Means by group, such as the depths of a needle, a series for each setting.
report::BarChart groups_of(const std::vector<Cell>& cells, const std::string& metric) {
  report::BarChart chart;
  chart.title = metric + " by group";
  chart.value_label = metric;
  for (const auto& [group, metrics] : cells.front().summary.groups) chart.categories.push_back(group);
  for (const Cell& cell : cells) {
    report::BarSeries& series = chart.series.emplace_back();
    series.name = setting_name(cell);
    for (const auto& [group, metrics] : cell.summary.groups) {
      const auto found = metrics.find(metric);
      series.values.push_back(found == metrics.end() ? std::nan("") : found->second.mean);
    }
  }
  return chart;
}

// Quality over bytes or time, a line for each kind of policy and codec.
template <class Of>
report::LineChart chart_of(const std::vector<Cell>& cells, const std::string& metric, const std::string& label, Of of) {
  report::LineChart chart;
  chart.title = fmt::format("{} over {}", metric, label);
  chart.x_label = label;
  chart.y_label = metric;
  chart.x_log = true;
  std::map<std::string, std::vector<std::pair<double, double>>> lines;
  for (const Cell& cell : cells)
    if (const auto found = cell.summary.metrics.find(metric); found != cell.summary.metrics.end())
      lines[family_of(cell.setting.policy) + " " + cell.setting.codec].emplace_back(of(cell.summary),
                                                                                    found->second.mean);
  for (auto& [name, points] : lines) {
    std::ranges::sort(points);
    report::Series& series = chart.series.emplace_back();
    series.name = name;
    for (const auto& [x, y] : points) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
  }
  return chart;
}

}  // namespace

report::Report cells_report(const std::vector<std::vector<Cell>>& cells) {
  report::Report report;
  report.title =
      fmt::format("{} under {}", counted(std::ssize(cells), "task"), counted(std::ssize(cells.front()), "setting"));
  for (const std::vector<Cell>& column : cells) {
    if (column.empty()) continue;
    const Json& first = column.front().json;
    const Json& subject = first.at("subject");
    report.subtitle = subject.contains("endpoint")
                          ? fmt::format("{} at {}", subject.value("model", ""), subject.value("endpoint", ""))
                          : fmt::format("{}, {} kernels, {}", subject.value("model", ""), subject.value("isa", ""),
                                        counted(subject.value("threads", 0), "thread"));
    report::Section& section = report.sections.emplace_back();
    section.title = fmt::format("{}: {}", first.value("task", ""), first.value("data", ""));
    std::set<std::string> metrics;
    for (const Cell& cell : column)
      for (const auto& [name, mean] : cell.summary.metrics) metrics.insert(name);
    for (const std::string& metric : metrics) {
      if (std::ranges::all_of(column, [](const Cell& cell) { return cell.summary.kv_bytes_mean.has_value(); })) {
        section.blocks.push_back(chart_of(column, metric, "KV MiB", kv_mebibytes));
        section.blocks.push_back(frontier_of(column, metric));
      }
      if (std::ranges::none_of(column, shares_prompts))
        section.blocks.push_back(
            chart_of(column, metric, "seconds", [](const TaskSummary& summary) { return summary.wall_seconds; }));
      section.blocks.push_back(table_of(column, metric));
      if (column.front().summary.groups.size() > 1) section.blocks.push_back(groups_of(column, metric));
    }
    section.blocks.push_back(origins_of(column));
    const bool tokens = scores_tokens(column.front());
    section.text = fmt::format("{}{}.", counted(column.front().summary.questions, tokens ? "token" : "question"),
                               tokens ? " scored" : "");
    for (const std::string& remark : remarks_on_items(column.front())) section.text += fmt::format("\n\n{}.", remark);
    for (const Cell& cell : column)
      for (const std::string& remark : remarks_on_answers(cell))
        section.text += fmt::format("\n\n{}: {}.", setting_name(cell), remark);
  }
  return report;
}

}  // namespace kvasir::cli
