// Runs many requests through the engine's scheduler without a model, and prints what marks, admission, block sizes,
// quotas and the bound on inter-token latency do. Deterministic: the same options print the same figures.
//
//   serve_simulator [TABLE...] [--requests N] [--clients N] [--seed N] [--json]
//                   [--pass S] [--prompt-row S] [--generated-row S] [--max-itl S]
//
// TABLE: marks, admission, blocks, waste, utilisation, latency, tenants, million; without any, all but the last.
// Where the article on KV memory prints a figure for a row, it stands beside ours. The cost of a pass, in seconds, is
// --pass + --prompt-row * rows of prompts + --generated-row * rows of answers.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "kv/kv_cache.h"
#include "simulated_server.h"

namespace kvasir::bench {
namespace {

struct Table {
  std::string name;
  std::string about;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

void print(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& column : table.columns) widths.push_back(column.size());
  for (const auto& row : table.rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  fmt::print("\n{}: {}\n\n", table.name, table.about);
  const auto line = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) fmt::print("| {:>{}} ", cells[i], widths[i]);
    fmt::print("|\n");
  };
  line(table.columns);
  for (const std::size_t width : widths) fmt::print("|{:->{}}", "", width + 2);
  fmt::print("|\n");
  for (const auto& row : table.rows) line(row);
}

// Cells are words and numbers: nothing in them needs escaping.
void print_json(const std::vector<Table>& tables) {
  fmt::print("{{");
  for (std::size_t t = 0; t < tables.size(); ++t) {
    fmt::print("{}\n  \"{}\": [", t > 0 ? "," : "", tables[t].name);
    for (std::size_t r = 0; r < tables[t].rows.size(); ++r) {
      fmt::print("{}\n    {{", r > 0 ? "," : "");
      for (std::size_t i = 0; i < tables[t].columns.size(); ++i) {
        const std::string& cell = tables[t].rows[r][i];
        char* end = nullptr;
        std::strtod(cell.c_str(), &end);
        const bool number = !cell.empty() && *end == '\0';
        fmt::print("{}\"{}\": {}", i > 0 ? ", " : "", tables[t].columns[i],
                   number ? cell : fmt::format("\"{}\"", cell));
      }
      fmt::print("}}");
    }
    fmt::print("\n  ]");
  }
  fmt::print("\n}}\n");
}

// The bookkeeping of Kvasir's own cache for a model of 32 layers, 8 KV heads of 128 dimensions, and 16-bit pages.
MemoryModel memory_of(int block) {
  const KvCacheShape shape{32, 8, {128, 32, KvType::kF16}};
  constexpr std::int64_t kColumns = 1024;
  const std::uint64_t many = KvCache::cost(shape, {}, 2 * kColumns);
  const std::uint64_t few = KvCache::cost(shape, {}, kColumns);
  const std::uint64_t keys_and_values = shape.page.bytes() * static_cast<std::uint64_t>(shape.lanes());
  MemoryModel memory;
  memory.block = block;
  memory.token_bytes = keys_and_values / 32;
  memory.block_bytes = (many - few) / kColumns - keys_and_values;
  memory.table_bytes = few - (many - few);
  return memory;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.0f}", seconds * 1000);
}
std::string percent(double share) {
  return fmt::format("{:.1f}", share * 100);
}
double per_minute(const SimulationResult& result) {
  return static_cast<double>(result.preemptions) / result.seconds * 60;
}
std::string speed(const SimulationResult& result) {
  return fmt::format("{:.0f}", static_cast<double>(result.generated) / result.seconds);
}

