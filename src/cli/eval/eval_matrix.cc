// kvasir eval matrix: a grid of policies, budgets, codecs and tasks; one result a cell, and a page about all.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/counted.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "cli/eval/cells.h"
#include "cli/eval/cells_report.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "cli/text_input.h"
#include "eval/perplexity.h"
#include "harness/matrix.h"

namespace kvasir::cli {
namespace {

struct MatrixCommand {
  EngineOptions engine;
  std::string grid;
  std::string out;
  std::string report;
  int parallel = 8;
  bool json = false;
};

// Runs the cells of one kind after those of the other, so that only one copy of the model is loaded at a time.
class MatrixRuns {
 public:
  // `folder`: of the options' `out`; must outlive this.
  MatrixRuns(MatrixCommand options, Matrix matrix, std::string command, const ResultFolder& folder)
      : options_(std::move(options)), matrix_(std::move(matrix)), command_(std::move(command)), folder_(folder) {}

  Status run() {
    cells_.resize(matrix_.tasks.size());
    KVASIR_RETURN_IF_ERROR(prepare());
    if (columns_.size() < matrix_.tasks.size()) KVASIR_RETURN_IF_ERROR(run_perplexities());
    return columns_.empty() ? Status() : run_tasks();
  }

  const std::vector<std::vector<Cell>>& cells() const { return cells_; }
  std::size_t cells_taken() const { return taken_; }

 private:
  // Prints and keeps a cell. Errors: that of a run which ended early.
  Status take(std::size_t task, Cell cell) {
    const Status ended = cell.ended.ok() ? Status() : ended_early(cell);
    if (cell.questions.empty()) return ended;
    if (!options_.json) KVASIR_RETURN_IF_ERROR(print(rows_of(cell, taken_ == 0)));
    ++taken_;
    cells_[task].push_back(std::move(cell));
    return ended;
  }

  Status ended_early(const Cell& cell) const {
    return cli::ended_early(cell, taken_ + 1, matrix_.tasks.size() * matrix_.settings.size(), true);
  }

  // Reads all that cells need, so that none runs before a file is found to be missing, no text or too short.
  Status prepare() {
    CellPlan plan;
    for (std::size_t t = 0; t < matrix_.tasks.size(); ++t) {
      const MatrixTask& each = matrix_.tasks[t];
      if (!each.text.empty()) continue;
      KVASIR_ASSIGN_OR_RETURN(EvalTask task, find_task(each.task));
      plan.tasks.push_back({std::move(task), each.data, each.filler});
      columns_.push_back(t);
    }
    KVASIR_RETURN_IF_ERROR(read_texts());
    if (columns_.empty()) return {};
    plan.engine = options_.engine;
    plan.settings = matrix_.settings;
    plan.ask.reading = matrix_.reading;
    plan.ask.chat = matrix_.chat;
    plan.share_prompts = matrix_.share_prompts;
    plan.ask.parallel = options_.parallel;
    plan.out = options_.out;
    plan.command = command_;
    KVASIR_ASSIGN_OR_RETURN(task_runs_, CellRuns::create(std::move(plan)));
    return {};
  }

  Status read_texts() {
    windows_.resize(matrix_.tasks.size());
    if (columns_.size() == matrix_.tasks.size()) return {};
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<TestedModel> model, TestedModel::open(options_.engine));
    for (std::size_t t = 0; t < matrix_.tasks.size(); ++t) {
      if (matrix_.tasks[t].text.empty()) continue;
      KVASIR_ASSIGN_OR_RETURN(windows_[t], windows_of(model->tokenizer(), matrix_.tasks[t]));
    }
    return {};
  }

