// kvasir eval advise: measures some policies on a user's own model and text, and says which to take for what.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/counted.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "eval/needle.h"
#include "eval/perplexity.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

struct AdviseCommand {
  EngineOptions engine;
  std::string file;
  std::int64_t tokens = 1024;
  std::vector<int> keep = {25};  // percent
  int trials = 8;
  bool json = false;
};

// A policy at a size. {} stands for the tokens that it keeps.
struct Candidate {
  std::string_view spec;
  bool waits = false;    // it prunes when the question is there, and looks at it
  bool bounded = false;  // memory while a prompt is read does not grow with it
};
constexpr Candidate kCandidates[] = {
    {"streaming:cap={}", false, true},
    {"tova:budget={}", false, true},
    {"h2o:budget={},sinks=4", false, true},
    {"snapkv:budget={}", true, false},
    {"pyramidkv:budget={}", true, false},
    {"cake:budget={}", true, false},
    {"keydiff:budget={},sinks=4,recent=32,prompt=blocks", false, true},
    {"expected:budget={},recent=32", false, false},
};

struct Measured {
  std::string policy;
  Candidate candidate;
  std::int64_t keeps = 0;
  double kld = 0;           // nats per token behind a prompt
  double found = 0;         // share of the facts asked for at the end of a prompt
  double ms = 0;            // median per token behind the prompt
  std::uint64_t bytes = 0;  // of the sequence at its peak
};

class Advice {
 public:
  Advice(AdviseCommand options, std::shared_ptr<LoadedModel> model)
      : options_(std::move(options)), model_(std::move(model)) {}

  Status measure(const std::string& text) {
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model_->tokenizer->encode(text, {}));
    const std::int64_t window = options_.tokens;
    if (std::ssize(tokens) < 2 * window)
      return invalid_argument(
          "the text has {}, too few for two windows of {}: give a longer text or a smaller --tokens",
          counted(std::ssize(tokens), "token"), window);
    tokens.resize(static_cast<std::size_t>(2 * window));
    NeedleOptions needle;
    needle.lengths = {window};
    needle.depths = {0.1, 0.4, 0.7};
    needle.trials = options_.trials;
    KVASIR_ASSIGN_OR_RETURN(const NeedlePrompts prompts, NeedlePrompts::create(*model_->tokenizer, text, needle));
    KVASIR_ASSIGN_OR_RETURN(const NeedleResult full, find("full", prompts));
    full_found_ = full.exact;
    const std::size_t count = options_.keep.size() * std::size(kCandidates);
    std::size_t number = 0;
    for (const int percent : options_.keep)
      for (const Candidate& candidate : kCandidates) {
        step_ = fmt::format("{} of {}, ", ++number, count);
        const std::int64_t keeps = window * percent / 100;
        const std::string spec = fmt::format(fmt::runtime(candidate.spec), keeps);
        if (const auto made = make_policy(spec); !made.ok()) continue;  // too small for its window
        KVASIR_RETURN_IF_ERROR(measure(spec, candidate, keeps, tokens, prompts));
      }
    if (all_.empty()) return invalid_argument("no policy can keep so few tokens; give a larger --keep or --tokens");
    return {};
  }

  // Returns the table; empty before the first policy was measured.
  std::string rows() const {
    if (all_.empty()) return {};
    std::string out = fmt::format("{:<52} {:>6} {:>9} {:>7} {:>9} {:>8}\n", "policy", "keeps", "KL, nats", "found",
                                  "KV peak", "ms/token");
    for (const Measured& one : all_)
      out += fmt::format("{:<52} {:>6} {:>9.4f} {:>6.0f}% {:>9} {:>8.2f}\n", one.policy, one.keeps, one.kld,
                         one.found * 100, human_bytes(one.bytes), one.ms);
    return out;
  }

  std::string text() const {
    std::string out = rows();
    out += fmt::format(
        "\nKL: behind a prompt of {}, from the full cache. Found: of {} asked for at the end of a prompt.\n",
        counted(options_.tokens * 3 / 4, "token"), counted(3 * options_.trials, "fact"));
    for (const auto& [purpose, advice] : advices()) out += fmt::format("{}: {}\n", purpose, advice);
    return out;
  }

  Json json() const {
    Json runs = Json::array();
    for (const Measured& one : all_)
      runs.push_back({{"policy", one.policy},
                      {"keeps", one.keeps},
                      {"kld_mean", one.kld},
                      {"found", one.found},
                      {"tpot_ms", one.ms},
                      {"kv_bytes_peak", one.bytes},
                      {"bounded_while_reading", one.candidate.bounded},
                      {"looks_at_the_question", one.candidate.waits}});
    Json advice = Json::object();
    for (const auto& [purpose, said] : advices()) advice[purpose] = said;
    return {{"model", options_.engine.model}, {"tokens", options_.tokens}, {"trials", 3 * options_.trials},
            {"full_found", full_found_},      {"runs", std::move(runs)},   {"advice", std::move(advice)}};
  }

 private:
  Result<NeedleResult> find(const std::string& spec, const NeedlePrompts& prompts) {
    ProgressBar bar(step_ + printable(spec, 40));
    return evaluate_needle(model_, model_->kv_shape, prompts, spec, 256, [&](std::int64_t done, std::int64_t total) {
      bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
      return !interrupted();
    });
  }

  Status measure(const std::string& spec, const Candidate& candidate, std::int64_t keeps,
                 std::span<const TokenId> tokens, const NeedlePrompts& prompts) {
    PerplexityOptions perplexity;
    perplexity.policies = {spec};
    perplexity.window = options_.tokens;
    perplexity.whole_windows = true;
    perplexity.chunk = 256;
    perplexity.prefill = options_.tokens * 3 / 4;
    perplexity.compare_full = true;
    perplexity.parallel = 2;
    std::vector<PerplexityResult> scored;
    {
      ProgressBar bar(step_ + printable(spec, 40));
      KVASIR_ASSIGN_OR_RETURN(
          scored, evaluate_perplexity(model_, tokens, perplexity, [&](std::int64_t done, std::int64_t total) {
            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
            return !interrupted();
          }));
    }
    KVASIR_ASSIGN_OR_RETURN(const NeedleResult needle, find(spec, prompts));
    const PerplexityResult& one = scored.front();
    all_.push_back({one.policy, candidate, keeps, one.full->kld_mean, needle.exact, one.tpot_ms, one.kv_bytes_peak});
    return {};
  }

  // Returns the policy for which `cost` is least, of those that `may`; null: there is none.
  template <class May, class Cost>
  const Measured* least(May may, Cost cost) const {
    const Measured* best = nullptr;
    for (const Measured& one : all_)
      if (may(one) && (best == nullptr || cost(one) < cost(*best))) best = &one;
    return best;
  }

  std::vector<std::pair<std::string, std::string>> advices() const {
    const auto kld = [](const Measured& one) { return one.kld; };
    const auto named = [](const Measured* one) { return one == nullptr ? "none" : "--kv " + one->policy; };
    std::vector<std::pair<std::string, std::string>> all;
    const bool finds = full_found_ >= 0.9;
    // The policy that keeps least, of those that find almost as much as the full cache.
    const Measured* asks = least([&](const Measured& one) { return one.found >= 0.95 * full_found_; },
                                 [](const Measured& one) { return std::pair(one.keeps, one.kld); });
    all.emplace_back(
        "to ask at the end of a text",
        !finds ? fmt::format("the full cache finds {:.0f}% itself, so facts tell nothing here", full_found_ * 100)
        : asks == nullptr ? "none of these finds the facts; keep more, or take full"
                          : named(asks));
    std::vector<std::int64_t> sizes;
    for (const Measured& one : all_)
      if (std::ranges::find(sizes, one.keeps) == sizes.end()) sizes.push_back(one.keeps);
    for (const std::int64_t keeps : sizes) {
      const std::string keeping = sizes.size() > 1 ? fmt::format(", keeping {}", keeps) : "";
      const auto equal = [keeps](const Measured& one) { return one.keeps == keeps; };
      const auto bounded = [&](const Measured& one) { return equal(one) && one.candidate.bounded; };
      all.emplace_back("to go on with a text" + keeping, named(least(equal, kld)));
      all.emplace_back("to go on with a text longer than memory" + keeping, named(least(bounded, kld)));
    }
    return all;
  }

  AdviseCommand options_;
  std::shared_ptr<LoadedModel> model_;
  std::vector<Measured> all_;
  double full_found_ = 0;
  std::string step_;  // for the progress: which candidate of how many
};

