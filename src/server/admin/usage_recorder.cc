#include "server/admin/usage_recorder.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api/api_response.h"
#include "tenants/dates.h"

namespace kvasir::server {
namespace {

constexpr std::int64_t kDefaultSpan = 30 * 86400;
constexpr std::size_t kMostRows = 10000;

nlohmann::json figures_of(const tenants::UsageFigures& figures) {
  nlohmann::json object = nlohmann::json::object();
  for (const tenants::UsageField& field : tenants::kUsageFields) object[std::string(field.name)] = figures.*field.value;
  return object;
}

// Returns the tokens of a request that have not been recorded yet.
tenants::UsageFigures untold_tokens(const RequestRecord& record) {
  tenants::UsageFigures figures;
  figures.prompt_tokens = record.prompt_tokens - record.told_prompt;
  figures.cached_tokens = record.cached_tokens - record.told_cached;
  figures.generated_tokens = record.generated_tokens - record.told_generated;
  return figures;
}

std::string usage_body(const std::string& tenant, std::int64_t since, const std::vector<tenants::UsageRow>& rows) {
  nlohmann::json body = {{"object", "usage"}, {"tenant", tenant}, {"since", tenants::moment_text(since)}};
  body["data"] = nlohmann::json::array();
  tenants::UsageFigures total;
  for (const tenants::UsageRow& row : rows) {
    total.add(row.figures);
    nlohmann::json each = figures_of(row.figures);
    each["start"] = tenants::moment_text(row.start);
    each["seconds"] = row.seconds;
    body["data"].push_back(std::move(each));
  }
  body["total"] = figures_of(total);
  return text_of(body);
}

}  // namespace

UsageRecorder::UsageRecorder(tenants::UsageWriter::Options options, std::function<void(std::function<void()>)> post)
    : post_(std::move(post)) {
  writer_.emplace(std::move(options));
}

void UsageRecorder::on_progress(const RequestRecord& record) {
  if (writer_) writer_->add(record.tenant, untold_tokens(record));
}

void UsageRecorder::on_finished(const RequestRecord& record) {
  tenants::UsageFigures figures = untold_tokens(record);
  figures.requests = 1;
  figures.abandoned = record.finish_reason == "abandoned" ? 1 : 0;
  const bool ended_badly = record.finish_reason == "error" || record.finish_reason == "shutdown";
  figures.failed = figures.abandoned == 0 && (record.http >= 400 || ended_badly) ? 1 : 0;
  figures.recomputed_tokens = record.recomputed_tokens;
  figures.preemptions = record.preemptions;
  figures.milliseconds = std::llround(record.total_seconds * 1000);
  if (writer_) writer_->add(record.tenant, figures);
}

void UsageRecorder::add_refused(const std::string& tenant) {
  tenants::UsageFigures figures;
  figures.refused = 1;
  if (writer_) writer_->add(tenant, figures);
}

void UsageRecorder::add_routes(Router& router) {
  router.add("GET", "/v1/usage", [this](Exchange exchange) { answer(std::move(exchange)); });
}

void UsageRecorder::answer(Exchange exchange) {
  if (!writer_) return exchange.refuse(503, kGoingDown, kShutdown);
  constexpr std::string_view kSince = "since=";
  const std::string& asked = exchange.request.query;
  std::int64_t since = std::int64_t{std::time(nullptr)} - kDefaultSpan;
  if (!asked.empty()) {
    const std::optional<std::int64_t> moment =
        asked.starts_with(kSince) ? tenants::parse_moment(asked.substr(kSince.size())) : std::nullopt;
    if (!moment)
      return exchange.refuse(400, "this path takes ?since= and a date such as 2027-01-31 or 2027-01-31T12:00:00Z");
    since = *moment;
  }
  tenants::UsageQuery query;
  query.since = since;
  query.one_tenant = true;
  query.tenant = exchange.caller.tenant;
  query.limit = kMostRows;
  auto shared = std::make_shared<Exchange>(std::move(exchange));
  auto post_answer = [this, shared, since](const Result<std::vector<tenants::UsageRow>>& rows) mutable {
    // Moved, so that the last reference does not end on the writer's thread.
    post_([shared = std::move(shared), since, rows] {
      if (!rows.ok()) return shared->refuse(503, "usage cannot be read now; try again later", "usage_unavailable");
      shared->send_json(200, usage_body(shared->caller.tenant, since, *rows));
    });
  };
  const Status asking = writer_->ask(std::move(query), std::move(post_answer));
  if (!asking.ok()) shared->refuse(503, asking.message(), "usage_unavailable", {{"Retry-After", "1"}});
}

}  // namespace kvasir::server
