#include "harness/task_data.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/counted.h"
#include "base/hash.h"
#include "base/status.h"
#include "tasks/definitions.h"
#include "tasks/generated/generated_tasks.h"
#include "tasks/item_file.h"
#include "tasks/messages.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

// What items are made of. The places say where in which file each record is, for messages.
struct Records {
  std::vector<Json> examples;
  std::vector<std::string> example_places;
  std::vector<Json> items;
  std::vector<std::string> places;
};

std::string place_of(const std::string& path, const ItemFile& file, std::size_t index) {
  return fmt::format("'{}', {}", path, file.place(index));
}

Result<Records> records_of(const EvalTask& task, const TaskDataOptions& options, const Tokenizer* tokenizer,
                           int shots) {
  Records records;
  KVASIR_RETURN_IF_ERROR(check_file(task, options));
  if (options.file.empty()) {
    if (tokenizer == nullptr) return invalid_argument("the length of generated items needs a model's tokenizer");
    const GenerateItems wanted{task.generator, options.tokens, options.count,
                               options.seed,   options.depths, options.filler};
    KVASIR_ASSIGN_OR_RETURN(records.items, generate_items(*tokenizer, wanted));
    for (std::size_t i = 0; i < records.items.size(); ++i)
      records.places.push_back(fmt::format("generated item {}", i + 1));
    return records;
  }
  KVASIR_ASSIGN_OR_RETURN(const ItemFile file, ItemFile::open(options.file, task.columns));
  const auto count = static_cast<std::size_t>(shots);
  std::size_t first = 0;
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> places, shots_paths(task, options.file));
  const ItemFile* from = &file;
  std::string from_path = options.file;
  Result<ItemFile> other = Status();
  if (count > 0 && places.empty()) first = count;
  if (count > 0 && !places.empty()) {
    const auto found = std::ranges::find_if(places, [](const std::string& path) {
      std::error_code ignored;
      return std::filesystem::exists(path, ignored);
    });
    from_path = found == places.end() ? places.front() : *found;
    other = ItemFile::open(from_path, task.columns);
    if (!other.ok())
      return other.status().with_message(fmt::format("the examples of '{}': {}; {} asks without them", task.name,
                                                     other.status().message(),
                                                     options.of_grid ? "\"shots\": 0" : "--shots 0"));
    from = &*other;
  }
  if (from->size() < count)
    return invalid_argument("'{}' has {}, too few for {}; give a smaller {}", from_path,
                            counted(static_cast<std::int64_t>(from->size()), "item"), counted(shots, "example"),
                            options.of_grid ? "\"shots\"" : "--shots");
  for (std::size_t i = 0; i < count; ++i) {
    records.examples.push_back(from->item(i));
    records.example_places.push_back(place_of(from_path, *from, i));
  }
  for (std::size_t i = first; i < file.size(); ++i) {
    records.items.push_back(file.item(i));
    records.places.push_back(place_of(options.file, file, i));
  }
  if (records.items.empty())
    return invalid_argument("'{}' has no items beside the {}", options.file, counted(shots, "example"));
  return records;
}

std::string fingerprint_of_items(const std::vector<TaskItem>& items) {
  Hasher hasher;
  const auto add = [&](std::string_view text) {
    const std::uint64_t size = text.size();
    hasher.add(std::as_bytes(std::span(&size, 1)));
    hasher.add(std::as_bytes(std::span(text)));
  };
  for (const TaskItem& item : items) {
    add(item.context);
    for (const Question& question : item.questions) {
      add(question.prompt);
      add(question.answer_prefix);
      for (const auto* texts : {&question.references, &question.classes, &question.choices})
        for (const std::string& text : *texts) add(text);
      add(fmt::format("{}", question.answer));
    }
  }
  return hasher.digest().hex();
}

// Gives items about the same text one cluster. A context without variables is an instruction, not such a text.
void share_clusters(const EvalTask& task, std::vector<TaskItem>* items) {
  const std::string& source = task.context.source;
  if (source.find("{{") == std::string::npos && source.find("{%") == std::string::npos) return;
  std::unordered_map<std::string_view, std::size_t> first;
  for (TaskItem& item : *items) {
    const std::string_view context = std::string_view(item.context).substr(item.context_begin);
    if (!context.empty()) item.cluster = first.try_emplace(context, item.cluster).first->second;
  }
}

