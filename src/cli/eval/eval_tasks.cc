// kvasir eval tasks: benchmark tasks, by a model of this process or a server.
#include <fmt/core.h>

#include <optional>
#include <utility>

#include "base/status.h"
#include "cli/eval/cells.h"
#include "cli/eval/cells_report.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "tasks/definitions.h"
#include "tasks/generated/generated_tasks.h"

namespace kvasir::cli {
namespace {

struct TasksCommand {
  CellPlan plan;
  std::vector<std::string> kv_types;
  std::vector<std::string> policies;
  std::vector<std::string> tasks;
  TaskDataOptions data;
  std::string filler;
  std::string reading = "together";
  EndpointOptions endpoint;
  std::string body;
  std::string report;
  bool list = false;
  bool json = false;
};

Status list_tasks() {
  std::string out = "Generated from a seed:\n";
  for (const GeneratedTask& each : generated_tasks()) out += fmt::format("  {:<32} {}\n", each.name, each.summary);
  out += "\nFrom a benchmark's file (--data):\n";
  for (const std::string_view name : task_names()) {
    KVASIR_ASSIGN_OR_RETURN(const EvalTask task, built_in_task(name));
    out += fmt::format("  {:<32} {}\n", name, task.title);
  }
  return print(out);
}

// Refuses options that were typed and change nothing.
Status check_effects(const CLI::App& command, const TasksCommand& options) {
  if (const std::size_t files = command.count("--data"); files > 1)
    return invalid_argument("--data is given {} times, and takes one file; run each of them, or name them in a grid",
                            files);
  std::vector<EvalTask> tasks;
  for (const CellTask& each : options.plan.tasks) tasks.push_back(each.task);
  for (const auto& [option, typed] :
       {std::pair("file", "--data"), std::pair("shots", "--shots"), std::pair("tokens", "--tokens"),
        std::pair("count", "--count"), std::pair("seed", "--seed"), std::pair("depths", "--depths"),
        std::pair("filler", "--file")})
    if (command.count(typed) > 0) KVASIR_RETURN_IF_ERROR(check_option(option, typed, tasks));
  const bool asks_server = !options.endpoint.url.empty();
  for (const char* typed : {"--endpoint-model", "--body", "--timeout"})
    if (!asks_server && command.count(typed) > 0)
      return invalid_argument("{} is for requests to a server: give its address with --endpoint", typed);
  for (const char* typed : {"--kv", "--kv-type"})
    if (asks_server && command.count(typed) > 0)
      return invalid_argument("{} is for a model: an endpoint has a cache of its own (--body adds fields to requests)",
                              typed);
  return {};
}

// Fills in the plan from what was typed.
Status complete(const CLI::App& command, TasksCommand& options) {
  if (options.tasks.empty()) return invalid_argument("name a task; --list shows those that are built in");
  CellPlan& plan = options.plan;
  for (const std::string& name : options.tasks) {
    KVASIR_ASSIGN_OR_RETURN(EvalTask task, find_task(name));
    TaskDataOptions data = options.data;
    if (!task.generator.empty()) data.file.clear();  // of the other tasks
    plan.tasks.push_back({std::move(task), std::move(data), options.filler});
  }
  KVASIR_RETURN_IF_ERROR(check_effects(command, options));
  KVASIR_ASSIGN_OR_RETURN(plan.ask.reading, reading_from_name(options.reading));
  if (plan.share_prompts && (!options.endpoint.url.empty() || plan.ask.reading != Reading::kTogether))
    return invalid_argument("--share-prompts is for a model and the reading together");
  if (options.data.limit < 0) return invalid_argument("--limit {} is below 0 (all items)", options.data.limit);
  if (plan.ask.room < 0) return invalid_argument("--ctx {} is below 0 (the trained context)", plan.ask.room);
  if (!options.endpoint.url.empty()) {
    if (!options.body.empty()) options.endpoint.body = Json::parse(options.body, nullptr, false);
    if (!options.body.empty() && !options.endpoint.body.is_object())
      return invalid_argument("--body must be a JSON object");
    plan.endpoint = options.endpoint;
    plan.settings = {CacheSetting()};
    return {};
  }
  KVASIR_RETURN_IF_ERROR(check_policies(options.policies, false));
  KVASIR_RETURN_IF_ERROR(check_kv_types(options.kv_types));
  for (const std::string& policy : options.policies)
    for (const std::string& codec : options.kv_types) plan.settings.push_back({policy, codec});
  return {};
}

Status eval_tasks(const CLI::App& command, TasksCommand options, const CommandLine& line) {
  if (options.list) return list_tasks();
  KVASIR_RETURN_IF_ERROR(complete(command, options));
  KVASIR_RETURN_IF_ERROR(check_report(options.report, std::vector{options.plan.engine.model, options.data.file}));
  options.plan.command = command_text(line);
  const std::size_t tasks = options.plan.tasks.size(), settings = options.plan.settings.size();
  const bool kept = !options.plan.out.empty();
  std::optional<ResultFolder> folder;
  if (kept) {
    KVASIR_ASSIGN_OR_RETURN(folder, ResultFolder::open(options.plan.out));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<CellRuns> runs, CellRuns::create(std::move(options.plan)));
  KVASIR_RETURN_IF_ERROR(runs->load());
  catch_interrupts();
  std::vector<std::vector<Cell>> cells(tasks);
  Status status;
  for (std::size_t i = 0; i < tasks * settings && status.ok(); ++i) {
    KVASIR_ASSIGN_OR_RETURN(Cell cell, runs->run(i / settings, i % settings));
    if (!cell.ended.ok()) status = ended_early(cell, i + 1, tasks * settings, kept);
    if (cell.questions.empty()) break;
    if (!options.json) KVASIR_RETURN_IF_ERROR(print(rows_of(cell, i == 0)));
    cells[i / settings].push_back(std::move(cell));
  }
  if (status.ok()) {
    status = without_answers(cells);
    if (!options.report.empty()) KVASIR_RETURN_IF_ERROR(write_report(cells_report(cells), options.report));
  }
  if (!options.json || cells.front().empty()) return status;
  Json all = Json::array();
  for (std::vector<Cell>& of_task : cells)
    for (Cell& cell : of_task) {
      for (const QuestionResult& question : cell.questions) cell.json["questions"].push_back(to_json(question));
      all.push_back(std::move(cell.json));
    }
  KVASIR_RETURN_IF_ERROR(print_json({{"subject", runs->subject()}, {"cells", std::move(all)}}));
  return status;
}

void add_generated_options(CLI::App& command, TasksCommand& options) {
  command.add_option("--tokens", options.data.tokens, "Generated tasks: tokens of a prompt")->capture_default_str();
  command.add_option("--count", options.data.count, "Generated tasks: items; with --depths, items per depth")
      ->capture_default_str();
  command.add_option("--seed", options.data.seed, "Generated tasks: seed of their draws")->capture_default_str();
  command
      .add_option("--depths", options.data.depths,
                  "Generated tasks with one needle: where it is, 0 start, 1 end; several, by commas")
      ->delimiter(',');
  command
      .add_option("-f,--file", options.filler,
                  "Generated tasks: the text that hides the facts; default: a bundled tale")
      ->type_name("FILE");
}

void add_endpoint_options(CLI::App& command, TasksCommand& options) {
  command.add_option("--endpoint", options.endpoint.url, "Ask a server by OpenAI's API, in place of a model")
      ->type_name("URL");
  command.add_option("--endpoint-model", options.endpoint.model, "The model's name there")->type_name("NAME");
  command.add_option("--endpoint-key", options.endpoint.key, "The server's key")
      ->envname("KVASIR_ENDPOINT_KEY")
      ->type_name("KEY");
  command.add_option("--body", options.body, "Fields added to every request to the server")->type_name("JSON");
  command.add_option("--timeout", options.endpoint.timeout_seconds, "Seconds that the server may take for a request")
      ->check(CLI::Range(0.1, 1e6))
      ->type_name("SECONDS")
      ->capture_default_str();
}

}  // namespace

void add_eval_tasks(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<TasksCommand>();
  CellPlan& plan = options->plan;
  CLI::App* command =
      eval.add_subcommand("tasks", "Benchmark tasks: multiple choice, answers in words, log-likelihoods");
  command->add_option("tasks", options->tasks, "Names of tasks, or files of definitions (.json)")->type_name("TASK");
  add_engine_options(*command, plan.engine, options->kv_types);
  add_kv_memory_option(*command, plan.engine);
  command->add_flag("--list", options->list, "List the tasks that are built in");
  command->add_option("--data", options->data.file, "The benchmark's file: .jsonl, .json or .csv")->type_name("FILE");
  command->add_option("--limit", options->data.limit, "Items to ask, from the first; 0: all")->capture_default_str();
  command->add_option("--shots", options->data.shots, "Solved examples in front of each prompt; -1: as the task says")
      ->check(CLI::Range(-1, 64))
      ->capture_default_str();
  add_policies_option(*command, options->policies);
  command
      ->add_option("--reading", options->reading,
                   "together: context and question are one prompt; context-first: the context is read, and reduced by "
                   "the policy, before each question; conversation: question behind question")
      ->check(CLI::IsMember({"together", "context-first", "conversation"}))
      ->capture_default_str();
  command->add_flag("--share-prompts", plan.share_prompts,
                    "Read what prompts begin with alike once, also for other policies: the same answers sooner");
  command->add_flag("--chat", plan.ask.chat, "Ask as the user of a conversation, in the form of the chat template");
  command
      ->add_option("-c,--ctx", plan.ask.room,
                   "Tokens of a prompt and its answer: longer prompts are shortened. 0: the trained context")
      ->capture_default_str();
  command->add_option("--parallel", plan.ask.parallel, "Items under way at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_generated_options(*command, *options);
  add_endpoint_options(*command, *options);
  command->add_option("--out", plan.out, "Folder for results; a run that ended early goes on from there")
      ->type_name("FOLDER");
  add_report_option(*command, options->report);
  command->add_flag("--json", options->json, "One JSON object on standard output, with every answer");
  command->callback([options, command, &outcome] { outcome.status = eval_tasks(*command, *options, outcome.line); });
}

}  // namespace kvasir::cli