Status advise(AdviseCommand options) {
  for (const int percent : options.keep)
    if (percent < 1 || percent > 99) return invalid_argument("--keep {} is outside 1 to 99 percent", percent);
  if (options.tokens < 128 || options.tokens > (1 << 20))
    return invalid_argument("--tokens {} is outside 128 to 1048576", options.tokens);
  if (options.trials < 1 || options.trials > 1000)
    return invalid_argument("--trials {} is outside 1 to 1000", options.trials);
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(options.file));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  if (const std::int64_t context = model->config.context; context > 0 && options.tokens >= context)
    return invalid_argument("--tokens {} must be below the trained context of {}", options.tokens, context);
  catch_interrupts();
  Advice advice(options, model);
  if (const Status status = advice.measure(text); !status.ok()) {
    // What was measured so far, of a run that was stopped.
    if (status.code() == StatusCode::kCancelled && !options.json) KVASIR_RETURN_IF_ERROR(print(advice.rows()));
    return status;
  }
  return options.json ? print_json(advice.json()) : print(advice.text());
}

}  // namespace

void add_eval_advise(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<AdviseCommand>();
  CLI::App* command =
      eval.add_subcommand("advise", "Which policy for this model and text: a short measurement of several");
  add_engine_options(*command, options->engine);
  add_text_option(*command, options->file, "A text like those that the model will read; facts are hidden in it");
  command->add_option("--tokens", options->tokens, "Of a prompt; the text needs twice as many")->capture_default_str();
  command->add_option("--keep", options->keep, "What policies keep of a prompt, in percent; several, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Facts hidden at each of three depths")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = advise(*options); });
}

}  // namespace kvasir::cli
