#include "server/admin/metrics.h"

#include <fmt/core.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

using Clock = std::chrono::steady_clock;
using Label = prometheus::ClientMetric::Label;
using Labels = std::vector<Label>;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::string_view kOurs = "kvasir:";
constexpr std::string_view kTheirs = "vllm:";

// vLLM's buckets, with more small ones for small models.
const std::vector<double> kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kGapBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                         0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const std::vector<double> kRequestBuckets = {0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,    2.5, 5,
                                             10,    15,   20,    30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kShareBuckets = {0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1};

// Most values of a label whose values requests determine; further values become "other".
constexpr std::size_t kMostLabelValues = 64;

std::vector<double> token_buckets(std::int64_t most) {
  std::vector<double> buckets;
  for (double decade = 1; decade <= static_cast<double>(most); decade *= 10)
    for (const double step : {1, 2, 5})
      if (step * decade <= static_cast<double>(most)) buckets.push_back(step * decade);
  return buckets.empty() ? std::vector<double>{1} : buckets;
}

// Returns the names of a policy's parts without their parameters: "snapkv:budget=64+lethe" is "snapkv+lethe".
std::string policy_name(std::string_view spec) {
  std::string name;
  bool in_name = true;
  for (const char c : spec) {
    if (c == '+') in_name = true;
    if (c == ':' || c == '@') in_name = false;
    if (in_name) name += c;
  }
  return name.empty() ? "default" : name;
}

// Returns vLLM's name for the reason why a request ended.
std::string_view vllm_reason(std::string_view reason) {
  if (reason == "end" || reason == "stop") return "stop";
  if (reason == "length" || reason == "context" || reason == "kv_memory") return "length";
  return reason == "abandoned" || reason == "shutdown" || reason == "cancelled" ? "abort" : "error";
}

// Counts for each value of one label.
class CounterBy {
 public:
  explicit CounterBy(std::initializer_list<std::string_view> known = {}) {
    for (const std::string_view value : known) counts_.emplace(value, 0);
  }
  void add(std::string_view value, double count) {
    auto found = counts_.find(value);
    if (found == counts_.end())
      found = counts_.emplace(counts_.size() < kMostLabelValues ? value : std::string_view("other"), 0).first;
    found->second += count;
  }
  const std::map<std::string, double, std::less<>>& counts() const { return counts_; }

 private:
  std::map<std::string, double, std::less<>> counts_;
};

double resident_bytes() {
  long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// The metric families of one text, in order.
class Page {
 public:
  explicit Page(bool vllm) : vllm_(vllm) {}

  // The label of the metrics added from now on.
  void set_model(const std::string& name) { model_ = name; }

  // Adds a metric under both prefixes. `older`: an additional older name behind "vllm:".
  void gauge(std::string_view name, std::string_view help, double value, std::string_view older = {}) {
    both(name, help, MetricType::Gauge, older, [&](MetricFamily& family) { add(family, {}).gauge.value = value; });
  }
  void counter(std::string_view name, std::string_view help, double value, std::string_view older = {}) {
    both(name, help, MetricType::Counter, older, [&](MetricFamily& family) { add(family, {}).counter.value = value; });
  }
  void histogram(std::string_view name, std::string_view help, const prometheus::Histogram& histogram) {
    const prometheus::ClientMetric collected = histogram.Collect();
    both(name, help, MetricType::Histogram, {},
         [&](MetricFamily& family) { add(family, {}).histogram = collected.histogram; });
  }
  void info(std::string_view name, std::string_view help, const Labels& labels, std::string_view prefix) {
    add(family(prefix, name, help, MetricType::Gauge), labels).gauge.value = 1;
  }
  void counters(std::string_view name, std::string_view help, std::string_view label,
                const std::map<std::string, double, std::less<>>& counts, std::string_view prefix = kOurs) {
    MetricFamily& made = family(prefix, name, help, MetricType::Counter);
    for (const auto& [value, count] : counts) add(made, {{std::string(label), value}}).counter.value = count;
  }
  void gauges(std::string_view name, std::string_view help, std::string_view label,
              const std::map<std::string, double, std::less<>>& values) {
    MetricFamily& made = family(kOurs, name, help, MetricType::Gauge);
    for (const auto& [value, number] : values) add(made, {{std::string(label), value}}).gauge.value = number;
  }
  // Adds a metric under "kvasir:" only.
  void own_gauge(std::string_view name, std::string_view help, double value) {
    add(family(kOurs, name, help, MetricType::Gauge), {}).gauge.value = value;
  }
  void own_counter(std::string_view name, std::string_view help, double value) {
    add(family(kOurs, name, help, MetricType::Counter), {}).counter.value = value;
  }
  void own_histogram(std::string_view name, std::string_view help, const prometheus::Histogram& histogram) {
    add(family(kOurs, name, help, MetricType::Histogram), {}).histogram = histogram.Collect().histogram;
  }
  // Adds a metric of the process under Prometheus' standard name.
  void process_gauge(std::string_view name, std::string_view help, double value) {
    family("", name, help, MetricType::Gauge).metric.emplace_back().gauge.value = value;
  }

  std::string text() const { return prometheus::TextSerializer().prometheus::Serializer::Serialize(families_); }

 private:
  MetricFamily& family(std::string_view prefix, std::string_view name, std::string_view help, MetricType type) {
    std::string whole = fmt::format("{}{}", prefix, name);
    const auto [place, is_new] = places_.emplace(whole, families_.size());
    if (is_new) families_.push_back({std::move(whole), std::string(help), type, {}});
    return families_[place->second];
  }
  prometheus::ClientMetric& add(MetricFamily& family, const Labels& labels) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = labels;
    metric.label.push_back({"model_name", model_});
    return metric;
  }
  template <class Fill>
  void both(std::string_view name, std::string_view help, MetricType type, std::string_view older, const Fill& fill) {
    fill(family(kOurs, name, help, type));
    if (!vllm_) return;
    fill(family(kTheirs, name, help, type));
    if (!older.empty()) fill(family(kTheirs, older, help, type));
  }

  std::string model_;
  bool vllm_;
  std::vector<MetricFamily> families_;
  std::map<std::string, std::size_t> places_;  // in families_, by name
};

// What is counted of one model's requests.
struct RequestFigures {
  explicit RequestFigures(std::int64_t context)
      : prompt_tokens(token_buckets(context)), generation_tokens(token_buckets(context)) {}

  prometheus::Histogram first_token{kFirstTokenBuckets};
  prometheus::Histogram gap{kGapBuckets};
  prometheus::Histogram total{kRequestBuckets};
  prometheus::Histogram queue{kRequestBuckets};
  prometheus::Histogram prefill{kRequestBuckets};
  prometheus::Histogram decode{kRequestBuckets};
  prometheus::Histogram inference{kRequestBuckets};
  prometheus::Histogram prompt_tokens;
  prometheus::Histogram generation_tokens;
  prometheus::Histogram dead_share{kShareBuckets};
  CounterBy finished{"end", "stop", "length", "context", "kv_memory", "abandoned", "shutdown", "error"};
  CounterBy evicted;
  CounterBy tenant_requests, tenant_prompt, tenant_generation;
};

class MetricsImpl final : public Metrics {
 public:
  MetricsImpl(MetricsOptions options, MetricsSources sources)
      : options_(std::move(options)), sources_(std::move(sources)) {
    for (const std::string& name : options_.models) requests_.try_emplace(name, options_.context);
  }

  void on_token_gap(const RequestRecord& record, double seconds) override { figures_of(record).gap.Observe(seconds); }
  void on_refused(std::string_view reason, std::string_view /*address*/, std::string_view /*path*/) override {
    refused_.add(reason, 1);
  }
  void on_finished(const RequestRecord& record) override;

  void add_route(Router& router) override {
    const auto send = [this](const Exchange& exchange) {
      exchange.answer->send(200, "text/plain; version=0.0.4; charset=utf-8", text());
    };
    router.add("GET", "/metrics", send, options_.open ? Router::Access::kAll : Router::Access::kOperators);
  }

  const std::string& text() override {
    const auto now = Clock::now();
    if (text_.empty() || now - written_ >= options_.age) {
      text_ = write();
      written_ = now;
    }
    return text_;
  }

 private:
  std::string write() const;
  void add_engine(Page& page, const StepReport& steps) const;
  void add_cache(Page& page, const EngineReport& engine) const;
  static void add_tiers(Page& page, const EngineReport& engine);
  void add_tenants(Page& page, const EngineReport& engine) const;
  void add_requests(Page& page, const RequestFigures& requests) const;
  // A request that ended before its model was known counts as one of the default.
  RequestFigures& figures_of(const RequestRecord& record) {
    const auto found = requests_.find(record.model);
    return found != requests_.end() ? found->second : requests_.at(options_.models.front());
  }
  void add_process(Page& page) const;

  const MetricsOptions options_;
  const MetricsSources sources_;
  const double started_ = static_cast<double>(std::time(nullptr));

  std::map<std::string, RequestFigures> requests_;  // by model
  CounterBy refused_{"invalid",       "unknown_model", "too_large",  "queue_full",
                     "queue_timeout", "draining",      "rate_limit", "model_unavailable"};

  std::string text_;
  Clock::time_point written_;
};

void MetricsImpl::on_finished(const RequestRecord& record) {
  RequestFigures& figures = figures_of(record);
  const auto observe = [](prometheus::Histogram& histogram, double seconds) {
    if (seconds >= 0) histogram.Observe(seconds);
  };
  observe(figures.first_token, record.first_token_seconds);
  observe(figures.total, record.total_seconds);
  observe(figures.queue, record.queue_seconds);
  observe(figures.prefill, record.prefill_seconds);
  observe(figures.decode, record.decode_seconds);
  if (record.prefill_seconds >= 0 && record.decode_seconds >= 0)
    figures.inference.Observe(record.prefill_seconds + record.decode_seconds);
  figures.finished.add(record.finish_reason, 1);
  figures.tenant_requests.add(record.tenant, 1);
  figures.tenant_prompt.add(record.tenant, static_cast<double>(record.prompt_tokens));
  figures.tenant_generation.add(record.tenant, static_cast<double>(record.generated_tokens));
  if (record.seen == 0) return;  // The record has no token figures.
  figures.prompt_tokens.Observe(static_cast<double>(record.prompt_tokens));
  figures.generation_tokens.Observe(static_cast<double>(record.generated_tokens));
  figures.dead_share.Observe(record.dead_share);
  figures.evicted.add(policy_name(record.policy),
                      static_cast<double>(std::max<std::int64_t>(0, record.seen - record.kept)));
}

void MetricsImpl::add_engine(Page& page, const StepReport& steps) const {
  const EngineReport& engine = steps.engine;
  page.gauge("num_requests_running", "Requests that hold KV pages", static_cast<double>(engine.running));
  page.gauge("num_requests_waiting", "Requests that wait for KV pages or to be taken",
             static_cast<double>(engine.waiting + steps.queued));
  page.counter("prompt_tokens_total", "Prompt tokens, read or taken from the prefix cache",
               static_cast<double>(engine.prompt_tokens));
  page.counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache",
               static_cast<double>(engine.prefix_hits));
  page.counter("prompt_tokens_recomputed_total", "Tokens run again after preemptions",
               static_cast<double>(engine.recomputed_tokens));
  page.counter("generation_tokens_total", "Generated tokens", static_cast<double>(engine.generated_tokens));
  page.counter("spec_decode_num_draft_tokens_total", "Tokens that ran as drafts, of requests that ended",
               static_cast<double>(engine.drafted_tokens));
  page.counter("spec_decode_num_accepted_tokens_total", "Drafts that became tokens of a text",
               static_cast<double>(engine.drafts_come_true));
  page.counter("num_preemptions_total", "Requests that gave up their KV pages and ran again",
               static_cast<double>(engine.preemptions));
  page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
               static_cast<double>(engine.prefix_queries), "gpu_prefix_cache_queries_total");
  page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache",
               static_cast<double>(engine.prefix_hits), "gpu_prefix_cache_hits_total");
  page.own_counter("step_passes_total", "Forward passes", static_cast<double>(steps.passes));
  page.own_counter("step_pass_seconds_total", "Time of all forward passes", steps.pass_seconds);
  page.own_counter("step_mixed_passes_total", "Forward passes that read prompts while answers are generated",
                   static_cast<double>(engine.mixed_passes));
  page.own_counter("step_mixed_prompt_tokens_total", "Prompt tokens that those passes read; --max-itl bounds them",
                   static_cast<double>(engine.mixed_prompt_rows));
  page.own_counter("shadow_tokens_total", "Tokens read to compare policies with the full cache (kv.quality)",
                   static_cast<double>(engine.shadow_tokens));
}

