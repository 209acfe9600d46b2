#include "tasks/task.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "base/counted.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "tasks/item_variables.h"
#include "tasks/json_fields.h"
#include "tasks/messages.h"
#include "tasks/metrics/metric.h"
#include "tasks/metrics/preparation.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostShots = 64;
constexpr std::size_t kMostFields = 256;  // of an item
constexpr std::size_t kMostChoices = 26;
constexpr std::size_t kMostReferences = 64;  // templates
constexpr std::size_t kMostPlaces = 8;       // of the examples' file
constexpr std::size_t kMostTurns = 65536;
constexpr std::int64_t kMostAnswerTokens = 1 << 20;

// Reads the fields of a definition, of which some are templates.
class Definition : public JsonFields {
 public:
  using JsonFields::JsonFields;

  Status parse(const char* field, TaskTemplate* to) {
    std::string source;
    KVASIR_RETURN_IF_ERROR(text(field, &source));
    if (contains(field)) return parse_source(field, source, to);
    return {};
  }

  // Reads a text or a list of texts, each a template.
  Status parse_each(const char* field, std::size_t most, std::vector<TaskTemplate>* to) {
    const Json* value = find(field);
    if (value == nullptr) return {};
    std::vector<std::string> sources;
    if (value->is_string()) {
      sources.push_back(value->get<std::string>());
    } else {
      KVASIR_RETURN_IF_ERROR(texts(field, &sources));
    }
    if (sources.size() > most)
      return invalid_argument("'{}' has {} templates; there may be {}", field, sources.size(), most);
    for (const std::string& source : sources) KVASIR_RETURN_IF_ERROR(parse_source(field, source, &to->emplace_back()));
    return {};
  }

  static Status parse_source(const char* field, const std::string& source, TaskTemplate* to) {
    // Jinja drops one newline at the end, which a prompt needs.
    Result<jinja::Template> parsed = jinja::parse(source.ends_with('\n') ? source + '\n' : source);
    if (!parsed.ok()) return invalid_argument("'{}' is no template: {}", field, parsed.status().message());
    *to = {source, std::move(*parsed)};
    return {};
  }
};

