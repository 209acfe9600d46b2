#include "cli/eval/cells.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/run/example_texts.h"
#include "cli/signals.h"
#include "harness/engine_subject.h"
#include "harness/task_run.h"
#include "tasks/definitions.h"
#include "tasks/generated/generated_tasks.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kKeyOption = "--endpoint-key";

bool has_full_cache(const CacheSetting& setting) {
  return setting.policy == "full" || setting.policy.starts_with("full:");
}

}  // namespace

Result<EvalTask> find_task(const std::string& name) {
  if (const GeneratedTask* generated = find_generated_task(name)) {
    KVASIR_ASSIGN_OR_RETURN(EvalTask task, built_in_task(generated->turns ? "generated_turns" : "generated"));
    task.name = task.generator = name;
    task.title = generated->summary;
    task.max_tokens = generated->answer_tokens;
    task.metrics = {std::string(generated->metric)};
    return task;
  }
  if (!name.ends_with(".json")) return built_in_task(name);
  KVASIR_ASSIGN_OR_RETURN(const std::string definition, read_named_text(name));
  Result<EvalTask> task = parse_task(definition);
  if (!task.ok()) return task.status().with_message(fmt::format("'{}': {}", name, task.status().message()));
  if (task->name.empty()) task->name = std::filesystem::path(name).stem().string();
  return task;
}

std::string command_text(const CommandLine& line) {
  std::vector<std::string> arguments = line.reversed();
  std::ranges::reverse(arguments);
  std::string text = "kvasir";
  bool secret = false;
  for (std::string argument : arguments) {
    if (std::exchange(secret, argument == kKeyOption)) argument = "...";
    if (argument.starts_with(fmt::format("{}=", kKeyOption))) argument = fmt::format("{}=...", kKeyOption);
    const bool plain = !argument.empty() && std::ranges::all_of(argument, [](char c) {
      return std::string_view("'\"\\ \t\n$`&|;<>()*?[]#~{}!").find(c) == std::string_view::npos;
    });
    std::string quoted = argument;
    if (!plain) {
      quoted = "'";
      for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      quoted += "'";
    }
    text += " " + quoted;
  }
  return text;
}

std::string file_name_of(const std::string& name, const Json& key) {
  constexpr std::size_t kLongest = 100;
  std::string shown;
  for (const char c : name.substr(0, kLongest)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("._-=,").find(c) != std::string_view::npos;
    shown += plain ? c : '_';
  }
  const std::string all = dump_line(key);
  return fmt::format("{}-{:016x}", shown, hash64(std::as_bytes(std::span(all))));
}

std::optional<std::size_t> judge_of(std::span<const CacheSetting> settings) {
  const auto full = std::ranges::find_if(settings, has_full_cache);
  if (full == settings.end()) return {};
  return full - settings.begin();
}

Result<ResultFolder> ResultFolder::open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return make_status(StatusCode::kIo, "cannot make the folder '{}': {}", path, error.message());
  ResultFolder folder(path, ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor_ < 0) return errno_status("open", path);
  KVASIR_RETURN_IF_ERROR(lock_results(folder.descriptor_, folder.check_writable().ok(), path));
  return folder;
}

