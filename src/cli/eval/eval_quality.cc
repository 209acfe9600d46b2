// kvasir eval quality: a promise of quality on texts, and what it costs against fixed budgets.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "cli/text_input.h"
#include "eval/promise.h"
#include "server/api/kv_report_json.h"

namespace kvasir::cli {
namespace {

struct QualityCommand {
  EngineOptions engine;
  std::vector<std::string> files;
  std::string quality;
  std::int64_t tokens = 0;
  PromiseOptions promise;
  bool json = false;
};

double speed(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Seconds of the tokens, and of what the promise adds.
double all_seconds(const PromiseRun& run) {
  return run.policy_seconds + run.reread_seconds + (run.quality ? run.quality->shadow_seconds : 0);
}

Json to_json(const PromiseRun& run) {
  Json json = {{"policy", run.policy},
               {"tokens", run.tokens},
               {"kl_mean", run.kl_mean},
               {"kept_mean", run.kept_mean},
               {"kv_bytes_peak", run.kv_bytes_peak},
               {"policy_seconds", run.policy_seconds},
               {"tokens_per_second", speed(run.tokens, all_seconds(run))}};
  if (!run.quality) return json;
  json["tokens_per_second_without"] = speed(run.tokens, run.policy_seconds);
  json["quality"] = quality_json<Json>(*run.quality);
  json["quality"]["reread_seconds"] = run.reread_seconds;
  return json;
}

constexpr std::string_view kRow = "{:<44} {:>7} {:>9} {:>9} {:>10} {:>9}\n";

std::string row_of(const PromiseRun& run, std::string_view name) {
  return fmt::format(kRow, name, run.tokens, fmt::format("{:.5f}", run.kl_mean), fmt::format("{:.1f}", run.kept_mean),
                     human_bytes(run.kv_bytes_peak), fmt::format("{:.1f}", speed(run.tokens, all_seconds(run))));
}

Status print_result(const std::string& file, int every, const PromiseResult& result) {
  const PromiseRun& run = result.promise;
  const QualityReport& quality = *run.quality;
  std::vector<std::string> budgets;
  for (const QualityReport::Change& change : quality.budgets)
    budgets.push_back(fmt::format("{} at {}", change.budget, change.token));
  std::string out = fmt::format("{}\n", printable(file, 110));
  out += fmt::format(kRow, "policy", "tokens", "mean KL", "kept", "KV peak", "tokens/s");
  out += row_of(run, printable(fmt::format("{}, kl={}", run.policy, quality.kl_bound), 44));
  for (const PromiseRun& fixed : result.fixed) out += row_of(fixed, printable(fixed.policy, 44));
  if (quality.checks == 0) {
    out += fmt::format(
        "The promise compared nothing: the first check comes after every={} tokens, and the text has {} behind the "
        "prompt; give a smaller `every`. Mean KL of all tokens {:.5f}, {:.2f} times the bound.\n",
        every, counted(run.tokens, "token"), run.kl_mean, run.kl_mean / quality.kl_bound);
    return print(out);
  }
  out += fmt::format(
      "The promise compared {} of {} in {}: mean KL {:.5f}, {:.2f} times the bound; of all tokens "
      "{:.5f}, {:.2f} times.\n",
      quality.compared, counted(run.tokens, "token"), counted(quality.checks, "check"), quality.kl_mean,
      quality.kl_mean / quality.kl_bound, run.kl_mean, run.kl_mean / quality.kl_bound);
  out += fmt::format("Budgets, and the token from which on: {}.\n", fmt::join(budgets, ", "));
  out += fmt::format(
      "It cost {:.1f} s for shadow passes over {}, {:.1f} s for {} read again, beside {:.1f} s; a full "
      "cache of up to {}, and {} of rows.\n",
      quality.shadow_seconds, counted(quality.shadow_tokens, "token"), run.reread_seconds,
      counted(quality.reread_tokens, "token"), run.policy_seconds, human_bytes(quality.shadow_bytes),
      human_bytes(quality.rows_bytes));
  if (result.equal_budget)
    out += fmt::format("A fixed budget of some {:.0f} has the same mean KL (interpolated).\n", *result.equal_budget);
  return print(out);
}

Status eval_quality(const CLI::App& command, QualityCommand options) {
  if (const std::size_t policies = command.count("--kv"); policies > 1)
    return invalid_argument("--kv is given {} times, and takes one policy; run each of them", policies);
  if (options.tokens < 0) return invalid_argument("--tokens counts something; it cannot be negative");
  KVASIR_ASSIGN_OR_RETURN(options.promise.quality, parse_quality(options.quality));
  std::vector<std::string> policies = {options.promise.policy};
  KVASIR_RETURN_IF_ERROR(check_policies(policies, false));
  std::vector<std::string> contents;
  for (const std::string& file : options.files) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_text(file));
    contents.push_back(std::move(text));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  std::vector<std::vector<TokenId>> texts;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model->tokenizer->encode(contents[i], {}));
    const std::int64_t used = options.tokens > 0 ? options.tokens : model->config.context;
    if (options.tokens > std::ssize(tokens))
      return invalid_argument("{}: the text has {}, not the {} asked for; give a longer text or a smaller --tokens",
                              printable(options.files[i], 200), counted(std::ssize(tokens), "token"), options.tokens);
    if (used < std::ssize(tokens)) tokens.resize(static_cast<std::size_t>(used));
    KVASIR_RETURN_IF_ERROR(check_promise_prompt(options.promise, std::ssize(tokens)));
    texts.push_back(std::move(tokens));
  }
  catch_interrupts();
  Json runs = Json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<TokenId>& tokens = texts[i];
    PromiseResult result;
    {
      ProgressBar bar(printable(options.files[i], 40));
      KVASIR_ASSIGN_OR_RETURN(
          result, evaluate_promise(model, tokens, options.promise, [&](std::int64_t done, std::int64_t total) {
            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
            return !interrupted();
          }));
    }
    if (!options.json) {
      KVASIR_RETURN_IF_ERROR(print_result(options.files[i], options.promise.quality.every, result));
      continue;
    }
    Json json = {{"file", options.files[i]}, {"promise", to_json(result.promise)}};
    json["fixed"] = Json::array();
    for (std::size_t k = 0; k < result.fixed.size(); ++k) {
      Json fixed = to_json(result.fixed[k]);
      fixed["budget"] = options.promise.fixed[k];
      json["fixed"].push_back(std::move(fixed));
    }
    json["equal_budget"] = result.equal_budget ? Json(*result.equal_budget) : Json();
    json["shadow_bytes_peak"] = result.shadow_bytes_peak;
    runs.push_back(std::move(json));
  }
  if (!options.json) return {};
  return print_json({{"model", options.engine.model},
                     {"isa", model->kernels->name},
                     {"threads", model->threads->threads()},
                     {"prompt", options.promise.prompt},
                     {"runs", runs}});
}

}  // namespace