template <class Kind>
Status read_kind(Definition& fields, const char* field, std::initializer_list<std::pair<std::string_view, Kind>> kinds,
                 Kind* to) {
  std::string typed;
  KVASIR_RETURN_IF_ERROR(fields.text(field, &typed));
  std::string names;
  for (const auto& [name, kind] : kinds) {
    if (name == typed) *to = kind;
    if (name == typed || typed.empty()) return {};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return invalid_argument("'{}' is '{}'; there are {}", field, typed.substr(0, 64), names);
}

// Reads a number, or a template that writes one.
Status read_chance(Definition& fields, EvalTask* task) {
  const Json* value = fields.find("chance");
  if (value == nullptr) return {};
  if (value->is_string()) return Definition::parse_source("chance", value->get<std::string>(), &task->chance);
  if (!value->is_number() || value->get<double>() < 0 || value->get<double>() > 1)
    return Definition::wrong("chance", "a number from 0 to 1, or a template that writes one");
  return Definition::parse_source("chance", dump_line(*value), &task->chance);
}

Status read_choices(Definition& fields, EvalTask* task) {
  const Json* value = fields.find("choices");
  if (value == nullptr) return {};
  if (value->is_string()) {
    task->choices_field = value->get<std::string>();
    return {};
  }
  std::vector<std::string> sources;
  KVASIR_RETURN_IF_ERROR(fields.texts("choices", &sources));
  if (sources.size() < 2 || sources.size() > kMostChoices)
    return invalid_argument("'choices' has {}; there may be 2 to {}", counted(std::ssize(sources), "template"),
                            kMostChoices);
  for (const std::string& source : sources)
    KVASIR_RETURN_IF_ERROR(Definition::parse_source("choices", source, &task->choices.emplace_back()));
  return {};
}

Status read_references(Definition& fields, EvalTask* task) {
  const Json* value = fields.find("references");
  if (value == nullptr) return {};
  if (!value->is_string() && !value->is_array())
    return Definition::wrong("references", "the name of a field or a list of templates");
  if (value->is_array()) return fields.parse_each("references", kMostReferences, &task->references);
  task->references_field = value->get<std::string>();
  return {};
}

Status read_turns(Definition& fields, EvalTask* task) {
  const Json* value = fields.find("turns");
  if (value == nullptr) return {};
  if (value->is_string()) {
    task->turns_field = value->get<std::string>();
    return {};
  }
  if (!value->is_object() || value->empty() ||
      !std::ranges::all_of(*value, [](const Json& each) { return each.is_string(); }))
    return Definition::wrong("turns", "the name of a field, or an object of names of fields");
  for (const auto& [name, list] : value->items()) task->turns_lists.emplace_back(name, list.get<std::string>());
  return {};
}

Status check_steps(const char* field, const std::vector<std::string>& steps) {
  for (const std::string& name : steps)
    if (find_preparation(name) == nullptr)
      return invalid_argument("'{}': there is no step '{}'; there are {}", field, name.substr(0, 64),
                              fmt::join(preparation_names(), ", "));
  return {};
}

// Checks that the fields fit together.
Status check(const EvalTask& task) {
  if (!task.prompt.parsed) return invalid_argument("'prompt' is missing");
  if (task.request == TaskRequest::kGenerate) {
    if (task.references_field.empty() && task.references.empty())
      return invalid_argument("'references' is missing: the field with right answers");
    if (task.metrics.empty())
      return invalid_argument("'metrics' is missing; there are {}", fmt::join(metric_names(), ", "));
    for (const std::string& name : task.metrics) {
      const Metric* metric = find_metric(name);
      if (metric == nullptr)
        return invalid_argument("'metrics': there is no metric '{}'; there are {}", name.substr(0, 64),
                                fmt::join(metric_names(), ", "));
      if (metric->needs_classes && task.classes_field.empty())
        return invalid_argument("'classes' is missing: {} needs the field that lists all labels", name);
    }
    KVASIR_RETURN_IF_ERROR(check_steps("prepare", task.prepare));
    KVASIR_RETURN_IF_ERROR(check_steps("prepare_references", task.prepare_references));
    if (task.max_tokens < 1) return invalid_argument("'max_tokens' must be at least 1");
    if (task.min_tokens > task.max_tokens) return invalid_argument("'min_tokens' must be at most 'max_tokens'");
  } else if (!task.metrics.empty() || !task.stop.empty() || task.min_tokens > 0 || task.chance.parsed) {
    return invalid_argument("'metrics', 'stop', 'min_tokens' and 'chance' are for tasks whose 'request' is 'generate'");
  }
  if (task.request == TaskRequest::kChoices) {
    if (task.choices.empty() && task.choices_field.empty()) return invalid_argument("'choices' is missing");
    if (!task.answer.parsed) return invalid_argument("'answer' is missing: the number or letter of the right choice");
  }
  if (std::ranges::count(task.stop, "") > 0)
    return invalid_argument("'stop' has an empty text, which would end every answer");
  if (task.request == TaskRequest::kRolling &&
      (!task.turns_field.empty() || !task.turns_lists.empty() || task.context.parsed || task.answer_prefix.parsed ||
       task.description.parsed || task.shots > 0))
    return invalid_argument(
        "a 'rolling' task scores its 'prompt' alone: turns, context, answer_prefix, description and shots have no "
        "place there");
  if (task.shots > 0 && !task.target.parsed) return invalid_argument("'target' is missing: the answer of an example");
  return {};
}

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_line(value);
}

// Returns the field's texts: one, or a list of them. `outer`: has it where `record` does not.
Result<std::vector<std::string>> texts_of(const Json& record, const Json& outer, const std::string& field) {
  std::vector<std::string> texts;
  if (field.empty()) return texts;
  const Json* value = record.contains(field) ? &record[field] : outer.contains(field) ? &outer[field] : nullptr;
  if (value == nullptr) return invalid_argument("the field '{}' is missing", field);
  const auto add = [&](const Json& each) -> Status {
    if (!each.is_string() && !each.is_number())
      return invalid_argument("the field '{}' must be a text, a number or a list of them, not {}", field,
                              each.is_object()    ? "an object"
                              : each.is_array()   ? "a list of lists"
                              : each.is_boolean() ? "true or false"
                                                  : "null");
    texts.push_back(shown(each));
    return {};
  };
  if (!value->is_array()) KVASIR_RETURN_IF_ERROR(add(*value));
  if (value->is_array())
    for (const Json& each : *value) KVASIR_RETURN_IF_ERROR(add(each));
  return texts;
}

