// kvasir eval: quality of policies and codecs. This file has what its subcommands share.
#include "cli/eval/eval.h"

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/text_input.h"
#include "retention/registry.h"

namespace kvasir::cli {

Result<std::shared_ptr<LoadedModel>> open_model(const EngineOptions& options) {
  std::shared_ptr<LoadedModel> model;
  {
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(model, load_model(options, [&](std::uint64_t done, std::uint64_t total) {
                              bar.update(done >> 20, total >> 20, "MiB");
                            }));
  }
  if (options.kv_memory > 0) KVASIR_RETURN_IF_ERROR(check_kv_memory(model->kv_shape, options.kv_memory));
  note_kv_memory(options.kv_memory);
  note_slow_kernels(options.isa, model->kernels->name);
  return model;
}

void add_text_option(CLI::App& command, std::string& file, const std::string& help) {
  command.add_option("-f,--file", file, help + "; -: standard input")->required()->type_name("FILE");
}

Status check_not_empty(std::string_view text) {
  return text.empty() ? invalid_argument("the text is empty; give some text") : Status();
}

Result<std::string> read_text(const std::string& file) {
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_text_file(file));
  KVASIR_RETURN_IF_ERROR(check_not_empty(text));
  return text;
}

Result<std::string> read_named_text(const std::string& file) {
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_text_file(file));
  if (text.empty()) return invalid_argument("'{}' is empty", printable(file, 500));
  return text;
}

void add_policies_option(CLI::App& command, std::vector<std::string>& policies) {
  command.add_option("--kv", policies, "Retention policy; may be repeated, one run each (default: full)")
      ->take_all()
      ->allow_extra_args(false);
}

void add_report_option(CLI::App& command, std::string& file) {
  const auto not_empty = [](std::string& text) { return text.empty() ? "a report needs a file to be written to" : ""; };
  command.add_option("--report", file, "Also write a page with tables and charts that any browser opens")
      ->check(CLI::Validator(not_empty, ""))
      ->type_name("FILE.html");
}

Status check_policies(std::vector<std::string>& policies, bool evaluation_only) {
  if (policies.empty()) policies = {"full"};
  for (const std::string& policy : policies) {
    KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(policy));
    if (!evaluation_only || !spec.evaluation_only()) KVASIR_RETURN_IF_ERROR(make_policy(spec).status());
  }
  return {};
}

Status check_kv_types(std::span<const std::string> kv_types) {
  for (const std::string& type : kv_types) KVASIR_RETURN_IF_ERROR(check_kv_type(type));
  return {};
}

Status check_kv_types(std::span<const std::string> kv_types, const LoadedModel& model) {
  for (const std::string& type : kv_types)
    KVASIR_RETURN_IF_ERROR(kv_cache_shape(model.config, type, model.options.page_slots).status());
  return {};
}

std::string run_name(const std::string& policy, const std::string& codec, bool codecs_differ) {
  return codecs_differ ? policy + " " + codec : policy;
}

Status check_report(const std::string& file, std::span<const std::string> inputs) {
  if (file.empty()) return {};
  KVASIR_RETURN_IF_ERROR(check_output(file, inputs));
  return check_writable(file);
}

void note_idle(const std::string& policy, std::int64_t prefill, std::int64_t tokens) {
  if (const auto made = make_policy(policy); made.ok() && (*made)->as<LeavesUnread>() != nullptr)
    return;  // it never drops anything
  std::string_view remedy = "a longer text, a smaller size or a smaller --chunk would change that";
  if (prefill == 0)
    remedy =
        "a policy that acts when a prompt ends needs one (--prefill), others a longer text, a smaller size or a "
        "smaller "
        "--chunk";
  if (prefill > 0 && prefill >= tokens)
    remedy = "no token comes behind the prompt, at whose end it acts: a smaller --prefill leaves some";
  note("kvasir: '{}' dropped nothing before the last pass; {}\n", printable(policy, 200), remedy);
}

void add_final(Json& layer, const std::vector<std::vector<std::int64_t>>& tables, bool by_head) {
  if (!by_head) {
    layer["final"] = tables.front();
    return;
  }
  layer["heads"] = Json::array();
  for (const std::vector<std::int64_t>& ids : tables) layer["heads"].push_back({{"final", ids}});
}

void add_eval(CLI::App& program, Outcome& outcome) {
  CLI::App* eval = program.add_subcommand("eval", "Quality of policies and codecs");
  eval->require_subcommand(1);
  add_eval_ppl(*eval, outcome);
  add_eval_needle(*eval, outcome);
  add_eval_quality(*eval, outcome);
  add_eval_restream(*eval, outcome);
  add_eval_tasks(*eval, outcome);
  add_eval_matrix(*eval, outcome);
  add_eval_advise(*eval, outcome);
}

}  // namespace kvasir::cli