void MetricsImpl::add_cache(Page& page, const EngineReport& engine) const {
  const auto budget = static_cast<double>(engine.cache.budget);
  const auto requests = static_cast<double>(engine.request_bytes);
  page.gauge("kv_cache_usage_perc", "Share of the KV budget that requests hold, 0 to 1",
             budget > 0 ? requests / budget : 0, "gpu_cache_usage_perc");
  const std::uint64_t column = engine.page_bytes * static_cast<std::uint64_t>(engine.lanes);
  const Labels config = {{"block_size", std::to_string(engine.page_slots)},
                         {"num_gpu_blocks", std::to_string(column > 0 ? engine.cache.budget / column : 0)}};
  constexpr std::string_view kHelp = "Tokens per KV page, and pages that the budget allows";
  page.info("cache_config_info", kHelp, config, kOurs);
  if (options_.vllm) page.info("cache_config_info", kHelp, config, kTheirs);
  page.own_gauge("adapter_bytes", "Memory of LoRA adapters, beside the KV budget",
                 static_cast<double>(engine.adapter_bytes));
  page.own_gauge("draft_weight_bytes", "Memory of the draft model's weights, beside the KV budget",
                 static_cast<double>(engine.draft_weight_bytes));
  page.own_gauge("kv_budget_bytes", "KV memory there may be", budget);
  page.own_gauge("kv_used_bytes", "KV memory in use, each shared page once", static_cast<double>(engine.cache.bytes));
  page.own_gauge("kv_peak_bytes", "Most KV memory there ever was", static_cast<double>(engine.cache.bytes_peak));
  page.own_gauge("kv_request_bytes", "KV memory that requests hold", requests);
  page.own_gauge("kv_prefix_bytes", "KV memory that the prefix cache holds alone",
                 static_cast<double>(engine.prefix_bytes));
  page.own_gauge("kv_draft_bytes", "KV memory that the draft model holds", static_cast<double>(engine.draft_bytes));
  CounterBy in_use, allocated;
  for (const KvPageReport& form : engine.pages) {
    in_use.add(form.form, static_cast<double>(form.bytes));
    allocated.add(form.form, static_cast<double>(form.allocated));
  }
  page.gauges("kv_page_used_bytes", "KV memory of pages in use, by how they are stored", "form", in_use.counts());
  page.gauges(
      "kv_page_allocated_bytes",
      "Memory of pages in use and of free ones beside them, by how they are stored: it goes to pages of another "
      "form when there would be more than the budget",
      "form", allocated.counts());
  add_tiers(page, engine);
  const SwapReport& swap = engine.swap;
  if (swap.capacity == 0) return;
  page.own_gauge("swap_capacity_bytes", "Bytes that the swap file may have, as --swap-size says",
                 static_cast<double>(swap.capacity));
  page.own_gauge("swap_buffer_bytes", "Memory between the swap file and the pages, beside the KV budget",
                 static_cast<double>(swap.buffers));
  page.own_gauge("swap_used_bytes", "Bytes of the swap file in use", static_cast<double>(swap.used));
  page.own_counter("swap_out_total", "Preemptions whose pages have left for the swap file",
                   static_cast<double>(swap.out));
  page.own_counter("swap_in_total", "Preempted requests whose pages came back from the swap file",
                   static_cast<double>(swap.in));
  page.own_counter("swap_failed_total",
                   "Preempted requests whose pages could not leave or come back, and were computed again",
                   static_cast<double>(swap.failed));
  page.own_counter("swap_out_bytes_total", "Bytes written to the swap file", static_cast<double>(swap.bytes_out));
  page.own_counter("swap_in_bytes_total", "Bytes read from the swap file", static_cast<double>(swap.bytes_in));
  page.own_gauge("swap_longest_pause_seconds", "Longest time that swapping took between two passes",
                 swap.longest_pause);
}

