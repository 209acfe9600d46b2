#include "server/inspector/inspector.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/status.h"
#include "retention/registry.h"
#include "server/api/api_response.h"
#include "server/inspector/inspector_page.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostSequences = 64;
constexpr std::int64_t kMostTexts = 2048;
// The time for views of watchers, made one after the other; the rest wait for the next tick.
constexpr std::chrono::milliseconds kMostLooking{1};

std::string_view name_of(SequenceView::State state) {
  switch (state) {
    case SequenceView::State::kWaiting: return "waiting";
    case SequenceView::State::kPreempted: return "preempted";
    case SequenceView::State::kRunning: return "running";
    case SequenceView::State::kEnded: return "ended";
  }
  return "";
}

Json json_of(const SequenceView& view) {
  return {{"request", view.label}, {"sample", view.sample}, {"state", name_of(view.state)},
          {"policy", view.policy}, {"codec", view.codec},   {"prompt_tokens", view.prompt_tokens},
          {"tokens", view.tokens}, {"cached", view.cached}, {"seen", view.seen},
          {"kept", view.kept},     {"pages", view.pages},   {"bytes", view.bytes}};
}

// Runs are flat lists: buckets, level, buckets, level, ... and pages, live tokens, pages, live tokens, ...
Json json_of(const TokenView& view) {
  Json json = json_of(view.sequence);
  Json kept = Json::array();
  for (const TokenView::Kept& run : view.kept) {
    kept.push_back(run.buckets);
    kept.push_back(run.level);
  }
  Json tables = Json::array();
  for (const auto& pages : view.pages) {
    Json table = Json::array();
    for (const TokenView::Pages& run : pages) {
      table.push_back(run.pages);
      table.push_back(run.live);
    }
    tables.push_back(std::move(table));
  }
  json["sinks"] = view.sinks;
  json["levels"] = TokenView::kLevels;
  json["bucket"] = view.bucket;
  json["kept_runs"] = std::move(kept);
  json["page_tokens"] = view.page_slots;
  json["tables"] = view.tables;
  json["tables_shown"] = view.tables_shown;
  json["page_runs"] = std::move(tables);
  json["from"] = view.first;
  json["texts"] = view.texts;
  json["controls"] = view.controls;
  return json;
}

// The memory of the whole cache, or for a tenant of its own requests only: from more it could infer that another
// tenant's request hit the prefix cache.
Json memory_of(const EngineReport& engine, const SequenceList& own, bool sees_all) {
  Json memory = {
      {"budget", engine.cache.budget}, {"page_bytes", engine.page_bytes}, {"page_tokens", engine.page_slots}};
  if (!sees_all) {
    std::uint64_t used = 0;
    for (const SequenceView& view : own.sequences) used += view.bytes;
    memory["used"] = used;
    return memory;
  }
  memory["used"] = engine.cache.bytes;
  memory["requests"] = engine.request_bytes;
  memory["prefix"] = engine.prefix_bytes;
  memory["drafts"] = engine.draft_bytes;
  memory["peak"] = engine.cache.bytes_peak;
  return memory;
}

Json load_of(const EngineReport& engine, std::int64_t queued) {
  return {{"running", engine.running},
          {"waiting", engine.waiting + queued},
          {"preemptions", engine.preemptions},
          {"prompt_tokens", engine.prompt_tokens},
          {"generated_tokens", engine.generated_tokens},
          {"prefix_queries", engine.prefix_queries},
          {"prefix_hits", engine.prefix_hits}};
}

// Returns 0 for an empty text, and nullopt for any text that is not a number from 0 to `most`.
std::optional<std::int64_t> number(std::string_view text, std::int64_t most) {
  if (text.empty()) return 0;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most) return {};
  return value;
}

}  // namespace

// A client that watches, and its query.
struct Inspector::Watcher {
  Exchange exchange;
  TokenQuery query;  // `first` advances as texts are sent
  std::string sent;  // the newest event
  bool streams = false;
  ModelLease model = {};  // until a view that was asked for is there
};

// The data of one watcher's view.
struct Inspector::Seen {
  EngineReport engine;
  SequenceList list;
  std::optional<TokenView> selected;
};

