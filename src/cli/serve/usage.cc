// kvasir usage: what tenants of a server used.
#include <fmt/core.h>

#include <ctime>
#include <map>
#include <optional>

#include "base/status.h"
#include "cli/command.h"
#include "tenants/dates.h"
#include "tenants/usage_store.h"

namespace kvasir::cli {
namespace {

struct UsageOptions {
  std::string database;
  std::string since;
  std::string tenant;
  std::string by = "tenant";
  bool json = false;
};

// Returns the start of the period in which a row is shown; empty without periods.
std::string period_of(const tenants::UsageRow& row, const std::string& by) {
  if (by == "tenant") return "";
  const std::string moment = tenants::moment_text(row.start);
  // Old rows are sums of a day's hours, so only their day is known.
  return by == "day" || row.seconds > 3600 ? moment.substr(0, 10) : moment.substr(0, 16) + "Z";
}

Result<std::int64_t> read_since(const std::string& text) {
  if (text.empty()) return std::int64_t{0};
  if (const std::optional<std::int64_t> moment = tenants::parse_moment(text)) return *moment;
  if (const std::optional<std::int64_t> span = tenants::parse_span(text)) return std::time(nullptr) - *span;
  return invalid_argument("--since: '{}' is neither a date such as 2026-11-01 nor a time ago such as 30d or 12h", text);
}

Status show_usage(const UsageOptions& options) {
  tenants::UsageQuery query;
  KVASIR_ASSIGN_OR_RETURN(query.since, read_since(options.since));
  query.one_tenant = !options.tenant.empty();
  query.tenant = options.tenant;
  query.limit = 10'000'000;
  KVASIR_ASSIGN_OR_RETURN(const auto store,
                          tenants::UsageStore::open(options.database, tenants::UsageStore::Access::kRead));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<tenants::UsageRow> rows, store->read(query));
  std::map<std::pair<std::string, std::string>, tenants::UsageFigures> sums;  // by period and tenant
  for (const tenants::UsageRow& row : rows) sums[{period_of(row, options.by), row.tenant}].add(row.figures);
  if (options.json) {
    Json list = Json::array();
    for (const auto& [key, figures] : sums) {
      Json each = Json::object();
      if (!key.first.empty()) each["start"] = key.first;
      each["tenant"] = key.second;
      for (const tenants::UsageField& field : tenants::kUsageFields)
        each[std::string(field.name)] = figures.*field.value;
      list.push_back(std::move(each));
    }
    return print_json({{"usage", list}});
  }
  const bool periods = options.by != "tenant";
  std::string out = periods ? fmt::format("{:<18}", options.by) : "";
  out += fmt::format("{:<20} {:>9} {:>7} {:>9} {:>8} {:>13} {:>13} {:>13} {:>10}\n", "tenant", "requests", "failed",
                     "abandoned", "refused", "prompt", "cached", "generated", "seconds");
  for (const auto& [key, sum] : sums) {
    if (periods) out += fmt::format("{:<18}", key.first);
    out += fmt::format("{:<20} {:>9} {:>7} {:>9} {:>8} {:>13} {:>13} {:>13} {:>10.1f}\n",
                       key.second.empty() ? "(without a key)" : printable(key.second, 64), sum.requests, sum.failed,
                       sum.abandoned, sum.refused, sum.prompt_tokens, sum.cached_tokens, sum.generated_tokens,
                       static_cast<double>(sum.milliseconds) / 1000);
  }
  return print(out);
}

}  // namespace

void add_usage(CLI::App& program, Outcome& outcome) {
  const auto options = std::make_shared<UsageOptions>();
  CLI::App* command = program.add_subcommand("usage", "What tenants of 'kvasir serve' used");
  command->add_option("--db", options->database, "The database, as --usage-db of 'kvasir serve'")
      ->required()
      ->type_name("FILE");
  command->add_option("--since", options->since, "A date such as 2026-11-01 (UTC), or a time ago such as 30d or 12h")
      ->type_name("WHEN");
  command->add_option("--tenant", options->tenant, "This tenant alone");
  command->add_option("--by", options->by, "tenant, day or hour")
      ->check(CLI::IsMember({"tenant", "day", "hour"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = show_usage(*options); });
}

}  // namespace kvasir::cli
