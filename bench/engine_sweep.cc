// The watermark and block sweeps of serve_simulator on the engine itself: a model that runs, real pages, a real clock.
//
//   engine_sweep MODEL [--requests N] [--clients N] [--memory N] [--threads N] [--json]
//   engine_sweep MODEL --stack [--admission use|reserve] [...]
//
// Prints two tables: what the stop mark trades, and what the size of a page costs. Each client sends its next request
// when its last one has ended; lengths are those of the simulator (log-normal, mean 830, at most 4,096), and the memory
// holds --memory sequences of the mean length. Tokens are random, so nothing is shared and no text ends early.
//
// With --stack, one table: what pages, codecs and cached prefixes add to each other in the same memory, which holds
// --memory whole contexts of 8,192 tokens. Requests have prompts of 1,024 tokens, of which the first half is the same
// in all, and answers of 512. "contiguous" admits as many at a time as whole contexts fit.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "simulated_server.h"

namespace kvasir::bench {
namespace {

// Tokens at the beginning of vocabularies that are not used.
constexpr int kSpecial = 256;

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  int requests = 128;
  int clients = 24;
  int memory = 16;  // sequences of the mean length, or whole contexts
  int threads = 0;
  bool stack = false;
  Admission admission = Admission::kUse;
  bool json = false;
};

// What a run has beside its requests.
struct Setup {
  std::uint64_t memory = 0;
  int page_slots = 32;
  double stop_mark = 0.90;
  std::string kv_type = "f16";
  bool shares_prefixes = false;
  int most_running = 64;
};

// Of --stack.
constexpr int kContext = 8192;
constexpr int kPrompt = 1024;
constexpr int kSharedPrompt = 512;
constexpr int kAnswer = 512;

struct Figures {
  double mean_batch = 0;
  double tokens_per_second = 0;
  double preemptions_per_minute = 0;
  double recomputed = 0;  // share of the generated tokens
  Histogram gaps;
  double most_gap = 0;
  double usage = 0;        // bytes that requests hold, of the memory
  double utilisation = 0;  // bytes of live tokens, of those that requests hold
};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

template <class T>
T value_or_exit(Result<T> result) {
  if (result.ok()) return std::move(*result);
  fmt::print(stderr, "engine_sweep: {}\n", result.status().message());
  std::exit(1);
}

struct ModelFigures {
  std::uint64_t token_bytes = 0;  // keys and values of a token in all layers
  int vocabulary = 0;
};

ModelFigures figures_of(const Options& options, const std::string& kv_type = "f16") {
  EngineOptions engine;
  engine.model = options.model;
  engine.kv_type = kv_type;
  engine.kv_memory = std::uint64_t{1} << 20;
  const auto probe = value_or_exit(Engine::open(engine));
  const RequestPlan plan = value_or_exit(probe->plan({.policy = "full", .prompt = 1, .max_tokens = 1}));
  if (probe->model().vocabulary <= kSpecial) {
    fmt::print(stderr, "engine_sweep: a vocabulary of {} tokens is too small\n", probe->model().vocabulary);
    std::exit(1);
  }
  return {plan.bytes_per_token, probe->model().vocabulary};
}

// Keeps as many requests in an engine as there are clients, until all have ended.
class Run {
 public:
  Run(const Options& options, const ModelFigures& model, const Setup& setup)
      : options_(options), model_(model), memory_(setup.memory) {
    EngineOptions engine;
    engine.model = options.model;
    engine.threads = options.threads;
    engine.page_slots = setup.page_slots;
    engine.kv_type = setup.kv_type;
    engine.scheduler.stop_mark = setup.stop_mark;
    engine.scheduler.preempt_mark = std::max(engine.scheduler.preempt_mark, setup.stop_mark);
    engine.scheduler.max_running = setup.most_running;
    engine.scheduler.admission = options.admission;
    engine.kv_memory = setup.memory;
    if (setup.shares_prefixes) engine.prefix_memory = setup.memory;
    engine_ = value_or_exit(Engine::open(engine));
  }