Table marks(const SimulationOptions& base) {
  Table table{
      "marks",
      "what the stop mark trades (preempt mark 98%)",
      {"stop mark %", "mean batch", "tokens/s", "preemptions/min", "p99 gap ms", "longest gap ms", "first token p50 ms",
       "usage %", "article batch", "article tokens/s", "article preemptions/min", "article p99 ms"},
      {}};
  const std::vector<std::vector<std::string>> printed = {{"42", "580", "0", "120"},
                                                         {"54", "720", "0.2", "135"},
                                                         {"58", "760", "1.5", "180"},
                                                         {"61", "780", "8", "450"},
                                                         {"63", "790", "25", "1200"}};
  const double values[] = {0.70, 0.85, 0.90, 0.95, 0.98};
  for (std::size_t i = 0; i < 5; ++i) {
    SimulationOptions options = base;
    options.limits.stop_mark = values[i];
    const SimulationResult result = simulate(options);
    table.rows.push_back({fmt::format("{:.0f}", values[i] * 100), fmt::format("{:.1f}", result.mean_batch),
                          speed(result), fmt::format("{:.2f}", per_minute(result)), milliseconds(result.gap_p99),
                          milliseconds(result.gap_most), milliseconds(result.first_p50), percent(result.mean_usage)});
    table.rows.back().insert(table.rows.back().end(), printed[i].begin(), printed[i].end());
  }
  return table;
}

Table admission(const SimulationOptions& base) {
  Table table{"admission",
              "use: usage now and the request's peak below the stop mark; reserve: all peaks fit",
              {"admission", "max_tokens", "mean batch", "tokens/s", "preemptions/min", "recomputed %", "p99 gap ms",
               "first token p50 ms", "usage %"},
              {}};
  for (const int max_tokens : {0, 2048})
    for (const Admission kind : {Admission::kUse, Admission::kReserve}) {
      SimulationOptions options = base;
      options.limits.admission = kind;
      options.max_tokens = max_tokens;
      const SimulationResult result = simulate(options);
      table.rows.push_back({kind == Admission::kUse ? "use" : "reserve", max_tokens > 0 ? "2048" : "as it ends",
                            fmt::format("{:.1f}", result.mean_batch), speed(result),
                            fmt::format("{:.2f}", per_minute(result)),
                            percent(static_cast<double>(result.recomputed) / static_cast<double>(result.generated)),
                            milliseconds(result.gap_p99), milliseconds(result.first_p50), percent(result.mean_usage)});
    }
  return table;
}

Table blocks(const SimulationOptions& base) {
  Table table{"blocks",
              "bytes allocated beyond those of live tokens, averaged over the lives of requests",
              {"block", "last block %", "bookkeeping %", "overhead %", "article %"},
              {}};
  const char* printed[] = {"8", "4", "2.8", "2.8", "3.8", "5.8", "9.2"};
  const int sizes[] = {1, 4, 8, 16, 32, 64, 128};
  for (std::size_t i = 0; i < 7; ++i) {
    const MemoryModel memory = memory_of(sizes[i]);
    MemoryModel bare = memory;
    bare.block_bytes = bare.table_bytes = 0;
    Lengths lengths(base.workload, base.seed);
    double live = 0, slots = 0, all = 0;
    for (int r = 0; r < 5000; ++r) {
      const Lengths::Request request = lengths.next();
      for (int tokens = request.prompt; tokens <= request.prompt + request.answer; ++tokens) {
        live += static_cast<double>(memory.token_bytes) * tokens;
        slots += static_cast<double>(bare.bytes(tokens));
        all += static_cast<double>(memory.bytes(tokens));
      }
    }
    table.rows.push_back({fmt::format("{}", sizes[i]), fmt::format("{:.2f}", (slots / live - 1) * 100),
                          fmt::format("{:.2f}", (all - slots) / live * 100),
                          fmt::format("{:.2f}", (all / live - 1) * 100), printed[i]});
  }
  return table;
}

// The same memory, allocated as whole sequences.
SimulationOptions contiguous(SimulationOptions options) {
  if (options.capacity == 0)
    options.capacity = 64 * options.memory.bytes(static_cast<std::int64_t>(options.workload.mean));
  options.memory.contiguous = true;
  return options;
}

