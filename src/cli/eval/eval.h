// The subcommands of `kvasir eval` (one file each), and what they share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "runtime/loaded_model.h"
#include "text/tokenizer.h"

namespace kvasir::cli {

void add_eval_ppl(CLI::App& eval, Outcome& outcome);
void add_eval_needle(CLI::App& eval, Outcome& outcome);
void add_eval_quality(CLI::App& eval, Outcome& outcome);
void add_eval_restream(CLI::App& eval, Outcome& outcome);
void add_eval_tasks(CLI::App& eval, Outcome& outcome);
void add_eval_matrix(CLI::App& eval, Outcome& outcome);
void add_eval_advise(CLI::App& eval, Outcome& outcome);

// Loads the model with a progress bar, and warns of slow kernels and of a --kv-memory that the system does not have.
// Errors: as load_model.
Result<std::shared_ptr<LoadedModel>> open_model(const EngineOptions& options);

void add_text_option(CLI::App& command, std::string& file, const std::string& help);  // -f
Status check_not_empty(std::string_view text);                                        // errors: kInvalidArgument
// Reads the text of -f. Errors: as read_text_file and check_not_empty.
Result<std::string> read_text(const std::string& file);
// Reads a file that is not the text of -f. Errors: as read_text_file; kInvalidArgument for an empty one, which is
// named.
Result<std::string> read_named_text(const std::string& file);
void add_policies_option(CLI::App& command, std::vector<std::string>& policies);  // --kv, repeated
void add_report_option(CLI::App& command, std::string& file);                     // --report
// Adds the default if the list is empty, and checks every policy before any work. `evaluation_only`: accept baselines
// such as recompute. Errors: kInvalidArgument.
Status check_policies(std::vector<std::string>& policies, bool evaluation_only);
// Checks every codec before any work. Errors: kInvalidArgument.
Status check_kv_types(std::span<const std::string> kv_types);
// Checks that the model can have pages of every codec. Errors: as kv_cache_shape.
Status check_kv_types(std::span<const std::string> kv_types, const LoadedModel& model);
// Returns a run's name in charts: the policy, with the codec if codecs differ.
std::string run_name(const std::string& policy, const std::string& codec, bool codecs_differ);
// Warns on standard error that a policy dropped nothing a pass would have seen, so its figures are those of `full`.
void note_idle(const std::string& policy, std::int64_t prefill, std::int64_t tokens);
// Adds the tokens that a layer holds at the end: `final`, or `heads` if the policy decides for each KV head.
void add_final(Json& layer, const std::vector<std::vector<std::int64_t>>& tables, bool by_head);
// Checks before any work that a requested report can be written and is not one of the inputs.
Status check_report(const std::string& file, std::span<const std::string> inputs);

}  // namespace kvasir::cli
