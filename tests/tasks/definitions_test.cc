// The built-in definitions: each makes, of a small file in its benchmark's format, the prompts that are expected.
#include "tasks/definitions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "task_data.h"
#include "tasks/task.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

struct Expected {
  std::string data;
  std::vector<std::string> prompts;  // of all questions of all items
};

std::vector<std::string> prompts_of(const std::vector<TaskItem>& items) {
  std::vector<std::string> prompts;
  for (const TaskItem& item : items)
    for (const Question& question : item.questions)
      prompts.push_back(item.context + question.prompt + question.answer_prefix);
  return prompts;
}

constexpr const char* kDocument = "This is a document. Questions about it follow.\n\n<document>\n";
constexpr const char* kEnd = "\n</document>\n\n";
constexpr const char* kOneLetter = "\n\nAnswer with the letter of the right option and nothing else.\nAnswer:";

// Prompts that tests/tasks/write_prompts.py does not write: Kvasir's own, since L-Eval's licence is the GPL, and of
// SCBench those that multiturn_templates of scbench/eval_utils.py makes of a first question; scbench_mf asks behind the
// list alone.
std::map<std::string, Expected> own_prompts() {
  std::map<std::string, Expected> own;
  const std::string grains = kDocument + std::string("Rye and wheat are grains. A quay is a place.") + kEnd;
  const std::string several =
      "\n\nAnswer with the letter of the right option, or with the letters of all if several are right, such as BD, "
      "and "
      "nothing else.\nAnswer:";
  own["leval_coursera"] = {"leval/coursera.jsonl",
                           {grains + "Question 1. Which are grains?\nA. Rye\nB. Wheat\nC. Salt" + several,
                            grains + "Question 2. What is a quay?\nA. A tool\nB. A place" + several}};
  const std::string ferry = kDocument + std::string("She waited for the ferry. Anna came.") + kEnd;
  for (const char* name : {"leval_quality", "leval_tpo"})
    own[name] = {"leval/quality.jsonl",
                 {ferry + "Why did she wait?\n\n (A) For the ferry\n (B) For rain" + kOneLetter,
                  ferry + "Who came?\n\n (A) Nils\n (B) Anna" + kOneLetter}};
  own["leval_sci_fi"] = {"leval/sci_fi.jsonl",
                         {kDocument + std::string("In 2300 people lived on the moon.") + kEnd +
                          "1.\tPeople live on the moon, True or False? Answer for the story.\n\nAnswer True or False, "
                          "by what the document says even where the real world differs.\nAnswer:"}};
  own["leval_gsm100"] = {
      "leval/gsm100.jsonl",
      {"Question: 1 + 1?\nThe answer is 2\n\nQuestion: Ida has 2 cows and buys 3. How many has she?\n\n"
       "Solve it as the problems above are solved. End with \"The answer is\" and the number.\n"}};
  own["leval_topic_retrieval_longchat"] = {
      "leval/topic_retrieval_longchat.jsonl",
      {"This is a conversation about several topics.\n\nUSER: Let us talk about ferries.\n\n"
       "Which topic came first?\nAnswer:"}};
  own["leval_codeU"] = {"leval/codeU.jsonl",
                        {"def twice(x):\n    return 2 * x\n\n\nWhat does this print?\nprint(twice(4))\n"}};
  const std::string quay = kDocument + std::string("In May the town decided to build a new quay.") + kEnd;
  for (const char* name : {"financial_qa", "legal_contract_qa", "multidoc_qa", "narrative_qa", "natural_question",
                           "scientific_qa", "gov_report_summ", "meeting_summ", "news_summ", "paper_assistant",
                           "patent_summ", "review_summ", "tv_show_summ"})
    own[std::string("leval_") + name] = {
        "leval/open.jsonl",
        {quay + "What did the town decide?\n\nAnswer in about 5 words.\nAnswer:",
         quay + "When?\n\nAnswer in about 2 words.\nAnswer:",
         kDocument + std::string("A quay was built.") + kEnd + "Summarize.\n\nAnswer in about 2 words.\nAnswer:"}};
  own["scbench_mf"] = {
      "scbench/mf.jsonl",
      {"[3, 88, 12]\n\nWhat is the second largest number in the list?\n\nThe second largest number in the list is: ",
       "[3, 88, 12]\n\nWhat is the smallest number in the list?\n\nThe smallest number in the list is: ",
       "[1.5, 2]\n\nWhat is the mean of the list?\n\nThe mean of the list is: "}};
  const std::string book = "Read the book and answer the question. Be very concise in your answer.\n\n";
  own["scbench_qa_eng"] = {"scbench/qa_eng.jsonl",
                           {book + "Britta bought the mill.\n\nQuestion: Who bought it?\nAnswer:",
                            book + "Britta bought the mill.\n\nQuestion: What did she buy?\nAnswer:",
                            book + "It rained.\n\nQuestion: How was the weather?\nAnswer:"}};
  const std::string choice = "Read the book and answer the question.\n\n", end = "\n\nThe the correct answer is";
  own["scbench_choice_eng"] = {
      "scbench/choice_eng.jsonl",
      {choice +
           "Britta bought the mill.\n\nQuestion: What did she buy?\nA. The barn\nB. The mill\nC. The well\nD. The "
           "boat" +
           end,
       choice + "Britta bought the mill.\n\nQuestion: Who bought it?\nA. Britta\nB. Anna\nC. Nils\nD. Olaf" + end,
       choice + "It rained.\n\nQuestion: How was it?\nA. Dry\nB. Hot\nC. Cold\nD. Wet" + end}};
  return own;
}