  Figures measure() {
    const auto began = Clock::now();
    for (int client = 0; client < options_.clients; ++client) submit();
    auto before = began;
    double batch = 0, held = 0, live = 0;
    while (engine_->unfinished() > 0) {
      const auto events = value_or_exit(engine_->poll());
      const auto now = Clock::now();
      const double seconds = seconds_between(before, now);
      before = now;
      for (const Event& event : events) note(event, now);
      const EngineReport report = engine_->report();
      batch += seconds * static_cast<double>(report.running);
      held += seconds * static_cast<double>(report.request_bytes);
      for (const SequenceView& sequence : engine_->sequences(0, 4096).sequences)
        live += seconds * static_cast<double>(sequence.kept) * static_cast<double>(model_.token_bytes);
    }
    const double all = seconds_between(began, before);
    const EngineReport report = engine_->report();
    result_.mean_batch = batch / all;
    result_.tokens_per_second = static_cast<double>(report.generated_tokens) / all;
    result_.preemptions_per_minute = static_cast<double>(report.preemptions) / all * 60;
    result_.recomputed = static_cast<double>(report.recomputed_tokens) / static_cast<double>(report.generated_tokens);
    result_.usage = held / all / static_cast<double>(memory_);
    result_.utilisation = live / held;
    return result_;
  }

 private:
  void submit() {
    if (submitted_ == options_.requests) return;
    ++submitted_;
    const Lengths::Request length = options_.stack ? Lengths::Request{kPrompt, kAnswer} : lengths_.next();
    RequestOptions request;
    request.policy = "full";
    request.generate = {.max_tokens = length.answer, .ignore_eos = true};
    request.generate.sampling.temperature = 0;
    const auto random_token = [&](std::mt19937& random) {
      return static_cast<std::int32_t>(random() % static_cast<unsigned>(model_.vocabulary - kSpecial)) + kSpecial;
    };
    std::mt19937 shared(2);
    while (std::ssize(request.tokens) < length.prompt)
      request.tokens.push_back(
          random_token(options_.stack && std::ssize(request.tokens) < kSharedPrompt ? shared : random_));
    value_or_exit(engine_->submit(request));
  }

  void note(const Event& event, Clock::time_point now) {
    if (event.kind == Event::Kind::kText) {
      const auto [last, first] = newest_.try_emplace(event.request, now);
      if (!first) {
        const double gap = seconds_between(std::exchange(last->second, now), now);
        result_.gaps.add(gap);
        result_.most_gap = std::max(result_.most_gap, gap);
      }
    } else if (event.kind == Event::Kind::kFinished || event.kind == Event::Kind::kFailed) {
      newest_.erase(event.request);
      submit();
    }
  }

