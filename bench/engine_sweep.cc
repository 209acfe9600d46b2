// The watermark and block sweeps of serve_simulator on the engine itself: a model that runs, real pages, a real clock.
//
//   engine_sweep MODEL [--requests N] [--clients N] [--memory N] [--threads N] [--json]
//
// Prints two tables: what the stop mark trades, and what the size of a page costs. Each client sends its next request
// when its last one has ended; lengths are those of the simulator (log-normal, mean 830, at most 4,096), and the memory
// holds --memory sequences of the mean length. Tokens are random, so nothing is shared and no text ends early.
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
  int memory = 16;  // sequences of the mean length
  int threads = 0;
  bool json = false;
};

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

ModelFigures figures_of(const Options& options) {
  EngineOptions engine;
  engine.model = options.model;
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
  Run(const Options& options, const ModelFigures& model, int page_slots, double stop_mark)
      : options_(options), model_(model), lengths_(workload_, 1) {
    EngineOptions engine;
    engine.model = options.model;
    engine.threads = options.threads;
    engine.page_slots = page_slots;
    engine.scheduler.stop_mark = stop_mark;
    memory_ = static_cast<std::uint64_t>(options.memory * workload_.mean) * model.token_bytes;
    engine.kv_memory = memory_;
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
    const Lengths::Request length = lengths_.next();
    RequestOptions request;
    request.policy = "full";
    request.generate = {.max_tokens = length.answer, .ignore_eos = true};
    request.generate.sampling.temperature = 0;
    for (int i = 0; i < length.prompt; ++i)
      request.tokens.push_back(
          static_cast<std::int32_t>(random_() % static_cast<unsigned>(model_.vocabulary - kSpecial)) + kSpecial);
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
  const Workload workload_;
  Lengths lengths_;
  std::mt19937 random_{1};
  std::uint64_t memory_ = 0;
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
  sweep("stop mark", std::vector{0.70, 0.85, 0.90, 0.95, 0.98},
        [&](double mark) { return Run(options, model, 32, mark).measure(); });
  sweep("tokens in a page", std::vector{16, 32, 64},
        [&](int slots) { return Run(options, model, slots, 0.90).measure(); });
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
  program.add_option("--memory", options.memory, "Sequences of the mean length that the KV memory holds")
      ->capture_default_str()
      ->check(CLI::Range(5, 4096));
  program.add_option("-t,--threads", options.threads)->capture_default_str()->check(CLI::Range(0, 256));
  program.add_flag("--json", options.json);
  CLI11_PARSE(program, count, arguments);
  return kvasir::bench::run(options);
}