std::map<std::string, Expected> expected_prompts() {
  std::map<std::string, Expected> expected = own_prompts();
  std::ifstream file(task_data("prompts.json"));
  const Json prompts = Json::parse(file);
  for (const auto& [name, each] : prompts.items())
    expected[name] = {each["data"], each["prompts"].get<std::vector<std::string>>()};
  return expected;
}

EvalTask task_of(const std::string& name) {
  Result<EvalTask> task = built_in_task(name);
  EXPECT_TRUE(task.ok()) << name << ": " << task.status().message();
  return task.ok() ? std::move(*task) : EvalTask();
}

TEST(Definitions, EachParsesAndNamesItsTitle) {
  std::string before;
  for (const TaskDefinition& each : task_definitions()) {
    const Result<EvalTask> task = parse_task(each.text);
    ASSERT_TRUE(task.ok()) << each.name << ": " << task.status().message();
    EXPECT_FALSE(task->title.empty()) << each.name;
    EXPECT_LT(before, each.name);
    before = each.name;
  }
  EXPECT_EQ(task_names().size(), task_definitions().size());
}

TEST(Definitions, EachMakesTheExpectedPrompts) {
  const std::map<std::string, Expected> expected = expected_prompts();
  for (const std::string_view name : task_names()) {
    SCOPED_TRACE(name);
    const auto found = expected.find(std::string(name));
    ASSERT_NE(found, expected.end());
    EXPECT_EQ(prompts_of(items_of(task_of(found->first), found->second.data)), found->second.prompts);
  }
  EXPECT_EQ(expected.size(), task_names().size());
}

// A context is what a model may read before it knows the question.
TEST(Definitions, ContextsDoNotHaveTheQuestion) {
  for (const auto& [name, expected] : expected_prompts()) {
    SCOPED_TRACE(name);
    const EvalTask task = task_of(name);
    const Result<ItemFile> file = ItemFile::open(task_data(expected.data), task.columns);
    ASSERT_TRUE(file.ok());
    const std::vector<TaskItem> items = items_of(task, expected.data);
    if (!task.context.parsed) continue;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Json& record = file->item(i);
      for (const char* field : {"input", "question"}) {
        if (!record.contains(field) || !record.contains("context")) continue;
        const std::string question = record[field];
        if (question.empty()) continue;
        EXPECT_EQ(items[i].context.find(question), std::string::npos) << question;
      }
      EXPECT_GE(items[i].questions.size(), 1u);
      if (record.contains("context") && record["context"].is_string()) {
        const std::string context = record["context"];
        const std::string inner = context.substr(1, context.size() - 2);
        EXPECT_NE(items[i].context.find(inner), std::string::npos);
      }
    }
  }
}