void MetricsImpl::add_tiers(Page& page, const EngineReport& engine) {
  using Field = double (*)(const PrefixTierReport&);
  const auto by_tier = [&](Field field) {
    CounterBy values;
    for (const PrefixTierReport& tier : engine.prefix_tiers) values.add(tier.name, field(tier));
    return values.counts();
  };
  if (engine.prefix_tiers.empty()) return;
  page.own_gauge("prefix_tier_buffer_bytes", "Memory between places of prefixes and the pages, beside the KV budget",
                 static_cast<double>(engine.prefix_buffers));
  const auto gauges = [&](std::string_view name, std::string_view help, Field field) {
    page.gauges(name, help, "tier", by_tier(field));
  };
  const auto counters = [&](std::string_view name, std::string_view help, Field field) {
    page.counters(name, help, "tier", by_tier(field));
  };
  using Tier = const PrefixTierReport&;
  gauges("prefix_tier_up", "Whether a place of prefixes outside memory answers",
         [](Tier t) { return t.usable ? 1.0 : 0.0; });
  gauges("prefix_tier_bytes", "Bytes of prefixes there; 0 where it does not say",
         [](Tier t) { return static_cast<double>(t.bytes); });
  gauges("prefix_tier_capacity_bytes", "Most bytes there; 0 where it does not say",
         [](Tier t) { return static_cast<double>(t.capacity); });
  counters("prefix_tier_hits_total", "Prompt tokens fetched from there",
           [](Tier t) { return static_cast<double>(t.tokens_loaded); });
  counters("prefix_tier_loads_total", "Parts of prefixes fetched from there",
           [](Tier t) { return static_cast<double>(t.loads); });
  counters("prefix_tier_load_bytes_total", "Bytes fetched from there",
           [](Tier t) { return static_cast<double>(t.bytes_loaded); });
  counters("prefix_tier_stores_total", "Parts of prefixes written there",
           [](Tier t) { return static_cast<double>(t.stores); });
  counters("prefix_tier_store_bytes_total", "Bytes written there",
           [](Tier t) { return static_cast<double>(t.bytes_stored); });
  counters("prefix_tier_failures_total", "Reads, writes and questions that failed, and parts that were damaged",
           [](Tier t) { return static_cast<double>(t.failures); });
  counters("prefix_tier_skipped_total", "Requests that computed tokens held there, as that was faster",
           [](Tier t) { return static_cast<double>(t.skipped); });
  counters("prefix_tier_abandoned_total", "Requests that waited in vain, and computed the tokens",
           [](Tier t) { return static_cast<double>(t.abandoned); });
  gauges("prefix_tier_read_bytes_per_second", "Rate of reads from there, as measured", [](Tier t) { return t.rate; });
  gauges("prefix_tier_latency_seconds", "Latency of reads from there, as measured", [](Tier t) { return t.latency; });
}

