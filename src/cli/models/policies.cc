// kvasir policies: lists the policies and their options.
#include <fmt/core.h>

#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

// `name`: the only policy to list; empty: all.
Status list_policies(const std::string& name, bool json) {
  std::vector<const PolicyInfo*> policies(all_policies().begin(), all_policies().end());
  if (!name.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const PolicyInfo* info, policy_named(name));
    policies = {info};
  }
  if (json) {
    Json list = Json::array();
    for (const PolicyInfo* info : policies) {
      Json options = Json::array();
      for (const PolicyOption& option : info->options)
        options.push_back({{"name", option.name},
                           {"default", option.default_value},
                           {"range", option.range},
                           {"meaning", option.meaning}});
      list.push_back({{"name", info->name},
                      {"summary", info->summary},
                      {"formula", info->formula},
                      {"reference", info->reference},
                      {"acts", info->acts},
                      {"evaluation_only", info->evaluation_only},
                      {"options", options}});
    }
    return print_json({{"policies", list}});
  }
  std::string out;
  if (name.empty())
    out =
        "Retention policies: name or name:key=value,key=value (--kv); A+B prunes prompts by A, answers by B\n"
        "\nA bounded cache forgets the middle of a text that is longer than it: questions about that part fail.\n"
        "'snapkv' and 'cake' keep what the end of the prompt attends to, so often what a question there needs.\n";
  for (const PolicyInfo* info : policies) {
    out += fmt::format("{}{}{}\n  {}\n  {}\n  Decides: {}\n  Source: {}\n", out.empty() ? "" : "\n", info->name,
                       info->evaluation_only ? "  (only in 'kvasir eval')" : "", info->summary, info->formula,
                       info->acts, info->reference);
    for (const PolicyOption& option : info->options)
      out +=
          fmt::format("    {:<9} {:<7} {:<17} {}\n", option.name, option.default_value, option.range, option.meaning);
  }
  return print(out);
}

}  // namespace

void add_policies(CLI::App& program, Outcome& outcome) {
  struct Options {
    std::string name;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("policies", "Retention policies, their options, formulas and sources");
  command->add_option("name", options->name, "The one policy to describe; without it, all");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = list_policies(options->name, options->json); });
}

}  // namespace kvasir::cli
