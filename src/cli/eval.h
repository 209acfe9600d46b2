// What the subcommands of `kvasir eval` share; those with files of their own.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace kvasir::cli {

void add_eval_ppl(CLI::App& eval, Outcome& outcome);
void add_eval_needle(CLI::App& eval, Outcome& outcome);
void add_eval_restream(CLI::App& eval, Outcome& outcome);

void add_text_option(CLI::App& command, std::string& file, const std::string& help);  // -f
void add_policies_option(CLI::App& command, std::vector<std::string>& policies);      // --kv, repeated
void add_report_option(CLI::App& command, std::string& file);                         // --report
// Puts the default in if there is none. Errors: kInvalidArgument, before any work, if one of them cannot be made;
// `evaluation_only` ones are let through if allowed.
Status check_policies(std::vector<std::string>& policies, bool evaluation_only);
// Says on standard error that a policy dropped nothing that a pass would have seen: its figures are those of `full`,
// and look like a result.
void note_idle(const std::string& policy);
// Says so if a step saw more tokens than the model was trained for.
void note_beyond_context(const std::string& policy, std::int64_t kept_max, std::int64_t context);
// Adds what a layer holds at the end: `final`, or by KV head `heads`.
void add_final(Json& layer, const std::vector<std::vector<std::int64_t>>& tables, bool by_head);
// Whether the report could be written, where one is wanted, and is none of the inputs: before the work, not after it.
Status check_report(const std::string& file, std::span<const std::string> inputs);

}  // namespace kvasir::cli