std::string names_of_generated(bool GeneratedTask::*wanted) {
  std::vector<std::string_view> names;
  for (const GeneratedTask& each : generated_tasks())
    if (each.*wanted) names.push_back(each.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string names_with_examples() {
  std::vector<std::string_view> names;
  for (const std::string_view name : task_names()) {
    const Result<EvalTask> task = built_in_task(name);
    if (task.ok() && task->target.parsed) names.push_back(name);
  }
  return fmt::format("{}, and definitions with a 'target'", fmt::join(names, ", "));
}

}  // namespace

Status check_option(std::string_view option, std::string_view typed, std::span<const EvalTask> tasks) {
  const auto is_taken = [&](const EvalTask& task) {
    const GeneratedTask* generated = find_generated_task(task.generator);
    if (option == "file") return generated == nullptr;
    if (option == "shots") return generated == nullptr && task.target.parsed.has_value();
    if (option == "depths") return generated != nullptr && generated->depth;
    if (option == "filler") return generated != nullptr && generated->filler;
    return generated != nullptr;
  };
  if (std::ranges::any_of(tasks, is_taken)) return {};
  const std::string by = option == "file"     ? "tasks from a benchmark's file"
                         : option == "shots"  ? names_with_examples()
                         : option == "depths" ? names_of_generated(&GeneratedTask::depth)
                         : option == "filler" ? names_of_generated(&GeneratedTask::filler)
                                              : "generated tasks; --list shows them";
  std::vector<std::string_view> asked;
  for (const EvalTask& task : tasks) asked.push_back(task.name);
  return one_line(invalid_argument("{} changes nothing for {}; it is taken by {}", typed, fmt::join(asked, ", "), by));
}

Status check_file(const EvalTask& task, const TaskDataOptions& options) {
  if (!task.generator.empty() || !options.file.empty()) return {};
  return one_line(invalid_argument("the items of '{}' are in its benchmark's file; give that {}", task.name,
                                   options.of_grid ? R"(beside "task": "data": "FILE")" : "with --data"));
}

Result<TaskData> find_items(const EvalTask& task, const TaskDataOptions& options, const Tokenizer* tokenizer) {
  const int shots = options.shots >= 0 ? options.shots : task.shots;
  if (shots > 0 && !task.target.parsed)
    return invalid_argument("task '{}' has no examples: its definition has no 'target'", task.name);
  KVASIR_ASSIGN_OR_RETURN(const Records records, records_of(task, options, tokenizer, shots));
  TaskData data;
  const std::string name = options.file.empty() ? "" : file_variable(options.file);
  const std::size_t most = options.limit > 0 ? static_cast<std::size_t>(options.limit) : records.items.size();
  const auto at = [](const std::string& place, const Status& status) {
    return status.ok() ? status : status.with_message(one_line(fmt::format("{}: {}", place, status.message())));
  };
  for (std::size_t i = 0; i < records.examples.size(); ++i)
    KVASIR_RETURN_IF_ERROR(at(records.example_places[i], check_example(task, records.examples[i], i, name)));
  for (std::size_t i = 0; i < records.items.size() && data.items.size() < most; ++i) {
    const Result<bool> left_out = leaves_out(task, records.items[i], name);
    KVASIR_RETURN_IF_ERROR(at(records.places[i], left_out.status()));
    if (*left_out) {
      ++data.left_out;
      continue;
    }
    Result<TaskItem> item = make_item(task, records.items[i], data.items.size(), records.examples, name);
    KVASIR_RETURN_IF_ERROR(at(records.places[i], item.status()));
    data.items.push_back(std::move(*item));
  }
  if (data.items.empty())
    return one_line(invalid_argument("'{}': task '{}' leaves out all it has, {}", options.file, task.name,
                                     counted(static_cast<std::int64_t>(data.left_out), "item")));
  share_clusters(task, &data.items);
  // A trial has the same fact and text at all depths.
  for (std::size_t i = 0; i < data.items.size() && !options.depths.empty() && !task.generator.empty(); ++i)
    data.items[i].cluster = i / options.depths.size();
  data.fingerprint = fingerprint_of_items(data.items);
  data.described = options.file.empty() ? fmt::format("generated, {} tokens, seed {}", options.tokens, options.seed)
                                        : std::filesystem::path(options.file).filename().string();
  return data;
}

}  // namespace kvasir
