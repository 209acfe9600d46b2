// The results of a task under one setting: the schema from which tables, JSON and pages are made.
// Thread-safety: plain values; a ResultLog belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "harness/subject.h"
#include "kvasir/status.h"
#include "tasks/task.h"

namespace kvasir {

// One answered question.
struct QuestionResult {
  std::size_t item = 0;  // index in the task
  std::size_t question = 0;
  std::size_t cluster = 0;  // TaskItem::cluster
  std::string id;
  std::string group;
  std::string error;                     // why there is no answer; empty: there is one
  std::map<std::string, double> scores;  // by metric
  std::optional<double> chance;          // Question::chance
  std::int64_t words = 0;                // kRolling: of the text, split at white space
  double wall_seconds = 0;               // since the answer before it, or the beginning of the run
  QuestionAnswer answer;
};

// Scores an answer. Of kGenerate it computes the definition's metrics; of kChoices `acc` (the likeliest choice is
// right) and `acc_norm` (the one with the largest log-likelihood per character), as lm-evaluation-harness does. An
// answer with an error scores 0. Of kRolling it counts bytes and words, from whose sums summarize() computes
// perplexities.
QuestionResult score_answer(const EvalTask& task, const TaskItem& item, std::size_t index, std::size_t question,
                            QuestionAnswer answer);

// A mean over questions.
struct Mean {
  double mean = 0;
  double error = 0;  // standard error; NaN: unknown
  std::int64_t count = 0;
};

struct TaskSummary {
  std::map<std::string, Mean> metrics;
  std::map<std::string, std::map<std::string, Mean>> groups;  // by group, then by metric; empty without groups
  std::optional<double> chance;  // mean of what guessing would give; nullopt: of some question it is not known
  std::string judged;            // the metric that is compared with it; empty: none
  std::int64_t questions = 0;
  std::int64_t failed = 0;  // without an answer
  double wall_seconds = 0;
  // Sums and means over questions with an answer; nullopt where one of these does not know the figure, or there are
  // none.
  std::optional<std::int64_t> shortened;  // whose prompt was too long
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> answer_tokens;
  std::optional<double> kept_mean;
  std::optional<double> kv_bytes_mean;
  std::optional<std::uint64_t> kv_bytes_max;
};

// Returns the mean of values and its standard error. Questions on one context are right or wrong together, so they
// count as one draw: with G clusters, n values s and their mean m,
//   error^2 = G / (G - 1) * sum over clusters (sum over the cluster's values (s - m))^2 / n^2
// That is the clustered standard error of Miller, "Adding Error Bars to Evals" (2024, arXiv:2411.00640), section 2.2,
// with the factor for few clusters of Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference" (2015).
// With one value a cluster it is sd / sqrt(n), with n - 1 in the variance; with one cluster, or none, it is unknown.
// REQUIRES: as many clusters as values.
Mean mean_of(const std::vector<double>& values, const std::vector<std::size_t>& clusters);
// Takes each value as a cluster of its own.
Mean mean_of(const std::vector<double>& values);

// Returns the mean of the differences between two runs' scores on the same questions, and its standard error, clustered
// as above: smaller than that of either run where both find the same questions hard. Questions that one of the runs
// lacks are left out; where none is left, the count is 0.
Mean paired_difference(const std::vector<QuestionResult>& run, const std::vector<QuestionResult>& reference,
                       const std::string& metric);

// The results may be in any order; equal sets give equal bits.
TaskSummary summarize(const EvalTask& task, std::vector<QuestionResult> results);

// Whether a model answers better than one that guesses: with two standard errors between them. Where it does not, its
// scores show nothing about a policy.
enum class AboveChance { kYes, kNo, kUnknown };
// Returns kYes also where guesses do not matter; kUnknown: the standard error is not known.
AboveChance above_chance(const TaskSummary& summary);

// Figures that are not known are left out.
nlohmann::ordered_json to_json(const QuestionResult& result);
nlohmann::ordered_json to_json(const TaskSummary& summary);

// Reads what to_json wrote. Errors: kDataLoss.
Result<QuestionResult> question_result_from_json(const nlohmann::ordered_json& json);

// Returns what tells a run from all others: its header without the subject's threads, which change no answer.
nlohmann::ordered_json run_key(nlohmann::ordered_json header);

// Locks an open file or folder of results until it is closed: runs that only read do not exclude each other. Errors:
// kInvalidArgument where another run writes, or reads what this one would write.
Status lock_results(int descriptor, bool writes, const std::string& path);

// Appends each result to a file as it comes, a line of JSON each, so that a run that ended early goes on where it was.
class ResultLog {
 public:
  // Opens or creates the file. Its first line is `header`; a file with another one belongs to another run. A last line
  // that was not written whole is removed. The file is locked: one log at a time has it. A file that may not be written
  // to is opened to be read. Errors: kInvalidArgument for a file of another run, or one that another log has; kIo.
  static Result<ResultLog> open(const std::string& path, const nlohmann::ordered_json& header);
  ResultLog(ResultLog&& other) noexcept;
  ResultLog& operator=(ResultLog&& other) noexcept;
  ~ResultLog();

  const std::vector<QuestionResult>& found() const { return found_; }  // those of earlier runs
  Status check_writable() const { return writable_; }                  // errors: kIo
  // Errors: kResourceExhausted for a full disk; kIo. REQUIRES: check_writable().ok().
  Status add(const QuestionResult& result);

 private:
  ResultLog() = default;
  int descriptor_ = -1;
  std::string path_;
  Status writable_;
  std::vector<QuestionResult> found_;
};

}  // namespace kvasir
