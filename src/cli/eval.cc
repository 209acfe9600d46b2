// kvasir eval: quality of policies and codecs.
#include <fmt/core.h>

#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "eval/perplexity.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

struct EvalOptions {
  EngineOptions engine;
  std::string file;
  std::vector<std::string> policies;
  std::int64_t tokens = 0;
  std::int64_t windows = 0;
  PerplexityOptions perplexity;
  bool json = false;
};

Json to_json(const PerplexityResult& r) {
  return {{"policy", r.policy},
          {"codec", r.codec},
          {"tokens", r.tokens},
          {"ppl", r.ppl},
          {"ppl_error", r.ppl_error},
          {"nll", r.nll},
          {"kv_bytes_peak", r.kv_bytes_peak},
          {"kept_max", r.kept_max},
          {"tpot_ms", r.tpot_ms},
          {"tpot_p10_ms", r.tpot_p10_ms},
          {"tpot_p90_ms", r.tpot_p90_ms},
          {"forward_ms", r.forward_ms},
          {"cache_op_ms", r.cache_op_ms},
          {"timed_passes", r.timed}};
}

Status eval_perplexity(EvalOptions options) {
  if (options.tokens < 0 || options.windows < 0 || options.perplexity.first_scored < 0)
    return invalid_argument("--tokens, --windows and --skip count something; they cannot be negative");
  if (options.policies.empty()) options.policies = {"full"};
  for (const std::string& policy : options.policies) {
    KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(policy));
    if (!find_policy(spec.name())->evaluation_only) KVASIR_RETURN_IF_ERROR(make_policy(policy).status());
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_file(options.file, std::size_t{1} << 30));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, load_model(options.engine, {}));
  KVASIR_ASSIGN_OR_RETURN(std::vector<TokenValue> tokens, model->tokenizer->encode(text, {}));
  if (options.windows > 0) {
    if (options.perplexity.window <= 0) return invalid_argument("--windows needs --window, their length in tokens");
    if (options.windows > static_cast<std::int64_t>(tokens.size()) / options.perplexity.window)
      return invalid_argument("the text has {} tokens, not {} windows of {}; give a longer text", tokens.size(),
                              options.windows, options.perplexity.window);
    options.tokens = options.windows * options.perplexity.window;
  }
  if (options.tokens > 0) {
    if (static_cast<std::int64_t>(tokens.size()) < options.tokens)
      return invalid_argument("the text has {} tokens, not the {} asked for; give a longer text", tokens.size(),
                              options.tokens);
    tokens.resize(static_cast<std::size_t>(options.tokens));
  }
  catch_interrupts();
  Json runs = Json::array();
  std::string header = fmt::format("{:<52} {:>5} {:>7} {:>9} {:>7} {:>10} {:>8} {:>9} {:>9} {:>9}\n", "policy", "codec",
                                   "tokens", "ppl", "+-", "KV peak", "kept max", "ms/token", "forward", "cache");
  for (const std::string& policy : options.policies) {
    PerplexityOptions one = options.perplexity;
    one.policy = policy;
    PerplexityResult result;
    {
      ProgressBar bar(printable(policy, 40));
      KVASIR_ASSIGN_OR_RETURN(
          result, evaluate_perplexity(model, tokens, one, [&](std::int64_t done, std::int64_t total) {
            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
            return !interrupted();
          }));
    }
    runs.push_back(to_json(result));
    if (!options.json)
      KVASIR_RETURN_IF_ERROR(print(fmt::format(
          "{}{:<52} {:>5} {:>7} {:>9.3f} {:>7.3f} {:>10} {:>8} {:>9.3f} {:>9.3f} {:>9.4f}\n", std::exchange(header, {}),
          result.policy, result.codec, result.tokens, result.ppl, result.ppl_error, human_bytes(result.kv_bytes_peak),
          result.kept_max, result.tpot_ms, result.forward_ms, result.cache_op_ms)));
  }
  if (options.json)
    return print_json({{"model", options.engine.model},
                       {"isa", model->kernels->name},
                       {"threads", model->threads->threads()},
                       {"chunk", options.perplexity.chunk},
                       {"window", options.perplexity.window},
                       {"runs", runs}});
  return {};
}

}  // namespace

void add_eval(CLI::App& program, Outcome& outcome) {
  CLI::App* eval = program.add_subcommand("eval", "Quality of policies and codecs");
  eval->require_subcommand(1);
  auto options = std::make_shared<EvalOptions>();
  auto chunk = std::make_shared<std::optional<int>>();
  CLI::App* command = eval->add_subcommand("ppl", "Perplexity of a text under one or several policies");
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  command->add_option("-f,--file", options->file, "Text to score; -: standard input")->required();
  command->add_option("--kv", options->policies, "Retention policy; may be repeated, one run each (default: full)")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--tokens", options->tokens, "Tokens of the text to use; 0: all")->capture_default_str();
  command
      ->add_option("--window", options->perplexity.window,
                   "Score windows of this many tokens, each afresh, its second half; 0: one stream")
      ->capture_default_str();
  command->add_option("--windows", options->windows, "How many windows; 0: all")->capture_default_str();
  command->add_option("--skip", options->perplexity.first_scored, "Of one stream: read this many tokens unscored")
      ->capture_default_str();
  command->add_option("--chunk", *chunk, "Tokens per forward pass (default: 1 for one stream, 512 for windows)");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, chunk, &outcome] {
    options->perplexity.chunk = chunk->value_or(options->perplexity.window > 0 ? 512 : 1);
    outcome.status = eval_perplexity(*options);
  });
}

}  // namespace kvasir::cli