  const Options& options_;
  const ModelFigures& model_;
  Lengths lengths_{Workload{}, 1};
  std::mt19937 random_{1};
  std::uint64_t memory_;
  std::unique_ptr<Engine> engine_;
  int submitted_ = 0;
  std::map<RequestId, Clock::time_point> newest_;
  Figures result_;
};

void print_row(const std::string& name, const Figures& result) {
  fmt::print("| {:>5} | {:10.1f} | {:8.0f} | {:15.2f} | {:12.1f} | {:10.0f} | {:14.0f} | {:7.1f} | {:13.2f} |\n", name,
             result.mean_batch, result.tokens_per_second, result.preemptions_per_minute, result.recomputed * 100,
             result.gaps.quantile(0.99) * 1000, result.most_gap * 1000, result.usage * 100, result.utilisation * 100);
  std::fflush(stdout);
}

void print_head(const char* name) {
  fmt::print(
      "| {} | mean batch | tokens/s | preemptions/min | recomputed % | p99 gap ms | longest gap ms | usage % | "
      "utilisation % |\n|---|---|---|---|---|---|---|---|---|\n",
      name);
}

nlohmann::json json_of(const Figures& result) {
  return {{"mean_batch", result.mean_batch},
          {"tokens_per_second", result.tokens_per_second},
          {"preemptions_per_minute", result.preemptions_per_minute},
          {"recomputed", result.recomputed},
          {"gap_p99_seconds", result.gaps.quantile(0.99)},
          {"gap_most_seconds", result.most_gap},
          {"usage", result.usage},
          {"utilisation", result.utilisation}};
}

int run(const Options& options) {
  const ModelFigures model = figures_of(options);
  nlohmann::json all;
  const auto sweep = [&](const char* name, const auto& values, const auto& measure) {
    if (!options.json) print_head(name);
    for (const auto value : values) {
      const Figures result = measure(value);
      const std::string label = value < 1 ? fmt::format("{:.0f}%", value * 100.0) : fmt::format("{}", value);
      if (!options.json) print_row(label, result);
      all[name].push_back(json_of(result));
      all[name].back()["value"] = value;
    }
    if (!options.json) fmt::print("\n");
  };
  const std::uint64_t memory =
      static_cast<std::uint64_t>(static_cast<double>(options.memory) * Workload().mean) * model.token_bytes;
  sweep("stop mark", std::vector{0.70, 0.85, 0.90, 0.95, 0.98},
        [&](double mark) { return Run(options, model, {.memory = memory, .stop_mark = mark}).measure(); });
  sweep("tokens in a page", std::vector{16, 32, 64},
        [&](int slots) { return Run(options, model, {.memory = memory, .page_slots = slots}).measure(); });
  if (options.json) fmt::print("{}\n", all.dump(1));
  return 0;
}

int run_stack(const Options& options) {
  const std::uint64_t context = figures_of(options).token_bytes * kContext;
  const std::uint64_t memory = context * static_cast<std::uint64_t>(options.memory);
  // Bookkeeping of pages and tables has a place of its own in contiguous memory.
  const std::pair<const char*, Setup> rows[] = {
      {"contiguous f16", {.memory = memory, .stop_mark = 1, .most_running = options.memory}},
      {"paged f16", {.memory = memory, .most_running = options.clients}},
      {"paged q8", {.memory = memory, .kv_type = "q8", .most_running = options.clients}},
      {"paged q8, prefix cache",
       {.memory = memory, .kv_type = "q8", .shares_prefixes = true, .most_running = options.clients}},
      {"paged q4, prefix cache",
       {.memory = memory, .kv_type = "q4", .shares_prefixes = true, .most_running = options.clients}}};
  nlohmann::json all = nlohmann::json::array();
  if (!options.json)
    fmt::print(
        "| | mean batch | tokens/s | gap p50 / p99 ms | recomputed % | usage % | utilisation % |\n"
        "|---|---|---|---|---|---|---|\n");
  for (const auto& [name, setup] : rows) {
    const Figures result = Run(options, figures_of(options, setup.kv_type), setup).measure();
    if (!options.json)
      fmt::print("| {} | {:.1f} | {:.0f} | {:.0f} / {:.0f} | {:.1f} | {:.1f} | {:.1f} |\n", name, result.mean_batch,
                 result.tokens_per_second, result.gaps.quantile(0.50) * 1000, result.gaps.quantile(0.99) * 1000,
                 result.recomputed * 100, result.usage * 100, result.utilisation * 100);
    std::fflush(stdout);
    all.push_back(json_of(result));
    all.back()["gap_p50_seconds"] = result.gaps.quantile(0.50);
    all.back()["row"] = name;
  }
  if (options.json) fmt::print("{}\n", all.dump(1));
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int count, char** arguments) {
  kvasir::bench::Options options;
  CLI::App program{"Watermark and page-size sweeps on the engine itself."};
  program.add_option("model", options.model, "Model with a trained context of 4,096 tokens or more")->required();
  program.add_option("--requests", options.requests)->capture_default_str()->check(CLI::Range(1, 1'000'000));
  program.add_option("--clients", options.clients)->capture_default_str()->check(CLI::Range(1, 4096));
  program
      .add_option("--memory", options.memory,
                  "Sequences of the mean length that the KV memory holds; with --stack whole contexts")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  program.add_flag("--stack", options.stack, "Pages, codecs and cached prefixes, one after the other");
  program.add_option("--admission", options.admission, "As that of serve")
      ->transform(CLI::CheckedTransformer(std::map<std::string, kvasir::Admission>{
          {"use", kvasir::Admission::kUse}, {"reserve", kvasir::Admission::kReserve}}));
  program.add_option("-t,--threads", options.threads)->capture_default_str()->check(CLI::Range(0, 256));
  program.add_flag("--json", options.json);
  CLI11_PARSE(program, count, arguments);
  return options.stack ? kvasir::bench::run_stack(options) : kvasir::bench::run(options);
}