Inspector::Inspector(ModelDesk& models, Options options) : models_(models), options_(std::move(options)) {}

Inspector::~Inspector() = default;

void Inspector::add_routes(Router& router) {
  add_inspector_page(router);
  router.add("GET", "/v1/kv/state", [this](const Exchange& exchange) { state(exchange); });
  router.add("GET", "/v1/kv/live", [this](const Exchange& exchange) { live(exchange); });
  router.add("GET", "/v1/kv/policies", [this](const Exchange& exchange) { policies(exchange); });
}

namespace {

// Errors: kInvalidArgument.
Result<TokenQuery> read_query(const Exchange& exchange) {
  const std::string_view query = exchange.request.query;
  KVASIR_ASSIGN_OR_RETURN(const std::string sample_text, query_parameter(query, "sample"));
  KVASIR_ASSIGN_OR_RETURN(const std::string from_text, query_parameter(query, "from"));
  const auto sample = number(sample_text, 1 << 20);
  const auto from = number(from_text, std::int64_t{1} << 40);
  if (!sample) return Status(StatusCode::kInvalidArgument, "'sample' must be a whole number").about({"sample"});
  if (!from) return Status(StatusCode::kInvalidArgument, "'from' must be a whole number").about({"from"});
  TokenQuery result;
  KVASIR_ASSIGN_OR_RETURN(result.label, query_parameter(query, "request"));
  result.tenant = exchange.caller.tenant_number;
  result.sample = static_cast<int>(*sample);
  result.first = *from;
  result.most = kMostTexts;
  return result;
}

}  // namespace

// Runs on the step thread.
Inspector::Seen Inspector::look(const Engine& engine, const TokenQuery& query) {
  Seen seen;
  seen.engine = engine.report();
  seen.list = engine.sequences(query.tenant, kMostSequences);
  if (query.label.empty()) return seen;
  if (Result<TokenView> view = engine.tokens_of(query); view.ok()) seen.selected = std::move(*view);
  return seen;
}

// Has the step thread make views. It gets weak references only: watchers must be destroyed on the I/O thread. Views of
// a model that is not loaded are empty.
Status Inspector::ask(const std::vector<std::shared_ptr<Watcher>>& watchers, bool stream) {
  ModelLease& model = stream ? model_ : watchers.front()->model;
  model = models_.look();
  if (!model) {
    for (const auto& watcher : watchers) deliver(*watcher, {}, 0);
    if (stream) asking_ = false;
    return {};
  }
  StepThread& steps = model->steps;
  std::vector<std::weak_ptr<Watcher>> askers(watchers.begin(), watchers.end());
  std::vector<TokenQuery> queries;
  for (const auto& watcher : watchers) queries.push_back(watcher->query);
  const auto failed = [this, askers, stream] {
    if (stream) end_asking();
    const auto watcher = askers.front().lock();
    if (stream || watcher == nullptr) return;
    watcher->exchange.refuse(503, "the server has no memory for this now; try again later", "no_memory",
                             {{"Retry-After", "1"}});
    std::erase(states_, watcher);
  };
  const auto look_at_all = [this, &steps, askers, queries = std::move(queries), stream](const Engine& engine) {
    std::vector<Seen> seen;
    const auto until = Clock::now() + kMostLooking;
    while (seen.size() < queries.size() && (seen.empty() || Clock::now() < until))
      seen.push_back(look(engine, queries[seen.size()]));
    steps.post([this, &steps, askers, seen = std::move(seen), stream] {
      for (std::size_t i = 0; i < seen.size(); ++i)
        if (const auto watcher = askers[i].lock()) deliver(*watcher, seen[i], steps.report().queued);
      if (stream) end_asking();
      if (!stream) std::erase(states_, askers.front().lock());
    });
  };
  return steps.ask(look_at_all, failed);
}

void Inspector::end_asking() {
  asking_ = false;
  model_.reset();
}