void MetricsImpl::add_tenants(Page& page, const EngineReport& engine) const {
  const std::map<int, std::string> names = sources_.tenants ? sources_.tenants() : std::map<int, std::string>();
  CounterBy bytes, planned;
  const auto add = [&](std::string_view name, const TenantReport& report) {
    bytes.add(name, static_cast<double>(report.bytes));
    planned.add(name, static_cast<double>(report.planned));
  };
  for (const TenantReport& report : engine.tenants) {
    const auto name = names.find(report.tenant);
    add(name != names.end() ? std::string_view(name->second) : "other", report);
  }
  for (const auto& [number, name] : names) add(name, {});
  page.gauges("tenant_kv_bytes", "KV memory that a tenant's requests hold", "tenant", bytes.counts());
  page.gauges("tenant_kv_planned_bytes", "Peaks of a tenant's requests that hold KV memory, as admission counts them",
              "tenant", planned.counts());
}

void MetricsImpl::add_requests(Page& page, const RequestFigures& requests) const {
  page.counters("request_success_total", "Requests that ended, by reason", "finished_reason",
                requests.finished.counts());
  if (options_.vllm) {
    std::map<std::string, double, std::less<>> theirs;
    for (const auto& [reason, count] : requests.finished.counts()) theirs[std::string(vllm_reason(reason))] += count;
    page.counters("request_success_total", "Requests that ended, by reason", "finished_reason", theirs, kTheirs);
  }
  page.histogram("time_to_first_token_seconds", "From a request's arrival to its first text", requests.first_token);
  page.histogram("inter_token_latency_seconds", "Between two texts of one answer", requests.gap);
  page.histogram("e2e_request_latency_seconds", "From a request's arrival to its end", requests.total);
  page.histogram("request_queue_time_seconds", "From a request's arrival to its first pass", requests.queue);
  page.histogram("request_prefill_time_seconds", "From a request's first pass until its prompt was read",
                 requests.prefill);
  page.histogram("request_decode_time_seconds", "From a prompt's end to the request's", requests.decode);
  page.histogram("request_inference_time_seconds", "From a request's first pass to its end", requests.inference);
  page.histogram("request_prompt_tokens", "Prompt tokens of a request", requests.prompt_tokens);
  page.histogram("request_generation_tokens", "Generated tokens of a request", requests.generation_tokens);
  page.own_histogram("request_dead_share", "Share of a request's written KV slots whose token was dropped",
                     requests.dead_share);
  page.counters("evicted_tokens_total", "Tokens that policies dropped, of requests that ended", "policy",
                requests.evicted.counts());
  page.counters("tenant_requests_total", "Requests that ended, by tenant", "tenant", requests.tenant_requests.counts());
  page.counters("tenant_prompt_tokens_total", "Prompt tokens by tenant", "tenant", requests.tenant_prompt.counts());
  page.counters("tenant_generation_tokens_total", "Generated tokens by tenant", "tenant",
                requests.tenant_generation.counts());
}