// Reads "2", "C" or the choice's own text.
Result<std::size_t> number_of_choice(const std::string& answer, const std::vector<std::string>& choices) {
  std::string_view text = answer;
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  if (text.size() == 1 && text.front() >= '0' && text.front() <= '9' &&
      static_cast<std::size_t>(text.front() - '0') < choices.size())
    return static_cast<std::size_t>(text.front() - '0');
  if (text.size() == 1 && text.front() >= 'A' && static_cast<std::size_t>(text.front() - 'A') < choices.size())
    return static_cast<std::size_t>(text.front() - 'A');
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (choices[i] == answer) return i;
  return invalid_argument("the answer '{}' is none of the {} choices", text.substr(0, 64), choices.size());
}

Result<double> number_of_chance(const std::string& written) {
  double chance = -1;
  const char* end = written.data() + written.size();
  const auto [last, error] = std::from_chars(written.data(), end, chance);
  if (error != std::errc() || last != end || !(chance >= 0 && chance <= 1))
    return invalid_argument("'chance': '{}' is no number from 0 to 1", written.substr(0, 64));
  return chance;
}

Result<Question> make_question(const EvalTask& task, const ItemVariables& item, const Json& record, const Json& outer) {
  Question question;
  KVASIR_ASSIGN_OR_RETURN(question.prompt, item.render(task.prompt, "prompt"));
  KVASIR_ASSIGN_OR_RETURN(question.answer_prefix, item.render(task.answer_prefix, "answer_prefix"));
  if (task.request == TaskRequest::kGenerate) {
    KVASIR_ASSIGN_OR_RETURN(question.references, texts_of(record, outer, task.references_field));
    for (const TaskTemplate& reference : task.references) {
      KVASIR_ASSIGN_OR_RETURN(question.references.emplace_back(), item.render(reference, "references"));
      if (question.references.back().empty())
        return invalid_argument("'references': template {} writes nothing", question.references.size());
    }
    for (const std::string& step : task.prepare_references)
      for (std::string& reference : question.references) reference = find_preparation(step)->apply(reference);
    if (!task.classes_field.empty()) {
      KVASIR_ASSIGN_OR_RETURN(question.classes, texts_of(record, outer, task.classes_field));
      if (question.classes.empty())
        return invalid_argument("the field '{}' lists no label: every answer would be wrong", task.classes_field);
    }
    if (question.references.empty()) return invalid_argument("there is no right answer");
    if (std::ranges::count(question.references, "") > 0) return invalid_argument("a right answer is empty");
    question.golden = question.references.front();
    if (task.chance.parsed) {
      KVASIR_ASSIGN_OR_RETURN(const std::string chance, item.render(task.chance, "chance"));
      KVASIR_ASSIGN_OR_RETURN(question.chance, number_of_chance(chance));
    }
  }
  if (task.request != TaskRequest::kChoices) return question;
  for (const TaskTemplate& choice : task.choices) {
    KVASIR_ASSIGN_OR_RETURN(question.choices.emplace_back(), item.render(choice, "choices"));
  }
  if (!task.choices_field.empty()) {
    KVASIR_ASSIGN_OR_RETURN(question.choices, texts_of(record, outer, task.choices_field));
  }
  if (question.choices.size() < 2 || question.choices.size() > kMostChoices)
    return invalid_argument("it has {}; there may be 2 to {}", counted(std::ssize(question.choices), "choice"),
                            kMostChoices);
  KVASIR_ASSIGN_OR_RETURN(const std::string answer, item.render(task.answer, "answer"));
  KVASIR_ASSIGN_OR_RETURN(question.answer, number_of_choice(answer, question.choices));
  question.golden = question.choices[question.answer];
  question.chance = 1 / static_cast<double>(question.choices.size());
  return question;
}

Status check_record(const EvalTask& task, const Json& record) {
  if (!record.is_object()) return invalid_argument("it is no object");
  if (record.size() > kMostFields)
    return invalid_argument("it has {} fields; there may be {}", record.size(), kMostFields);
  for (const std::string& field : task.fields)
    if (!record.contains(field)) return invalid_argument("the field '{}' is missing", field);
  return {};
}

// Returns a solved example: context, question and answer.
Result<std::string> make_example(const EvalTask& task, const Json& record, std::size_t index, std::string_view file) {
  KVASIR_RETURN_IF_ERROR(check_record(task, record));
  const ItemVariables item(record, index, ItemVariables(file));
  // A row of names, read as an example, would go unseen.
  if (task.request == TaskRequest::kChoices) KVASIR_RETURN_IF_ERROR(make_question(task, item, record, record).status());
  std::string text;
  for (const auto& [part, field] :
       {std::pair(&task.context, "context"), std::pair(&task.prompt, "prompt"),
        std::pair(&task.answer_prefix, "answer_prefix"), std::pair(&task.target, "target")}) {
    KVASIR_ASSIGN_OR_RETURN(const std::string rendered, item.render(*part, field));
    text += rendered;
  }
  return text + task.separator;
}

