// kvasir replay: runs policies on recorded attention, without a model.
#include "replay/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "replay/trace.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

struct ReplayCommand {
  std::vector<std::string> policies;
  std::string trace;
  std::int64_t prefill = 0;
  std::optional<std::int64_t> chunk;
  std::optional<std::int64_t> kv_heads;
  bool sinks = false;
  bool json = false;
};

struct Run {
  std::string policy;
  ReplayResult result;
};

Result<ReplayOptions> options_of(const ReplayCommand& command) {
  if (command.chunk && command.prefill == 0)
    return invalid_argument("--chunk cuts the prompt that --prefill names; give --prefill too");
  if (command.chunk.value_or(1) < 1) return invalid_argument("--chunk={} must be at least 1", *command.chunk);
  if (command.kv_heads.value_or(1) < 1) return invalid_argument("--kv-heads={} must be at least 1", *command.kv_heads);
  return ReplayOptions{
      .prefill = command.prefill, .chunk = command.chunk.value_or(0), .kv_heads = command.kv_heads.value_or(0)};
}

Status look_through(const AttentionTrace& trace) {
  ProgressBar bar("checking");
  return trace.check([&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "heads");
    return !interrupted();
  });
}

Result<Run> replay_one(const AttentionTrace& trace, const PolicySpec& spec, const ReplayOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(spec));
  ProgressBar bar(printable(spec.text(), 40));
  KVASIR_ASSIGN_OR_RETURN(ReplayResult result,
                          replay(trace, *policy, options, [&](std::int64_t done, std::int64_t total) {
                            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "rows");
                            return !interrupted();
                          }));
  return Run{policy->traits().spec, std::move(result)};
}

bool dropped_any(const ReplayResult& result) {
  return std::ranges::any_of(result.layers, [](const ReplayedLayer& layer) { return layer.figures.prunes > 0; });
}

// -- JSON --

void add_figures(Json& json, const ReplayFigures& figures) {
  json["kept_mean"] = figures.kept_mean;
  json["kept_max"] = figures.kept_max;
  json["recall"] = figures.recall;
  json["prunes"] = figures.prunes;
}

Json to_json(const ReplayedLayer& layer, std::size_t index, bool by_head) {
  Json json = {{"layer", index}};
  if (!by_head) {
    json["final"] = layer.tables.front().final;
    add_figures(json, layer.figures);
    return json;
  }
  Json heads = Json::array();
  for (const ReplayedTable& table : layer.tables) {
    Json head = {{"final", table.final}};
    add_figures(head, table.figures);
    heads.push_back(std::move(head));
  }
  json["heads"] = std::move(heads);
  add_figures(json, layer.figures);
  return json;
}

Json to_json(const AttentionTrace& trace, const Run& run, const ReplayOptions& options) {
  Json layers = Json::array();
  for (const ReplayedLayer& layer : run.result.layers)
    layers.push_back(to_json(layer, layers.size(), run.result.by_head));
  return {{"trace", trace.path()},
          {"policy", run.policy},
          {"tokens", trace.tokens()},
          {"query_heads", trace.heads()},
          {"kv_heads", replayed_kv_heads(trace, options)},
          {"prefill", options.prefill},
          {"chunk", options.chunk > 0 ? options.chunk : options.prefill},
          {"layers", std::move(layers)}};
}

// -- For people --

std::string figures_text(const ReplayFigures& f) {
  return fmt::format("{:>10.2f} {:>9} {:>8.4f} {:>7}", f.kept_mean, f.kept_max, f.recall, f.prunes);
}

constexpr const char* kFiguresHeader = " kept mean  kept max   recall  prunes";

// Pools layers: means, the largest kept_max, and the mean number of prunes.
std::string summary_text(const ReplayResult& result) {
  ReplayFigures all;
  double prunes = 0;
  const auto layers = static_cast<double>(result.layers.size());
  for (const ReplayedLayer& layer : result.layers) {
    all.kept_mean += layer.figures.kept_mean / layers;
    all.kept_max = std::max(all.kept_max, layer.figures.kept_max);
    all.recall += layer.figures.recall / layers;
    prunes += static_cast<double>(layer.figures.prunes) / layers;
  }
  return fmt::format("{:>10.2f} {:>9} {:>8.4f} {:>7.1f}", all.kept_mean, all.kept_max, all.recall, prunes);
}

std::string layers_table(const AttentionTrace& trace, const Run& run) {
  std::string out = fmt::format("{} on {}: layers {}, query heads {}, tokens {}\n\n", run.policy,
                                printable(trace.path(), 200), trace.layers(), trace.heads(), trace.tokens());
  out += fmt::format("{:>5} {}{}  kept at the end\n", "layer", run.result.by_head ? " head " : "", kFiguresHeader);
  for (std::size_t layer = 0; layer < run.result.layers.size(); ++layer)
    for (std::size_t head = 0; head < run.result.layers[layer].tables.size(); ++head) {
      const ReplayedTable& table = run.result.layers[layer].tables[head];
      const std::string which = run.result.by_head ? fmt::format("{:>5} ", head) : "";
      out += fmt::format("{:>5} {}{}  {}\n", layer, which, figures_text(table.figures), id_ranges(table.final, 60));
    }
  if (run.result.layers.size() > 1)
    out += fmt::format("{:>5} {}{}\n", "all", run.result.by_head ? "      " : "", summary_text(run.result));
  return out;
}