void add_eval_quality(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<QualityCommand>();
  options->promise.policy = "streaming:sinks=4,window=508";
  options->quality = "kl=0.05";
  CLI::App* command = eval.add_subcommand(
      "quality", "A promise of quality on texts: what holds, and what it costs against fixed budgets");
  add_engine_options(*command, options->engine);
  command
      ->add_option("-f,--file", options->files,
                   "Text whose tokens count as an answer; may be repeated; -: standard input")
      ->required()
      ->type_name("FILE")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--kv", options->promise.policy, "Policy with its first budget (kvasir policies)")
      ->type_name("POLICY")
      ->capture_default_str();
  command
      ->add_option("--quality", options->quality,
                   "The promise: kl=BOUND, and every=, stride=, least=, most= (docs/policies/quality.md)")
      ->capture_default_str();
  command
      ->add_option("--fixed", options->promise.fixed,
                   "Budgets to measure beside it, without a promise; several, by commas")
      ->delimiter(',');
  command->add_option("--prompt", options->promise.prompt, "First tokens of each text, read as a prompt")
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Tokens of each text to use; 0: what the trained context holds")
      ->capture_default_str();
  command->add_option("--chunk", options->promise.chunk, "Tokens of a prompt per forward pass; 0: the policy's own")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, command, &outcome] { outcome.status = eval_quality(*command, *options); });
}

}  // namespace kvasir::cli