std::string id_of(const Json& record, std::size_t index) {
  for (const char* field : {"_id", "id"})
    if (record.contains(field) && !record[field].is_null()) return shown(record[field]);
  return fmt::format("{}", index);
}

// Returns the questions of an item as objects.
Result<std::vector<Json>> turns_of(const EvalTask& task, const Json& record) {
  std::vector<Json> turns;
  const auto list_of = [&](const std::string& field) -> const Json* {
    const auto found = record.find(field);
    return found != record.end() && found->is_array() && !found->empty() && found->size() <= kMostTurns ? &*found
                                                                                                        : nullptr;
  };
  if (!task.turns_field.empty()) {
    const Json* list = list_of(task.turns_field);
    if (list == nullptr)
      return invalid_argument("the field '{}' must be a list of 1 to {} questions", task.turns_field, kMostTurns);
    for (const Json& turn : *list) {
      if (!turn.is_object() || turn.size() > kMostFields)
        return invalid_argument("question {} of '{}' must be an object of up to {} fields", turns.size(),
                                task.turns_field, kMostFields);
      turns.push_back(turn);
    }
    return turns;
  }
  for (const auto& [name, field] : task.turns_lists) {
    const Json* list = list_of(field);
    if (list == nullptr) return invalid_argument("the field '{}' must be a list of 1 to {} values", field, kMostTurns);
    if (turns.empty()) turns.resize(list->size(), Json::object());
    if (turns.size() != list->size())
      return invalid_argument("the field '{}' has {}, and '{}' has {}", field,
                              counted(static_cast<std::int64_t>(list->size()), "value"),
                              task.turns_lists.front().second, turns.size());
    for (std::size_t i = 0; i < turns.size(); ++i) turns[i][name] = (*list)[i];
  }
  return turns;
}

Result<TaskItem> make(const EvalTask& task, const Json& record, std::size_t index, const std::vector<Json>& shots,
                      std::string_view file) {
  KVASIR_RETURN_IF_ERROR(check_record(task, record));
  const ItemVariables item(record, index, ItemVariables(file));
  TaskItem made;
  made.id = id_of(record, index);
  made.cluster = index;
  KVASIR_ASSIGN_OR_RETURN(made.group, item.render(task.group, "group"));
  KVASIR_ASSIGN_OR_RETURN(made.context, item.render(task.description, "description"));
  for (std::size_t i = 0; i < shots.size(); ++i) {
    const Result<std::string> example = make_example(task, shots[i], i, file);
    if (!example.ok()) return invalid_argument("example {}: {}", i, example.status().message());
    made.context += *example;
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string context, item.render(task.context, "context"));
  made.context_begin = made.context.size();
  made.context += context;
  if (task.turns_field.empty() && task.turns_lists.empty()) {
    KVASIR_ASSIGN_OR_RETURN(made.questions.emplace_back(), make_question(task, item, record, record));
    return made;
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<Json> turns, turns_of(task, record));
  for (const Json& turn : turns) {
    const ItemVariables question(turn, index, item);
    KVASIR_ASSIGN_OR_RETURN(made.questions.emplace_back(), make_question(task, question, turn, record));
  }
  return made;
}