TEST(Definitions, RulerContextsEndBeforeTheLastLine) {
  const std::vector<TaskItem> items = items_of(task_of("ruler_vt"), "ruler/validation.jsonl");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_TRUE(items[0].context.ends_with("is: 48213."));
  EXPECT_EQ(items[1].questions[0].prompt, "\nQuestion: Which variables have the value 12345?");
  EXPECT_EQ(items[2].context, "");
  const std::vector<TaskItem> generated = items_of(task_of("generated"), "generated/kv_retrieval.jsonl");
  EXPECT_EQ(generated[0].questions[0].prompt, "\nKey: \"a1\"\n");
}

TEST(Definitions, RightAnswers) {
  const auto answers = [](const std::string& name, const std::string& data) {
    std::vector<std::vector<std::string>> all;
    for (const TaskItem& item : items_of(task_of(name), data))
      for (const Question& question : item.questions) all.push_back(question.references);
    return all;
  };
  using Answers = std::vector<std::vector<std::string>>;
  EXPECT_EQ(answers("math", "math/test.jsonl"), (Answers{{"\\frac{3}{4}"}, {"6"}}));
  EXPECT_EQ(answers("longbench_trec", "longbench/trec.jsonl"), (Answers{{"Number"}}));
  EXPECT_EQ(answers("longbench_v2", "longbench_v2/data.json"), (Answers{{"B"}, {"D"}}));
  EXPECT_EQ(answers("ruler_vt", "ruler/validation.jsonl")[1], (std::vector<std::string>{"ABC", "DEF"}));
  EXPECT_EQ(answers("infinitebench_longbook_choice_eng", "infinitebench/longbook_choice_eng.jsonl"),
            (Answers{{"The mill", "B"}, {"Rain", "D"}}));
  EXPECT_EQ(answers("infinitebench_code_debug", "infinitebench/code_debug.jsonl"),
            (Answers{{"save", "B"}, {"run", "D"}}));
  EXPECT_EQ(answers("infinitebench_code_run", "infinitebench/code_run.jsonl"), (Answers{{"13"}, {"-7"}}));
  EXPECT_EQ(answers("infinitebench_math_find", "infinitebench/math_find.jsonl"), (Answers{{"88"}, {"12.5"}}));
  EXPECT_EQ(answers("scbench_vt", "scbench/vt.jsonl"), (Answers{{"A", "B"}, {"C"}}));
  EXPECT_EQ(answers("leval_sci_fi", "leval/sci_fi.jsonl"), (Answers{{"True"}}));
  EXPECT_EQ(answers("leval_coursera", "leval/coursera.jsonl"), (Answers{{"AB"}, {"B"}}));
  EXPECT_EQ(items_of(task_of("longbench_trec"), "longbench/trec.jsonl")[0].questions[0].classes,
            (std::vector<std::string>{"Person", "Place", "Number"}));
}

// Tasks whose answer is one of a few say what guessing would give.
TEST(Definitions, ChancesOfChoicesThatAreWritten) {
  const auto chances = [](const std::string& name, const std::string& data) {
    std::vector<double> all;
    for (const TaskItem& item : items_of(task_of(name), data))
      for (const Question& question : item.questions) all.push_back(question.chance.value_or(-1));
    return all;
  };
  using Chances = std::vector<double>;
  EXPECT_EQ(chances("longbench_v2", "longbench_v2/data.json"), (Chances{0.25, 0.25}));
  EXPECT_EQ(chances("longbench_trec", "longbench/trec.jsonl"), Chances{1.0 / 3});
  EXPECT_EQ(chances("longbench_passage_retrieval_en", "longbench/longbench.jsonl"), Chances(3, 1.0 / 30));
  EXPECT_EQ(chances("leval_quality", "leval/quality.jsonl"), (Chances{0.25, 0.25}));
  EXPECT_EQ(chances("leval_tpo", "leval/quality.jsonl"), (Chances{0.25, 0.25}));
  // A guess that is one of several right letters scores a quarter. With two right letters half of the guesses are.
  EXPECT_EQ(chances("leval_coursera", "leval/coursera.jsonl"), (Chances{0.125, 0.25}));
  EXPECT_EQ(chances("leval_sci_fi", "leval/sci_fi.jsonl"), Chances{0.5});
  EXPECT_EQ(chances("infinitebench_longbook_choice_eng", "infinitebench/longbook_choice_eng.jsonl"), Chances(2, 0.25));
  EXPECT_EQ(chances("infinitebench_code_debug", "infinitebench/code_debug.jsonl"), Chances(2, 0.25));
  EXPECT_EQ(chances("scbench_choice_eng", "scbench/choice_eng.jsonl"), Chances(3, 0.25));
  EXPECT_EQ(chances("mmlu", "mmlu/test/bread_baking_test.csv"), Chances(3, 0.25));
  EXPECT_EQ(chances("longbench_lcc", "longbench/longbench.jsonl"), Chances(3, -1));
}

