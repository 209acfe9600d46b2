// Definitions and items that are wrong, and what a right definition may say.
#include "tasks/task.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "task_data.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

// Returns a definition with all that it needs, with `fields` (members of an object) besides.
std::string with(const std::string& fields) {
  Json definition = Json::parse(R"({"prompt": "{{q}}", "references": "a", "metrics": ["exact_match"]})");
  definition.update(Json::parse("{" + fields + "}"));
  return definition.dump();
}

EvalTask task_with(const std::string& fields) {
  Result<EvalTask> task = parse_task(with(fields));
  EXPECT_TRUE(task.ok()) << task.status().message();
  return task.ok() ? std::move(*task) : EvalTask();
}

Result<TaskItem> item_of(const EvalTask& task, const std::string& record) {
  return make_item(task, Json::parse(record), 7, {});
}

TEST(TaskDefinition, WrongDefinitionsNameTheField) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"", "JSON object"},
      {"{", "JSON object"},
      {"[]", "JSON object"},
      {"{\"a\": \"\xff\"}", "JSON object"},
      {std::string(100000, '['), "JSON object"},
      {R"({"references": "a", "metrics": ["exact_match"]})", "'prompt'"},
      {R"({"prompt": "x", "metrics": ["exact_match"]})", "'references'"},
      {R"({"prompt": "x", "references": "a"})", "'metrics'"},
      {with(R"("promt": "x")"), "'promt'"},
      {with(R"("prompt": 1)"), "'prompt'"},
      {with(R"("prompt": "{{")"), "'prompt'"},
      {with(R"("prompt": "{% nothing %}")"), "'prompt'"},
      {with(R"("context": "{{ 1 +")"), "'context'"},
      {with(R"("answer_prefix": [])"), "'answer_prefix'"},
      {with(R"("references": 1)"), "'references'"},
      {with(R"("references": [1])"), "'references'"},
      {with(R"("references": ["{{"])"), "'references'"},
      {with(R"("prepare_references": ["nothing"])"), "'prepare_references'"},
      {with(R"("prepare": ["nothing"])"), "'prepare'"},
      {with(R"("metrics": ["nothing"])"), "'metrics'"},
      {with(R"("metrics": "exact_match")"), "'metrics'"},
      {with(R"("stop": [1])"), "'stop'"},
      {with(R"("max_tokens": 0)"), "'max_tokens'"},
      {with(R"("max_tokens": -1)"), "'max_tokens'"},
      {with(R"("max_tokens": 1.5)"), "'max_tokens'"},
      {with(R"("max_tokens": 18446744073709551615)"), "'max_tokens'"},
      {with(R"("request": "write")"), "'request'"},
      {with(R"("request": "rolling")"), "'metrics'"},
      {with(R"("truncation": "end")"), "'truncation'"},
      {with(R"("turns": 1)"), "'turns'"},
      {with(R"("turns": {})"), "'turns'"},
      {with(R"("turns": {"question": 1})"), "'turns'"},
      {with(R"("shots": 5)"), "'target'"},
      {with(R"("shots": 65, "target": "x")"), "'shots'"},
      {with(R"("shots_from": ["{{"])"), "'shots_from'"},
      {with(R"("shots_from": 1)"), "'shots_from'"},
      {with(R"("columns": "a")"), "'columns'"},
      {with(R"("group": "{{")"), "'group'"},
      {with(R"("leave_out": "{{")"), "'leave_out'"},
      {with(R"("leave_out": ["x"])"), "'leave_out'"},
      {with(R"("chat": 0)"), "'chat'"},
      {with(R"("min_tokens": -1)"), "'min_tokens'"},
      {with(R"("min_tokens": 129)"), "'min_tokens'"},
      {R"({"request": "choices", "prompt": "x", "choices": ["a", "b"], "answer": "A", "min_tokens": 1})",
       "'min_tokens'"},
      {with(R"("chance": "{{")"), "'chance'"},
      {with(R"("chance": -0.1)"), "'chance'"},
      {with(R"("chance": 2)"), "'chance'"},
      {with(R"("chance": [0.5])"), "'chance'"},
      {R"({"request": "choices", "prompt": "x", "choices": ["a", "b"], "answer": "A", "chance": 0.5})", "'chance'"},
      {R"({"request": "choices", "prompt": "x", "answer": "A"})", "'choices'"},
      {R"({"request": "choices", "prompt": "x", "choices": ["a", "b"]})", "'answer'"},
      {R"({"request": "choices", "prompt": "x", "choices": ["a"], "answer": "A"})",
       "'choices' has 1 template; there may be 2 to 26"},
      {with(R"("metrics": ["exact_match", "classification_score"])"),
       "'classes' is missing: classification_score needs the field that lists all labels"},
  };
  for (const auto& [definition, field] : wrong) {
    const Status status = parse_task(definition).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << definition.substr(0, 200);
    EXPECT_NE(status.message().find(field), std::string::npos) << definition.substr(0, 200) << "\n" << status.message();
    expect_short_message(status.message());
  }
}

TEST(TaskDefinition, WrongItemsNameTheirNumberAndTheField) {
  const EvalTask plain = task_with(R"("fields": ["q"])");
  const EvalTask turns = task_with(R"("turns": "t")");
  const EvalTask lists = task_with(R"("turns": {"q": "qs", "a": "as"})");
  const EvalTask templates = task_with(R"("references": ["{{a}}"])");
  const EvalTask guesses = task_with(R"("chance": "{{ c }}")");
  const EvalTask labels = task_with(R"("metrics": ["classification_score"], "classes": "c")");
  const EvalTask writes = task_with(R"("context": "{% if m %}{{ m.x }}{% endif %}", "prompt": "{{ q | trim }}")");
  const EvalTask asks = task_with(R"("prompt": "{{ q }}", "turns": "t")");
  const EvalTask raises = task_with(R"("prompt": "{{ raise_exception('no') }}")");
  const std::vector<std::tuple<const EvalTask*, std::string, std::string>> wrong{
      {&plain, "[]", "object"},
      {&plain, "null", "object"},
      {&plain, R"({"a": "x"})", "'q'"},
      {&plain, R"({"q": "x"})", "'a'"},
      {&plain, R"({"q": "x", "a": null})", "'a' must be a text, a number or a list of them, not null"},
      {&plain, R"({"q": "x", "a": true})", "'a' must be a text, a number or a list of them, not true or false"},
      {&plain, R"({"q": "x", "a": {"b": 1}})", "'a' must be a text, a number or a list of them, not an object"},
      {&plain, R"({"q": "x", "a": ["y", null]})", "'a' must be a text, a number or a list of them, not null"},
      {&plain, R"({"q": "x", "a": ["y", false]})", "'a' must be a text, a number or a list of them, not true or false"},
      {&plain, R"({"q": "x", "a": [["y"]]})", "'a' must be a text, a number or a list of them, not a list of lists"},
      {&plain, R"({"q": "x", "a": []})", "no right answer"},
      {&turns, R"({"a": "x"})", "'t'"},
      {&turns, R"({"t": []})", "'t'"},
      {&turns, R"({"t": {}})", "'t'"},
      {&turns, R"({"t": ["x"]})", "'t'"},
      {&turns, R"({"t": [{"q": "x"}]})", "'a'"},
      {&lists, R"({"qs": ["x"]})", "'as'"},
      {&lists, R"({"qs": ["x", "y"], "as": ["z"]})", "'as'"},
      {&templates, R"({"q": "x"})", "'references'"},
      {&guesses, R"({"a": "x"})", "'chance': '' is no number from 0 to 1"},
      {&guesses, R"({"a": "x", "c": 1.5})", "'chance': '1.5' is no number from 0 to 1"},
      {&guesses, R"({"a": "x", "c": "nan"})", "'chance': 'nan' is no number from 0 to 1"},
      {&raises, R"({"a": "x"})", "'prompt'"},
      {&labels, R"({"a": "x"})", "the field 'c' is missing"},
      {&labels, R"({"a": "x", "c": []})", "the field 'c' lists no label"},
      {&writes, R"({"a": "x", "q": null})", "the field 'q' is null, for which 'prompt' would write \"None\""},
      {&writes, R"({"a": "x", "q": "None", "m": {"x": null}})", "the field 'm' holds null, for which 'context' would"},
      {&asks, R"({"a": "x", "t": [{"q": "y"}, {"q": null}]})", "the field 'q' is null, for which 'prompt' would"},
  };
  for (const auto& [task, record, field] : wrong) {
    const Status status = item_of(*task, record).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << record;
    EXPECT_NE(status.message().find(field), std::string::npos) << record << "\n" << status.message();
    expect_short_message(status.message());
  }
  Json many = Json::object();
  for (int i = 0; i < 300; ++i) many["f" + std::to_string(i)] = i;
  EXPECT_NE(make_item(plain, many, 0, {}).status().message().find("300 fields"), std::string::npos);
}

TEST(TaskDefinition, ANullThatIsNotWrittenIsNoError) {
  const EvalTask task = task_with(R"("context": "{{ c or 'None' }}", "prompt": "{% if q is none %}none{% endif %}")");
  const Result<TaskItem> item = item_of(task, R"({"a": "x", "id": null, "c": null, "q": null, "more": [null]})");
  ASSERT_TRUE(item.ok()) << item.status().message();
  EXPECT_EQ(item->id, "7");
  EXPECT_EQ(item->context, "None");
  EXPECT_EQ(item->questions[0].prompt, "none");
  // A question's own field counts before the null of its item.
  const EvalTask turns = task_with(R"("prompt": "{{ q }}", "turns": "t")");
  EXPECT_EQ(item_of(turns, R"({"a": "x", "q": null, "t": [{"q": "None"}]})")->questions[0].prompt, "None");
}

TEST(TaskDefinition, EndlessTemplatesEnd) {
  const EvalTask task =
      task_with(R"("prompt": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")");
  const Status status = item_of(task, R"({"a": "x"})").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'prompt'"), std::string::npos);
}

TEST(TaskDefinition, NewlinesAtTheEndStay) {
  const EvalTask task = task_with(R"("context": "{{c}}\n\n", "prompt": "\n", "answer_prefix": "A\n")");
  const Result<TaskItem> item = item_of(task, R"({"c": "x", "a": 1})");
  ASSERT_TRUE(item.ok());
  EXPECT_EQ(item->context, "x\n\n");
  EXPECT_EQ(item->questions[0].prompt, "\n");
  EXPECT_EQ(item->questions[0].answer_prefix, "A\n");
}

TEST(TaskDefinition, VariablesOfTheFileAndTheNumber) {
  const EvalTask task = task_with(R"("prompt": "{{file}} {{index}}")");
  const Json record = Json::parse(R"({"a": "x"})");
  EXPECT_EQ(make_item(task, record, 3, {}, file_variable("a/b_test.csv"))->questions[0].prompt, "b_test 3");
  // An item's own field counts before the name of its file.
  EXPECT_EQ(make_item(task, Json::parse(R"({"a": 1, "file": "mine"})"), 3, {}, "x")->questions[0].prompt, "mine 3");
}

TEST(TaskDefinition, RightAnswersAreTextsOrNumbers) {
  const EvalTask task = task_with("");
  EXPECT_EQ(item_of(task, R"({"a": "x"})")->questions[0].references, std::vector<std::string>{"x"});
  EXPECT_EQ(item_of(task, R"({"a": 4})")->questions[0].references, std::vector<std::string>{"4"});
  EXPECT_EQ(item_of(task, R"({"a": ["x", 2, 0.5]})")->questions[0].references,
            (std::vector<std::string>{"x", "2", "0.5"}));
  const EvalTask steps = task_with(R"("prepare_references": ["last_boxed"])");
  EXPECT_EQ(item_of(steps, R"({"a": "so \\boxed{4}."})")->questions[0].references, std::vector<std::string>{"4"});
}

TEST(TaskDefinition, ChancesAreNumbersOrOfTheItem) {
  EXPECT_FALSE(item_of(task_with(""), R"({"a": "x"})")->questions[0].chance);
  EXPECT_EQ(item_of(task_with(R"("chance": 0.25)"), R"({"a": "x"})")->questions[0].chance, 0.25);
  EXPECT_EQ(item_of(task_with(R"("chance": 1e-7)"), R"({"a": "x"})")->questions[0].chance, 1e-7);
  const EvalTask task = task_with(R"("chance": "{{ 1 / (c | length) }}", "turns": "t")");
  const Result<TaskItem> item = item_of(task, R"({"a": "x", "t": [{"c": [1, 2]}, {"c": [1, 2, 3]}]})");
  ASSERT_TRUE(item.ok()) << item.status().message();
  EXPECT_EQ(item->questions[0].chance, 0.5);
  EXPECT_EQ(item->questions[1].chance, 1.0 / 3);
}

TEST(TaskDefinition, TurnsSeeTheirItem) {
  const EvalTask task = task_with(R"("prompt": "{{q}} of {{c}}", "context": "{{c}}", "turns": "t")");
  const Result<TaskItem> item =
      item_of(task, R"({"c": "x", "a": "outer", "t": [{"q": "1", "a": "y"}, {"q": "2", "c": "z"}]})");
  ASSERT_TRUE(item.ok()) << item.status().message();
  ASSERT_EQ(item->questions.size(), 2u);
  EXPECT_EQ(item->context, "x");
  EXPECT_EQ(item->questions[0].prompt, "1 of x");
  EXPECT_EQ(item->questions[0].golden, "y");
  EXPECT_EQ(item->questions[1].prompt, "2 of z");
  EXPECT_EQ(item->questions[1].golden, "outer");
}

TEST(TaskDefinition, ExamplesAreInFront) {
  const EvalTask task =
      task_with(R"("description": "D\n", "context": "{{c}} ", "answer_prefix": ":", "target": " {{a}}", )"
                R"("shots": 1, "separator": "\n--\n")");
  const Result<TaskItem> item = make_item(task, Json::parse(R"({"c": "c1", "q": "q1", "a": "a1"})"), 1,
                                          {Json::parse(R"({"c": "c0", "q": "q0", "a": "a0"})")});
  ASSERT_TRUE(item.ok());
  EXPECT_EQ(item->context + item->questions[0].prompt + item->questions[0].answer_prefix, "D\nc0 q0: a0\n--\nc1 q1:");
  EXPECT_NE(make_item(task, Json::parse(R"({"a": 1})"), 1, {Json::parse("[]")}).status().message().find("example 0"),
            std::string::npos);
}

TEST(TaskDefinition, ChoicesOfAField) {
  const Result<EvalTask> task =
      parse_task(R"({"request": "choices", "prompt": "{{q}}", "choices": "c", "answer": "{{a}}"})");
  ASSERT_TRUE(task.ok());
  EXPECT_EQ(item_of(*task, R"({"q": "x", "c": ["one", "two"], "a": 1})")->questions[0].answer, 1u);
  EXPECT_EQ(item_of(*task, R"({"q": "x", "c": ["one", "two"], "a": "B"})")->questions[0].answer, 1u);
  EXPECT_EQ(item_of(*task, R"({"q": "x", "c": ["one", "two"], "a": "two"})")->questions[0].answer, 1u);
  for (const char* record :
       {R"({"q": "x", "c": ["one", "two"], "a": "C"})", R"({"q": "x", "c": ["one", "two"], "a": 2})",
        R"({"q": "x", "c": ["one"], "a": 0})", R"({"q": "x", "a": 0})"})
    EXPECT_FALSE(item_of(*task, record).ok()) << record;
}

TEST(TaskDefinition, InvalidUtf8IsReplacedInPrompts) {
  Json record = Json::object();
  record["q"] = "a\xff";
  record["a"] = "x";
  EXPECT_EQ(make_item(task_with(""), record, 0, {})->questions[0].prompt, "a\xEF\xBF\xBD");
}

}  // namespace
}  // namespace kvasir