Table waste(const SimulationOptions& base) {
  Table table{"waste",
              "of the bytes allocated, those that hold no live token; contiguous allocation takes 4,096 tokens",
              {"workload", "mean tokens", "contiguous at the end %", "contiguous %", "paged at the end %", "paged %",
               "article %"},
              {}};
  const std::vector<std::pair<Workload, std::string>> workloads = {{{"chat", 820, 0.6, 0.7, 4096}, "80"},
                                                                   {{"code", 780, 0.7, 0.7, 4096}, "81"},
                                                                   {{"summaries", 1190, 0.9, 0.5, 4096}, "71"},
                                                                   {{"long documents", 2785, 0.92, 0.35, 4096}, "32"}};
  std::vector<double> means(4);
  for (const auto& [workload, printed] : workloads) {
    SimulationOptions options = base;
    options.workload = workload;
    options.requests = base.requests / 4;
    const std::uint64_t one = options.memory.bytes(4096);
    options.capacity = 24 * one;
    Lengths lengths(workload, base.seed);
    double live = 0, paged = 0;
    constexpr int kRequests = 20000;
    for (int r = 0; r < kRequests; ++r) {
      const Lengths::Request request = lengths.next();
      live += static_cast<double>(options.memory.token_bytes) * (request.prompt + request.answer);
      paged += static_cast<double>(options.memory.bytes(request.prompt + request.answer));
    }
    const double shares[] = {1 - live / kRequests / static_cast<double>(one),
                             1 - simulate(contiguous(options)).utilisation, 1 - live / paged,
                             1 - simulate(options).utilisation};
    table.rows.push_back({workload.name, fmt::format("{:.0f}", workload.mean)});
    for (std::size_t i = 0; i < 4; ++i) {
      means[i] += shares[i] / 4;
      table.rows.back().push_back(percent(shares[i]));
    }
    table.rows.back().push_back(printed);
  }
  table.rows.push_back({"mean", ""});
  for (const double mean : means) table.rows.back().push_back(percent(mean));
  table.rows.back().push_back("68");
  return table;
}

Table utilisation(const SimulationOptions& base) {
  Table table{"utilisation",
              "live tokens' bytes over allocated bytes, of lengths with mean 830 of 4,096",
              {"allocation", "utilisation %", "mean batch", "tokens/s", "first token p50 ms", "article %"},
              {}};
  for (const bool whole : {true, false}) {
    const SimulationResult result = simulate(whole ? contiguous(base) : base);
    table.rows.push_back({whole ? "contiguous" : "paged", percent(result.utilisation),
                          fmt::format("{:.1f}", result.mean_batch), speed(result), milliseconds(result.first_p50),
                          whole ? "20-40" : "96-99"});
  }
  return table;
}

Table latency(const SimulationOptions& base) {
  Table table{"latency",
              "what a bound on inter-token latency costs, where a prompt row takes 1 ms",
              {"max-itl ms", "p50 gap ms", "p99 gap ms", "longest gap ms", "first token p50 ms", "tokens/s"},
              {}};
  for (const double bound : {0.0, 0.25, 0.15, 0.10}) {
    SimulationOptions options = base;
    options.cost.prompt_row = 0.001;
    options.max_itl = bound;
    const SimulationResult result = simulate(options);
    table.rows.push_back({bound > 0 ? milliseconds(bound) : "none", milliseconds(result.gap_p50),
                          milliseconds(result.gap_p99), milliseconds(result.gap_most), milliseconds(result.first_p50),
                          speed(result)});
  }
  return table;
}