  // Returns the windows of all texts of a task, one behind the other.
  static Result<std::vector<TokenId>> windows_of(const Tokenizer& tokenizer, const MatrixTask& task) {
    KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> files, files_at(task.text, ".txt", "text"));
    const auto wanted = static_cast<std::size_t>(task.window * task.windows);
    std::vector<TokenId> windows;
    for (const std::string& file : files) {
      KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
      if (text.empty()) return invalid_argument("'{}' is empty; name a longer text", printable(file, 500));
      KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.encode(text, {}));
      if (tokens.size() < wanted)
        return invalid_argument("'{}' has {}, too few for {} of {}: {} are needed; name a longer text",
                                printable(file, 500), counted(std::ssize(tokens), "token"),
                                counted(task.windows, "window"), task.window, wanted);
      windows.insert(windows.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(wanted));
    }
    return windows;
  }

  Status run_tasks() {
    KVASIR_RETURN_IF_ERROR(task_runs_->load());
    for (std::size_t t = 0; t < columns_.size(); ++t)
      for (std::size_t s = 0; s < matrix_.settings.size(); ++s) {
        KVASIR_ASSIGN_OR_RETURN(Cell cell, task_runs_->run(t, s));
        KVASIR_RETURN_IF_ERROR(take(columns_[t], std::move(cell)));
      }
    return {};
  }

  Status run_perplexities() {
    EngineOptions engine = options_.engine;
    engine.kv_type = matrix_.settings.front().codec;
    KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(engine));
    for (const CacheSetting& setting : matrix_.settings)
      KVASIR_RETURN_IF_ERROR(check_kv_types(std::span(&setting.codec, 1), *model));
    for (std::size_t t = 0; t < matrix_.tasks.size(); ++t) {
      const MatrixTask& each = matrix_.tasks[t];
      if (each.text.empty()) continue;
      const std::span<const CacheSetting> settings = matrix_.settings;
      for (std::size_t first = 0, last = 0; first < settings.size(); first = last) {
        while (last < settings.size() && settings[last].policy == settings[first].policy) ++last;
        Result<std::vector<Cell>> cells =
            run_perplexity(model, each, windows_[t], settings.subspan(first, last - first));
        if (cells.status().code() == StatusCode::kCancelled)
          return ended_early({.setting = settings[first], .json = {{"task", "perplexity"}}, .ended = cells.status()});
        KVASIR_RETURN_IF_ERROR(cells.status());
        for (Cell& cell : *cells) KVASIR_RETURN_IF_ERROR(take(t, std::move(cell)));
      }
    }
    return {};
  }

  Json header_of(const LoadedModel& model, const MatrixTask& task, const std::vector<TokenId>& tokens,
                 const CacheSetting& setting) const {
    return {{"schema", "kvasir-eval/1"},
            {"subject",
             model_identity(options_.engine.model, model.fingerprint, model.kernels->name, model.threads->threads())},
            {"task", "perplexity"},
            {"data", std::filesystem::path(task.text).filename().string()},
            {"data_fingerprint", fmt::format("{:016x}", hash64(std::as_bytes(std::span(tokens))))},
            {"window", task.window},
            {"windows", task.windows},
            {"prefill", task.prefill},
            {"policy", setting.policy},
            {"codec", setting.codec}};
  }

  // Runs the cells of one policy, or reads those that are there. All cells that run are compared with one reading of
  // the full cache.
  Result<std::vector<Cell>> run_perplexity(const std::shared_ptr<LoadedModel>& model, const MatrixTask& task,
                                           const std::vector<TokenId>& tokens, std::span<const CacheSetting> settings) {
    std::vector<std::optional<Cell>> cells(settings.size());
    PerplexityOptions options;
    options.policies = {settings.front().policy};
    options.window = task.window;
    options.whole_windows = task.prefill > 0;
    options.prefill = task.prefill;
    options.chunk = task.prefill > 0 ? 256 : 1;
    options.compare_full = true;
    options.keep_nlls = true;
    options.parallel = options_.engine.kv_memory > 0 ? 1 : options_.parallel;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      cells[i] = find_cell(path_of(*model, task, tokens, settings[i]), header_of(*model, task, tokens, settings[i]),
                           settings[i]);
      if (!cells[i]) options.kv_types.push_back(settings[i].codec);
    }
    std::vector<PerplexityResult> results;
    if (!options.kv_types.empty()) {
      KVASIR_RETURN_IF_ERROR(folder_.check_writable());
      ProgressBar bar(printable("perplexity, " + settings.front().policy, 48));
      KVASIR_ASSIGN_OR_RETURN(
          results, evaluate_perplexity(model, tokens, options, [&](std::int64_t done, std::int64_t total) {
            bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
            return !interrupted();
          }));
    }
    std::vector<Cell> all;
    for (std::size_t i = 0, ran = 0; i < settings.size(); ++i) {
      if (!cells[i]) {
        cells[i] = cell_of(json_of(header_of(*model, task, tokens, settings[i]), results[ran++]), settings[i]);
        if (!cells[i]) return invalid_argument("'{}' has no token to score in its windows", task.text);
        KVASIR_RETURN_IF_ERROR(write_cell(cells[i]->json, path_of(*model, task, tokens, settings[i])));
      }
      all.push_back(std::move(*cells[i]));
    }
    return all;
  }

  std::string path_of(const LoadedModel& model, const MatrixTask& task, const std::vector<TokenId>& tokens,
                      const CacheSetting& setting) const {
    const std::string name = "perplexity," + run_name(setting.policy, setting.codec, true);
    return fmt::format("{}/{}.json", options_.out,
                       file_name_of(name, run_key(header_of(model, task, tokens, setting))));
  }

  // Returns the cell of a file; nullopt where there is none with this header.
  static std::optional<Cell> find_cell(const std::string& path, const Json& header, const CacheSetting& setting) {
    const auto found = read_file(path, std::size_t{1} << 30);
    if (!found.ok()) return {};
    Json same = Json::parse(*found, nullptr, false);
    const Json stored = same;
    if (!same.is_object()) return {};
    for (const char* field : {"command", "summary", "tokens"}) same.erase(field);
    if (dump_line(run_key(std::move(same))) != dump_line(run_key(header))) return {};
    return cell_of(stored, setting);
  }

  Json json_of(Json header, const PerplexityResult& result) const {
    header["command"] = command_;
    header["summary"] = {{"kept_mean", result.kept_mean},
                         {"kv_bytes_max", result.kv_bytes_peak},
                         {"ms_per_token", result.tpot_ms},
                         {"top1_agree", result.full->top1_agree},
                         // The time of the cell's own passes behind the prompt; the full cache that the cell is
                         // compared with is not counted.
                         {"wall_seconds", (result.sums.times.forward + result.sums.times.cache)}};
    header["tokens"] = {{"nll", result.sums.nlls}, {"kld", result.sums.klds}};
    return header;
  }

  // Makes each scored token a question, so that cells are compared token by token, and each window a cluster: its
  // tokens are not independent. Returns nullopt for JSON that holds no such cell.
  static std::optional<Cell> cell_of(Json json, const CacheSetting& setting) {
    try {
      Cell cell{.setting = setting};
      const auto nll = json.at("tokens").at("nll").get<std::vector<double>>();
      const auto kld = json.at("tokens").at("kld").get<std::vector<double>>();
      const auto window = json.at("window").get<std::size_t>(), prefill = json.at("prefill").get<std::size_t>();
      const std::size_t scored = window - 1 - (prefill > 0 ? prefill : window / 2);  // of each window
      if (nll.empty() || nll.size() != kld.size() || nll.size() % scored != 0) return {};
      std::vector<std::size_t> clusters;
      for (std::size_t i = 0; i < nll.size(); ++i) {
        clusters.push_back(i / scored);
        QuestionResult token{.item = i, .cluster = clusters.back()};
        token.scores = {{"kld", kld[i]}, {"nll", nll[i]}};
        cell.questions.push_back(std::move(token));
      }
      Json& summary = json.at("summary");
      cell.summary.metrics["nll"] = mean_of(nll, clusters);
      cell.summary.metrics["kld"] = mean_of(kld, clusters);
      cell.summary.questions = std::ssize(nll);
      cell.summary.kept_mean = summary.at("kept_mean").get<double>();
      cell.summary.kv_bytes_max = summary.at("kv_bytes_max").get<std::uint64_t>();
      cell.summary.kv_bytes_mean = static_cast<double>(*cell.summary.kv_bytes_max);
      cell.summary.wall_seconds = summary.at("wall_seconds").get<double>();
      summary["metrics"] = to_json(cell.summary).at("metrics");
      cell.json = std::move(json);
      return cell;
    } catch (const Json::exception&) {
      return {};
    }
  }

  MatrixCommand options_;
  Matrix matrix_;
  std::string command_;
  const ResultFolder& folder_;
  std::vector<std::vector<TokenId>> windows_;  // [task]; of a benchmark task empty
  std::vector<std::size_t> columns_;           // the tasks that are no perplexities
  std::unique_ptr<CellRuns> task_runs_;        // of these; null: there are none
  std::vector<std::vector<Cell>> cells_;
  std::size_t taken_ = 0;
};

