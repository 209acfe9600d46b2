// kvasir bench: measures the speed of a model on this machine.
#include <fmt/core.h>

#include "base/counted.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "eval/speed.h"

namespace kvasir::cli {
namespace {

struct BenchOptions {
  EngineOptions engine;
  SpeedOptions speed;
  bool json = false;
};

Status bench(BenchOptions options) {
  if (options.speed.batches != SpeedOptions{}.batches && options.speed.decode == 0 && options.speed.prefill != 0)
    return invalid_argument("--batch is for decoding; omit it, or --decode 0");
  KVASIR_RETURN_IF_ERROR(check_policies(options.speed.policies, false));
  for (const std::string& policy : options.speed.policies)
    KVASIR_RETURN_IF_ERROR(add_demote_dir(policy, options.engine));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  catch_interrupts();
  Speed speed;
  {
    ProgressBar bar("measuring");
    KVASIR_ASSIGN_OR_RETURN(speed, measure_speed(model, options.speed, [&](std::int64_t done, std::int64_t total) {
                              bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
                              return !interrupted();
                            }));
  }
  if (options.json) {
    Json list = Json::array();
    for (const SpeedFigure& f : speed.figures)
      list.push_back({{"policy", f.policy},
                      {"test", f.name},
                      {"depth", f.depth},
                      {"batch", f.batch},
                      {"tokens", f.tokens},
                      {"tokens_per_s", f.median},
                      {"lowest", f.lowest},
                      {"highest", f.highest},
                      {"slowdown", f.slowdown},
                      {"gigabytes_per_s", f.gigabytes_per_s},
                      {"kv_bytes", f.kv_bytes}});
    return print_json({{"model", options.engine.model},
                       {"isa", model->kernels->name},
                       {"threads", model->threads->threads()},
                       {"codec", options.engine.kv_type},
                       {"repeat", options.speed.repeat},
                       {"read_gigabytes_per_s", speed.read_gigabytes_per_s},
                       {"figures", list}});
  }
  std::string out = fmt::format("{} on {}, kernels {}, {} pages; median of {} (lowest to highest)\n",
                                printable(options.engine.model, 200), counted(model->threads->threads(), "thread"),
                                model->kernels->name, options.engine.kv_type, options.speed.repeat);
  std::string policy;
  for (const SpeedFigure& f : speed.figures) {
    if (f.policy != policy) out += fmt::format("\n{}\n", policy = f.policy);
    const std::string sequences = f.batch > 1 ? fmt::format(" x {:>3}", f.batch) : "";
    out += fmt::format("  {:<8} {:>6} tokens{} at depth {:>7}: {:>9.2f} tokens/s  ({:.2f} to {:.2f})", f.name, f.tokens,
                       sequences, f.depth, f.median, f.lowest, f.highest);
    if (options.speed.policies.size() > 1) out += fmt::format(", {:.3f} of the first's time", f.slowdown);
    if (f.gigabytes_per_s > 0)
      out += fmt::format(", {:.1f} GB/s of weights and KV ({:.0f}%)", f.gigabytes_per_s,
                         100 * f.gigabytes_per_s / speed.read_gigabytes_per_s);
    out += "\n";
  }
  out += fmt::format("\n{} read {:.1f} GB/s of memory when they do nothing else (100%)\n",
                     model->threads->threads() == 1 ? "One thread can" : "These threads", speed.read_gigabytes_per_s);
  return print(out);
}

}  // namespace

void add_bench(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<BenchOptions>();
  options->speed.policies.clear();
  CLI::App* command = program.add_subcommand("bench", "Speed: prefill and decoding at depths, and of memory");
  add_engine_options(*command, options->engine);
  add_chunk_option(*command, options->engine);
  command->add_option("--prefill", options->speed.prefill, "Prompt tokens; 0: not measured")->capture_default_str();
  command->add_option("--decode", options->speed.decode, "Tokens generated per repetition; 0: not measured")
      ->capture_default_str();
  command
      ->add_option("--depth", options->speed.depths,
                   "Tokens in the cache when a measurement starts; several, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--batch", options->speed.batches, "Sequences that decode side by side; several, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--repeat", options->speed.repeat, "Repetitions")->capture_default_str();
  add_policies_option(*command, options->speed.policies);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = bench(*options); });
}

}  // namespace kvasir::cli
