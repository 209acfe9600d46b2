// kvasir eval restream: perplexity of a text's last tokens when read a second time.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/eval/eval_report.h"
#include "cli/signals.h"
#include "eval/restream.h"

namespace kvasir::cli {
namespace {

struct RestreamCommand {
  EngineOptions engine;
  std::string file;
  std::vector<std::string> policies;
  std::int64_t fill = 0;
  RestreamOptions restream;
  std::string report;
  bool json = false;
};

Json to_json(const RestreamResult& r) {
  Json points = Json::array();
  for (const RestreamPoint& point : r.points)
    points.push_back({{"distance", point.distance},
                      {"tokens", point.tokens},
                      {"first_ppl", point.first_ppl},
                      {"first_nll", point.first_nll},
                      {"ppl", point.ppl},
                      {"nll", point.nll}});
  return {{"policy", r.policy},
          {"codec", r.codec},
          {"kept_max", r.kept_max},
          {"kv_bytes_peak", r.kv_bytes_peak},
          {"distances", std::move(points)}};
}

Status eval_restream(RestreamCommand options) {
  if (options.fill < 0) return invalid_argument("--fill counts tokens; it cannot be negative");
  KVASIR_RETURN_IF_ERROR(check_policies(options.policies, false));
  KVASIR_RETURN_IF_ERROR(check_report(options.report, std::vector{options.engine.model, options.file}));
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(options.file));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model->tokenizer->encode(text, {}));
  if (options.fill > static_cast<std::int64_t>(tokens.size()))
    return invalid_argument("the text has {}, not the {} asked for; give a longer text or a smaller --fill",
                            counted(static_cast<std::int64_t>(tokens.size()), "token"), options.fill);
  if (options.fill > 0) tokens.resize(static_cast<std::size_t>(options.fill));
  std::int64_t most = static_cast<std::int64_t>(tokens.size());
  // A distance beyond the text is refused later.
  if (!options.restream.distances.empty())
    most += std::clamp<std::int64_t>(std::ranges::max(options.restream.distances), 0, std::ssize(tokens));
  std::vector<std::string> noted;
  for (const std::string& policy : options.policies)
    if (note_will_see_beyond(policy, most, model->config.context, "; --fill reads less of the text"))
      noted.push_back(policy);
  catch_interrupts();
  Json runs = Json::array();
  std::vector<RestreamResult> results;
  std::string header = fmt::format("{:<52} {:>5} {:>9} {:>10} {:>10} {:>10} {:>8}\n", "policy", "codec", "distance",
                                   "first ppl", "again ppl", "KV peak", "kept max");
  for (const std::string& policy : options.policies) {
    options.restream.policy = policy;
    RestreamResult result;
    {
      ProgressBar bar(printable(policy, 40), reading_work(policy));
      KVASIR_ASSIGN_OR_RETURN(
          result, evaluate_restream(model, tokens, options.restream, [&](std::int64_t done, std::int64_t total) {
            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
            return !interrupted();
          }));
    }
    if (std::ranges::count(noted, policy) == 0)
      note_beyond_context(result.policy, result.kept_max, model->config.context);
    runs.push_back(to_json(result));
    results.push_back(result);
    if (options.json) continue;
    std::string rows = std::exchange(header, {});
    for (const RestreamPoint& point : result.points)
      rows +=
          fmt::format("{:<52} {:>5} {:>9} {:>10.3f} {:>10.3f} {:>10} {:>8}\n", result.policy, result.codec,
                      point.distance, point.first_ppl, point.ppl, human_bytes(result.kv_bytes_peak), result.kept_max);
    KVASIR_RETURN_IF_ERROR(print(rows));
  }
  if (!options.report.empty())
    KVASIR_RETURN_IF_ERROR(
        write_report(restream_report(*model, static_cast<std::int64_t>(tokens.size()), results), options.report));
  if (!options.json) return {};
  return print_json({{"model", options.engine.model},
                     {"isa", model->kernels->name},
                     {"threads", model->threads->threads()},
                     {"chunk", options.restream.chunk},
                     {"fill", tokens.size()},
                     {"runs", runs}});
}

}  // namespace

void add_eval_restream(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<RestreamCommand>();
  options->restream.distances = {64, 128, 256, 512};
  CLI::App* command =
      eval.add_subcommand("restream", "Perplexity of a text's last tokens read again: how far back the cache reaches");
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_text_option(*command, options->file, "Text to fill the cache with");
  add_policies_option(*command, options->policies);
  command->add_option("--fill", options->fill, "Tokens of the text to read first; 0: all")->capture_default_str();
  command
      ->add_option("--distances", options->restream.distances,
                   "Go back this many tokens and read them again; several, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--chunk", options->restream.chunk, "Tokens per forward pass")->capture_default_str();
  add_report_option(*command, options->report);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = eval_restream(*options); });
}

}  // namespace kvasir::cli
