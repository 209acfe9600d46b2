// The cells of an evaluation, each a task under one policy and codec: shared by `eval tasks` and `eval matrix`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "harness/endpoint_subject.h"
#include "harness/results.h"
#include "harness/task_data.h"
#include "harness/tested_model.h"

namespace kvasir::cli {

struct CellTask {
  EvalTask task;
  TaskDataOptions data;
  std::string filler;  // file; empty: the bundled tale
};

struct CellPlan {
  EngineOptions engine;
  std::vector<CellTask> tasks;
  std::vector<CacheSetting> settings;  // of an endpoint: one, empty
  AskOptions ask;
  bool share_prompts = false;  // what prompts begin with alike is read once; times are then those of no policy
  std::optional<EndpointOptions> endpoint;
  std::string out;      // folder for results; empty: none are stored
  std::string command;  // as typed
};

// A result in the schema "kvasir-eval/1": what was asked of whom, and "summary".
struct Cell {
  CacheSetting setting;
  Json json;
  TaskSummary summary;
  std::vector<QuestionResult> questions;
  Status ended;              // why the run ended early, with the questions so far; ok: the cell is whole
  std::size_t of_items = 0;  // questions that a whole cell has
  bool judges = false;       // its scores say whether the task gives a verdict: judge_of()'s cell; without one, each
};

// Returns the first setting with a full cache; nullopt: there is none. Where the model only guesses with a full cache,
// the scores of the other settings show nothing about their policies.
std::optional<std::size_t> judge_of(std::span<const CacheSetting> settings);

// Returns a task by its built-in name, or from its definition's file (.json).
Result<EvalTask> find_task(const std::string& name);

// Returns the command line as a shell would take it.
std::string command_text(const CommandLine& line);

// Returns a cell's file name without its ending: of its name what any file system takes, and a hash of its run_key().
std::string file_name_of(const std::string& name, const Json& key);

// A folder for results, which one run at a time has.
class ResultFolder {
 public:
  // Makes the folder, unless it is there. One that may not be written to is opened to be read. Errors: kIo;
  // kInvalidArgument: another run has it.
  static Result<ResultFolder> open(const std::string& path);
  ResultFolder(ResultFolder&& other) noexcept;
  ResultFolder& operator=(ResultFolder&& other) noexcept;
  ~ResultFolder();

  Status check_writable() const;  // errors: kIo

 private:
  ResultFolder(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

// Writes a cell beside the lines of its answers, whole or not at all.
Status write_cell(const Json& json, const std::string& path);

class CellRuns {
 public:
  virtual ~CellRuns() = default;
  // Finds the items of all tasks.
  static Result<std::unique_ptr<CellRuns>> create(CellPlan plan);

  // Loads the model, unless an endpoint is asked. Call it before the others.
  virtual Status load() = 0;
  virtual Json subject() const = 0;
  // Runs a cell, or the rest of it, with a progress bar. A run that ends early, such as by an interrupt or with its
  // server, gives a cell that says so. Errors: those of the cell's files.
  virtual Result<Cell> run(std::size_t task, std::size_t setting) = 0;
};

// Returns the status of a run that ended early with this cell, number `number` (from 1) of `count`: one line with how
// far it came and how to go on. `kept`: its answers are in a folder. REQUIRES: !cell.ended.ok().
Status ended_early(const Cell& cell, std::size_t number, std::size_t count, bool kept);

// Returns an error if no question of a cell has an answer: a table of zeros is no result. `cells`: [task][setting].
Status without_answers(const std::vector<std::vector<Cell>>& cells);

// Returns a line for a cell that judges and answers no better than a guess, or of which that is not known; otherwise
// "".
std::string chance_remark(const Cell& cell);

// Returns whether a cell's prompts were taken from those of earlier questions where they begin alike.
bool shares_prompts(const Cell& cell);

// Returns lines about which items were asked and how, which hold for all cells of a task.
std::vector<std::string> remarks_on_items(const Cell& cell);

// Returns lines about the answers of a cell: chance_remark(), questions without an answer, and shortened prompts.
std::vector<std::string> remarks_on_answers(const Cell& cell);

// Returns the rows of a table, one for each metric, and remarks about the cell. `header`: begins with the columns'
// names.
std::string rows_of(const Cell& cell, bool header);

}  // namespace kvasir::cli