Result<EvalTask> read(std::string_view definition) {
  const ParsedOrderedJson parsed = parse_ordered_json(definition, {.levels = 8, .keys = kMostFields});
  const Json& json = parsed.value;
  if (parsed.end != ParsedOrderedJson::End::kDone || !json.is_object())
    return invalid_argument("a task's definition must be a JSON object{}{}", parsed.error.empty() ? "" : ": ",
                            json_reason(parsed.error));
  Definition fields(&json);
  EvalTask task;
  task.definition = definition;
  KVASIR_RETURN_IF_ERROR(fields.text("name", &task.name));
  KVASIR_RETURN_IF_ERROR(fields.text("title", &task.title));
  KVASIR_RETURN_IF_ERROR(fields.text("source", &task.source));
  KVASIR_RETURN_IF_ERROR(read_kind<TaskRequest>(
      fields, "request",
      {{"generate", TaskRequest::kGenerate}, {"choices", TaskRequest::kChoices}, {"rolling", TaskRequest::kRolling}},
      &task.request));
  KVASIR_RETURN_IF_ERROR(fields.parse("leave_out", &task.leave_out));
  KVASIR_RETURN_IF_ERROR(fields.texts("fields", &task.fields));
  KVASIR_RETURN_IF_ERROR(fields.parse("context", &task.context));
  KVASIR_RETURN_IF_ERROR(fields.parse("prompt", &task.prompt));
  KVASIR_RETURN_IF_ERROR(fields.parse("answer_prefix", &task.answer_prefix));
  KVASIR_RETURN_IF_ERROR(read_turns(fields, &task));
  KVASIR_RETURN_IF_ERROR(fields.texts("columns", &task.columns));
  KVASIR_RETURN_IF_ERROR(read_references(fields, &task));
  KVASIR_RETURN_IF_ERROR(fields.texts("prepare_references", &task.prepare_references));
  KVASIR_RETURN_IF_ERROR(fields.text("classes", &task.classes_field));
  KVASIR_RETURN_IF_ERROR(fields.texts("metrics", &task.metrics));
  KVASIR_RETURN_IF_ERROR(fields.texts("prepare", &task.prepare));
  KVASIR_RETURN_IF_ERROR(fields.texts("stop", &task.stop));
  KVASIR_RETURN_IF_ERROR(fields.number("max_tokens", kMostAnswerTokens, &task.max_tokens));
  KVASIR_RETURN_IF_ERROR(fields.number("min_tokens", kMostAnswerTokens, &task.min_tokens));
  KVASIR_RETURN_IF_ERROR(fields.truth("chat", &task.chat));
  KVASIR_RETURN_IF_ERROR(read_chance(fields, &task));
  KVASIR_RETURN_IF_ERROR(read_choices(fields, &task));
  KVASIR_RETURN_IF_ERROR(fields.parse("answer", &task.answer));
  KVASIR_RETURN_IF_ERROR(fields.number("shots", kMostShots, &task.shots));
  KVASIR_RETURN_IF_ERROR(fields.parse_each("shots_from", kMostPlaces, &task.shots_from));
  KVASIR_RETURN_IF_ERROR(fields.parse("target", &task.target));
  KVASIR_RETURN_IF_ERROR(fields.parse("description", &task.description));
  KVASIR_RETURN_IF_ERROR(fields.text("separator", &task.separator));
  KVASIR_RETURN_IF_ERROR(fields.parse("group", &task.group));
  KVASIR_RETURN_IF_ERROR(read_kind<Truncation>(
      fields, "truncation",
      {{"middle", Truncation::kMiddle}, {"start", Truncation::kStart}, {"refuse", Truncation::kRefuse}},
      &task.truncation));
  KVASIR_RETURN_IF_ERROR(fields.refuse_others());
  KVASIR_RETURN_IF_ERROR(check(task));
  return task;
}

}  // namespace

Result<EvalTask> parse_task(std::string_view definition) {
  Result<EvalTask> task = read(definition);
  if (task.ok()) return task;
  return one_line(task.status());
}

std::string file_variable(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

Result<std::vector<std::string>> shots_paths(const EvalTask& task, const std::string& data) {
  const ItemVariables item(Json::object(), 0, ItemVariables(file_variable(data)));
  std::vector<std::string> paths;
  for (const TaskTemplate& place : task.shots_from) {
    const Result<std::string> path = item.render(place, "shots_from");
    if (!path.ok()) return one_line(path.status());
    if (path->empty()) return invalid_argument("'shots_from' writes nothing");
    paths.push_back((std::filesystem::path(data).parent_path() / *path).lexically_normal().string());
  }
  return paths;
}

Status check_example(const EvalTask& task, const Json& record, std::size_t index, std::string_view file) {
  return one_line(make_example(task, record, index, file).status());
}

Result<bool> leaves_out(const EvalTask& task, const Json& record, std::string_view file) {
  if (!task.leave_out.parsed || !record.is_object()) return false;
  const Result<std::string> why = ItemVariables(record, 0, ItemVariables(file)).render(task.leave_out, "leave_out");
  if (!why.ok()) return one_line(why.status());
  return !why->empty();
}

Result<TaskItem> make_item(const EvalTask& task, const Json& record, std::size_t index, const std::vector<Json>& shots,
                           std::string_view file) {
  Result<TaskItem> item = make(task, record, index, shots, file);
  if (item.ok()) return item;
  return one_line(item.status());
}

}  // namespace kvasir