ResultFolder::ResultFolder(ResultFolder&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

ResultFolder& ResultFolder::operator=(ResultFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

ResultFolder::~ResultFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status ResultFolder::check_writable() const {
  return ::access(path_.c_str(), W_OK) == 0 ? Status() : errno_status("write to", path_);
}

Status write_cell(const Json& json, const std::string& path) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return write_file(path, std::as_bytes(std::span(text)));
}

namespace {

class Runs : public CellRuns {
 public:
  explicit Runs(CellPlan plan) : plan_(std::move(plan)) {}

  Status prepare() {
    // An endpoint needs a tokenizer for generated items alone, whose length it counts.
    const bool generates =
        std::ranges::any_of(plan_.tasks, [](const CellTask& each) { return each.data.file.empty(); });
    if (plan_.endpoint && generates && plan_.engine.model.empty())
      return invalid_argument(
          "generated items have a length in tokens: give the model, whose tokenizer counts them, with -m");
    if (!plan_.endpoint || generates) {
      KVASIR_ASSIGN_OR_RETURN(model_, TestedModel::open(plan_.engine));
    }
    for (const CellTask& each : plan_.tasks)
      KVASIR_RETURN_IF_ERROR(
          check_asking(each.task.request, options_of(each.task, plan_.ask), plan_.endpoint.has_value()));
    for (CellTask& each : plan_.tasks) {
      std::string filler;
      each.data.filler = the_bell_of_saint_anne();
      if (!each.filler.empty()) {
        KVASIR_ASSIGN_OR_RETURN(filler, read_named_text(each.filler));
        each.data.filler = filler;
      }
      KVASIR_ASSIGN_OR_RETURN(data_.emplace_back(),
                              find_items(each.task, each.data, model_ != nullptr ? &model_->tokenizer() : nullptr));
    }
    if (plan_.endpoint) {
      KVASIR_ASSIGN_OR_RETURN(subject_, make_endpoint_subject(*plan_.endpoint));
    }
    return {};
  }

  Status load() override {
    if (plan_.endpoint) return {};
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(engine_, model_->load(plan_.settings, most_tokens(), plan_.ask.parallel,
                                                  plan_.share_prompts, [&](std::uint64_t done, std::uint64_t total) {
                                                    bar.update(done >> 20, total >> 20, "MiB");
                                                  }));
    note_slow_kernels(plan_.engine.isa, engine_->model().isa);
    subject_ = make_engine_subject(engine_.get(), model_->identity(*engine_), model_->begin_token());
    return {};
  }

  Json subject() const override { return subject_->identity(); }

  Result<Cell> run(std::size_t task, std::size_t setting) override {
    const EvalTask& asked = plan_.tasks[task].task;
    const CacheSetting& cache = plan_.settings[setting];
    const std::string name = cache.policy.empty() ? "endpoint" : run_name(cache.policy, cache.codec, true);
    Cell cell{.setting = cache};
    cell.json = header_of(asked, data_[task], cache);
    std::string stem;
    std::optional<ResultLog> log;
    if (!plan_.out.empty()) {
      const Json key = run_key(cell.json);
      stem = fmt::format("{}/{}", plan_.out, file_name_of(asked.name + "," + name, key));
      KVASIR_ASSIGN_OR_RETURN(log, ResultLog::open(stem + ".jsonl", key));
    }
    const std::string path = stem + ".json";
    const std::size_t found = log ? answered(*log) : 0;
    if (log && found < questions_of(data_[task])) KVASIR_RETURN_IF_ERROR(log->check_writable());
    TaskRun run{
        .task = &asked, .items = data_[task].items, .ask = plan_.ask, .log = log ? &*log : nullptr, .progress = {}};
    run.ask.policy = cache.policy;
    run.ask.codec = cache.codec;
    {
      ProgressBar bar(printable(asked.name + ", " + name, 48));
      bar.start_at(found);
      run.progress = [&](std::size_t done, std::size_t total) {
        if (done > found) bar.update(done, total, "questions");  // nothing is known of the time left before
        return !interrupted();
      };
      run.partial = &cell.questions;
      Result<std::vector<QuestionResult>> results = run_task(*subject_, run);
      cell.ended = results.status();
      if (results.ok()) cell.questions = std::move(*results);
    }
    cell.of_items = questions_of(data_[task]);
    cell.summary = summarize(asked, cell.questions);
    cell.judges = judge_of(plan_.settings).value_or(setting) == setting;
    if (data_[task].left_out > 0) cell.json["items_left_out"] = data_[task].left_out;
    if (!asked.generator.empty()) cell.json["seed"] = plan_.tasks[task].data.seed;
    cell.json["command"] = plan_.command;
    if (found > 0) cell.json["answers_of_earlier_runs"] = found;
    cell.json["summary"] = to_json(cell.summary);
    const bool is_stored = found == cell.of_items && keep_origin(path, &cell.json);
    if (!cell.ended.ok()) cell.json["unasked"] = cell.of_items - cell.questions.size();
    if (!stem.empty() && !is_stored && cell.ended.ok()) KVASIR_RETURN_IF_ERROR(write_cell(cell.json, path));
    return cell;
  }

 private:
  // Returns the most tokens that an item and its answers may take.
  std::int64_t most_tokens() const {
    const std::int64_t room = plan_.ask.room > 0 ? plan_.ask.room : model_->context();
    // A token has at least one byte. Questions on one context are read one behind another at most.
    std::int64_t longest = 2;
    for (std::size_t t = 0; t < plan_.tasks.size(); ++t)
      for (const TaskItem& item : data_[t].items) {
        auto tokens = static_cast<std::int64_t>(item.context.size());
        for (const Question& question : item.questions)
          tokens += static_cast<std::int64_t>(question.prompt.size() + question.answer_prefix.size() +
                                              question.golden.size()) +
                    plan_.tasks[t].task.max_tokens;
        longest = std::max(longest, tokens);
      }
    return std::min(longest, std::max<std::int64_t>(room, 2));
  }

  // Returns how many questions have an answer.
  static std::size_t answered(const ResultLog& log) {
    std::set<std::pair<std::size_t, std::size_t>> places;
    for (const QuestionResult& result : log.found())
      if (result.error.empty()) places.emplace(result.item, result.question);
    return places.size();
  }

  static std::size_t questions_of(const TaskData& data) {
    std::size_t questions = 0;
    for (const TaskItem& item : data.items) questions += item.questions.size();
    return questions;
  }

  // Gives a cell of which this run asked nothing the command and threads of the run that stored it. Returns whether
  // what is stored is this cell: its last run may have ended before it could store what it asked.
  static bool keep_origin(const std::string& path, Json* json) {
    const Result<std::string> text = read_file(path, std::size_t{1} << 30);
    if (!text.ok()) return false;
    const ParsedOrderedJson stored = parse_ordered_json(*text, {.levels = 16});
    if (stored.end != ParsedOrderedJson::End::kDone || !stored.value.is_object()) return false;
    if (!stored.value.contains("summary") || dump_line(stored.value["summary"]) != dump_line((*json)["summary"]))
      return false;
    for (const char* field : {"subject", "command", "answers_of_earlier_runs"}) {
      json->erase(field);
      if (stored.value.contains(field)) (*json)[field] = stored.value[field];
    }
    return true;
  }

  // What was asked of whom; see run_key().
  Json header_of(const EvalTask& task, const TaskData& data, const CacheSetting& setting) const {
    Json header{{"schema", "kvasir-eval/1"},
                {"subject", subject_->identity()},
                {"task", task.name},
                {"definition", fmt::format("{:016x}", hash64(std::as_bytes(std::span(task.definition))))},
                {"data", data.described},
                {"items", data.items.size()},
                {"data_fingerprint", data.fingerprint},
                {"reading", reading_name(plan_.ask.reading)}};
    if (!setting.policy.empty()) header.update({{"policy", setting.policy}, {"codec", setting.codec}});
    if (plan_.ask.chat) header["chat"] = task.chat;
    if (plan_.share_prompts) header["share_prompts"] = true;
    if (plan_.ask.room > 0) header["context"] = plan_.ask.room;
    return header;
  }

  CellPlan plan_;
  std::vector<TaskData> data_;
  std::unique_ptr<TestedModel> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Subject> subject_;
};

}  // namespace

Result<std::unique_ptr<CellRuns>> CellRuns::create(CellPlan plan) {
  auto runs = std::make_unique<Runs>(std::move(plan));
  KVASIR_RETURN_IF_ERROR(runs->prepare());
  return Result<std::unique_ptr<CellRuns>>(std::move(runs));
}

Status ended_early(const Cell& cell, std::size_t number, std::size_t count, bool kept) {
  std::string where = fmt::format(
      "in cell {} of {} ({} under {})", number, count, printable(cell.json["task"].get<std::string>(), 100),
      cell.setting.policy.empty() ? "the server"
                                  : printable(run_name(cell.setting.policy, cell.setting.codec, true), 200));
  if (cell.of_items > 0)
    where += fmt::format(" after {} of {}", cell.questions.size(),
                         counted(static_cast<std::int64_t>(cell.of_items), "question"));
  const std::string_view rest = kept ? "the same command runs the rest"
                                     : "no answer was stored: with --out FOLDER the same command runs the rest";
  if (cell.ended.code() == StatusCode::kCancelled)
    return cell.ended.with_message(fmt::format("stopped {}; {}", where, rest));
  return cell.ended.with_message(fmt::format("{}; ended {}; {}", cell.ended.message(), where, rest));
}

Status without_answers(const std::vector<std::vector<Cell>>& cells) {
  for (const std::vector<Cell>& of_task : cells)
    for (const Cell& cell : of_task)
      if (cell.summary.failed == cell.summary.questions)
        return make_status(StatusCode::kIo, "no question of '{}' has an answer; the first: {}",
                           cell.json["task"].get<std::string>(), cell.questions.front().error);
  return {};
}

std::string chance_remark(const Cell& cell) {
  if (!cell.judges) return "";
  const AboveChance above = above_chance(cell.summary);
  if (above == AboveChance::kYes) return "";
  const std::string verdict = has_full_cache(cell.setting) ? "no verdict on any policy of this task" : "no verdict";
  if (above == AboveChance::kNo)
    return fmt::format("no better than chance ({:.3f}): {}", *cell.summary.chance, verdict);
  return fmt::format("chance is {:.3f}, and the standard error is not known: {}", *cell.summary.chance, verdict);
}

bool shares_prompts(const Cell& cell) {
  return cell.json.value("share_prompts", false);
}

std::vector<std::string> remarks_on_items(const Cell& cell) {
  std::vector<std::string> remarks;
  if (const auto left_out = cell.json.value("items_left_out", std::size_t{0}); left_out > 0)
    remarks.push_back(fmt::format("{} left out, as the task's definition says",
                                  counted(static_cast<std::int64_t>(left_out), "item")));
  if (shares_prompts(cell))
    remarks.emplace_back("what prompts begin with alike was read once, so the times are those of no policy");
  if (!cell.json.value("chat", true))
    remarks.emplace_back("asked without the chat template, as the task's definition says");
  return remarks;
}

std::vector<std::string> remarks_on_answers(const Cell& cell) {
  std::vector<std::string> remarks;
  const TaskSummary& summary = cell.summary;
  if (std::string remark = chance_remark(cell); !remark.empty()) remarks.push_back(std::move(remark));
  if (summary.failed > 0) {
    const auto first = std::ranges::find_if(cell.questions, [](const QuestionResult& r) { return !r.error.empty(); });
    remarks.push_back(fmt::format("{} of {} without an answer, which counts as wrong; the first: {}", summary.failed,
                                  counted(summary.questions, "question"), printable(first->error, 300)));
  }
  if (summary.shortened.value_or(0) > 0)
    remarks.push_back(
        fmt::format("{} of {} shortened to fit the context", *summary.shortened, counted(summary.questions, "prompt")));
  return remarks;
}

std::string rows_of(const Cell& cell, bool header) {
  const auto error_of = [](const Mean& mean) {
    return std::isnan(mean.error) ? "-" : fmt::format("{:.4f}", mean.error);
  };
  const std::string task = printable(cell.json["task"].get<std::string>(), 22);
  const std::string policy = cell.json.value("policy", "endpoint"), codec = cell.json.value("codec", "");
  const TaskSummary& summary = cell.summary;
  const bool answered = summary.failed < summary.questions;
  std::string out;
  if (header)
    out = fmt::format("{:<22} {:<36} {:<6} {:<20} {:>8} {:>7} {:>5} {:>6} {:>9}\n", "task", "policy", "codec", "metric",
                      "mean", "+-", "n", "kept", "KV mean");
  for (const auto& [metric, mean] : summary.metrics)
    out += fmt::format("{:<22} {:<36} {:<6} {:<20} {:>8} {:>7} {:>5} {:>6} {:>9}\n", task, printable(policy, 36),
                       printable(codec, 20), metric, answered ? fmt::format("{:.4f}", mean.mean) : "-",
                       answered ? error_of(mean) : "-", mean.count,
                       summary.kept_mean ? fmt::format("{:.0f}", *summary.kept_mean) : "-",
                       summary.kv_bytes_mean ? human_bytes(static_cast<std::uint64_t>(*summary.kv_bytes_mean)) : "-");
  for (const auto& remarks : {remarks_on_answers(cell), remarks_on_items(cell)})
    for (const std::string& remark : remarks) out += fmt::format("  {}\n", remark);
  if (!cell.ended.ok())
    out += fmt::format("  ended early: {} of {}\n", summary.questions,
                       counted(static_cast<std::int64_t>(cell.of_items), "question"));
  return out;
}

}  // namespace kvasir::cli