// Replays every trace under every policy; prints a line as each is done.
class RunsTable {
 public:
  RunsTable(const std::vector<AttentionTrace>& traces, const std::vector<std::string>& policies) {
    for (const AttentionTrace& trace : traces) trace_width_ = std::max(trace_width_, name_of(trace).size());
    for (const std::string& policy : policies) policy_width_ = std::max(policy_width_, policy.size());
  }

  Status add(const AttentionTrace& trace, const Run& run) {
    std::string out;
    if (!std::exchange(begun_, true))
      out = fmt::format("{:<{}}  {:<{}} {:>6} {:>6} {}\n", "trace", trace_width_, "policy", policy_width_, "layers",
                        "tokens", kFiguresHeader);
    return print(fmt::format("{}{:<{}}  {:<{}} {:>6} {:>6} {}\n", out, name_of(trace), trace_width_, run.policy,
                             policy_width_, trace.layers(), trace.tokens(), summary_text(run.result)));
  }

 private:
  static std::string name_of(const AttentionTrace& trace) {
    return printable(fs::path(trace.path()).filename().string(), 60);
  }

  std::size_t trace_width_ = 5;
  std::size_t policy_width_ = 6;
  bool begun_ = false;
};

Status replay_traces(const ReplayCommand& command) {
  KVASIR_ASSIGN_OR_RETURN(const ReplayOptions options, options_of(command));
  std::vector<PolicySpec> policies;
  std::vector<std::string> specs;  // canonical
  std::vector<std::unique_ptr<RetentionPolicy>> made;
  for (const std::string& policy : command.policies) {
    KVASIR_ASSIGN_OR_RETURN(PolicySpec spec, PolicySpec::parse(policy));
    KVASIR_ASSIGN_OR_RETURN(made.emplace_back(), make_policy(spec));
    policies.push_back(std::move(spec));
    specs.push_back(made.back()->traits().spec);
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> paths, files_at(command.trace, ".npy", "trace"));
  std::vector<AttentionTrace> traces;
  for (const std::string& path : paths) {
    KVASIR_ASSIGN_OR_RETURN(AttentionTrace trace, AttentionTrace::open(path));
    if (command.sinks) trace.allow_sinks();
    KVASIR_RETURN_IF_ERROR(check_replay_options(trace, options));
    for (const auto& policy : made) KVASIR_RETURN_IF_ERROR(check_replayable(trace, *policy, options));
    traces.push_back(std::move(trace));
  }
  catch_interrupts();
  std::error_code error;
  const bool single = specs.size() == 1 && !fs::is_directory(command.trace, error);
  RunsTable table(traces, specs);
  Json runs = Json::array();
  for (const AttentionTrace& trace : traces) KVASIR_RETURN_IF_ERROR(look_through(trace));
  std::int64_t longest = 0;
  for (const AttentionTrace& trace : traces) longest = std::max(longest, trace.tokens());
  std::vector<bool> idle(policies.size(), true);
  for (const AttentionTrace& trace : traces) {
    for (std::size_t i = 0; i < policies.size(); ++i) {
      KVASIR_ASSIGN_OR_RETURN(const Run run, replay_one(trace, policies[i], options));
      idle[i] = idle[i] && specs[i] != "full" && !dropped_any(run.result);
      if (&trace == &traces.back() && idle[i]) note_idle(specs[i], options.prefill, longest);
      if (single) return command.json ? print_json(to_json(trace, run, options)) : print(layers_table(trace, run));
      if (!command.json) KVASIR_RETURN_IF_ERROR(table.add(trace, run));
      if (command.json) runs.push_back(to_json(trace, run, options));
    }
  }
  return command.json ? print_json({{"runs", std::move(runs)}}) : Status();
}

}  // namespace

void add_replay(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<ReplayCommand>();
  CLI::App* command = program.add_subcommand("replay", "What policies keep of recorded attention, without a model");
  command->add_option("--policy", options->policies, "Retention policy (see 'kvasir policies'); may be repeated")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option("--trace", options->trace,
                   "NumPy file of attention weights, float32 [layers, heads, T, T]; or a folder of such files")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--prefill", options->prefill, "The first tokens that are a prompt; the others come one at a time")
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Tokens of the prompt per pass (default: the whole prompt)");
  command->add_option("--kv-heads", options->kv_heads,
                      "KV heads that share the query heads (default: those recorded, else one for each query head)");
  command->add_flag("--sinks", options->sinks,
                    "Rows may sum to less than 1: the model has attention sinks, which take the rest (gpt-oss)");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = replay_traces(*options); });
}

}  // namespace kvasir::cli