Table tenants(const SimulationOptions& base) {
  Table table{"tenants",
              "floors and ceilings as shares of the cache, 40 clients each",
              {"tenant", "floor %", "ceiling %", "held %", "preemptions", "first token p50 ms"},
              {}};
  SimulationOptions options = base;
  const auto capacity = 64 * options.memory.bytes(static_cast<std::int64_t>(options.workload.mean));
  const auto part = [&](double share) { return static_cast<std::uint64_t>(share * static_cast<double>(capacity)); };
  options.capacity = capacity;
  options.tenants = {{{part(0.5), 0}, 0, 40}, {{part(0.2), part(0.3)}, 0, 40}, {{0, 0}, 0, 40}};
  const SimulationResult result = simulate(options);
  const char* names[] = {"gold", "silver", "none"};
  for (std::size_t t = 0; t < 3; ++t) {
    const ScheduleQuota& quota = options.tenants[t].quota;
    const auto share = [&](std::uint64_t bytes) {
      return bytes > 0 ? percent(static_cast<double>(bytes) / static_cast<double>(capacity)) : std::string("-");
    };
    table.rows.push_back({names[t], share(quota.floor), share(quota.ceiling), percent(result.tenant_share[t]),
                          fmt::format("{}", result.tenant_preemptions[t]), milliseconds(result.tenant_first_p50[t])});
  }
  return table;
}

Table million(SimulationOptions options) {
  options.requests = 1000000;
  Table table{"million",
              "a million requests at the default marks",
              {"requests", "passes", "tokens", "preemptions", "twice for one token", "rejected", "virtual hours",
               "CPU seconds"},
              {}};
  const std::clock_t began = std::clock();
  const SimulationResult result = simulate(options);
  const double took = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  table.rows.push_back({fmt::format("{}", result.finished), fmt::format("{}", result.passes),
                        fmt::format("{}", result.generated), fmt::format("{}", result.preemptions),
                        fmt::format("{}", result.preempted_twice), fmt::format("{}", result.rejected),
                        fmt::format("{:.1f}", result.seconds / 3600), fmt::format("{:.1f}", took)});
  return table;
}

[[noreturn]] void fail(std::string_view what) {
  fmt::print(stderr, "serve_simulator: {}; see the head of bench/serve_simulator.cc\n", what);
  std::exit(2);
}

int run(const std::vector<std::string>& arguments) {
  using Make = Table (*)(const SimulationOptions&);
  const std::vector<std::pair<std::string_view, Make>> known = {
      {"marks", marks},
      {"admission", admission},
      {"blocks", blocks},
      {"waste", waste},
      {"utilisation", utilisation},
      {"latency", latency},
      {"tenants", tenants},
      {"million", [](const SimulationOptions& options) { return million(options); }}};
  SimulationOptions base;
  base.requests = 20000;
  base.memory = memory_of(32);
  std::vector<std::string_view> wanted;
  bool json = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (!name.starts_with("--")) {
      wanted.emplace_back(name);
      continue;
    }
    if (name == "--json") {
      json = true;
      continue;
    }
    if (i + 1 == arguments.size()) fail(fmt::format("{} needs a value", name));
    char* end = nullptr;
    const double value = std::strtod(arguments[++i].c_str(), &end);
    if (*end != '\0' || value < 0) fail(fmt::format("{} {} is no number", name, arguments[i]));
    if (name == "--requests" && value >= 1) {
      base.requests = static_cast<std::int64_t>(value);
    } else if (name == "--clients" && value >= 1) {
      base.clients = static_cast<int>(value);
    } else if (name == "--seed") {
      base.seed = static_cast<std::uint64_t>(value);
    } else if (name == "--pass") {
      base.cost.pass = value;
    } else if (name == "--prompt-row") {
      base.cost.prompt_row = value;
    } else if (name == "--generated-row") {
      base.cost.generated_row = value;
    } else if (name == "--max-itl") {
      base.max_itl = value;
    } else {
      fail(fmt::format("{} {} is not known", name, arguments[i]));
    }
  }
  if (wanted.empty())
    for (const auto& [name, make] : known)
      if (name != "million") wanted.push_back(name);
  std::vector<Table> tables;
  for (const std::string_view name : wanted) {
    const auto found = std::ranges::find(known, name, &std::pair<std::string_view, Make>::first);
    if (found == known.end()) fail(fmt::format("there is no table {}", name));
    tables.push_back(found->second(base));
    if (!json) print(tables.back());
  }
  if (json) print_json(tables);
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int count, char** arguments) {
  return kvasir::bench::run({arguments + 1, arguments + count});
}
