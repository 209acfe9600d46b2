// A benchmark task as data: how an item becomes a prompt, what the model is asked for, and how its answer is scored.
//
// A definition is a JSON object; docs/operations/tasks.md lists its fields. Its texts are Jinja templates over the
// fields of an item (a JSON object of the benchmark's own file), and over `index`, the item's number, and `file`, the
// name of its file without folder and ending. Unlike in Jinja, a newline at the end of a template stays.
// Thread-safety: an EvalTask is immutable.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/jinja.h"
#include "kvasir/status.h"

namespace kvasir {

// What the model is asked for.
enum class TaskRequest {
  kGenerate,  // a text, scored by metrics
  kChoices,   // the log-likelihood of each choice behind the prompt; the likeliest is the answer
  kRolling,   // the log-likelihood of the whole text
};

// Which part of a prompt is left out where it is longer than the context.
enum class Truncation {
  kRefuse,  // none: the item is an error
  kMiddle,  // the middle, as LongBench does
  kStart,   // the beginning, as lm-evaluation-harness does
};

// A template, and its source for messages.
struct TaskTemplate {
  std::string source;
  std::optional<jinja::Template> parsed;  // nullopt: the field is absent
};

struct EvalTask {
  std::string definition;  // its JSON, as parse_task got it
  std::string name;
  std::string generator;  // the generated task that makes its items; empty: they are in a file
  std::string title;
  std::string source;  // address of the benchmark
  TaskRequest request = TaskRequest::kGenerate;
  TaskTemplate leave_out;           // an item for which it writes something is not asked
  std::vector<std::string> fields;  // that every item must have: a template writes nothing for one that is missing
  // What an item's questions are about, in front of them. A model may read it before it is told the question.
  TaskTemplate context;
  TaskTemplate prompt;         // the question, behind the context; of kRolling the whole text
  TaskTemplate answer_prefix;  // begins the model's answer; of a chat it is the start of the assistant's message
  // The questions of an item: the field that lists them as objects, or the names of a question's fields, each with the
  // item's field that lists their values. Both empty: there is one question. The variables of `prompt` and the fields
  // below are then those of a question, and of the item where the question has none of the name.
  std::string turns_field;
  std::vector<std::pair<std::string, std::string>> turns_lists;
  // The names that the item's file has for its columns, where it does not say them itself.
  std::vector<std::string> columns;
  // kGenerate: right answers, as a template each, or as the field that has them: a text, a number, or a list of them.
  std::vector<TaskTemplate> references;
  std::string references_field;
  std::vector<std::string> prepare_references;  // steps on each right answer, by name
  std::string classes_field;                    // labels that may be confused; may be empty
  std::vector<std::string> metrics;
  std::vector<std::string> prepare;  // steps on the answer before it is scored, by name
  std::vector<std::string> stop;
  std::int64_t max_tokens = 128;
  std::int64_t min_tokens = 0;  // of an answer: before so many nothing ends it
  bool chat = true;             // false: it is asked as plain text, even where chats are asked for
  TaskTemplate chance;          // kGenerate: the score that a guess has of the first metric, mean; a number from 0 to 1
  // kChoices: one template each, or the field that lists them; and the number or letter of the right one.
  std::vector<TaskTemplate> choices;
  std::string choices_field;
  TaskTemplate answer;
  // Solved examples in front of the prompt, taken from the items of `shots_from`.
  int shots = 0;
  std::vector<TaskTemplate> shots_from;  // paths from the data's folder; none: the first items, which are not asked
  TaskTemplate target;                   // the answer of an example
  TaskTemplate description;              // in front of everything
  std::string separator = "\n\n";
  TaskTemplate group;  // results are also given by its value, such as a subject
  Truncation truncation = Truncation::kMiddle;
};

// Errors: kInvalidArgument that names the field and what is wrong with it.
Result<EvalTask> parse_task(std::string_view definition);

// One question about an item, ready to be asked. All of one item share `context`.
struct Question {
  std::string prompt;                   // behind the item's context
  std::string answer_prefix;            // behind the prompt
  std::vector<std::string> references;  // kGenerate
  std::vector<std::string> classes;     // kGenerate
  std::vector<std::string> choices;     // kChoices
  std::size_t answer = 0;               // kChoices: the right one
  std::optional<double> chance;         // the score of a guess, mean; nullopt: not known
  std::string golden;                   // a right answer as text, for conversations that go on behind it
};

struct TaskItem {
  std::string id;
  std::string group;
  std::string context;            // the description, the examples, and what the questions are about
  std::size_t context_begin = 0;  // where the last of these begins
  std::size_t cluster = 0;        // make_item: the item's index. Items whose scores depend on each other share one
  std::vector<Question> questions;
};

// Returns the variable `file` of the items of the file at `path`: "law_test" of "data/law_test.csv".
std::string file_variable(const std::string& path);

// Returns the paths at which the examples of a task may be when its items are those of the file at `data`, the first
// choice first; none if they are its first items. Errors: kInvalidArgument that names the template.
Result<std::vector<std::string>> shots_paths(const EvalTask& task, const std::string& data);

// Checks a record that is to be an example. Errors: kInvalidArgument that names the field or template.
Status check_example(const EvalTask& task, const nlohmann::ordered_json& record, std::size_t index,
                     std::string_view file = {});

// Returns whether the task asks nothing about an item. Errors: kInvalidArgument that names the template.
Result<bool> leaves_out(const EvalTask& task, const nlohmann::ordered_json& record, std::string_view file = {});

// `shots`: the examples' records. `file`: as file_variable(). Errors: kInvalidArgument that names the field or
// template, but not the item, whose place in its file the caller knows.
Result<TaskItem> make_item(const EvalTask& task, const nlohmann::ordered_json& record, std::size_t index,
                           const std::vector<nlohmann::ordered_json>& shots, std::string_view file = {});

}  // namespace kvasir