// L-Eval's own scores are of these items: people or models judge the others.
TEST(Definitions, LEvalLeavesOutWhatNoMetricScores) {
  for (const std::string_view name : task_names()) {
    const EvalTask task = task_of(std::string(name));
    if (!name.starts_with("leval_")) {
      EXPECT_FALSE(task.leave_out.parsed) << name;
      continue;
    }
    for (const char* scored : {"f1", "rouge", "exam"})
      EXPECT_FALSE(*leaves_out(task, {{"evaluation", scored}})) << name << ' ' << scored;
    for (const char* judged : {"LLM", "human", ""})
      EXPECT_TRUE(*leaves_out(task, {{"evaluation", judged}})) << name << ' ' << judged;
    EXPECT_FALSE(*leaves_out(task, Json::object())) << name;
  }
}

// As LongBench's pred.py asks chat models.
TEST(Definitions, LongBenchAsksSomeAsPlainText) {
  std::set<std::string> plain;
  for (const std::string_view name : task_names())
    if (!task_of(std::string(name)).chat) plain.emplace(name);
  EXPECT_EQ(plain, (std::set<std::string>{"longbench_trec", "longbench_triviaqa", "longbench_samsum", "longbench_lcc",
                                          "longbench_repobench_p"}));
  EXPECT_EQ(task_of("longbench_samsum").min_tokens, 1);
}

TEST(Definitions, ChoicesOfMmlu) {
  const std::vector<TaskItem> items = items_of(task_of("mmlu"), "mmlu/test/bread_baking_test.csv");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].group, "bread baking");
  EXPECT_EQ(items[0].questions[0].choices, (std::vector<std::string>{" A", " B", " C", " D"}));
  EXPECT_EQ(items[0].questions[0].answer, 0u);
  EXPECT_EQ(items[1].questions[0].answer, 1u);
  EXPECT_EQ(items[2].questions[0].answer, 2u);
}

TEST(Definitions, ARowOfNamesIsNoExample) {
  const Json names = Json::parse(
      R"({"question": "question", "A": "choice0", "B": "choice1", "C": "choice2", "D": "choice3", "answer": "answer"})");
  Json right = names;
  right["answer"] = "A";
  const EvalTask task = task_of("mmlu");
  EXPECT_TRUE(make_item(task, right, 0, {right}).ok());
  EXPECT_NE(make_item(task, right, 0, {names}).status().message().find("example 0: the answer 'answer'"),
            std::string::npos);
}

TEST(Definitions, GroupsAndIds) {
  EXPECT_EQ(items_of(task_of("math"), "math/test.jsonl")[1].group, "Geometry");
  EXPECT_EQ(items_of(task_of("math_500"), "math_500/test.jsonl")[1].group, "Prealgebra");
  const std::vector<TaskItem> items = items_of(task_of("longbench_v2"), "longbench_v2/data.json");
  EXPECT_EQ(items[0].group, "short");
  EXPECT_EQ(items[1].id, "66f1");
}

TEST(Definitions, ExamplesAreSoughtBesideTheDataAndWhereTheyArePublished) {
  const EvalTask task = task_of("mmlu");
  EXPECT_EQ(*shots_paths(task, "data/test/law_test.csv"),
            (std::vector<std::string>{"data/test/law_dev.csv", "data/dev/law_dev.csv"}));
  EXPECT_EQ(*shots_paths(task_of("gsm8k"), "test.jsonl"), std::vector<std::string>{"train.jsonl"});
  EXPECT_TRUE(shots_paths(task_of("math"), "test.jsonl")->empty());
}

TEST(Definitions, UnknownNamesListTheKnown) {
  const Status status = built_in_task("mmlx").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("mmlu"), std::string::npos);
}

TEST(Definitions, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { EXPECT_FALSE(task_definitions().empty()); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvasir
