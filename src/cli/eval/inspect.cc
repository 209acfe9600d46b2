// kvasir inspect: measures attention on a text, and what a policy keeps of it.
#include "eval/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/eval/inspect_report.h"
#include "cli/signals.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

constexpr std::int64_t kDefaultTokens = 1024;
constexpr int kMostMatrices = 6;

struct InspectCommand {
  EngineOptions engine;
  std::string file;
  std::optional<std::int64_t> tokens;
  std::optional<int> chunk;
  std::vector<int> layers;
  InspectOptions inspect;
  std::string report;
  bool for_report = false;  // an option was given that only changes the report
  bool json = false;
};

// Reads the text, cut to the requested length.
Result<std::vector<TokenId>> read_tokens(const InspectCommand& command, const LoadedModel& model) {
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(command.file));
  KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.tokenizer->encode(text, {}));
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (command.tokens.value_or(0) > count)
    return invalid_argument("the text has {}, not the {} asked for; give a longer text or a smaller --tokens",
                            counted(count, "token"), *command.tokens);
  const std::int64_t wanted = command.tokens ? (*command.tokens > 0 ? *command.tokens : count) : kDefaultTokens;
  if (wanted < count) tokens.resize(static_cast<std::size_t>(wanted));
  return tokens;
}

// Returns the layers asked for, or up to kMostMatrices evenly spread ones.
Result<std::vector<int>> matrix_layers(std::vector<int> layers, int count) {
  for (const int layer : layers)
    if (layer < 0 || layer >= count)
      return invalid_argument("--layers {}: the model has layers 0 to {}", layer, count - 1);
  return layers.empty() ? spread_layers(kMostMatrices, count) : layers;
}

// JSON has no NaN: null stands for a missing value.
Json curve(const std::vector<double>& values) {
  Json result = Json::array();
  for (const double value : values) result.push_back(std::isnan(value) ? Json() : Json(value));
  return result;
}

Json square(const std::vector<double>& values) {
  Json rows = Json::array();
  const auto side = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(values.size()))));
  for (std::size_t row = 0; row < side; ++row)
    rows.push_back(curve({values.begin() + static_cast<std::ptrdiff_t>(row * side),
                          values.begin() + static_cast<std::ptrdiff_t>((row + 1) * side)}));
  return rows;
}

Json to_json(const InspectCommand& command, const LoadedModel& model, const InspectResult& result) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const InspectedLayer& layer = result.layers[i];
    Json json = {{"layer", i},
                 {"hoyer_mean", std::isnan(layer.hoyer_mean) ? Json() : Json(layer.hoyer_mean)},
                 {"hoyer", curve(layer.hoyer)},
                 {"seen", curve(layer.kept)},
                 {"drift", curve(layer.drift)},
                 {"locality", curve(layer.locality)},
                 {"by_chance", curve(layer.by_chance)},
                 {"head_similarity", square(layer.similarity)},
                 {"query_head_similarity", square(layer.query_similarity)}};
    add_final(json, result.reading.final[i], result.reading.by_head);
    layers.push_back(std::move(json));
  }
  return {{"model", command.engine.model},
          {"policy", result.reading.policy},
          {"codec", result.reading.codec},
          {"tokens", result.tokens},
          {"query_heads", model.config.governed().heads},
          {"kv_heads", model.config.governed().kv_heads},
          {"prefill", command.inspect.reading.prefill},
          {"chunk", result.reading.chunk},
          {"kept_max", result.reading.kept_max},
          {"top", command.inspect.top},
          {"reference", result.reference},
          {"positions", curve(result.positions)},
          {"lags", result.lags},
          {"layers", std::move(layers)}};
}

std::string text_of(const InspectCommand& command, const InspectResult& result) {
  std::string out;
  for (const std::vector<std::string>& row : inspect_table(result)) {
    out += fmt::format("{:>5}", row.front());
    for (std::size_t column = 1; column < row.size(); ++column) out += fmt::format(" {:>10}", row[column]);
    out += '\n';
  }
  double chance = 0;
  for (const InspectedLayer& layer : result.layers)
    chance += layer.by_chance.front() / static_cast<double>(result.layers.size());
  out += fmt::format(
      "\nsparsity: Hoyer's, of the mass of all heads, 0 to 1; the rest, but kept: overlap of the {} tokens attended to "
      "most{},\nwith the next query's, with those 64 tokens on, in the last quarter with token {}'s, and among KV "
      "heads\n",
      command.inspect.top, std::isnan(chance) ? "" : fmt::format(" ({:.3f} by chance)", chance), result.reference);
  return out;
}

Status inspect(const InspectCommand& command) {
  if (command.tokens.value_or(0) < 0 || command.tokens.value_or(0) > kMostInspectedTokens)
    return invalid_argument("--tokens {} must be from 2 to {}, or 0: all of the text", *command.tokens,
                            kMostInspectedTokens);
  if (command.chunk && command.inspect.reading.prefill == 0)
    return invalid_argument("--chunk cuts the prompt that --prefill names; give --prefill too");
  KVASIR_RETURN_IF_ERROR(make_policy(command.inspect.reading.policy).status());
  EngineOptions engine = command.engine;
  KVASIR_RETURN_IF_ERROR(add_demote_dir(command.inspect.reading.policy, engine));
  KVASIR_RETURN_IF_ERROR(check_report(command.report, std::vector{command.engine.model, command.file}));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(engine));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<int> layers,
                          matrix_layers(command.layers, model->config.governed_layers()));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, read_tokens(command, *model));
  KVASIR_RETURN_IF_ERROR(check_inspect_options(*model, static_cast<std::int64_t>(tokens.size()), command.inspect));
  if (command.for_report && command.report.empty())
    return invalid_argument("--matrix and --layers are for the report; give --report too");
  catch_interrupts();
  InspectResult result;
  {
    ProgressBar bar("inspecting");
    KVASIR_ASSIGN_OR_RETURN(
        result, inspect_attention(model, tokens, command.inspect, [&](std::int64_t done, std::int64_t total) {
          bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
          return !interrupted();
        }));
  }
  if (result.reading.policy != "full" && result.reading.seen_least >= result.tokens)
    note_idle(result.reading.policy, command.inspect.reading.prefill, result.tokens);
  KVASIR_RETURN_IF_ERROR(command.json ? print_json(to_json(command, *model, result)) : print(text_of(command, result)));
  if (command.report.empty()) return {};
  return write_report(inspect_report(*model, command.file, tokens, command.inspect, result, layers), command.report);
}

}  // namespace

void add_inspect(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<InspectCommand>();
  CLI::App* command = program.add_subcommand(
      "inspect", "What attention does on a text: sparsity, drift, heads that agree, and what a policy keeps");
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_text_option(*command, options->file, "Text to read");
  add_policy_option(*command, options->inspect.reading.policy,
                    "Retention policy under which it is read (default: full)");
  command->add_option("--tokens", options->tokens,
                      fmt::format("Tokens of the text to use, at most {}; 0: all (default: the first {}, or fewer)",
                                  kMostInspectedTokens, kDefaultTokens));
  command
      ->add_option("--prefill", options->inspect.reading.prefill,
                   "The first tokens that are a prompt; the others come one at a time, as if generated")
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Tokens of the prompt per pass (default: the policy's own)");
  command->add_option("--top", options->inspect.top, "Tokens of a top set, whose overlap is compared")
      ->capture_default_str();
  command->add_option("--bins", options->inspect.bins, "Points of the curves over position")->capture_default_str();
  command->add_option("--matrix", options->inspect.matrix, "Cells of the report's attention matrices along a side")
      ->capture_default_str();
  command
      ->add_option(
          "--layers", options->layers,
          fmt::format("Layers whose attention matrix the report shows, by commas (default: up to {})", kMostMatrices))
      ->delimiter(',');
  add_report_option(*command, options->report);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, command, &outcome] {
    options->for_report = command->count("--matrix") + command->count("--layers") > 0;
    options->inspect.reading.chunk = options->chunk.value_or(0);
    outcome.status = inspect(*options);
  });
}

}  // namespace kvasir::cli
