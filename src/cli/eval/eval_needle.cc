// kvasir eval needle: recall of a fact by length of the text and depth of the fact.
#include <fmt/core.h>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/eval/eval_report.h"
#include "cli/signals.h"
#include "eval/needle.h"

namespace kvasir::cli {
namespace {

struct NeedleCommand {
  EngineOptions engine;
  std::string file;
  std::vector<std::string> policies;
  std::string demote;
  std::vector<std::string> kv_types;
  NeedleOptions needle;
  int chunk = 256;
  std::string report;
  bool json = false;
};

Json to_json(const NeedleResult& r) {
  Json cells = Json::array();
  for (const NeedleCell& cell : r.cells)
    cells.push_back({{"length", cell.length},
                     {"depth", cell.depth},
                     {"trials", cell.trials},
                     {"exact", cell.exact},
                     {"logprob", cell.logprob}});
  Json json{{"policy", r.policy},       {"codec", r.codec},       {"exact", r.exact},
            {"logprob", r.logprob},     {"kept_max", r.kept_max}, {"kv_bytes_peak", r.kv_bytes_peak},
            {"cells", std::move(cells)}};
  if (r.recall_rows > 0)
    json["demotion"] = {
        {"recalled", r.recalled}, {"fetched", r.fetched}, {"rows", r.recall_rows}, {"wait_seconds", r.wait_seconds}};
  return json;
}

// Formats a table with a row per length and a column per depth.
std::string table(const NeedleResult& r, const NeedleOptions& options) {
  std::string out = fmt::format("{} ({}; KV peak {}, kept max {}): exact match, mean log-probability in nats\n{:>9}",
                                r.policy, r.codec, human_bytes(r.kv_bytes_peak), r.kept_max, "length");
  for (const double depth : options.depths) out += fmt::format("  {:>14}", fmt::format("depth {:g}", depth));
  for (std::size_t i = 0; i < r.cells.size(); ++i) {
    const NeedleCell& cell = r.cells[i];
    if (i % options.depths.size() == 0) out += fmt::format("\n{:>9}", cell.length);
    const double logprob = cell.logprob > -5e-4 ? 0 : cell.logprob;  // no "-0.000"
    out += fmt::format("  {:>5.0f}% {:>7.3f}", cell.exact * 100, logprob);
  }
  return out + "\n";
}

Status eval_needle(NeedleCommand options) {
  if (options.policies.empty() && !options.demote.empty()) options.policies.emplace_back();
  for (std::string& policy : options.policies)
    KVASIR_RETURN_IF_ERROR(apply_demote(options.demote, policy, options.engine));
  KVASIR_RETURN_IF_ERROR(check_policies(options.policies, false));
  KVASIR_RETURN_IF_ERROR(check_kv_types(options.kv_types));
  options.engine.kv_type = options.kv_types.front();
  KVASIR_RETURN_IF_ERROR(check_report(options.report, std::vector{options.engine.model, options.file}));
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(options.file));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  KVASIR_RETURN_IF_ERROR(check_kv_types(options.kv_types, *model));
  for (const std::string& policy : options.policies) note_policy(policy, model->config.governed().kv_heads);
  KVASIR_ASSIGN_OR_RETURN(const NeedlePrompts prompts, NeedlePrompts::create(*model->tokenizer, text, options.needle));
  catch_interrupts();
  Json runs = Json::array();
  std::vector<NeedleResult> results;
  for (const std::string& policy : options.policies)
    for (const std::string& type : options.kv_types) {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model->config, type, options.engine.page_slots));
      NeedleResult result;
      {
        ProgressBar bar(printable(run_name(policy, type, options.kv_types.size() > 1), 40));
        KVASIR_ASSIGN_OR_RETURN(
            result,
            evaluate_needle(model, shape, prompts, policy, options.chunk, [&](std::int64_t done, std::int64_t total) {
              bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
              return !interrupted();
            }));
      }
      if (type == options.kv_types.front()) note_beyond_context(result.policy, result.kept_max, model->config.context);
      runs.push_back(to_json(result));
      if (!options.json) KVASIR_RETURN_IF_ERROR(print(table(result, prompts.options())));
      results.push_back(std::move(result));
    }
  if (!options.report.empty())
    KVASIR_RETURN_IF_ERROR(write_report(needle_report(*model, prompts.options(), results), options.report));
  if (!options.json) return {};
  const NeedleOptions& asked = prompts.options();
  return print_json({{"model", options.engine.model},
                     {"isa", model->kernels->name},
                     {"threads", model->threads->threads()},
                     {"chunk", options.chunk},
                     {"seed", asked.seed},
                     {"trials", asked.trials},
                     {"fact", asked.fact},
                     {"ask", asked.ask},
                     {"lengths", asked.lengths},
                     {"depths", asked.depths},
                     {"runs", runs}});
}

}  // namespace

void add_eval_needle(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<NeedleCommand>();
  CLI::App* command = eval.add_subcommand("needle", "Recall of a fact, by length of the text and depth of the fact");
  add_engine_options(*command, options->engine, options->kv_types);
  add_kv_memory_option(*command, options->engine);
  add_text_option(*command, options->file, "Filler: a text in which the fact is hidden");
  add_policies_option(*command, options->policies);
  add_demote_options(*command, options->demote, options->engine);
  command
      ->add_option(
          "--lengths", options->needle.lengths,
          "Tokens of a prompt, exactly: filler, cut in front of the question, fact and question, and the token "
          "for the beginning; several, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option(
          "--depths", options->needle.depths,
          "Where in the filler the fact stands, 0 (front) to 1 (end), at the nearest end of a sentence; several, "
          "by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--trials", options->needle.trials, "Prompts of each length and depth")->capture_default_str();
  command->add_option("--seed", options->needle.seed, "Of keys, values and the stretch of filler")
      ->capture_default_str();
  command
      ->add_option("--fact", options->needle.fact,
                   "The fact; {key} becomes two random words, {value} five random digits")
      ->capture_default_str();
  command
      ->add_option("--ask", options->needle.ask,
                   "The question; {value}, at its end or understood there, is what must be answered")
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Prompt tokens per forward pass")->capture_default_str();
  add_report_option(*command, options->report);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = eval_needle(*options); });
}

}  // namespace kvasir::cli