void Inspector::deliver(Watcher& watcher, const Seen& seen, std::int64_t queued) const {
  const bool sees_all = watcher.exchange.caller.sees_all;
  Json sequences = Json::array();
  for (const SequenceView& view : seen.list.sequences) sequences.push_back(json_of(view));
  Json json = {{"model", models_.default_name()},
               {"tenant", watcher.exchange.caller.tenant},
               {"memory", memory_of(seen.engine, seen.list, sees_all)},
               {"sequences", std::move(sequences)},
               {"sequences_left_out", seen.list.left_out},
               {"selected", seen.selected ? json_of(*seen.selected) : Json()}};
  if (sees_all) json["load"] = load_of(seen.engine, queued);
  if (!watcher.streams) return watcher.exchange.send_json(200, text_of(json), {{"Cache-Control", "no-store"}});
  std::string event = event_of(json);
  if (seen.selected) watcher.query.first = seen.selected->next();
  if (event == watcher.sent) return;
  watcher.exchange.answer->write(event);
  watcher.sent = std::move(event);
}

void Inspector::state(const Exchange& exchange) {
  Result<TokenQuery> query = read_query(exchange);
  if (!query.ok()) return exchange.refuse(query.status());
  const auto watcher = std::make_shared<Watcher>(Watcher{exchange, std::move(*query), {}, false});
  const Status asked = ask({watcher}, false);
  if (!asked.ok()) return exchange.refuse(429, asked.message(), "queue_full", {{"Retry-After", "1"}});
  if (watcher->model) states_.push_back(watcher);
}

void Inspector::live(const Exchange& exchange) {
  Result<TokenQuery> query = read_query(exchange);
  if (!query.ok()) return exchange.refuse(query.status());
  const auto of_tenant = std::ranges::count_if(
      watchers_, [&](const auto& watcher) { return watcher->exchange.caller.tenant == exchange.caller.tenant; });
  const bool named = !exchange.caller.tenant.empty();
  if (static_cast<int>(watchers_.size()) >= options_.watchers || (named && of_tenant >= options_.watchers_of_tenant))
    return exchange.refuse(429, "too many pages watch the cache already; close one", "too_many_watchers",
                           {{"Retry-After", "5"}});
  if (exchange.request.method == "HEAD") return exchange.answer->begin_stream();  // which has no body to follow
  const auto watcher = std::make_shared<Watcher>(Watcher{exchange, std::move(*query), {}, true});
  watchers_.push_back(watcher);
  exchange.answer->begin_stream();
  exchange.answer->on_closed([this, gone = std::weak_ptr(watcher)] { std::erase(watchers_, gone.lock()); });
  tick();
}

// Ends the streams of callers that the gate no longer lets pass, because their keys were revoked or have expired.
void Inspector::end_refused() {
  if (options_.gate == nullptr) return;
  std::vector<std::shared_ptr<Watcher>> refused;
  std::erase_if(watchers_, [&](const std::shared_ptr<Watcher>& watcher) {
    Caller caller;
    if (!options_.gate->identify(watcher->exchange.request, caller)) return false;
    refused.push_back(watcher);
    return true;
  });
  for (const auto& watcher : refused) watcher->exchange.answer->end();
}

void Inspector::tick() {
  end_refused();
  if (asking_ || watchers_.empty()) return;
  first_ = (first_ + 1) % watchers_.size();
  std::vector<std::shared_ptr<Watcher>> order(watchers_);
  std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(first_), order.end());
  asking_ = true;
  if (!ask(order, true).ok()) end_asking();
}

void Inspector::end_streams() {
  for (const auto& watcher : std::exchange(watchers_, {})) watcher->exchange.answer->end();
}

void Inspector::policies(const Exchange& exchange) const {
  Json list = Json::array();
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only) continue;
    Json options = Json::array();
    for (const PolicyOption& option : info->options)
      options.push_back({{"name", option.name},
                         {"default", option.default_value},
                         {"range", option.range},
                         {"meaning", option.meaning}});
    list.push_back({{"name", info->name}, {"summary", info->summary}, {"acts", info->acts}, {"options", options}});
  }
  const std::optional<ModelDesk::Info> model = models_.find({});
  const std::vector<std::string> codecs =
      model->served != nullptr ? model->served->steps.report().engine.codecs : std::vector<std::string>();
  exchange.send_json(200, text_of({{"default", model->defaults.policy}, {"policies", list}, {"codecs", codecs}}));
}

}  // namespace kvasir::server