Status eval_matrix(MatrixCommand options, const CommandLine& line) {
  KVASIR_RETURN_IF_ERROR(check_report(options.report, std::vector{options.grid, options.engine.model}));
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_named_text(options.grid));
  Result<Matrix> matrix = parse_matrix(text, std::filesystem::path(options.grid).parent_path().string());
  if (!matrix.ok())
    return matrix.status().with_message(fmt::format("'{}': {}", options.grid, matrix.status().message()));
  std::vector<std::string> policies, codecs;
  for (const CacheSetting& setting : matrix->settings) {
    policies.push_back(setting.policy);
    codecs.push_back(setting.codec);
    KVASIR_RETURN_IF_ERROR(add_demote_dir(setting.policy, options.engine));
  }
  KVASIR_RETURN_IF_ERROR(check_policies(policies, false));
  KVASIR_RETURN_IF_ERROR(check_kv_types(codecs));
  for (const MatrixTask& each : matrix->tasks) {
    if (!each.text.empty()) continue;
    KVASIR_ASSIGN_OR_RETURN(const EvalTask task, find_task(each.task));
    for (const std::string& field : each.given)
      KVASIR_RETURN_IF_ERROR(
          check_option(field == "data" ? "file" : field, fmt::format("'{}'", field), std::span(&task, 1)));
    KVASIR_RETURN_IF_ERROR(check_file(task, each.data));  // before any cell is run
  }
  if (options.out.empty())
    options.out =
        (std::filesystem::path(options.grid).parent_path() / std::filesystem::path(options.grid).stem()).string() +
        "-results";
  KVASIR_ASSIGN_OR_RETURN(const ResultFolder folder, ResultFolder::open(options.out));
  if (options.report.empty()) options.report = options.out + "/report.html";
  catch_interrupts();
  const std::string report = options.report, out = options.out;
  const bool writes_page = report != out + "/report.html" || folder.check_writable().ok();
  const bool json = options.json;
  MatrixRuns runs(std::move(options), *matrix, command_text(line), folder);
  Status status = runs.run();
  const bool whole = status.ok();
  if (whole) {
    if (writes_page) KVASIR_RETURN_IF_ERROR(write_report(cells_report(runs.cells()), report));
    status = without_answers(runs.cells());
  }
  if (!json) {
    if (whole && writes_page)
      note("kvasir: results in {}, a page about them in {}\n", printable(out, 500), printable(report, 500));
    if (whole && !writes_page)
      note("kvasir: results in {}, which no page can be written to; --report FILE.html writes one elsewhere\n",
           printable(out, 500));
    return status;
  }
  if (!whole && runs.cells_taken() == 0) return status;  // there is nothing to print
  Json cells = Json::array();
  for (const std::vector<Cell>& column : runs.cells())
    for (const Cell& cell : column) cells.push_back(cell.json);
  KVASIR_RETURN_IF_ERROR(
      print_json({{"subject", cells.empty() ? Json() : cells.front()["subject"]}, {"cells", cells}}));
  return status;
}

}  // namespace

void add_eval_matrix(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<MatrixCommand>();
  CLI::App* command =
      eval.add_subcommand("matrix", "A grid of policies, budgets, codecs and tasks, and a page about it");
  command->add_option("grid", options->grid, "The grid, a JSON file")->required()->type_name("FILE");
  add_model_option(*command, options->engine.model);
  command->add_option("-t,--threads", options->engine.threads, "Threads; 0: one per core")
      ->capture_default_str()
      ->envname("KVASIR_THREADS");
  command->add_option("--isa", options->engine.isa, "Kernels, as for 'kvasir run'")
      ->capture_default_str()
      ->envname("KVASIR_ISA");
  add_kv_memory_option(*command, options->engine);
  command->add_option("--parallel", options->parallel, "Items and windows under way at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      ->add_option(
          "--out", options->out,
          "Folder for results, one a cell; cells that are there are not run again. Default: the grid's name and "
          "-results")
      ->type_name("FOLDER");
  command->add_option("--report", options->report, "The page; default: report.html in that folder")
      ->type_name("FILE.html");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = eval_matrix(*options, outcome.line); });
}

}  // namespace kvasir::cli