void MetricsImpl::add_process(Page& page) const {
  page.counters("admission_rejections_total", "Requests that were not taken, by reason", "reason", refused_.counts());
  if (sources_.busy)
    page.own_gauge("step_busy_seconds", "How long the pass under way has been running",
                   std::chrono::duration<double>(sources_.busy()).count());
  if (sources_.connections)
    page.own_gauge("http_connections", "Open connections", static_cast<double>(sources_.connections()));
  if (sources_.dropped_log_lines)
    page.own_counter("log_dropped_lines_total", "Log lines that were not written",
                     static_cast<double>(sources_.dropped_log_lines()));
  page.info("build_info", "The program's version", {{"version", options_.version}}, kOurs);
  page.process_gauge("process_start_time_seconds", "When the process started, in seconds since 1970", started_);
  page.process_gauge("process_resident_memory_bytes", "Resident memory", resident_bytes());
}

std::string MetricsImpl::write() const {
  Page page(options_.vllm);
  for (ModelFigures& model : sources_.models ? sources_.models() : std::vector<ModelFigures>()) {
    page.set_model(model.name);
    page.own_gauge("model_loaded", "Whether the model is in memory", model.loaded ? 1 : 0);
    page.own_counter("model_loads_total", "How often the model was loaded", static_cast<double>(model.loads));
    model.steps.queued += model.waiting;
    add_engine(page, model.steps);
    add_cache(page, model.steps.engine);
    add_tenants(page, model.steps.engine);
    add_requests(page, requests_.at(model.name));
  }
  page.set_model(options_.models.front());
  add_process(page);
  return page.text();
}

}  // namespace

std::unique_ptr<Metrics> Metrics::make(MetricsOptions options, MetricsSources sources) {
  return std::make_unique<MetricsImpl>(std::move(options), std::move(sources));
}

}  // namespace kvasir::server
